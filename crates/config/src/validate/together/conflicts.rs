//! Reports mistakes that a policy finds between its parts, at their places in the file.

use crate::problem::Problem;
use crate::source::{At, Place};
use crate::validate::Context;
use tollgate_policy::BuildError;
use tollgate_policy::identity::WhenMissing;

/// The places of a policy's parts in the file.
pub(crate) struct Places<'p> {
    /// The names of the identities.
    pub(crate) written: &'p [At<String>],
    /// Each identity's `when_missing`.
    pub(crate) when_missing: &'p [WhenMissing],
    /// The place of each `when_missing`.
    pub(crate) missing_places: Vec<Place>,
    /// The place of each key setting.
    pub(crate) key_places: Vec<Place>,
    pub(crate) routes: Vec<Place>,
    pub(crate) route_names: Vec<String>,
}

/// Reports a mistake from the policy's own checks at its place in the file.
pub(crate) fn build_error(error: BuildError, places: &Places<'_>, context: &mut Context<'_>) {
    let identity = |index: usize| {
        let name = places
            .written
            .get(index)
            .map_or("", |name| name.value.as_str());
        (
            name,
            places.key_places.get(index).copied().unwrap_or_default(),
        )
    };
    let route = |index: usize| {
        let name = places.route_names.get(index).map_or("", String::as_str);
        (name, places.routes.get(index).copied().unwrap_or_default())
    };
    let problem = match error {
        BuildError::Tie { first, second } => {
            let ((first_name, first), (second_name, second)) = (route(first), route(second));
            let problem = Problem::error(format!("routes `{first_name}` and `{second_name}` tie"))
                .at(second, "matches some of the same requests")
                .at(first, "and neither is more specific");
            if first_name == second_name {
                problem.help("one of them must go, or match more: a method, a host, a header")
            } else {
                problem.help(
                    "the most specific route wins: make one of them more specific, or add a route for what both match",
                )
            }
        }
        BuildError::Unreachable { route: index, by } => {
            let (name, place) = route(index);
            let mut problem = Problem::error(format!("route `{name}` can never match"))
                .at(place, "never reached");
            let label = if by.len() == 1 {
                "takes all of its requests"
            } else {
                "takes some of its requests"
            };
            for other in by {
                problem = problem.at(route(other).1, label);
            }
            problem
        }
        BuildError::EncodedSlash { route: index } => {
            let (name, place) = route(index);
            Problem::error(format!("route `{name}` can never match"))
                .at(place, "paths with an encoded slash are refused")
                .help("[server] encoded_slash = \"keep\" takes it for a character of its segment")
        }
        BuildError::UnknownCapture {
            route: index,
            identity: by,
            name,
        } => {
            let ((route_name, place), (identity_name, at)) = (route(index), identity(by));
            Problem::error(format!(
                "identity `{identity_name}` is made of `path:{name}`, but route `{route_name}` has no `{{{name}}}`"
            ))
            .at(place, format!("no segment is called `{name}`"))
            .at(at, "the identity")
        }
        BuildError::TemplateCapture { route: index, name } => {
            let (route_name, place) = route(index);
            Problem::error(format!(
                "a template says `{{path:{name}}}`, but route `{route_name}` has no `{{{name}}}`"
            ))
            .at(place, format!("no segment is called `{name}`"))
        }
        BuildError::IdentityCycle { identity: index } => match cycle(index, places) {
            Some(problem) => problem,
            None => return,
        },
        BuildError::CallersOfComposite { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!(
                "identity `{name}` lists callers by the hash of their key, but has no one key to hash"
            ))
            .at(place, "exactly one source is needed, and not the address")
        }
        BuildError::FirstOfMixed { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!("the sources of identity `{name}` cannot stand for one another"))
                .at(place, "either all are keys that clients send, or all are claims of a token")
                .help("define an identity for each, and name the second in the first: when_missing = \"use:OTHER\"")
        }
        BuildError::Sources { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!("the key of identity `{name}` has too many parts"))
                .at(place, "fewer sources were expected")
        }
        BuildError::UnverifiedToken { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!(
                "identity `{name}` does not say how tokens are verified"
            ))
            .at(place, "`jwt` is missing")
        }
        // Checked before, with a more precise place.
        BuildError::LimitTwice { route: index, .. } => {
            Problem::error("a route names a limit twice").at(route(index).1, "this route")
        }
        BuildError::TooManyClaims {
            route: index,
            claims,
        } => Problem::error(format!("a route is charged on {claims} limits at once"))
            .at(route(index).1, "16 are the most, candidates among them"),
        BuildError::Dangling { route: index, what } => {
            Problem::error(format!("a route refers to {what}, which does not exist"))
                .at(route(index).1, "this route")
        }
    };
    context.push(problem);
}

/// A cycle of `when_missing`, reported once, at its first identity.
fn cycle(index: usize, places: &Places<'_>) -> Option<Problem> {
    let place = |index: usize| {
        places
            .missing_places
            .get(index)
            .copied()
            .unwrap_or_default()
    };
    let name = places
        .written
        .get(index)
        .map_or("", |name| name.value.as_str());
    let mut problem = Problem::error(format!("identity `{name}` stands in for itself"))
        .at(place(index), "the circle begins here");
    let mut at = index;
    // As many steps as there are identities: the cycle closes within them.
    for _ in 0..places.when_missing.len() {
        let Some(WhenMissing::Use(next)) = places.when_missing.get(at).copied() else {
            break;
        };
        at = next;
        match at.cmp(&index) {
            std::cmp::Ordering::Less => return None,
            std::cmp::Ordering::Equal => break,
            std::cmp::Ordering::Greater => problem = problem.at(place(at), "goes on here"),
        }
    }
    Some(
        problem
            .help("the last one must end: when_missing = \"refuse\", \"skip\" or \"use:address\""),
    )
}
