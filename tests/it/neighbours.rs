//! Real proxies that ask Tollgate about their requests, with the files of the book: NGINX, Caddy, HAProxy, Traefik.

mod nginx;
mod traefik;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tollgate::app::{self, ConfigSource, Options, RunningGateway};
use tollgate_store::clock::Clock;

use crate::harness::client::Answer;
use crate::harness::{self, Connection, Nginx, Upstream, eventually, load, repository};
use crate::servers::free_port;

/// A file that the page of a neighbour shows.
fn shown(neighbour: &str, name: &str) -> String {
    harness::shown(&format!("do/beside-{neighbour}.md"), name)
}

/// A kind of proxy: the neighbour whose page has its files, and how it is started.
#[derive(Clone, Copy)]
struct Kind {
    neighbour: &'static str,
    start: fn(Ports) -> Option<Proxy>,
    /// Its status while Tollgate is down.
    down: u16,
    /// Its status while Tollgate does not respond; `None`: it waits longer than a test.
    slow: Option<u16>,
}

impl Kind {
    /// The proxy, the ports that it is set up for, and its upstream.
    fn start(self) -> Option<(Proxy, Ports, Upstream)> {
        let upstream = Upstream::hello();
        let ports = Ports {
            decide: free_port(),
            upstream: upstream.port(),
        };
        Some(((self.start)(ports)?, ports, upstream))
    }
}

#[derive(Clone, Copy)]
struct Ports {
    decide: u16,
    upstream: u16,
}

impl Ports {
    fn into(self, text: &str, own: u16) -> String {
        text.replace(":9190", &format!(":{}", self.decide))
            .replace(":8082", &format!(":{own}"))
            .replace(":3000", &format!(":{}", self.upstream))
    }
}

/// A running proxy; it ends when dropped.
enum Proxy {
    Nginx(Nginx),
    Other {
        child: Child,
        port: u16,
        _folder: tempfile::TempDir,
    },
}

