//! `audit = "refuse"`: a gateway does not start on a Redis that would lose its buckets, and says why.

use std::net::TcpStream;

use crate::gateways::status;
use crate::process::Outspoken;
use crate::servers::{Redis, available, free_port, wait_until};

/// Starts a gateway on `server`; what it said, if it ended by itself with an error.
fn refusal(server: &Redis, audit: &str, rate: &str) -> Option<String> {
    refusal_as(server, "", audit, rate)
}

/// As [`refusal`], as a user of this name; empty: as the default one.
fn refusal_as(server: &Redis, user: &str, audit: &str, rate: &str) -> Option<String> {
    let home = tempfile::tempdir().unwrap();
    let login = match user {
        "" => String::new(),
        _ => format!("username = \"{user}\"\npassword_file = \"password\"\n"),
    };
    std::fs::write(home.path().join("password"), "hunter2").unwrap();
    let text = configuration(server, audit, rate, &login, [free_port(), 0]);
    let file = home.path().join("gateway.toml");
    std::fs::write(&file, text).unwrap();
    std::fs::write(home.path().join("secret"), "a secret that gateways share").unwrap();
    Outspoken::run(&file).refusal()
}

fn configuration(
    server: &Redis,
    audit: &str,
    rate: &str,
    login: &str,
    [port, admin]: [u16; 2],
) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
         [store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"refuse\"\nanswer_within = \"900ms\"\nkey_secret_file = \"secret\"\naudit = \"{audit}\"\n{login}\
         [limits.total]\nper = \"everyone\"\nrate = \"{rate}\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n",
        server.url()
    )
}

/// A gateway whose file changes under it, and what it says.
struct Running {
    process: Outspoken,
    home: tempfile::TempDir,
    /// Of the listener and of the pages for operators.
    ports: [u16; 2],
    login: &'static str,
}

impl Running {
    fn start(server: &Redis, audit: &str, rate: &str) -> Self {
        Self::start_as(server, "", audit, rate)
    }

    /// With these lines that say who it is.
    fn start_as(server: &Redis, login: &'static str, audit: &str, rate: &str) -> Self {
        let running = Self::begin(server, login, audit, rate);
        running.process.wait_for("listening");
        running
    }

    /// The same, not waited for.
    fn begin(server: &Redis, login: &'static str, audit: &str, rate: &str) -> Self {
        let (home, ports) = (tempfile::tempdir().unwrap(), [free_port(), free_port()]);
        std::fs::write(home.path().join("secret"), "a secret that gateways share").unwrap();
        std::fs::write(home.path().join("password"), "hunter2").unwrap();
        let file = home.path().join("gateway.toml");
        std::fs::write(&file, configuration(server, audit, rate, login, ports)).unwrap();
        Self {
            process: Outspoken::run(&file),
            home,
            ports,
            login,
        }
    }

    fn change(&self, server: &Redis, audit: &str, rate: &str) {
        let text = configuration(server, audit, rate, self.login, self.ports);
        std::fs::write(self.home.path().join("gateway.toml"), text).unwrap();
    }

    /// The status of a request to the listener (0) or to the pages for operators (1).
    fn status(&self, of: usize, path: &str) -> Option<u16> {
        status(
            &mut TcpStream::connect(("127.0.0.1", self.ports[of])).ok()?,
            path,
        )
    }
}

#[test]
fn the_first_day_long_quota_that_a_reload_brings_is_audited_too() {
    if !available("redis-server") {
        return;
    }
    let forgetful = Redis::start();
    let strict = Running::start(&forgetful, "refuse", "10/second");
    strict.change(&forgetful, "refuse", "1000/day");
    let said = strict.process.wait_for("audit = \"refuse\"");
    assert!(
        said.contains("configuration in force stays") && said.contains("append-only"),
        "{said}"
    );
    let (refused, minded) = (said.find("weight=Refusal"), said.rfind("weight=Warning"));
    assert!(
        refused.is_some() && minded > refused,
        "told again as the limits in force mind it: {said}"
    );
    // What the operator mends is seen by the next reload, without a new connection.
    assert!(forgetful.ask("CONFIG SET appendonly yes").contains("OK"));
    strict.change(&forgetful, "refuse", "1001/day");
    strict.process.wait_for("the new configuration is in force");

    let forgetful = Redis::start();
    let lenient = Running::start(&forgetful, "warn", "10/second");
    lenient.change(&forgetful, "warn", "1000/day");
    let said = lenient
        .process
        .wait_for("the new configuration is in force");
    assert!(
        said.contains("append-only") && said.contains("Refusal"),
        "{said}"
    );
}

