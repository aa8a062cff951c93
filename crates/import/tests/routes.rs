//! Limits that count alike and meet other requests are not equal: which route wins, where addresses come from, and what
//! else of a file concerns limiting.

use tollgate_import::{Imported, Outcome, Peer, SourceFile, import};

fn imported(name: &str, text: &str, peer: Peer) -> Imported {
    let (name, text) = (name.to_owned(), text.to_owned());
    let none = |path: &std::path::Path| Err(format!("{} is of this machine", path.display()));
    import(&[SourceFile { name, text }], peer, &none).unwrap_or_else(|error| panic!("{error}"))
}

/// The report says these words, and calls no limit equal.
#[track_caller]
fn differs(name: &str, text: &str, peer: Peer, words: &[&str]) {
    let made = imported(name, text, peer);
    let report = made.report();
    let mut outcomes = made.findings.iter().map(|finding| &finding.outcome);
    assert!(
        !outcomes.any(|outcome| *outcome == Outcome::Equal),
        "{text}\n{report}"
    );
    for words in words {
        assert!(
            report.contains(words),
            "{words}\n{text}\n{report}\n{}",
            made.toml
        );
    }
}

#[track_caller]
fn equal(name: &str, text: &str, peer: Peer) {
    let made = imported(name, text, peer);
    assert!(
        made.report()
            .contains("1 equal, 0 that differ, 0 not imported"),
        "{}",
        made.report()
    );
}

/// Two zones, and a server that holds `inside`.
fn nginx(inside: &str) -> String {
    format!(
        "http {{\n limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;\n \
         limit_req_zone $binary_remote_addr zone=b:1m rate=50r/s;\n server {{ {inside} }}\n}}\n"
    )
}

const A: &str = "limit_req zone=a burst=2 nodelay; proxy_pass http://127.0.0.1:1;";
const B: &str = "limit_req zone=b burst=2 nodelay; proxy_pass http://127.0.0.1:1;";

#[test]
fn import_of_nginx_is_equal_only_where_the_same_requests_meet_a_limit() {
    for (inside, words) in [
        // A regular expression goes before a longer prefix.
        (
            format!("location ~ ^/v1/ {{ {A} }} location /v1/in/ {{ {B} }}"),
            &["`GET /v1/in/` meets it in NGINX and not here"][..],
        ),
        (
            format!("location ~ ^/v1/in {{ {A} }} location ~ ^/v1 {{ {B} }}"),
            &["`GET /v1"],
        ),
        (
            format!("location ~ ^/v1 {{ {A} }} location ~ ^/v1/in {{ {B} }}"),
            &["`GET /v1/in"],
        ),
        (
            format!("location ~ \\.php$ {{ {A} }} location / {{ {B} }}"),
            &["location ~ \\.php$", "go to other routes here"],
        ),
        (
            format!("location ~* ^/V1 {{ proxy_pass http://127.0.0.1:1; }} location / {{ {B} }}"),
            &["go to other routes here"],
        ),
        (
            format!("location = /v1 {{ {A} }} location / {{ {B} }}"),
            &["`GET /v1/` meets it here and not in NGINX"],
        ),
        (
            format!("location /v1 {{ {A} }} location / {{ {B} }}"),
            &["`GET /v1x` meets it in NGINX and not here"],
        ),
        (
            format!("location /v1/ {{ {A} }} location / {{ {B} }}"),
            &["`GET /v1` meets it here and not in NGINX"],
        ),
        (
            format!("location ^~ /v1/ {{ {A} }} location / {{ {B} }}"),
            &["`GET /v1%2fx` meets it in NGINX and not here"],
        ),
        (
            format!("rewrite ^/old /v1/ last; location /v1/ {{ {A} }}"),
            &["`rewrite ^/old /v1/ last`"],
        ),
        (
            format!("location / {{ if ($arg_free) {{ return 200; }} {A} }}"),
            &["`if ($arg_free)`"],
        ),
        (
            format!("location / {{ rewrite ^/x/(.*) /v1/$1; {A} }}"),
            &["`rewrite ^/x/(.*) /v1/$1`"],
        ),
        (
            format!(
                "listen 80 default_server; location / {{ {A} }} }} server {{ server_name ~^api; location / {{ {B} }}"
            ),
            &["server_name ~^api", "those of the default server here"],
        ),
        (
            format!(
                "location / {{ {A} }} }} server {{ server_name b.example; location /x {{ proxy_pass http://127.0.0.1:2; }}"
            ),
            &["`GET b.example/` meets it here and not in NGINX"],
        ),
    ] {
        differs("nginx.conf", &nginx(&inside), Peer::Nginx, words);
    }
    for inside in [
        format!("location / {{ {A} }}"),
        "limit_req zone=a burst=2 nodelay; location /v1/ { proxy_pass http://127.0.0.1:1; } location ^~ /v2 { proxy_pass http://127.0.0.1:2; }".to_owned(),
    ] {
        let text = nginx(&inside).replace(
            " limit_req_zone $binary_remote_addr zone=b:1m rate=50r/s;\n",
            "",
        );
        equal("nginx.conf", &text, Peer::Nginx);
    }
}