impl Proxy {
    /// Runs the program of a neighbour in a folder with these files of its page.
    fn run(neighbour: &str, arguments: &[&str], files: &[&str], ports: Ports) -> Option<Self> {
        let installed = repository().join("target/neighbours/bin");
        let system = ["/usr/sbin", "/usr/bin", "/usr/local/bin"].map(Path::new);
        let known = [&*installed].into_iter().chain(system);
        let known: Vec<_> = known.map(|folder| folder.join(neighbour)).collect();
        let Some(program) = known.iter().find(|path| path.exists()) else {
            assert!(
                std::env::var_os("CI").is_none(),
                "{neighbour} is not installed"
            );
            eprintln!("!!! SKIPPED: {neighbour} is not installed");
            return None;
        };
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        for name in files {
            let text = ports.into(&shown(neighbour, name), port);
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        let child = Command::new(program)
            .args(arguments)
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path())
            .env("XDG_DATA_HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let proxy = Self::Other {
            child,
            port,
            _folder: folder,
        };
        eventually("the proxy listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(proxy)
    }

    fn address(&self) -> SocketAddr {
        let port = match self {
            Self::Nginx(nginx) => nginx.port(),
            Self::Other { port, .. } => *port,
        };
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn request(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        Connection::open(self.address()).request("GET", path, headers)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Self::Other { child, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const NGINX: Kind = Kind {
    neighbour: "nginx",
    start: |ports| {
        let text = shown("nginx", "nginx.conf");
        Nginx::start(|own| ports.into(&text, own)).map(Proxy::Nginx)
    },
    down: 500,
    slow: Some(500),
};

const CADDY: Kind = Kind {
    neighbour: "caddy",
    start: |ports| {
        let arguments = ["run", "--config", "Caddyfile", "--adapter", "caddyfile"];
        Proxy::run("caddy", &arguments, &["Caddyfile"], ports)
    },
    down: 502,
    slow: Some(504),
};

const HAPROXY: Kind = Kind {
    neighbour: "haproxy",
    start: |ports| {
        let files = ["haproxy.cfg", "tollgate.lua"];
        Proxy::run("haproxy", &["-db", "-f", "haproxy.cfg"], &files, ports)
    },
    down: 503,
    slow: Some(504),
};

/// Starts Tollgate with a file of the page, where a rate may be replaced.
fn tollgate(kind: Kind, ports: Ports, rate: Option<&str>) -> RunningGateway {
    let mut text = ports
        .into(&shown(kind.neighbour, "gateway.toml"), 0)
        .replace(":8080", ":0");
    if let Some(rate) = rate {
        text = text.replace("rate = \"10/second\"\nburst = 10", rate);
        text.push_str(
            "[[routes]]\nmatch = \"/free\"\nupstream = \"builtin:echo\"\nlimits = []\n\
             [[routes]]\nmatch = \"/forbidden\"\nrespond = { status = 403 }\n\
             [limits.budget]\nrate = \"1/day\"\nper = \"everyone\"\nrefuse_status = 402\n\
             [[routes]]\nmatch = \"/paid\"\nupstream = \"builtin:echo\"\nlimits = [\"budget\"]\n",
        );
    }
    text.push_str("[admin]\nlisten = \"off\"\n[log]\naccess = \"off\"\n");
    let source = ConfigSource::Text {
        text,
        name: "test.toml".to_owned(),
    };
    let options = Options {
        source,
        environment: Arc::new(|_| None),
        clock: Clock::system(),
    };
    app::start(options).unwrap_or_else(|error| panic!("{error}"))
}

/// What the limit admits through the proxy: a burst of 10, then 10 each second, to 64 clients for 3 seconds.
fn admits_what_the_limit_says(kind: Kind) {
    let Some((proxy, ports, upstream)) = kind.start() else {
        return;
    };
    let _gateway = tollgate(kind, ports, None);
    let admitted = load::ten_a_second(proxy.address(), &[], |refused| {
        assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
        assert!(refused.header("ratelimit").is_some(), "{refused:?}");
    });
    assert_eq!(upstream.seen().len() as u64, admitted);
}

/// Headers by which a proxy states a request, from a client.
pub(crate) const FORGED: [(&str, &str); 14] = [
    ("X-Original-Method", "OPTIONS"),
    ("X-Original-URI", "/free"),
    ("X-Original-URL", "http://127.0.0.1/free"),
    ("X-Forwarded-Method", "OPTIONS"),
    ("X-Forwarded-Uri", "/free"),
    ("X-Forwarded-Host", "other.example"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-For", "203.0.113.7"),
    ("X-Real-IP", "203.0.113.7"),
    ("Forwarded", "for=203.0.113.7"),
    ("X-Tollgate-Status", "200"),
    ("X_Original_URI", "/free"),
    ("Content-Type", "application/grpc"),
    (
        "Connection",
        "x-original-uri, x-forwarded-for, x-forwarded-uri",
    ),
];

/// What a client sends of these headers changes nothing; the client is told what Tollgate decides.
fn ignores_forged_headers(kind: Kind) {
    let Some((proxy, ports, upstream)) = kind.start() else {
        return;
    };
    let _gateway = tollgate(kind, ports, Some("rate = \"2/hour\""));
    let mut admitted = 0;
    for header in FORGED {
        for _ in 0..2 {
            let answer = proxy.request("/limited", &[header]);
            assert!(
                [200, 429].contains(&answer.status),
                "{header:?}: {answer:?}"
            );
            admitted += u32::from(answer.status == 200);
        }
    }
    let all = proxy.request("/limited", &FORGED[..11]);
    assert_eq!((all.status, admitted), (429, 2));
    // Nor does a path that begins like a free one.
    for path in ["/free/../limited", "/free%2F..", "/free/..;/x"] {
        assert_ne!(proxy.request(path, &[]).status, 200, "{path}");
    }
    assert_eq!(upstream.seen().len(), 2);
    assert_eq!(proxy.request("/free", &[]).status, 200);
    let statuses = ["/forbidden", "/paid", "/paid"].map(|path| proxy.request(path, &[]).status);
    assert_eq!(statuses, [403, 200, 402]);
}

/// While Tollgate is down, or does not respond, nothing passes; when it is back, it does.
fn lets_nothing_pass_while_tollgate_is_down(kind: Kind) {
    let Some((proxy, ports, upstream)) = kind.start() else {
        return;
    };
    assert_eq!(proxy.request("/", &[]).status, kind.down);
    if let Some(status) = kind.slow {
        // It accepts connections and says nothing.
        let _slow = TcpListener::bind(("127.0.0.1", ports.decide)).expect("the port is free");
        assert_eq!(proxy.request("/", &[]).status, status);
    }
    assert_eq!(upstream.seen().len(), 0);
    for _ in 0..2 {
        let gateway = tollgate(kind, ports, Some("rate = \"1/hour\""));
        eventually("requests pass again", || {
            proxy.request("/", &[]).status == 200
        });
        assert_eq!(proxy.request("/", &[]).status, 429);
        gateway.shutdown();
        assert_eq!(proxy.request("/", &[]).status, kind.down);
    }
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn nginx_admits_as_many_as_the_limit() {
    admits_what_the_limit_says(NGINX);
}

#[test]
fn nginx_ignores_forged_headers() {
    ignores_forged_headers(NGINX);
}

#[test]
fn nginx_lets_nothing_pass_while_tollgate_is_down() {
    lets_nothing_pass_while_tollgate_is_down(NGINX);
}

#[test]
fn caddy_admits_as_many_as_the_limit() {
    admits_what_the_limit_says(CADDY);
}

#[test]
fn caddy_ignores_forged_headers() {
    ignores_forged_headers(CADDY);
}

#[test]
fn caddy_lets_nothing_pass_while_tollgate_is_down() {
    lets_nothing_pass_while_tollgate_is_down(CADDY);
}

#[test]
fn haproxy_admits_as_many_as_the_limit() {
    admits_what_the_limit_says(HAPROXY);
}

#[test]
fn haproxy_ignores_forged_headers() {
    ignores_forged_headers(HAPROXY);
}

#[test]
fn haproxy_lets_nothing_pass_while_tollgate_is_down() {
    lets_nothing_pass_while_tollgate_is_down(HAPROXY);
}