/// The server was fine at the start; it was changed since.
#[test]
fn a_reload_is_refused_when_the_server_has_become_what_the_audit_refuses_and_the_old_configuration_serves_on()
 {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start_with(&["--maxmemory", "100mb", "--appendonly", "yes"]);
    let made = server.ask("ACL SETUSER gateway on >hunter2 ~tollgate:* &* +@all");
    assert!(made.contains("OK"), "{made}");
    let login = "username = \"gateway\"\npassword_file = \"password\"\n";
    let mut gateway = Running::start_as(&server, login, "refuse", "3/hour");
    let spoilt = [
        (
            "CONFIG SET maxmemory-policy allkeys-lru",
            "CONFIG SET maxmemory-policy noeviction",
            "is allkeys-lru",
        ),
        (
            "ACL SETUSER gateway -info",
            "ACL SETUSER gateway +info",
            "may not read INFO",
        ),
    ];
    assert_eq!(gateway.status(0, "/"), Some(200));
    for (turn, (spoils, mends, why)) in spoilt.into_iter().enumerate() {
        assert!(server.ask(spoils).contains("OK"), "{spoils}");
        // A change of the file, then a signal without one.
        gateway.change(&server, "refuse", &format!("{}/hour", 50 + turn));
        for _ in 0..2 {
            let said = gateway.process.wait_for("(audit = \"refuse\")");
            assert!(
                said.contains("configuration in force stays") && said.contains(why),
                "{said}"
            );
            gateway.process.signal("-HUP");
        }
        gateway.process.wait_for("(audit = \"refuse\")");
        assert_eq!(gateway.status(1, "/readyz"), Some(200), "it serves on");
        assert!(server.ask(mends).contains("OK"), "{mends}");
        if turn == 0 {
            // The limit of before, whose bucket goes on.
            let answers = [(); 3].map(|()| gateway.status(0, "/").unwrap());
            assert_eq!(answers, [200, 200, 429]);
        }
        gateway.process.signal("-HUP");
        gateway
            .process
            .wait_for("the new configuration is in force");
    }
    gateway.process.signal("-TERM");
    assert!(
        gateway.process.wait().success(),
        "told to end, it ends well"
    );
}

/// With the server gone the configuration may still change: that may be what helps.
#[test]
fn a_reload_goes_on_without_the_server_where_it_brings_no_first_long_quota() {
    if !available("redis-server") {
        return;
    }
    let mut server = Redis::start_with(&["--appendonly", "yes"]);
    let gateway = Running::start(&server, "refuse", "3/hour");
    server.kill();
    gateway.change(&server, "refuse", "1000/day");
    let said = gateway.process.wait_for("(audit = \"refuse\")");
    assert!(
        said.contains("did not respond") && said.contains("configuration in force stays"),
        "{said}"
    );
    gateway.change(&server, "refuse", "4/hour");
    gateway
        .process
        .wait_for("the new configuration is in force");
}

#[test]
fn a_server_that_throws_buckets_away_is_refused_where_that_is_asked_for() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let said = refusal(&server, "refuse", "10/second").expect("refused");
    assert!(
        said.contains("maxmemory-policy is allkeys-lru") && said.contains("noeviction"),
        "{said}"
    );
    assert_eq!(refusal(&server, "warn", "10/second"), None, "warned of");
}

#[test]
fn day_long_quotas_are_refused_where_a_restart_would_forget_them() {
    if !available("redis-server") {
        return;
    }
    let forgetful = Redis::start();
    let said = refusal(&forgetful, "refuse", "1000/day").expect("refused");
    assert!(said.contains("append-only"), "{said}");
    assert_eq!(
        refusal(&forgetful, "refuse", "10/second"),
        None,
        "seconds are soon over"
    );
    let careful = Redis::start_with(&["--appendonly", "yes"]);
    assert_eq!(refusal(&careful, "refuse", "1000/day"), None);
}

#[test]
fn a_replica_is_no_store_and_is_refused_where_that_is_asked_for() {
    if !available("redis-server") {
        return;
    }
    let primary = Redis::start();
    let replica = Redis::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
    let said = refusal(&replica, "refuse", "10/second").expect("refused");
    assert!(
        said.contains("is a replica") && said.contains("audit = \"refuse\""),
        "{said}"
    );
    let lenient = Running::begin(&replica, "", "warn", "10/second");
    lenient.process.wait_for("is a replica");
    wait_until("a gateway that serves without its store", || {
        lenient.status(0, "/").is_some()
    });
    assert!(replica.ask("REPLICAOF NO ONE").contains("OK"));
    lenient.process.wait_for("the shared store responds");
}

#[test]
fn a_server_that_does_not_say_how_it_is_set_is_refused_where_that_is_asked_for() {
    if !available("redis-server") {
        return;
    }
    let careful = Redis::start_with(&["--appendonly", "yes"]);
    let made = careful.ask("ACL SETUSER blind on >hunter2 ~tollgate:* &* +@all -info");
    assert!(made.contains("OK"), "{made}");
    let said = refusal_as(&careful, "blind", "refuse", "10/second").expect("refused");
    assert!(
        said.contains("may not read INFO") && said.contains("+info") && !said.contains("hunter2"),
        "{said}"
    );
    assert_eq!(
        refusal_as(&careful, "blind", "warn", "10/second"),
        None,
        "warned of"
    );
    assert_eq!(refusal(&careful, "refuse", "10/second"), None);
}