#[test]
fn import_makes_no_internal_location_public() {
    let text = nginx(&format!(
        "location /files/ {{ internal; {A} }} location / {{ {B} }}"
    ));
    let made = imported("nginx.conf", &text, Peer::Nginx);
    assert!(
        made.toml
            .contains("match = \"/files/**\"\nrespond = { status = 404"),
        "{}",
        made.toml
    );
    assert!(
        made.report().contains("its location is `internal`"),
        "{}",
        made.report()
    );
}

#[test]
fn import_of_nginx_is_equal_only_where_addresses_are_the_same() {
    let with = |settings: &str| {
        nginx(&format!("location / {{ {A} }}")).replace("http {", &format!("http {{ {settings}"))
    };
    for (settings, words) in [
        (
            "set_real_ip_from 10.0.0.0/8; real_ip_header X-Client;",
            "X-Client",
        ),
        (
            "set_real_ip_from 10.0.0.0/8; real_ip_header X-Real-IP; server { server_name b; real_ip_header CF-Connecting-IP; location / { limit_req zone=a; } }",
            "CF-Connecting-IP",
        ),
        (
            "set_real_ip_from 10.0.0.0/8; real_ip_header proxy_protocol;",
            "proxy_protocol",
        ),
        (
            "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For;",
            "without real_ip_recursive",
        ),
        (
            "set_real_ip_from proxy.example; real_ip_header X-Forwarded-For; real_ip_recursive on;",
            "proxy.example",
        ),
        (
            "server { server_name b; location / { limit_req zone=a; } set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on; }",
            "in its `server` alone",
        ),
    ] {
        differs("nginx.conf", &with(settings), Peer::Nginx, &[words]);
    }
    for (header, written) in [
        ("real_ip_header X-Forwarded-For; real_ip_recursive on;", ""),
        ("", "header = \"x-real-ip\""),
        ("real_ip_header X-Real-IP;", "header = \"x-real-ip\""),
        (
            "real_ip_header CF-Connecting-IP; real_ip_recursive on;",
            "header = \"cf-connecting-ip\"",
        ),
    ] {
        let text = with(&format!("set_real_ip_from 10.0.0.0/8; {header}")).replace(
            " limit_req_zone $binary_remote_addr zone=b:1m rate=50r/s;\n",
            "",
        );
        equal("nginx.conf", &text, Peer::Nginx);
        let toml = imported("nginx.conf", &text, Peer::Nginx).toml;
        let expected = format!("trusted_proxies = [\"10.0.0.0/8\"]\n{written}");
        assert!(toml.contains(&expected), "{toml}");
    }
}

