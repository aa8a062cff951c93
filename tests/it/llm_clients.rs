//! The Python clients of OpenAI and Anthropic work through the gateway unchanged: whole and streamed
//! responses are settled at what they used, a refusal is raised as theirs, its Retry-After obeyed. So do
//! LangChain's models over them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::llm::{End, Llm, Tokens};
use crate::harness::{Gateway, Peers, eventually};

/// What each call uses: 40 tokens in every format.
const USED: Tokens = Tokens {
    input: 12,
    cached_input: 3,
    cache_write: 0,
    output: 20,
    reasoning: 5,
};

/// The clients, if `./check` has installed them.
fn clients() -> Option<Peers> {
    Peers::with_tool("llm-clients", "tests/it/llm_clients.py")
}

/// The responses that stated their cost.
fn settled(gateway: &Gateway) -> u64 {
    let metrics = gateway.admin_get("/metrics").text();
    let start = "tollgate_limit_settled_total{limit=\"tokens\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(start));
    line.map_or(0, |count| count.parse().expect("a count"))
}

#[test]
fn llm_clients_of_openai_and_anthropic_work_unchanged_and_obey_retry_after() {
    let Some(mut clients) = clients() else { return };
    let llm = Llm::start(|_| (USED, End::Whole));
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = {{ first_of = [\"bearer\", \"header:x-api-key\"] }}\nwhen_missing = \"refuse\"\n\
         [limits.tokens]\nrate = \"60/minute\"\nper = \"tenant\"\n\
         settle = {{ usage = [\"openai\", \"anthropic\"], estimate = 10, max = 1000 }}\n\
         [[routes]]\nmatch = \"POST /**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        llm.url()
    ));
    let url = format!("http://{}", gateway.address());
    let mut calls = 0;
    for (format, stream) in ["chat", "responses", "messages"]
        .into_iter()
        .flat_map(|format| [(format, false), (format, true)])
    {
        let case = format!("{format}, streamed: {stream}");
        let call = |retries: u32| {
            json!({"format": format, "stream": stream, "retries": retries, "url": url,
                "key": format!("{format}-{stream}"), "model": "some-model"})
        };
        let expected = json!({"text": "token ".repeat(8), "total": 40});
        for _ in 0..2 {
            assert_eq!(clients.tell(&call(0)), expected, "{case}");
            calls += 1;
            eventually("the response is settled", || settled(&gateway) == calls);
        }
        // 80 of 60 are used, and a call needs 10: a token a second comes back.
        let refused = clients.tell(&call(0));
        assert_eq!(refused["error"], "RateLimitError", "{case}: {refused}");
        assert_eq!(refused["status"], 429, "{case}");
        assert_eq!(refused["retry_after"], "30", "{case}");
        assert!(refused["body"].to_string().contains("tokens"), "{refused}");
        let sleeps = clients.tell(&call(1));
        assert_eq!(sleeps["sleeps"].as_f64(), Some(30.0), "{case}: {sleeps}");
        gateway.advance(Duration::from_secs(30));
        assert_eq!(clients.tell(&Value::Null), expected, "{case}");
        calls += 1;
        eventually("the response is settled", || settled(&gateway) == calls);
    }
    assert_eq!(llm.used().len() as u64, calls);
}

#[test]
fn llm_clients_print_why_they_are_refused_and_get_streams_whose_usage_is_asked_for() {
    let Some(mut clients) = clients() else { return };
    let llm = Llm::start(|_| (USED, End::Whole));
    let gateway = Gateway::start(&format!(
        "[responses]\nrefusal = \"openai\"\n\
         [identities.tenant]\nkey = {{ first_of = [\"bearer\", \"header:x-api-key\"] }}\nwhen_missing = \"refuse\"\n\
         [limits.tokens]\nrate = \"2000/day\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\nrefuse_status = 402\n\
         cost = {{ usage = [\"openai\", \"anthropic\"], max = 1000, plus = \"body_bytes\" }}\n\
         settle = {{ usage = [\"openai\", \"anthropic\"], ask = true }}\n\
         [limits.calls]\nrate = \"2/day\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\n\
         [[routes]]\nmatch = \"POST /**\"\nupstream = \"{}\"\nlimits = [\"tokens\", \"calls\"]\n",
        llm.url()
    ));
    let url = format!("http://{}", gateway.address());
    let mut calls = 0;
    for format in [
        "chat",
        "responses",
        "messages",
        "langchain-openai",
        "langchain-anthropic",
    ] {
        let call = |stream: bool| {
            json!({"format": format, "stream": stream, "usage": false, "retries": 0, "url": url, "key": format,
                "model": "some-model"})
        };
        for stream in [false, true] {
            let answer = clients.tell(&call(stream));
            assert_eq!(
                answer["text"],
                "token ".repeat(8),
                "{format}, {stream}: {answer}"
            );
            calls += 1;
            // Also where the client asked for no usage of its stream.
            eventually("the response is settled", || settled(&gateway) == calls);
        }
        let refused = clients.tell(&call(false));
        let error = refused["error"].as_str().unwrap_or_default();
        assert!(error.ends_with("RateLimitError"), "{format}: {refused}");
        let words = refused["words"].as_str().unwrap_or_default();
        assert!(words.contains("calls"), "{format}: {refused}");
    }
}
