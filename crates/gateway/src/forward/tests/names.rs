//! Upstreams that are given by a name: each of its addresses is a server.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::origin::{Conn, Origin};
use super::relay::{Gateway, defaults, gateway_of, route, server, upstream};
use super::wire::{read_response, wait_until};
use crate::forward::UpstreamHealth;
use crate::forward::members::{Members, bit};
use crate::forward::resolver::Resolver;
use tollgate_limit::Micros;
use tollgate_policy::upstream::{Balance, Eject, Health, ServerAddress, Upstream};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";

fn saying(body: &'static str) -> impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static {
    move |conn| {
        loop {
            let ill = conn.request()?.starts_with("GET /healthz") && body == "ill";
            let status = if ill { "500 Ill" } else { "200 OK" };
            conn.send(&format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))?;
        }
    }
}

/// Two servers at two addresses and one port, and a third address without a listener.
fn two(one: &'static str, other: &'static str) -> (Origin, Origin, SocketAddr) {
    let one = Origin::start(saying(one));
    let port = one.address.port();
    let other = Origin::on(([127, 0, 0, 2], port).into(), saying(other));
    (one, other, ([127, 0, 0, 3], port).into())
}

fn named(address: SocketAddr) -> Upstream {
    let mut upstream = upstream(address);
    upstream.servers[0].address = ServerAddress::Tcp("app.test".to_owned(), address.port());
    upstream.resolve_every = Micros(20_000);
    upstream.balance = Balance::RoundRobin;
    upstream
}

/// What names resolve to.
#[derive(Clone, Debug, Default)]
pub(in crate::forward) struct Table(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    addresses: HashMap<String, Vec<SocketAddr>>,
    failures: u64,
}

/// A name for which a table has neither an address nor an error: the lookup never ends.
const SILENT: &str = "silent.test";

impl Table {
    pub(in crate::forward) async fn answer(&self, host: &str) -> io::Result<Vec<SocketAddr>> {
        if host == SILENT {
            std::future::pending::<()>().await;
        }
        let names = &mut *self.lock();
        let answer = names.addresses.get(host).cloned();
        names.failures += u64::from(answer.is_none());
        answer.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such name"))
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().expect("not poisoned")
    }
}

fn with_names(table: &Table) -> UpstreamHealth {
    let mut health = UpstreamHealth::default();
    health.resolver = Resolver::Table(table.clone());
    health
}

/// From now on the name of [`named`] has these addresses.
fn resolve(table: &Table, addresses: &[SocketAddr]) {
    let name = "app.test".to_owned();
    table.lock().addresses.insert(name, addresses.to_vec());
}

fn gateway(upstream: Upstream, health: UpstreamHealth) -> Gateway {
    gateway_of(upstream, route(), defaults(), health)
}

#[test]
fn name_whose_address_changed_is_followed_while_connections_to_the_old_one_live() {
    let (old, new, _) = two("old", "new");
    let table = Table::default();
    resolve(&table, &[old.address]);
    let gateway = gateway(named(old.address), with_names(&table));
    let mut client = gateway.connect();
    client.write_all(GET.as_bytes()).expect("sent");
    assert_eq!(read_response(&mut client).body, "old");
    resolve(&table, &[new.address]);
    assert_eq!(old.wait_closed(), 0, "its idle connection is closed");
    client.write_all(GET.as_bytes()).expect("sent");
    assert_eq!(read_response(&mut client).body, "new");
    // A resolver that fails, or knows nothing, changes nothing.
    table.lock().addresses.clear();
    // The only worker asks again once it has processed the previous response.
    wait_until("lookups fail", || table.lock().failures >= 2);
    let asked = gateway.ask(GET);
    assert_eq!(asked.body, "new");
    assert_eq!(new.records().len(), 1, "nor is its connection another");
}

#[test]
fn name_with_several_addresses_is_several_servers() {
    let (one, other, dead) = two("one", "other");
    let table = Table::default();
    resolve(&table, &[one.address, dead, other.address]);
    let health = with_names(&table);
    let mut upstream = named(one.address);
    upstream.eject = Eject {
        failures: 1000,
        wait: Micros::from_secs(60),
    };
    let gateway = gateway(upstream.clone(), health.clone());
    let bodies: Vec<String> = (0..30)
        .map(|_| gateway.ask(POST))
        .map(|response| response.body)
        .collect();
    let of = |body: &str| bodies.iter().filter(|known| *known == body).count();
    assert!(of("one") >= 10 && of("other") >= 10, "{bodies:?}");
    assert_eq!(
        of("one") + of("other"),
        30,
        "one attempt, and the other addresses in it: {bodies:?}"
    );
    let mut names: Vec<String> = health
        .status(&upstream)
        .into_iter()
        .map(|status| status.server)
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [one.address, other.address, dead].map(|address| address.to_string())
    );
}