#[test]
fn import_reads_a_key_or_else_the_address() {
    for (map, missing) in [
        (
            "map $http_authorization $who { \"\" $binary_remote_addr; default $http_authorization; }",
            "use:address",
        ),
        (
            "map $http_authorization $who { default $http_authorization; '' ''; }",
            "skip",
        ),
    ] {
        let text = format!(
            "{map}\nlimit_req_zone $who zone=u:1m rate=1r/s;\nserver {{ location / {{ limit_req zone=u burst=14 nodelay; }} }}"
        );
        let toml = imported("nginx.conf", &text, Peer::Nginx).toml;
        let scope = format!("per = \"header:authorization\"\nwhen_missing = \"{missing}\"");
        assert!(toml.contains(&scope), "{toml}");
    }
}

#[test]
fn import_of_nginx_names_servers_that_are_no_full_members() {
    let text = nginx(&format!("location / {{ {A} }}")).replace(
        "http {",
        "http { upstream pool { server 10.0.0.1:80; server 10.0.0.2:80 backup; server 10.0.0.3:80 down; }",
    );
    let made = imported(
        "nginx.conf",
        &text.replace("127.0.0.1:1", "pool"),
        Peer::Nginx,
    );
    assert!(
        made.toml.contains("servers = [\"http://10.0.0.1:80\"]"),
        "{}",
        made.toml
    );
    for words in ["10.0.0.2:80 is `backup`", "10.0.0.3:80 is `down`"] {
        assert!(made.report().contains(words), "{}", made.report());
    }
}

#[test]
fn import_of_a_dump_reads_the_files_within_it_and_none_of_this_machine() {
    let text = "nginx: configuration file /etc/nginx/nginx.conf test is successful\n\
                # configuration file /etc/nginx/nginx.conf:\nhttp {\n limit_req_zone $binary_remote_addr zone=one:1m rate=5r/s;\n \
                include conf.d/*.conf;\n include gone.conf;\n}\n\n\
                # configuration file /etc/nginx/conf.d/site.conf:\nserver {\n location / { limit_req zone=one burst=4 nodelay; }\n}\n\
                # configuration file /etc/nginx/conf.d/deeper/no.conf:\nserver { server_name no.example; }\n";
    let made = imported("dump.txt", text, Peer::Nginx);
    let report = made.report();
    for words in [
        "/etc/nginx/conf.d/site.conf:2: limit_req zone=one",
        "the dump does not hold it",
    ] {
        assert!(report.contains(words), "{report}");
    }
    assert!(
        !report.contains("of this machine") && !made.toml.contains("no.example"),
        "{report}\n{}",
        made.toml
    );
}

#[test]
fn import_says_of_scripts_and_modules_that_they_are_not_read() {
    let inside = format!(
        "limit_traffic_rate rate_zone 1m; location / {{ access_by_lua_block {{ local limit = require 'resty.limit.req' }} {A} }}"
    );
    let report = imported("nginx.conf", &nginx(&inside), Peer::Nginx).report();
    for words in [
        "limit_traffic_rate rate_zone 1m\n  not imported",
        "access_by_lua_block",
        "resty.limit.req",
    ] {
        assert!(report.contains(words), "{report}");
    }
}

const INGRESS: &str = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: s\n  annotations:\n    \
    nginx.ingress.kubernetes.io/limit-rps: \"5\"\n    MORE\nspec:\n  rules:\n  - http: {paths: [{path: /, pathType: Prefix, \
    backend: {service: {name: w, port: {number: 80}}}}]}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  \
    CONFIG\n---\nkind: Deployment\nspec: {template: {spec: {containers: [{resources: {limits: {cpu: 1}}}]}}}\n";

