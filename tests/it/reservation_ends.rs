//! How a reservation ends, whatever ends its request: over HTTP/2, for gRPC, for a proxy that asks, at the turn of a month, and
//! with several targets.

use std::time::Duration;

use serde_json::json;

use crate::decisions::gateway as deciding;
use crate::harness::client::Answer;
use crate::harness::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, block, frame, request,
};
use crate::harness::llm::{End, Tokens};
use crate::harness::{Connection, Gateway, Llm, Reply, Upstream, eventually};
use crate::permits::{admitted, left_of, post};
use crate::reserving::{BUDGET, call, charged, gateway, obedient, send, settled};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[test]
fn reservation_over_http2_is_kept_whole_where_the_client_resets_its_stream() {
    for seen in [false, true] {
        let model = obedient();
        let gateway = gateway(&model, "");
        model.hold();
        let (body, reserved) = call(5_000, 300, 700, "");
        let mut frames = Frames::open(gateway.address(), &[]);
        let head = request("POST", "/v1/chat/completions", &JSON);
        frames.send(frame(HEADERS, END_HEADERS, 1, head));
        frames.send(frame(DATA, END_STREAM, 1, body));
        eventually("it is under way", || model.used().len() == 1);
        if seen {
            while !matches!(frames.frame().expect("in time"), Some((DATA, ..))) {}
        }
        frames.send(frame(RST_STREAM, 0, 1, 8_u32.to_be_bytes()));
        settled(&gateway, 1);
        model.release();
        assert_eq!(charged(&gateway), reserved, "a part was seen: {seen}");
    }
}

#[test]
fn reservation_over_http2_in_pieces_with_trailers_is_settled_by_the_response() {
    let model = obedient();
    let gateway = gateway(&model, "");
    let (body, _) = call(5_000, 300, 700, "");
    let mut frames = Frames::open(gateway.address(), &[]);
    let head = request("POST", "/v1/chat/completions", &JSON);
    frames.send(frame(HEADERS, END_HEADERS, 1, head));
    for piece in body.as_bytes().chunks(10) {
        frames.send(frame(DATA, 0, 1, piece));
    }
    let trailers = block(&[("x-sum", "7")]);
    frames.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, trailers));
    assert_eq!(frames.fate(1).status, Some(200));
    settled(&gateway, 1);
    assert_eq!(charged(&gateway), 1_000, "what was used");
    assert_eq!(model.upstream().seen()[0].body, body.as_bytes());
}

/// A limit of gRPC calls, which state the most that they may cost in their head.
fn of_calls(url: &str) -> Gateway {
    Gateway::start(&format!(
        "[limits.units]\nrate = \"1000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ header = \"x-most\", default = 100, max = 500 }}\nsettle = {{ from = \"header:x-used\" }}\n\
         refund_on = [\"5xx\"]\n\
         [limits.look]\nrate = \"1000/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"units\"]\n"
    ))
}

/// What is left of the limit of calls, as a call says that reserves one unit and gets no response.
fn left_of_calls(gateway: &Gateway) -> u64 {
    let over = [("x-most", "500"), ("content-type", "application/json")];
    loop {
        let answer = gateway.request("POST", "/", &over);
        if answer.status == 429 {
            return answer.left().expect("units");
        }
    }
}

#[test]
fn reservation_of_a_grpc_call_is_kept_where_the_client_resets_it_or_its_deadline_passes() {
    let upstream = Upstream::start(|seen| match seen.header("x-most") {
        Some("500") => Reply::new(200, &[("content-type", "application/json")], "{}"),
        _ => Reply::Silence,
    });
    let gateway = of_calls(&upstream.url());
    let mut frames = Frames::open(gateway.address(), &[]);
    let call = |stream: u32, more: &[(&str, &str)]| {
        let own = [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-most", "300"),
        ];
        let head = request("POST", "/t.T/Unary", &[&own[..], more].concat());
        frame(HEADERS, END_HEADERS | END_STREAM, stream, head)
    };
    frames.send(call(1, &[]));
    eventually("it is under way", || upstream.seen().len() == 1);
    frames.send(frame(RST_STREAM, 0, 1, 8_u32.to_be_bytes()));
    settled(&gateway, 1);
    frames.send(call(3, &[("grpc-timeout", "50m")]));
    let fate = frames.fate(3);
    assert_eq!(fate.status, Some(200), "the deadline is a gRPC status");
    settled(&gateway, 2);
    // 1000 - 300 - 300 cannot pay 500.
    assert_eq!(left_of_calls(&gateway), 400);
}

