//! `tollgate top`, in a pipe and in a terminal.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::Gateway;
use crate::servers;

const CONFIG: &str = "[log]\naccess = \"off\"\nkeys = \"plain\"\n\
    [limits.per_key]\nrate = \"1/minute\"\nburst = 5\nper = \"header:x-api-key\"\nwhen_missing = \"skip\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_key\"]\n";

/// A key that would move the cursor, set the title and turn text around.
const HOSTILE: &str = "\u{202e}k\u{9b}2J";

fn ask(gateway: &Gateway, key: &str, times: usize) -> u16 {
    let status = || gateway.request("GET", "/", &[("x-api-key", key)]).status;
    (0..times).fold(0, |_, _| status())
}

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .arg("top")
        .args(arguments)
        .current_dir(Path::new("/"));
    command
        .env_remove("TOLLGATE_ADMIN")
        .env_remove("TOLLGATE_CONFIG");
    command
}

#[test]
fn top_once_prints_the_keys_of_a_fleet_in_one_plain_frame() {
    let (one, two) = (Gateway::start(CONFIG), Gateway::start(CONFIG));
    assert_eq!(ask(&one, HOSTILE, 7), 429);
    assert_eq!(ask(&two, "other", 6), 429);
    assert_eq!(ask(&two, "close", 4), 200);
    one.advance(Duration::from_secs(20));
    let fleet = format!("{},{},127.0.0.1:1", one.admin(), two.admin());
    let output = top(&["--once", "--admin", &fleet])
        .output()
        .expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "{text:?}"
    );
    assert!(!text.contains('\u{202e}'), "{text:?}");
    let line = |words: &str| {
        let found = text.lines().find(|line| line.contains(words));
        found
            .unwrap_or_else(|| panic!("{words}: {text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("exact "), "exact not known: 2 of 3 gateways respond");
    assert_eq!(line("REFUSED NOW"), "REFUSED NOW 2 keys");
    assert_eq!(line("CLOSE"), "CLOSE 1 key");
    assert!(
        line("127.0.0.1:1 ").contains("no figures: no response"),
        "{text}"
    );
    let hostile = line("\\u{202e}k");
    assert!(hostile.ends_with(&one.admin().to_string()), "{hostile}");
    assert!(
        hostile.contains(" per_key 08:01:00 (in 40 s) 2 08:00:00 "),
        "{hostile}"
    );
    assert!(line("\"close\"").contains(" per_key 1 4 min "), "{text}");
    assert!(
        line("enforce").starts_with("per_key - - 14 3 0 enforce"),
        "{text}"
    );

    let output = top(&["--once", "--admin", "127.0.0.1:1"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let output = top(&["--admin", "127.0.0.1:1"])
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "no terminal");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--once"));
}

/// Runs a command of a shell in a terminal of its own, and writes the keys of each step once it shows the
/// step's mark.
fn in_a_terminal(command: &str, steps: &[(&str, &[u8])]) -> String {
    let mut script = Command::new("timeout")
        .args(["60", "script", "-qefc", command, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("TOLLGATE_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = script.stdin.take().expect("piped");
    let mut stdout = script.stdout.take().expect("piped");
    let mut shown = Vec::new();
    let mut piece = [0; 4096];
    let (mut steps, mut from) = (steps.iter().peekable(), 0);
    loop {
        match stdout.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => shown.extend_from_slice(&piece[..count]),
        }
        if let Some((mark, keys)) = steps.peek()
            && String::from_utf8_lossy(&shown[from..]).contains(mark)
        {
            stdin.write_all(keys).expect("typed");
            from = shown.len();
            steps.next();
        }
    }
    assert!(
        script.wait().expect("it ends").code() != Some(124),
        "it ended by itself"
    );
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn top_in_a_terminal_shows_frames_and_leaves_it_as_it_was() {
    if !servers::available("script") {
        return;
    }
    let gateway = Gateway::start(CONFIG);
    assert_eq!(ask(&gateway, HOSTILE, 6), 429);
    let top = format!(
        "{} top --every 100 --admin {}",
        env!("CARGO_BIN_EXE_tollgate"),
        gateway.admin()
    );
    let ends: [(&str, String, &[u8]); 3] = [
        (
            "q",
            format!("stty rows 30 cols 100; {top}; echo code $?; stty -a"),
            b"q",
        ),
        (
            "Ctrl-C",
            format!("stty rows 30 cols 100; {top}; echo code $?; stty -a"),
            b"\x03",
        ),
        (
            "SIGTERM",
            format!("stty rows 30 cols 100; timeout --foreground 2 {top}; echo code $?; stty -a"),
            b"",
        ),
    ];
    for (end, command, keys) in ends {
        let shown = in_a_terminal(&command, &[("u{202e}k", keys)]);
        let (frames, after) = shown
            .split_once("\x1b[?1049l")
            .unwrap_or_else(|| panic!("{end}: {shown:?}"));
        assert!(
            frames.contains("\x1b[?1049h") && frames.contains("REFUSED NOW"),
            "{end}: {frames:?}"
        );
        assert!(
            !frames.contains('\u{202e}') && !frames.contains('\u{9b}'),
            "{end}"
        );
        assert!(after.contains("code "), "{end}: {after}");
        let modes: Vec<&str> = after.split([' ', ';', '\r', '\n']).collect();
        for mode in ["icanon", "echo", "isig", "opost"] {
            assert!(modes.contains(&mode), "{end}: {mode}: {after}");
        }
        let frame = frames.rsplit("\x1b[H").next().unwrap_or_default();
        assert!(
            frame.matches("\r\n").count() < 30,
            "{end}: it is no longer than the terminal"
        );
    }
}

/// A small terminal: names stand first, other lines are scrolled to, and keys are sorted.
#[test]
fn top_in_a_small_terminal_shows_names_scrolls_and_sorts() {
    if !servers::available("script") {
        return;
    }
    let gateway = Gateway::start(&CONFIG.replace("keys = \"plain\"\n", ""));
    for key in ["one", "two", "three", "four"] {
        assert_eq!(ask(&gateway, key, 7), 429);
    }
    let listed = gateway.admin_get("/api/v1/limits/per_key/keys").json();
    let name = |place: usize| {
        listed["keys"][place]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    let top = format!(
        "stty rows 9 cols 60; {} top --every 100 --admin {}",
        env!("CARGO_BIN_EXE_tollgate"),
        gateway.admin()
    );
    let steps: [(&str, &[u8]); 3] = [
        ("more lines", b"s"),
        ("by end", b"\x1b[6~"),
        ("LIMITS", b"q"),
    ];
    let shown = in_a_terminal(&top, &steps);
    let (first, _) = shown.split_once("by end").expect("it was sorted");
    assert!(
        first.contains("by requests") && !first.contains("LIMITS"),
        "{shown:?}"
    );
    assert!(
        (0..4).any(|place| first.contains(&name(place))),
        "{shown:?}"
    );
}

/// Gateways on these stores, with one secret and one limit, of which each has refused the same caller. Returns a frame.
fn frame_of_gateways_on(stores: &[&servers::Redis]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that gateways share").expect("written");
    let start = |redis: &&servers::Redis| {
        Gateway::start_in_real_time(&format!(
            "[log]\naccess = \"off\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\nwhen_down = \"allow\"\nkey_secret_file = '{}'\n\
             [limits.api]\nrate = \"3/hour\"\nper = \"address\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"api\"]\n",
            redis.url(),
            secret.display()
        ))
    };
    let gateways: Vec<Gateway> = stores.iter().map(start).collect();
    for gateway in &gateways {
        servers::wait_until("the store decides", || gateway.get("/").status == 429);
        servers::wait_until("the store is named", || {
            gateway.admin_get("/api/v1/status").json()["store"]["name"].is_string()
        });
    }
    let fleet: Vec<String> = gateways.iter().map(|one| one.admin().to_string()).collect();
    let output = top(&["--once", "--admin", &fleet.join(",")]).output();
    String::from_utf8(output.expect("it runs").stdout).expect("text")
}

/// Two gateways on one store refuse the same caller: it is one key, with the requests that it lost on both.
#[test]
fn top_of_gateways_on_one_store_shows_a_shared_key_once() {
    if !servers::available("redis-server") {
        return;
    }
    let redis = servers::Redis::start();
    let text = frame_of_gateways_on(&[&redis, &redis]);
    assert!(text.contains("REFUSED NOW  1 key\n"), "{text}");
    assert_eq!(text.matches("address 127.0.0.1").count(), 1, "{text}");
    let row = text.lines().find(|line| line.contains("address 127.0.0.1"));
    let row: Vec<&str> = row.expect("its row").split_whitespace().collect();
    assert_eq!(row[row.len() - 2..], ["2", "gateways"], "{text}");
    assert!(row.contains(&"2"), "both refusals are counted: {text}");
}

/// The caller has a bucket in each store, under a limit of the same name.
#[test]
fn top_of_gateways_on_two_stores_shows_a_key_for_each() {
    if !servers::available("redis-server") {
        return;
    }
    let stores = [servers::Redis::start(), servers::Redis::start()];
    let text = frame_of_gateways_on(&[&stores[0], &stores[1]]);
    assert!(text.contains("REFUSED NOW  2 keys\n"), "{text}");
    assert_eq!(text.matches("address 127.0.0.1").count(), 2, "{text}");
    assert!(!text.contains("2 gateways "), "{text}");
}
