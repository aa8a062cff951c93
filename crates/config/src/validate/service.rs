//! A file that a service reads for its own requests: warns of what only a gateway does.

use super::list_of;
use crate::context::Context;
use crate::raw::RawFile;
use crate::source::Place;

/// Warns of settings that have no effect in a service.
pub(crate) fn warn(raw: &RawFile, context: &mut Context<'_>) {
    let tables = [
        ("[admin]", raw.admin.place()),
        ("[log]", raw.log.place()),
        ("[decide]", raw.decide.place()),
        ("[upstreams]", raw.upstreams.place()),
    ];
    for (name, place) in tables {
        idle(name, place, "only a gateway has it", context);
    }
    let label = "only `cold_start` and `encoded_slash` have one";
    idle("[server]", raw.server.place(), label, context);
    for route in list_of(&raw.routes) {
        let responds = [
            ("`upstream`", route.upstream.place()),
            ("`respond`", route.respond.place()),
            ("`redirect`", route.redirect.place()),
            ("`over_limit`", route.over_limit.place()),
        ];
        for (name, place) in responds {
            idle(name, place, "the service responds itself", context);
        }
        let changes = [
            ("`strip_prefix`", route.strip_prefix.place()),
            ("`add_prefix`", route.add_prefix.place()),
            ("`request_headers`", route.request_headers.place()),
            ("`response_headers`", route.response_headers.place()),
        ];
        for (name, place) in changes {
            idle(name, place, "messages pass unchanged", context);
        }
    }
}

fn idle(name: &str, place: Option<Place>, label: &str, context: &mut Context<'_>) {
    if let Some(place) = place {
        context.warning(format!("{name} has no effect in a service"), place, label);
    }
}

#[cfg(test)]
mod tests {
    use crate::{parse, parse_for_service};
    use tollgate_limit::Timestamp;
    use tollgate_policy::route::Target;

    const FILE: &str = "[limits.all]\nrate = \"1/second\"\nper = \"everyone\"\n\
                        [[routes]]\nmatch = \"/**\"\nlimits = [\"all\"]\n";

    #[test]
    fn service_route_needs_no_upstream_and_a_gateways_does() {
        let read =
            |text: &str| parse_for_service(text, "limits.toml", &|_| None, Timestamp::default());
        let config = read(FILE).expect("a file for a service");
        assert_eq!(config.policy.routes[0].target, Target::Service);
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let error = parse(FILE, "gateway.toml", &|_| None, Timestamp::default());
        let error = error.expect_err("a gateway forwards").to_string();
        assert!(
            error.contains("does not say where its requests go"),
            "{error}"
        );
    }

    #[test]
    fn service_file_of_a_gateway_has_a_warning_for_each_idle_setting() {
        let idle = [
            (
                "[server]\nlisten = \"http://127.0.0.1:8080\"\n",
                "[server] has no effect",
            ),
            (
                "[admin]\nlisten = \"127.0.0.1:9180\"\n",
                "[admin] has no effect",
            ),
            ("[log]\naccess = \"stdout\"\n", "[log] has no effect"),
        ];
        let mut text = idle.map(|(table, _)| table).concat() + FILE;
        text += "upstream = \"builtin:echo\"\nresponse_headers = { remove = [\"server\"] }\n";
        let config = parse_for_service(&text, "limits.toml", &|_| None, Timestamp::default());
        let warnings = config.expect("legal").warnings.join("\n");
        let titles = idle.map(|(_, title)| title);
        for title in titles.into_iter().chain([
            "`upstream` has no effect",
            "`response_headers` has no effect",
        ]) {
            assert!(warnings.contains(title), "{title}: {warnings}");
        }
    }
}
