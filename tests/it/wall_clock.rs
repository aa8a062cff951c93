//! The wall clock is set while the gateway runs, as on a machine that starts with a wrong time.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::decisions;
use crate::harness::{Gateway, eventually};
use crate::permits::post;
use crate::spending::SECRET;
use tollgate_limit::Micros;

/// 2027-01-15T08:00:00Z, the moment that a gateway of the tests starts at.
const START: u64 = 1_800_000_000;

/// The beginning of that moment in the log, and of the moment after [`set_forward_by_an_hour`].
const BEFORE: &str = "2027-01-15T08:00:00";
const AFTER: &str = "2027-01-15T09:00:01";

#[test]
fn wall_clock_that_is_set_decides_about_tokens_and_the_log_and_refills_no_bucket() {
    let folder = tempfile::tempdir().expect("a folder");
    let [secret, log] = ["secret", "access.log"].map(|name| folder.path().join(name));
    std::fs::write(&secret, SECRET).expect("written");
    let gateway = logging(&log, &limited_by_token(&secret));
    let ask = |bearer: &str| {
        gateway
            .request("GET", "/", &[("authorization", bearer)])
            .status
    };
    let (short, long) = (bearer(START + 1800), bearer(START + 7200));
    assert_eq!([ask(&short), ask(&short)], [200, 429]);
    set_forward_by_an_hour(&gateway);
    assert_eq!(
        [ask(&short), ask(&long)],
        [401, 429],
        "it has expired; the bucket is not full"
    );
    assert_eq!(times(&log, 4), [BEFORE, BEFORE, AFTER, AFTER]);
}

#[test]
fn wall_clock_that_is_set_dates_input_that_is_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = logging(
        &log,
        "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
    );
    let unreadable = || {
        let mut connection = gateway.connect();
        connection.send("GET / HTTP/1.1\r\nno header\r\n\r\n");
        connection.answer("GET").status
    };
    assert_eq!(unreadable(), 400);
    set_forward_by_an_hour(&gateway);
    assert_eq!(unreadable(), 400);
    assert_eq!(times(&log, 2), [BEFORE, AFTER]);
}

#[test]
fn wall_clock_that_is_set_decides_about_tokens_of_requests_that_other_programs_forward() {
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), SECRET).expect("written");
    let gateway = decisions::gateway("", &limited_by_token(secret.path()));
    let short = bearer(START + 1800);
    let check = || {
        let mut headers = decisions::nginx("GET", "/", "192.0.2.7");
        headers.push(("authorization", &short));
        decisions::check(&gateway, &headers).status
    };
    let decide = |together: bool| {
        let request = json!({
            "method": "GET", "path": "/", "client": "192.0.2.7",
            "headers": { "authorization": short }
        });
        let asked = json!({ "together": together, "requests": [request] });
        let told = post(&gateway, "/v1/decide", &asked).json();
        let decision = match together {
            true => &told["together"],
            false => &told["decisions"][0],
        };
        decision["status"].clone()
    };
    assert_eq!(check(), 200);
    assert_eq!([false, true].map(decide), [429, 429]);
    set_forward_by_an_hour(&gateway);
    assert_eq!(check(), 401);
    assert_eq!([false, true].map(decide), [401, 401]);
}

/// A gateway that writes its access log to this file.
fn logging(log: &Path, more: &str) -> Gateway {
    Gateway::start(&format!("[log]\naccess = '{}'\n{more}", log.display()))
}

/// The times of the log's lines in seconds, sorted, once there are this many. (Each worker writes its own lines.)
fn times(log: &Path, lines: usize) -> Vec<String> {
    let read = || -> Vec<String> {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|line| line["time"].to_string()[1..20].to_owned())
            .collect()
    };
    eventually("the log is written", || read().len() == lines);
    let mut times = read();
    times.sort();
    times
}

/// A limit for each user whose token is signed with the secret in this file.
fn limited_by_token(secret: &Path) -> String {
    format!(
        "[identities.user]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
         jwt = {{ secret_file = '{}', algorithms = [\"HS256\"] }}\n\
         [limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"user\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        secret.display()
    )
}

/// A token that is valid until this second.
fn bearer(expires: u64) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
    let claims = json!({ "sub": "ann", "exp": expires });
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key);
    format!("Bearer {}", token.expect("a token"))
}

/// Sets the wall clock, and lets the second pass after which each worker reads it.
fn set_forward_by_an_hour(gateway: &Gateway) {
    let hour = Micros::from_secs(3600);
    gateway.shared().clock.set_wall_forward(hour);
    gateway.advance(Duration::from_secs(1));
}
