//! Warns of routes that read the requests of other endpoints as GraphQL's.

use super::super::list_of;
use super::choices::has_operation;
use crate::context::Context;
use crate::raw::RawFile;
use tollgate_policy::Policy;
use tollgate_policy::identity::Source;
use tollgate_policy::route::Segment;

/// Routes for all paths below one whose keys or conditions ask for the operation.
pub(super) fn of_all_paths(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    let routes = policy.routes.iter().zip(list_of(&raw.routes));
    for (index, (route, written)) in routes.enumerate() {
        let is_key = |identity: &usize| {
            let sources = &policy.identities[*identity].sources;
            sources.contains(&Source::GraphqlOperation)
        };
        let is_asked =
            || has_operation(&route.pattern) || policy.identities_of(index).iter().any(is_key);
        if route.pattern.path.last() != Some(&Segment::Rest) || !is_asked() {
            continue;
        }
        let title = format!(
            "route `{}` reads the requests of all its paths as GraphQL's",
            route.name
        );
        let place = written.r#match.place().unwrap_or(written.place);
        let label = "it asks for `graphql:operation`: a request with another body, or with a parameter such as `id`, is 400";
        context
            .warning(title, place, label)
            .help("ask for the operation on a route for the path of the GraphQL endpoint alone: match = \"POST /graphql\"");
    }
}
