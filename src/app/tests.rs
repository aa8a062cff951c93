//! Whole gateways on free ports.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::start::start_with;
use super::stop::LAST_WORDS;
use super::{ConfigSource, Options, Origin, RunningGateway, StartError, start};
use tollgate_limit::{Micros, Timestamp};
use tollgate_net::listener::{Address, Inherited};
use tollgate_store::clock::Clock;

fn two_per_minute(extra: &str) -> String {
    format!(
        r#"
        [server]
        listen = "127.0.0.1:0"
        workers = 2
        {extra}
        [admin]
        listen = "127.0.0.1:0"
        [log]
        access = "off"
        [limits.all]
        rate = "2/minute"
        per = "everyone"
        [[routes]]
        match = "/**"
        upstream = "builtin:echo"
        limits = ["all"]
        "#
    )
}

fn options(source: ConfigSource, clock: &Clock) -> Options {
    Options {
        source,
        environment: Arc::new(|_| None),
        clock: clock.clone(),
    }
}

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_800_000_000_000_000))
}

fn from_text(text: &str, clock: &Clock) -> RunningGateway {
    let source = ConfigSource::Text {
        text: text.to_owned(),
        name: "test.toml".to_owned(),
    };
    start(options(source, clock)).unwrap_or_else(|error| panic!("{error}"))
}

fn from_file(path: &Path, clock: &Clock) -> RunningGateway {
    start(options(ConfigSource::File(path.to_path_buf()), clock))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn connect(gateway: &RunningGateway) -> TcpStream {
    let Address::Tcp(address) = gateway.addresses()[0] else {
        panic!("TCP is listened on")
    };
    let stream = TcpStream::connect(address).expect("connected");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    stream
}

/// One request on a connection that lives on: its status.
fn ask(stream: &mut TcpStream) -> u16 {
    stream
        .write_all(b"HEAD /x HTTP/1.1\r\nhost: a\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        let read = stream.read_exact(&mut byte);
        read.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&answer)));
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer)
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .expect("a status")
}

#[test]
fn stop_removes_socket_files_except_those_of_a_service_manager() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name);
    let text = format!(
        "[server]\nlisten = [\"unix:{0}/public\", \"unix:{0}/held\"]\n[admin]\nlisten = \"unix:{0}/admin\"\n\
         [decide]\nlisten = \"unix:{0}/decide\"\n[log]\naccess = \"off\"\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
        folder.path().display()
    );
    let source = ConfigSource::Text {
        text,
        name: "test.toml".to_owned(),
    };
    let options = options(source, &clock());
    let config = options.load().expect("valid");
    let held = std::os::unix::net::UnixListener::bind(path("held")).expect("bound");
    let origin = Origin {
        sockets: vec![Inherited {
            wanted: None,
            socket: held.try_clone().expect("duplicated").into(),
        }],
        ..Origin::default()
    };
    let gateway = start_with(config, options, origin).unwrap_or_else(|error| panic!("{error}"));
    let files = ["public", "admin", "decide", "held"];
    assert_eq!(files.map(|name| path(name).exists()), [true; 4]);
    gateway.shutdown();
    assert_eq!(
        files.map(|name| path(name).exists()),
        [false, false, false, true]
    );
}

#[test]
fn reload_of_a_changed_settle_says_what_changed() {
    let text = |settle: &str| {
        two_per_minute("").replace(
            "per = \"everyone\"",
            &format!(
                "per = \"everyone\"\nsettle = {{ from = \"header:x-cost\", estimate = 1{settle} }}"
            ),
        )
    };
    let gateway = from_text(&text(""), &clock());
    gateway.replace_text(&text(", untold = \"max\", broken_off_per = \"4B\""));
    let said = gateway.reload().expect("valid");
    let lines = "costs a unit for every 4 bytes sent";
    assert!(said.contains(lines), "{said}");
}

#[test]
fn a_gateway_limits_reloads_and_ends() {
    let clock = clock();
    let gateway = from_text(&two_per_minute(""), &clock);
    let mut stream = connect(&gateway);
    assert_eq!(
        [200, 200, 429],
        [ask(&mut stream), ask(&mut stream), ask(&mut stream)]
    );
    clock.advance(Micros::from_secs(30));
    assert_eq!([200, 429], [ask(&mut stream), ask(&mut stream)]);

    // A reload that changes the limit refills no bucket, and the connection lives on.
    gateway.replace_text(&two_per_minute("").replace("2/minute", "4/minute"));
    gateway.reload().expect("a good file");
    assert_eq!(ask(&mut stream), 429);
    clock.advance(Micros::from_secs(15));
    assert_eq!([200, 429], [ask(&mut stream), ask(&mut stream)]);

    // A bad one changes nothing.
    gateway.replace_text(&two_per_minute("").replace("2/minute", "many"));
    let error = gateway.reload().expect_err("no rate");
    assert!(error.contains("rate"), "{error}");
    clock.advance(Micros::from_secs(15));
    assert_eq!([200, 429], [ask(&mut stream), ask(&mut stream)]);
    gateway.shutdown();
    assert_eq!(
        stream
            .read_to_end(&mut Vec::new())
            .expect("closed in order"),
        0
    );
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let gateway = from_text(&two_per_minute(""), &clock());
    gateway.replace_text(&two_per_minute("").replace("workers = 2", "workers = 3"));
    let words = gateway.reload().expect("a good file");
    assert!(
        words.contains("wait for a restart: server.workers"),
        "{words}"
    );
    gateway.replace_text(&two_per_minute(""));
    let words = gateway.reload().expect("a good file");
    assert!(!words.contains("restart"), "{words}");
    let listens = "listen = \"127.0.0.1:1\"\n        workers";
    let elsewhere =
        two_per_minute("").replace("listen = \"127.0.0.1:0\"\n        workers", listens);
    for _ in 0..2 {
        gateway.replace_text(&elsewhere);
        let words = gateway.reload().expect("a good file");
        let waits = words.contains("wait for a restart: server.listen");
        assert!(waits, "until it is restarted: {words}");
    }
}

