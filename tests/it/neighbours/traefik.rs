//! The real Traefik, with the files of the book. It is installed by tests/neighbours/install.

use super::{
    Kind, Proxy, admits_what_the_limit_says, ignores_forged_headers,
    lets_nothing_pass_while_tollgate_is_down,
};
use crate::harness::eventually;

const TRAEFIK: Kind = Kind {
    neighbour: "traefik",
    start: |ports| {
        let files = ["traefik.yaml", "dynamic.yaml"];
        let proxy = Proxy::run("traefik", &["--configFile=traefik.yaml"], &files, ports)?;
        // It listens before it has read its routes.
        eventually("Traefik has its routes", || {
            proxy.request("/", &[]).status != 404
        });
        Some(proxy)
    },
    down: 500,
    slow: None,
};

#[test]
fn traefik_admits_what_the_limit_says() {
    admits_what_the_limit_says(TRAEFIK);
}

#[test]
fn traefik_ignores_forged_headers() {
    ignores_forged_headers(TRAEFIK);
}

#[test]
fn traefik_lets_nothing_pass_while_tollgate_is_down() {
    lets_nothing_pass_while_tollgate_is_down(TRAEFIK);
}