#[test]
fn import_of_ingresses_says_what_else_limits() {
    let with = |annotation: &str, config: &str| {
        let text = INGRESS
            .replace("MORE", annotation)
            .replace("CONFIG", config);
        imported("ingress.yaml", &text, Peer::Ingress).report()
    };
    let report = with("a.example/x: y", "keep-alive: '75'");
    assert!(
        report.contains("1 equal, 0 that differ, 0 not imported"),
        "{report}"
    );
    for (annotation, config, words) in [
        (
            "nginx.ingress.kubernetes.io/configuration-snippet: limit_req zone=custom;",
            "a: b",
            "configuration-snippet: limit_req zone=custom;",
        ),
        (
            "nginx.ingress.kubernetes.io/server-snippet: limit_conn perip 10;",
            "a: b",
            "server-snippet: limit_conn perip 10;",
        ),
        (
            "nginx.ingress.kubernetes.io/limit-rate: \"10\"",
            "a: b",
            "limit-rate: 10",
        ),
        (
            "traefik.ingress.kubernetes.io/router.middlewares: default-slow@kubernetescrd",
            "a: b",
            "router.middlewares: default-slow",
        ),
        (
            "konghq.com/plugins: slow",
            "a: b",
            "konghq.com/plugins: slow",
        ),
        (
            "a: b",
            "limit-req-status-code: '429'",
            "limit-req-status-code: 429",
        ),
        (
            "a: b",
            "http-snippet: limit_req_zone $http_x zone=c:1m rate=1r/s;",
            "http-snippet: limit_req_zone",
        ),
        (
            "a: b",
            "use-forwarded-headers: 'true'",
            "says where addresses come from",
        ),
    ] {
        let report = with(annotation, config);
        assert!(report.contains(words), "{words}\n{report}");
        assert!(
            !report.contains("1 equal, 0 that differ, 0 not imported"),
            "{report}"
        );
    }
    let text = INGRESS.replace("MORE", "a: b").replace("CONFIG", "a: b");
    let exact = text.replace("path: /, pathType: Prefix", "path: /a, pathType: Exact");
    differs(
        "ingress.yaml",
        &exact,
        Peer::Ingress,
        &["`GET /a/` meets it here and not in ingress-nginx"],
    );
    let regex = text.replace(
        "a: b\nspec",
        "nginx.ingress.kubernetes.io/use-regex: 'true'\nspec",
    );
    differs("ingress.yaml", &regex, Peer::Ingress, &["use-regex"]);
}

fn traefik(one: &str, other: &str) -> String {
    format!(
        "http:\n  routers:\n    a: {{{one}, middlewares: [m], service: s}}\n    b: {{{other}, middlewares: [n], service: s}}\n  \
         middlewares:\n    m: {{rateLimit: {{average: 10, burst: 9}}}}\n    n: {{rateLimit: {{average: 5, burst: 1}}}}\n"
    )
}

#[test]
fn import_of_traefik_is_equal_only_where_the_same_router_wins() {
    for (one, other, words) in [
        (
            "rule: 'PathPrefix(`/`)', priority: 100",
            "rule: 'PathPrefix(`/api`)'",
            "`GET /api` meets it in Traefik and not here",
        ),
        // The longer rule is that of the wider path.
        (
            "rule: 'PathPrefix(`/`) && Method(`GET`, `POST`, `PUT`)'",
            "rule: 'Path(`/a`)'",
            "`GET /a` meets it",
        ),
        (
            "rule: 'HostRegexp(`.+`)'",
            "rule: 'PathPrefix(`/`)'",
            "go to other routes here",
        ),
    ] {
        differs("traefik.yml", &traefik(one, other), Peer::Traefik, &[words]);
    }
    let made = imported(
        "traefik.yml",
        &traefik("rule: 'Host(`a.example`)'", "rule: 'Host(`b.example`)'"),
        Peer::Traefik,
    );
    assert!(
        made.report()
            .contains("2 equal, 0 that differ, 0 not imported"),
        "{}",
        made.report()
    );
}