#[test]
fn name_each_address_has_health_checks_of_its_own() {
    let (ill, well, _) = two("ill", "well");
    let table = Table::default();
    resolve(&table, &[ill.address, well.address]);
    let health = with_names(&table);
    let mut upstream = named(ill.address);
    upstream.health = Some(Health {
        path: "/healthz".into(),
        every: Micros(20_000),
        timeout: Micros::from_secs(5),
        healthy_after: 1,
        unhealthy_after: 1,
    });
    let gateway = gateway(upstream.clone(), health.clone());
    gateway.ask(GET);
    wait_until("the ill one is known", || {
        health.status(&upstream).iter().any(|status| {
            status
                .state
                .is_some_and(|state| state.label() == "unhealthy")
        })
    });
    for _ in 0..6 {
        assert_eq!(gateway.ask(GET).body, "well");
    }
}

#[test]
fn name_that_is_unknown_is_502_until_it_is_known() {
    let (one, _, _) = two("one", "other");
    let table = Table::default();
    let mut upstream = named(one.address);
    upstream.resolve_every = Micros::from_secs(3600);
    let gateway = gateway(upstream, with_names(&table));
    let response = gateway.ask(GET);
    assert!(
        response.status == 502 && response.body.contains("upstream-unreachable"),
        "{response:?}"
    );
    resolve(&table, &[one.address]);
    assert_eq!(
        gateway.ask(GET).body,
        "one",
        "a request does not wait for the next turn"
    );
}

#[test]
fn name_last_addresses_outlive_a_reload_while_the_resolver_fails() {
    let (one, _, _) = two("one", "other");
    let table = Table::default();
    resolve(&table, &[one.address]);
    let health = with_names(&table);
    let before = gateway(named(one.address), health.clone());
    assert_eq!(before.ask(GET).body, "one");
    table.lock().addresses.clear();
    let mut edited = named(one.address);
    edited.attempts = 2;
    let after = gateway(edited.clone(), health.clone());
    assert_eq!(after.ask(GET).body, "one", "an edit of the upstream");
    drop((before, after));
    edited.name = "renamed".into();
    edited.servers[0].base_path = "/b".into();
    assert_eq!(
        gateway(edited, health).ask(GET).body,
        "one",
        "an upstream without a request since the reload"
    );
}

#[test]
fn name_resolved_slowly_does_not_hold_up_the_other_servers() {
    let (one, _, _) = two("one", "other");
    let table = Table::default();
    resolve(&table, &[one.address]);
    let mut by_name = named(one.address);
    by_name.timeouts.connect = Micros::from_secs(3600);
    let mut silent = by_name.servers[0].clone();
    silent.address = ServerAddress::Tcp(SILENT.to_owned(), one.address.port());
    by_name.servers.insert(0, silent);
    let mut by_address = by_name.clone();
    by_address.servers[1] = server(one.address);
    for upstream in [by_address, by_name] {
        assert_eq!(gateway(upstream, with_names(&table)).ask(GET).body, "one");
    }
}

#[tokio::test]
async fn name_other_addresses_are_tried_fit_ones_first() {
    let table = Table::default();
    let addresses: Vec<SocketAddr> = (1..=4).map(|last| ([127, 0, 0, last], 9).into()).collect();
    resolve(&table, &addresses);
    let mut upstream = named(addresses[0]);
    upstream.eject = Eject {
        failures: 1,
        wait: Micros::from_secs(3600),
    };
    let upstream = Arc::new(upstream);
    let run = async {
        let members = Members::new(&upstream, &with_names(&table)).expect("no TLS");
        let roster = members.roster().await.expect("addresses");
        roster.servers[1].record.failed();
        roster.servers[2].record.failed();
        assert_eq!(roster.sibling(0, bit(0)), Some(3), "the fit one");
        assert_eq!(
            roster.sibling(3, bit(0) | bit(3)),
            Some(1),
            "an ejected one when there is no other"
        );
        assert_eq!(roster.sibling(3, bit(0) | bit(1) | bit(2) | bit(3)), None);
    };
    tokio::task::LocalSet::new().run_until(run).await;
}
