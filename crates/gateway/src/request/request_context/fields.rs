//! Writes the gateway's own headers into the head of a response.

use http::{HeaderMap, HeaderValue, Response};

use super::RequestContext;
use crate::forward::body::ResponseBody;
use crate::rejection::Rejection;
use tollgate_limit::Micros;
use tollgate_response::quota_headers::{QuotaFields, Report, make_room};
use tollgate_response::{Form, RefusalForm, write_headers};

/// The headers of a response that are not in its header table but are written after it.
pub(crate) enum Lines {
    Nothing,
    Quota,
    /// All headers of a refusal with this content type and retry time, and the quota headers.
    Refusal(HeaderValue, Option<Micros>),
}

impl RequestContext {
    /// The response of the gateway itself. Where possible, and unless the route edits its headers
    /// (`edited`), it has no header table: its headers are written with the head.
    pub(crate) fn refusal(
        &mut self,
        rejection: &Rejection,
        form: &RefusalForm,
        edited: bool,
    ) -> Response<ResponseBody> {
        let (snapshot, id) = (&self.snapshot, self.id());
        let own = snapshot
            .refusal_body(self.account.route)
            .and_then(|body| Form::of(body, self.calls.as_deref()));
        let prepared = self.account.judged.denied().and_then(|denied| {
            let mut refusing = denied.refused();
            let only = refusing.next().filter(|_| refusing.next().is_none())?;
            Some(&snapshot.denials[self.account.claims.charges()[only].limit])
        });
        let bare = if edited {
            None
        } else {
            rejection.response_without_table(form, own, prepared, id.as_str())
        };
        match bare {
            Some((response, content_type)) => {
                self.lines = Lines::Refusal(content_type, rejection.retry_after());
                response
            }
            None => rejection.response(form, own, id.as_str()),
        }
    }

    /// Adds quota headers to the response: after its header table when the head is written
    /// (`behind`, [`Self::write_fields`]), or in the table.
    pub(crate) fn annotate(&mut self, headers: &mut HeaderMap, behind: bool) {
        if !behind {
            return self.with_report(|quota, report| quota.annotate(headers, report));
        }
        if matches!(self.lines, Lines::Nothing)
            && !self.snapshot.quota.is_silent()
            && self
                .account
                .judged
                .reported(&self.account.claims, &self.snapshot.policy.limits)
                .next()
                .is_some()
        {
            make_room(headers);
            self.lines = Lines::Quota;
        }
    }

    /// Passes the contents of the quota headers to `tell`.
    fn with_report(&self, tell: impl FnOnce(&QuotaFields, &Report<'_>)) {
        let judged = &self.account.judged;
        let limits = &self.snapshot.policy.limits;
        let report = Report {
            facts: &judged.facts(&self.account.claims, limits),
            refused: judged.refuses(),
            retry_after: judged.retry_after(),
            now: self.account.at,
        };
        tell(&self.snapshot.quota, &report);
    }

    pub(crate) fn write_fields(&self, out: &mut Vec<u8>) {
        match &self.lines {
            Lines::Nothing => return,
            Lines::Quota => {}
            Lines::Refusal(content_type, wait) => write_headers(out, content_type, *wait),
        }
        self.with_report(|quota, report| quota.write(out, report));
    }
}