#[test]
fn import_of_traefik_says_what_else_limits() {
    let text = traefik("rule: 'Host(`a.example`)'", "rule: 'Host(`b.example`)'");
    for (more, words) in [
        (
            "entryPoints: {web: {http: {middlewares: [slow@file]}}}\n",
            "middlewares",
        ),
        (
            "entryPoints: {web: {forwardedHeaders: {trustedIPs: [10.0.0.0/8]}}}\n",
            "says where addresses come from",
        ),
        (
            "tcp: {middlewares: {c: {inFlightConn: {amount: 1}}}}\n",
            "not imported",
        ),
        (
            "services: {web: {labels: [\"traefik.http.middlewares.rl.ratelimit.average=30\"]}}\n",
            "labels of containers are not read",
        ),
    ] {
        let report = imported("traefik.yml", &format!("{text}{more}"), Peer::Traefik).report();
        assert!(report.contains(words), "{words}\n{report}");
        assert!(
            !report.contains("2 equal, 0 that differ, 0 not imported"),
            "{report}"
        );
    }
    let odd = text.replace("burst: 9", "burst: 9, denyOnError: true");
    let report = imported("traefik.yml", &odd, Peer::Traefik).report();
    assert!(
        report.contains("denyOnError: true\n  not imported"),
        "{report}"
    );
}

fn kong(routes: &str, config: &str, more: &str) -> String {
    format!(
        "_format_version: '3.0'\nservices:\n  - name: s\n    host: pool\n    routes:\n{routes}\n    plugins:\n      \
         - {{name: rate-limiting, config: {{minute: 60, limit_by: ip{config}}}}}\n{more}"
    )
}

#[test]
fn import_of_kong_says_what_it_does_not_carry_over() {
    let root = "      - {name: r, paths: [/]}";
    equal(
        "kong.yml",
        &kong(root, ", policy: local, fault_tolerant: true", ""),
        Peer::Kong,
    );
    for (config, more, words) in [
        (", error_code: 503", "", "error_code: 503\n  not imported"),
        (
            ", hide_client_headers: true",
            "",
            "hide_client_headers: true\n  not imported",
        ),
        (
            ", fault_tolerant: false",
            "",
            "fault_tolerant: false\n  not imported",
        ),
        (
            "",
            "consumer_groups:\n  - {name: gold, plugins: [{name: rate-limiting-advanced, config: {limit: [5]}}]}\n",
            "plugin rate-limiting-advanced",
        ),
        (
            "",
            "consumer_groups:\n  - {name: gold, plugins: [{name: rate-limiting, config: {minute: 5}}]}\n",
            "plugin rate-limiting\n  not imported",
        ),
        (
            "",
            "consumer_group_rate_limits: [{group: gold}]\n",
            "consumer_group_rate_limits\n  not imported",
        ),
        (
            "",
            "plugins: [{name: my-throttle, config: {}}]\n",
            "plugin my-throttle",
        ),
    ] {
        let report = imported("kong.yml", &kong(root, config, more), Peer::Kong).report();
        assert!(report.contains(words), "{words}\n{report}");
    }
    let targets = "upstreams:\n  - name: pool\n    targets: [{target: '10.0.0.1:80', weight: 50}, {target: 10.0.0.2}, {target: '10.0.0.3:80', weight: 0}]\n";
    let made = imported("kong.yml", &kong(root, "", targets), Peer::Kong);
    assert!(
        made.toml.contains("{ url = \"http://10.0.0.1:80\", weight = 50 }, { url = \"http://10.0.0.2:8000\", weight = 100 }]"),
        "{}",
        made.toml
    );
    assert!(
        made.report().contains("10.0.0.3:80 has no weight"),
        "{}",
        made.report()
    );
    let two = "      - {name: r, paths: [/orders]}\n      - {name: q, paths: [/], plugins: [{name: rate-limiting, config: {minute: 9, limit_by: ip}}]}";
    differs(
        "kong.yml",
        &kong(two, "", ""),
        Peer::Kong,
        &["`GET /ordersx` meets it in Kong and not here"],
    );
}

#[test]
fn import_of_envoy_reads_the_file_within_a_config_map() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  config.yaml: |\n    domain: d\n    descriptors:\n      \
                - key: remote_address\n        rate_limit: {unit: minute, requests_per_unit: 5}\n";
    let made = imported("map.yaml", text, Peer::Envoy);
    assert!(
        made.report().contains("map.yaml config.yaml:"),
        "{}",
        made.report()
    );
    assert!(made.toml.contains("rate = \"5/minute\""), "{}", made.toml);
}
