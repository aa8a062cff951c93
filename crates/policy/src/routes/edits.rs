//! Fills the templates of header edits and redirects from the request. The gateway applies them to messages.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{HeaderEdits, Placeholder, Template};
use crate::identity::lookalikes::drop_lookalikes;
use crate::{Descriptor, Identified, Match, Policy};

impl Policy {
    /// Header edits with their templates filled, to be applied when the headers are available.
    pub fn edits<'p>(
        &self,
        edits: &'p HeaderEdits,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
    ) -> FilledEdits<'p> {
        let fill = |(name, template): &'p (HeaderName, Template)| {
            (
                name,
                template.header_value(|placeholder, into| {
                    self.fill(placeholder, matched, who, request, into)
                }),
            )
        };
        FilledEdits {
            remove: &edits.remove,
            set: edits.set.iter().map(fill).collect(),
        }
    }

    pub fn location(
        &self,
        template: &Template,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
    ) -> HeaderValue {
        template.location(|placeholder, into| self.fill(placeholder, matched, who, request, into))
    }

    fn fill(
        &self,
        placeholder: &Placeholder,
        matched: &Match<'_>,
        who: &Identified,
        request: &Descriptor<'_>,
        into: &mut Vec<u8>,
    ) {
        let route = &self.routes[matched.route];
        let address;
        let text = match placeholder {
            Placeholder::Tier => who.tier().map_or("", |tier| tier),
            Placeholder::Caller => who.caller.as_ref().map_or("", |caller| &caller.name),
            Placeholder::Route => &route.name,
            Placeholder::Address => {
                address = request.client.map(|client| client.to_string());
                address.as_deref().unwrap_or_default()
            }
            Placeholder::Host => &request.host,
            Placeholder::RequestPath => request.target_path,
            Placeholder::Query => request.query.unwrap_or_default(),
            Placeholder::Path(name) => {
                let place = route.pattern.capture(name);
                let capture = place.and_then(|index| matched.captures.get(index));
                capture.map_or("", |text| text)
            }
            Placeholder::Identity(index) => {
                let resolved = who.resolved.iter().find(|one| one.identity == *index);
                match resolved.and_then(|one| one.caller.as_ref()) {
                    Some(caller) => &caller.name,
                    None => {
                        return into.extend(self.evidence(matched, request, who.at).text(*index));
                    }
                }
            }
        };
        into.extend_from_slice(text.as_bytes());
    }
}

#[derive(Clone, Debug, Default)]
pub struct FilledEdits<'p> {
    remove: &'p [HeaderName],
    set: Vec<(&'p HeaderName, HeaderValue)>,
}

impl FilledEdits<'_> {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    /// Changes `headers`: removals first, then settings, each replacing all lines of its name.
    /// Names that look like them are removed, too.
    pub fn apply(self, headers: &mut HeaderMap) {
        if self.is_empty() {
            return;
        }
        drop_lookalikes(headers, |real| {
            let removed = self.remove.iter().any(|name| name.as_str() == real);
            removed || self.set.iter().any(|(name, _)| name.as_str() == real)
        });
        for name in self.remove {
            headers.remove(name);
        }
        for (name, value) in self.set {
            headers.insert(name, value);
        }
    }
    /// Adds missing headers to those of a refusal. Headers that the refusal has are kept: a route's
    /// cache rules and content type are for the upstream's responses.
    pub fn complete(self, headers: &mut HeaderMap) {
        for (name, value) in self.set {
            headers.entry(name).or_insert(value);
        }
    }
}
