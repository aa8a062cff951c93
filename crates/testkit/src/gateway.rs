//! The gateway under test: in this process, on free ports, with a clock that is moved by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tollgate::admin::Listen;
use tollgate::app::{self, ConfigSource, Environment, Options, RunningGateway};
use tollgate_gateway::GatewayState;
use tollgate_limit::{Micros, Timestamp};
use tollgate_net::listener::Address;
use tollgate_store::clock::Clock;

use super::client::{Answer, Connection};

/// A running gateway; it stops when dropped.
pub struct Gateway {
    running: RunningGateway,
    clock: Clock,
}

impl Gateway {
    /// Starts one with this configuration; where it listens is added.
    ///
    /// # Panics
    /// With every mistake of the configuration.
    #[track_caller]
    pub fn start(config: &str) -> Self {
        Self::try_start(config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Gateway::start`], with variables of the environment.
    #[track_caller]
    pub fn start_with_environment(
        config: &str,
        environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self::try_start_with(config, Arc::new(environment))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Gateway::start`]; what keeps it from starting otherwise.
    pub fn try_start(config: &str) -> Result<Self, String> {
        Self::try_start_with(config, Arc::new(|_| None))
    }

    /// As [`Gateway::start`], with the clock of the system.
    #[track_caller]
    pub fn start_in_real_time(config: &str) -> Self {
        Self::try_start_by(config, Arc::new(|_| None), Clock::system())
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_start_with(config: &str, environment: Environment) -> Result<Self, String> {
        let clock = Clock::manual(Timestamp::from_micros(START));
        Self::try_start_by(config, environment, clock)
    }

    fn try_start_by(config: &str, environment: Environment, clock: Clock) -> Result<Self, String> {
        let source = ConfigSource::Text {
            text: with_ports(config),
            name: "test.toml".to_owned(),
        };
        let options = Options {
            source,
            environment,
            clock: clock.clone(),
        };
        let running = app::start(options).map_err(|error| error.to_string())?;
        Ok(Self { running, clock })
    }

    /// Moves its clock on.
    pub fn advance(&self, span: Duration) {
        self.clock.advance(Micros(
            u64::try_from(span.as_micros()).expect("a span of a test"),
        ));
    }

    /// Where it listens.
    #[track_caller]
    pub fn address(&self) -> SocketAddr {
        match &self.running.addresses()[0] {
            Address::Tcp(address) => *address,
            other => panic!("it listens on {other}"),
        }
    }

    /// Where it decides for other proxies.
    #[track_caller]
    pub fn deciding(&self) -> SocketAddr {
        match self.running.deciding() {
            [Address::Tcp(address), ..] => *address,
            other => panic!("it decides at {other:?}"),
        }
    }

    /// Where its admin listener is.
    #[track_caller]
    pub fn admin(&self) -> SocketAddr {
        match self.running.admin() {
            Some(Listen::Tcp { address, .. }) => *address,
            other => panic!("the admin listener is at {other:?}"),
        }
    }

    /// What its workers share, with the policy and the limiter in force.
    pub fn shared(&self) -> &GatewayState {
        self.running.shared()
    }

    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// A GET on a connection of its own.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[])
    }

    /// A request without a body on a connection of its own.
    #[track_caller]
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.connect().request(method, path, headers)
    }

    /// A GET of the admin listener.
    #[track_caller]
    pub fn admin_get(&self, path: &str) -> Answer {
        Connection::open(self.admin()).request("GET", path, &[])
    }

    /// Asks for a change of a key: `path` is what follows `/api/v1/keys/`. The operator's token is `test`.
    #[track_caller]
    pub fn change(&self, method: &str, path: &str, body: &serde_json::Value) -> Answer {
        let mut connection = Connection::open(self.admin());
        connection.send(change_request(method, path, body));
        connection.answer(method)
    }

    /// Puts another configuration in force, or says what is wrong with it.
    pub fn reload(&self, config: &str) -> Result<String, String> {
        self.running.replace_text(&with_ports(config));
        self.running.reload()
    }

    /// Lets it say that it is about to drain.
    pub fn announce_drain(&self) {
        let _ = self.running.announce_drain();
    }

    /// Tells it to take nothing new.
    pub fn drain(&self) {
        self.running.drain();
    }

    /// Whether every worker has ended.
    pub fn ended(&self) -> bool {
        self.running.ended()
    }

    /// Drains and waits for its end.
    pub fn shutdown(self) {
        self.running.shutdown();
    }
}

/// Free ports, no access log among the tests' output, two workers; a section the test writes itself is left to it.
fn with_ports(config: &str) -> String {
    let mut head = String::new();
    if !config.contains("[server]") {
        head.push_str("[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n");
    }
    if !config.contains("[admin]") {
        head.push_str("[admin]\nlisten = \"127.0.0.1:0\"\n");
    }
    if !config.contains("[log]") {
        head.push_str("[log]\naccess = \"off\"\n");
    }
    // A server of the test's own that does not say where it listens would take the port of the default.
    let mut config = config.to_owned();
    let own = config.split_once("[server]\n").map(|(_, rest)| rest);
    let own = own.map(|rest| rest.split("\n[").next().unwrap_or(rest));
    if own.is_some_and(|own| !own.contains("listen =")) && config.contains("[[routes]]") {
        let listen = "[server]\nlisten = \"127.0.0.1:0\"\n";
        config = config.replacen("[server]\n", listen, 1);
    }
    head + &config
}

/// A moment in 2027; calendars are worked out from it.
const START: u64 = 1_800_000_000_000_000;

/// A request of the operator whose token is `test`: `path` is what follows `/api/v1/keys/`.
pub fn change_request(method: &str, path: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    format!(
        "{method} /api/v1/keys/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer test\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