#[test]
fn reservation_is_given_back_where_no_upstream_can_be_reached_and_the_file_says_so() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", port.local_addr().expect("an address"));
    drop(port);
    let gateway = of_calls(&url);
    for _ in 0..5 {
        let answer = gateway.request("POST", "/", &[("x-most", "500")]);
        assert_eq!(answer.status, 502, "all of them fit: {answer:?}");
    }
}

#[test]
fn reservation_of_a_permit_is_kept_until_a_report_and_when_none_comes() {
    let gateway = deciding(
        "permit_expiry = \"30s\"",
        "[limits.it]\nrate = \"1000/day\"\nalgorithm = \"fixed_window\"\nper = \"address\"\n\
         cost = { header = \"x-most\", default = 100, max = 500 }\nsettle = { from = \"header:x-used\" }\n\
         refund_on = [\"5xx\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
    );
    let left = || left_of(&gateway, "it");
    let [settled, unstated, returned, expired, failed] =
        std::array::from_fn(|_| admitted(&gateway, "/"));
    assert_eq!(left(), 500);
    let report = json!({"permit": settled, "status": 200, "units": 30});
    assert_eq!(post(&gateway, "/v1/settle", &report).status, 200);
    assert_eq!(left(), 570, "what was used");
    let report = json!({"permit": unstated, "status": 200});
    assert_eq!(post(&gateway, "/v1/settle", &report).status, 200);
    assert_eq!(left(), 570, "a response without its cost keeps it");
    let permit = json!({ "permit": returned });
    assert_eq!(post(&gateway, "/v1/give-back", &permit).status, 204);
    assert_eq!(left(), 570, "what became of the request is not known");
    let report = json!({"permit": failed, "status": 503});
    assert_eq!(post(&gateway, "/v1/settle", &report).status, 200);
    assert_eq!(left(), 670, "the file gives it back");
    gateway.advance(Duration::from_secs(31));
    let report = json!({"permit": expired, "units": 1});
    eventually("the permit expires", || {
        let metrics = gateway.admin_get("/metrics").text();
        metrics.contains("tollgate_permits_expired_total 1")
    });
    assert_eq!(post(&gateway, "/v1/settle", &report).status, 404);
    assert_eq!(left(), 670);
}