#[test]
fn reload_that_ends_after_the_gateway_puts_nothing_in_force() {
    let gateway = from_text(&two_per_minute(""), &clock());
    gateway.replace_text(&two_per_minute("").replace("2/minute", "4/minute"));
    // As a reload holds it that hangs.
    let core = Arc::clone(&gateway.core);
    gateway.shutdown();
    core.reload().expect_err("it has ended");
    assert_eq!(core.state.lock().generation, 1);
}

#[test]
fn a_changed_file_is_put_in_force_by_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("gateway.toml");
    std::fs::write(&file, two_per_minute("")).expect("written");
    let gateway = from_file(&file, &clock());
    let mut stream = connect(&gateway);
    assert_eq!(ask(&mut stream), 200);
    std::fs::write(
        &file,
        two_per_minute("").replace("builtin:echo", "nonsense"),
    )
    .expect("written");
    let refused = || gateway.core.state.lock().refused.words().is_some();
    wait_until("the bad file is refused", refused);
    assert_eq!(ask(&mut stream), 200);
    std::fs::write(&file, two_per_minute("").replace("2/minute", "9/minute")).expect("written");
    wait_until("the good file is in force", || {
        gateway.core.state.lock().generation == 2
    });
    assert_eq!(ask(&mut stream), 429, "no bucket is refilled");
}

#[test]
fn drain_that_ends_early_leaves_no_more_than_its_own_time_for_the_logs() {
    let left = |drain: &str| {
        let timeouts = format!("timeouts = {{ drain = \"{drain}\" }}");
        from_text(&two_per_minute(&timeouts), &clock()).shutdown()
    };
    assert_eq!(left("1h"), LAST_WORDS);
    assert!(left("1s") <= Duration::from_secs(1));
}

#[test]
fn a_clean_stop_keeps_the_buckets_and_a_crash_does_not_bring_old_ones_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    let text = two_per_minute(&format!("state_file = '{}'", state.display()));
    let clock = clock();
    let gateway = from_text(&text, &clock);
    let mut stream = connect(&gateway);
    assert_eq!(
        [200, 200, 429],
        [ask(&mut stream), ask(&mut stream), ask(&mut stream)]
    );
    gateway.shutdown();
    assert!(state.exists());

    let gateway = from_text(&text, &clock);
    let mut stream = connect(&gateway);
    assert_eq!(ask(&mut stream), 429, "no bucket is refilled by a restart");
    assert!(!state.exists(), "what is in use is not on disk");
    clock.advance(Micros::from_secs(30));
    assert_eq!([200, 429], [ask(&mut stream), ask(&mut stream)]);
    // As a crash ends it: nothing is saved, and `cold_start = "full"` is what the file asked for.
    drop(gateway);
    assert!(!state.exists());
    let gateway = from_text(&text, &clock);
    let mut stream = connect(&gateway);
    assert_eq!(
        [200, 200, 429],
        [ask(&mut stream), ask(&mut stream), ask(&mut stream)]
    );

    std::fs::write(&state, "no snapshot").expect("written");
    drop(gateway);
    let gateway = from_text(&text, &clock);
    assert_eq!(ask(&mut connect(&gateway)), 200);
}

#[test]
fn a_stop_removes_the_file_of_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let listen = format!("listen = \"unix:{}\"\n        workers", socket.display());
    let text = two_per_minute("").replace("listen = \"127.0.0.1:0\"\n        workers", &listen);
    let gateway = from_text(&text, &clock());
    assert!(socket.exists());
    gateway.shutdown();
    assert!(!socket.exists());
}

#[test]
fn start_failure_names_its_reason() {
    let clock = clock();
    let gateway = from_text(&two_per_minute(""), &clock);
    let Address::Tcp(taken) = gateway.addresses()[0] else {
        panic!("TCP is listened on")
    };
    let cannot_bind = |listen: &str| {
        let source = ConfigSource::Text {
            text: two_per_minute("").replacen("127.0.0.1:0", listen, 1),
            name: "t".to_owned(),
        };
        let started = start(options(source, &clock));
        assert!(matches!(started, Err(StartError::Bind(_))), "{listen}");
    };
    cannot_bind("192.0.2.1:1");
    // A socket that no gateway shares: SO_REUSEPORT must not hide that the port is taken.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = other.local_addr().expect("an address");
    assert_ne!(port, taken);
    cannot_bind(&port.to_string());
    let source = ConfigSource::File("/nowhere/gateway.toml".into());
    assert!(matches!(
        start(options(source, &clock)),
        Err(StartError::Config(_))
    ));
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if reached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not in time: {what}");
}
