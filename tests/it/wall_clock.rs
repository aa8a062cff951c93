//! The wall clock is set while the gateway runs, as on a machine that starts with a wrong time.

use std::time::Duration;

use serde_json::{Value, json};

use crate::decisions::{check, nginx};
use crate::harness::{Gateway, eventually};
use crate::permits::post;
use crate::spending::SECRET;
use tollgate_limit::Micros;

/// 2027-01-15T08:00:00Z, the moment that a gateway of the tests starts at.
const START: u64 = 1_800_000_000;

#[test]
fn wall_clock_that_is_set_decides_about_tokens_and_the_log_and_refills_no_bucket() {
    let folder = tempfile::tempdir().expect("a folder");
    let [secret, log] = ["secret", "access.log"].map(|name| folder.path().join(name));
    std::fs::write(&secret, SECRET).expect("written");
    let gateway = Gateway::start(&format!(
        "[decide]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = '{}'\n\
         [identities.user]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
         jwt = {{ secret_file = '{}', algorithms = [\"HS256\"] }}\n\
         [limits.it]\nrate = \"1/hour\"\nburst = 1\nper = \"user\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
        log.display(),
        secret.display()
    ));
    let token = |expires: u64| {
        let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
        let claims = json!({ "sub": "ann", "exp": expires });
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token")
    };
    let ask = |token: &str| {
        let bearer = format!("Bearer {token}");
        gateway
            .request("GET", "/", &[("authorization", &bearer)])
            .status
    };
    let (short, long) = (token(START + 1800), token(START + 7200));
    assert_eq!([ask(&short), ask(&short)], [200, 429]);
    gateway
        .shared()
        .clock
        .set_wall_forward(Micros::from_secs(3600));
    gateway.advance(Duration::from_secs(1));
    assert_eq!(
        [ask(&short), ask(&long)],
        [401, 429],
        "it has expired; the bucket is not full"
    );
    let bearer = format!("Bearer {short}");
    let mut headers = nginx("GET", "/", "192.0.2.1");
    headers.push(("authorization", &bearer));
    assert_eq!(check(&gateway, &headers).status, 401, "by a proxy");
    let request = json!({ "method": "GET", "path": "/", "headers": { "authorization": bearer } });
    let document = json!({ "requests": [request], "together": true });
    let told = post(&gateway, "/v1/decide", &document).json();
    assert_eq!(told["together"]["status"], 401, "together: {told}");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    eventually("the log is written", || lines().len() == 6);
    let mut times: Vec<String> = lines()
        .iter()
        .map(|line| line["time"].to_string()[1..20].to_owned())
        .collect();
    // Each worker writes its own lines.
    times.sort();
    let (before, after) = ("2027-01-15T08:00:00", "2027-01-15T09:00:01");
    assert_eq!(times, [before, before, after, after, after, after]);
}