#[test]
fn reservation_of_a_stream_over_the_turn_of_a_month_gives_nothing_to_the_next_one() {
    for (input, output, next) in [(300, 700, 0), (3_000, 7_000, 0)] {
        let model = obedient();
        let gateway = Gateway::start(&format!(
            "[limits.tokens]\nrate = \"{BUDGET}/month\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
             window = {{ align = \"calendar\", zone = \"Europe/Berlin\" }}\nceiling = true\n\
             cost = {{ json = \"max_tokens\", default = 20000, max = 20000, plus = \"body_bytes\" }}\n\
             settle = {{ from = \"json:usage.total_tokens\" }}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
            model.url()
        ));
        model.hold();
        let (body, _) = call(11_000, input, output, "");
        let mut connection = gateway.connect();
        send(&mut connection, &body);
        connection.until("data: ");
        gateway.advance(Duration::from_secs(31 * 86_400));
        model.release();
        connection.until("[DONE]");
        settled(&gateway, 1);
        assert_eq!(charged(&gateway), next, "of the new month");
    }
}

/// A route with a big budget of two units and a cheap one of `cheap`, each of them for one upstream.
fn two_targets(dear: &str, cheap: &str, limits: &str) -> Gateway {
    Gateway::start(&format!(
        "[limits.caller]\nrate = \"1000/day\"\nalgorithm = \"fixed_window\"\nper = \"address\"\n\
         {limits}\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{dear}\"\nlimits = [\"caller\", \"big\"]\n\
         over_limit = {{ instead_of = \"big\", upstream = \"{cheap}\", limits = [\"cheap\"] }}\n"
    ))
}

/// The units left of each limit that a response tells.
fn told(answer: &Answer) -> String {
    let field = answer.header("ratelimit").unwrap_or_default();
    let limits = field
        .split(", ")
        .map(|limit| limit.split(";t=").next().unwrap_or_default());
    limits.collect::<Vec<_>>().join(" ").replace('"', "")
}

const BIG: &str =
    "[limits.big]\nrate = \"2/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n";
const CHEAP: &str =
    "[limits.cheap]\nrate = \"9/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n";

#[test]
fn over_limit_refund_goes_to_the_target_that_was_charged() {
    let dear = Upstream::hello();
    let cheap = Upstream::start(|seen| match seen.header("x-fail") {
        Some(_) => Reply::new(503, &[], ""),
        None => Reply::ok("cheap"),
    });
    let refunds = "refund_on = [\"503\"]\n";
    let limits = format!("{BIG}{refunds}{CHEAP}{refunds}");
    let gateway = two_targets(&dear.url(), &cheap.url(), &limits);
    assert_eq!(told(&gateway.get("/")), "caller;r=999 big;r=1");
    assert_eq!(told(&gateway.get("/")), "caller;r=998 big;r=0");
    let failed = gateway.request("GET", "/", &[("x-fail", "1")]);
    assert_eq!(
        (failed.status, &*told(&failed)),
        (503, "caller;r=997 cheap;r=8")
    );
    // Given back to the cheap budget: the big one has nothing again, and the next request passes on.
    eventually("it is given back", || {
        let metrics = gateway.admin_get("/metrics").text();
        metrics.contains("tollgate_over_limit_requests_total{route=\"/**\"} 1")
    });
    assert_eq!(told(&gateway.get("/")), "caller;r=996 cheap;r=8");
    assert_eq!((dear.seen().len(), cheap.seen().len()), (2, 2));
}

#[test]
fn over_limit_upstream_that_fails_is_no_budget_that_is_gone() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let dead = format!("http://{}", port.local_addr().expect("an address"));
    drop(port);
    let cheap = Upstream::hello();
    let limits = format!("{BIG}refund_on = [\"502\"]\n{CHEAP}");
    let gateway = two_targets(&dead, &cheap.url(), &limits);
    for _ in 0..4 {
        let answer = gateway.get("/");
        assert_eq!(answer.status, 502, "its budget has units: {answer:?}");
    }
    assert!(cheap.seen().is_empty());
}

#[test]
fn over_limit_batch_is_charged_whole_on_one_target() {
    let (dear, cheap) = (Upstream::hello(), Upstream::hello());
    let limits = format!("{BIG}{CHEAP}").replace(
        "[limits.cheap]\n",
        "[limits.method]\nrate = \"1000/day\"\nper = \"json:method\"\nwhen_missing = \"skip\"\n[limits.cheap]\n",
    );
    let gateway = Gateway::start(&format!(
        "{limits}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"method\", \"big\"]\n\
         over_limit = {{ instead_of = \"big\", upstream = \"{}\", limits = [\"cheap\"] }}\n",
        dear.url(),
        cheap.url()
    ));
    let batch = |calls: usize| {
        let body = json!(vec![
            json!({"jsonrpc": "2.0", "id": 1, "method": "m"});
            calls
        ])
        .to_string();
        let mut connection: Connection = gateway.connect();
        send(&mut connection, &body);
        let answer = connection.answer("POST");
        (answer.status, told(&answer))
    };
    assert_eq!(batch(4), (200, "method;r=996 cheap;r=5".to_owned()));
    assert_eq!(
        batch(2),
        (200, "method;r=994 big;r=0".to_owned()),
        "both units are there"
    );
    assert_eq!(batch(6).0, 429, "no target has six");
    assert_eq!(batch(5), (200, "method;r=989 cheap;r=0".to_owned()));
    assert_eq!((dear.seen().len(), cheap.seen().len()), (1, 2));
}

#[test]
fn over_limit_client_that_leaves_keeps_the_reservation_of_one_target() {
    let dear = Llm::start(|_| (Tokens::new(10, 20), End::Whole));
    let cheap = Llm::start(|_| (Tokens::new(10, 20), End::Whole));
    let budget = |name: &str| {
        format!(
            "[limits.{name}]\nrate = \"2000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
             cost = {{ usage = \"openai\", max = 5000 }}\nsettle = {{ from = \"json:usage.total_tokens\" }}\n"
        )
    };
    let limits = budget("big") + &budget("cheap");
    let gateway = two_targets(&dear.url(), &cheap.url(), &limits);
    let (body, _) = call(1_500, 0, 0, "");
    dear.hold();
    cheap.hold();
    let mut first = gateway.connect();
    send(&mut first, &body);
    eventually("the dear one has it", || dear.used().len() == 1);
    // 500 are left there: the next one passes on, and its client leaves in the middle of its stream.
    let mut second = gateway.connect();
    send(&mut second, &body);
    second.until("data: ");
    drop(second);
    settled(&gateway, 1);
    dear.release();
    cheap.release();
    first.until("[DONE]");
    settled(&gateway, 2);
    let look = |most: u64| {
        let mut connection = gateway.connect();
        send(&mut connection, &call(most, 0, 0, "").0);
        told(&connection.answer("POST"))
    };
    // The dear one was settled down to 30; the cheap one keeps 1500 of 2000.
    assert_eq!(look(1_000), "caller;r=997 big;r=970");
    settled(&gateway, 3);
    assert_eq!(look(1_950), "big;r=1940", "neither has so much");
    assert_eq!((dear.used().len(), cheap.used().len()), (2, 1));
}
