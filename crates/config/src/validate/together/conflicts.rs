//! Reports mistakes that a policy finds between its parts, at their places in the file.

use crate::reading::{Context, Place};
use tollgate_policy::BuildError;
use tollgate_policy::identity::WhenMissing;

pub(crate) struct Places {
    pub(crate) identities: Vec<IdentityPlace>,
    pub(crate) routes: Vec<(String, Place)>,
}

pub(crate) struct IdentityPlace {
    pub(crate) name: String,
    pub(crate) key: Place,
    pub(crate) when_missing: (WhenMissing, Place),
}

impl Places {
    fn identity(&self, index: usize) -> (&str, Place) {
        let identity = self.identities.get(index);
        identity.map_or(("", Place::default()), |found| (&found.name, found.key))
    }

    fn route(&self, index: usize) -> (&str, Place) {
        let route = self.routes.get(index);
        route.map_or(("", Place::default()), |(name, place)| (name, *place))
    }
}

/// Reports a mistake from the policy's own checks at its place in the file.
pub(crate) fn build_error(error: BuildError, places: &Places, context: &mut Context<'_>) {
    match error {
        BuildError::Tie { first, second } => {
            let ((first_name, first), (second_name, second)) =
                (places.route(first), places.route(second));
            let title = format!("routes `{first_name}` and `{second_name}` tie");
            context
                .error(title, second, "matches some of the same requests")
                .at(first, "and neither is more specific")
                .help(if first_name == second_name {
                    "one of them must go, or match more: a method, a host, a header"
                } else {
                    "the most specific route wins: make one of them more specific, or add a route for what both match"
                });
        }
        BuildError::Unreachable { route, by } => {
            let (name, place) = places.route(route);
            let title = format!("route `{name}` can never match");
            let label = if by.len() == 1 {
                "takes all of its requests"
            } else {
                "takes some of its requests"
            };
            let problem = context.error(title, place, "never reached");
            for other in by {
                problem.at(places.route(other).1, label);
            }
        }
        BuildError::EncodedSlash(route) => {
            let (name, place) = places.route(route);
            let title = format!("route `{name}` can never match");
            context
                .error(title, place, "paths with an encoded slash are refused")
                .help("[server] encoded_slash = \"keep\" takes it for a character of its segment");
        }
        BuildError::UnknownCapture {
            route,
            identity,
            name,
        } => {
            let ((route, place), (identity, at)) = (places.route(route), places.identity(identity));
            let title = format!(
                "identity `{identity}` is made of `path:{name}`, but route `{route}` has no `{{{name}}}`"
            );
            context
                .error(title, place, format!("no segment is called `{name}`"))
                .at(at, "the identity");
        }
        BuildError::TemplateCapture { route, name } => {
            let (route, place) = places.route(route);
            let title = format!(
                "a template says `{{path:{name}}}`, but route `{route}` has no `{{{name}}}`"
            );
            context.error(title, place, format!("no segment is called `{name}`"));
        }
        BuildError::IdentityCycle(identity) => cycle(identity, places, context),
        BuildError::CallersOfComposite(identity) => {
            let (name, place) = places.identity(identity);
            let title = format!(
                "identity `{name}` lists callers by the hash of their key, but has no one key to hash"
            );
            let label = "exactly one source is needed, and not the address";
            context.error(title, place, label);
        }
        BuildError::FirstOfMixed(identity) => {
            let (name, place) = places.identity(identity);
            let title = format!("the sources of identity `{name}` cannot replace one another");
            let label = "either all are keys that clients send, or all are claims of a token";
            context.error(title, place, label).help("define an identity for each, and name the second in the first: when_missing = \"use:OTHER\"");
        }
        BuildError::Sources(identity) => {
            let (name, place) = places.identity(identity);
            let title = format!("the key of identity `{name}` has too many parts");
            context.error(title, place, "fewer sources were expected");
        }
        BuildError::BodyAsked(route) => {
            let label = "64 members or form fields are the most, of all routes together";
            context.error("too much is asked of bodies", places.route(route).1, label);
        }
    }
}

/// A cycle of `when_missing`, reported once, at its first identity.
fn cycle(first: usize, places: &Places, context: &mut Context<'_>) {
    let mut marks = Vec::new();
    let mut at = first;
    // As many steps as there are identities: the cycle closes within them.
    for _ in &places.identities {
        let Some((WhenMissing::Use(next), place)) = places
            .identities
            .get(at)
            .map(|identity| identity.when_missing)
        else {
            break;
        };
        marks.push(place);
        at = next;
        match at.cmp(&first) {
            std::cmp::Ordering::Less => return,
            std::cmp::Ordering::Equal => break,
            std::cmp::Ordering::Greater => {}
        }
    }
    let Some((start, others)) = marks.split_first() else {
        return;
    };
    let title = format!("identity `{}` replaces itself", places.identity(first).0);
    let problem = context.error(title, *start, "the circle begins here");
    for place in others {
        problem.at(*place, "goes on here");
    }
    problem.help("the last one must end: when_missing = \"refuse\", \"skip\" or \"use:address\"");
}
