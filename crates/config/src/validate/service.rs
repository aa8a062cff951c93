//! A file that a service reads for its own requests: warns of what only a gateway does.

use super::list_of;
use crate::raw::RawFile;
use crate::reading::{Context, Mirror, Place};

pub(crate) fn warn(raw: &RawFile, context: &mut Context<'_>) {
    let mut idle = |name: String, place: Place, label: &str| {
        context.warning(format!("{name} has no effect in a service"), place, label);
    };
    for (table, place) in raw.written(["admin", "log", "decide", "upstreams"]) {
        idle(format!("[{table}]"), place, "only a gateway has it");
    }
    if let Some(place) = raw.server.place() {
        let label = "only `cold_start` and `encoded_slash` have one";
        idle("[server]".to_owned(), place, label);
    }
    for route in list_of(&raw.routes) {
        for (key, place) in route.written(["upstream", "respond", "redirect", "over_limit"]) {
            idle(format!("`{key}`"), place, "the service responds itself");
        }
        let changes = route.written([
            "strip_prefix",
            "add_prefix",
            "request_headers",
            "response_headers",
        ]);
        for (key, place) in changes {
            idle(format!("`{key}`"), place, "messages pass unchanged");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, ConfigError, Loader, parse};
    use tollgate_limit::Timestamp;
    use tollgate_policy::routes::Target;

    const FILE: &str = "[limits.all]\nrate = \"1/second\"\nper = \"everyone\"\n\
                        [[routes]]\nmatch = \"/**\"\nlimits = [\"all\"]\n";

    fn for_service(text: &str) -> Result<Config, ConfigError> {
        let loader = Loader::new(&|_| None, Timestamp::default()).for_service();
        loader.text(text, "limits.toml")
    }

    #[test]
    fn service_route_needs_no_upstream_and_a_gateways_does() {
        let config = for_service(FILE).expect("a file for a service");
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
    fn service_gives_a_request_its_key_and_a_gateway_does_not() {
        let text = "[limits.one]\nrate = \"9/minute\"\nburst = 9\nper = \"application\"\nwhen_missing = \"refuse\"\n\
                    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n";
        let service = for_service(text);
        assert!(service.is_ok(), "{service:?}");
        let gateway = parse(text, "gateway.toml", &|_| None, Timestamp::default());
        let error = gateway
            .expect_err("no gateway has such a key")
            .render(false);
        assert!(
            error.contains("no source of a key for a gateway"),
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
        let config = for_service(&text);
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
