//! Many clients that call a language model at the same time, on one budget, until it is used up.
//!
//! The lengths of prompts and outputs are drawn like those of conversations with a chat service: half
//! of the prompts are short of a thousand tokens, a few have thousands; most outputs are short.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::json;

use super::tariff::Tariff;
use super::{Call, End, Llm, Tokens};
use crate::PATIENCE;
use crate::client::Connection;

/// Tokens of prompts, and of outputs, at these shares of all calls, in hundredths; between them the
/// lengths are spread evenly.
const PROMPTS: [(u64, u64); 7] = [
    (0, 10),
    (25, 400),
    (50, 1_000),
    (75, 1_200),
    (90, 2_700),
    (98, 4_100),
    (100, 8_000),
];
const OUTPUTS: [(u64, u64); 6] = [
    (0, 7),
    (25, 85),
    (50, 130),
    (75, 400),
    (95, 450),
    (100, 1_000),
];

/// A length at a random place of a distribution.
fn length(rng: &mut Rng, shares: &[(u64, u64)]) -> u64 {
    let at = rng.u64(0..100);
    let upper = shares.iter().position(|(share, _)| *share > at);
    let upper = upper.unwrap_or(shares.len() - 1).max(1);
    let ((low, least), (high, most)) = (shares[upper - 1], shares[upper]);
    least + (most - least) * (at - low) / (high - low)
}

/// A model that obeys `max_tokens`. It uses a token for every four bytes of the request, and writes as
/// many tokens as the request wishes for in a header.
pub fn model() -> Llm {
    Llm::start(|call: &Call| {
        let wished = call
            .seen
            .header("x-output")
            .and_then(|text| text.parse().ok());
        let most = call.most_output().unwrap_or(0);
        let input = call.seen.body.len() as u64 / 4;
        let end = match call.seen.header("x-end") {
            Some("cut") => End::Cut,
            _ => End::Whole,
        };
        (Tokens::new(input, wished.unwrap_or(most).min(most)), end)
    })
}

/// What the clients do.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// The gateways, of which every client uses one.
    pub gateways: Vec<SocketAddr>,
    /// Clients, each with one call at a time.
    pub clients: usize,
    /// Of a hundred calls, how many the client breaks off, and as many the upstream.
    pub cuts: u64,
    /// For the lengths.
    pub seed: u64,
    /// What they are charged.
    pub tariff: Tariff,
}

/// What became of the calls.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Calls that were admitted and ended as their format says.
    pub whole: AtomicU64,
    /// Units that those used.
    pub used: AtomicU64,
    /// Calls that were admitted, or may have been, and did not end well.
    pub broken: AtomicU64,
    /// Units that were reserved for those.
    pub kept: AtomicU64,
    /// Calls that were refused.
    pub refused: AtomicU64,
    /// Calls under way, and clients that have not sent a small one yet.
    under_way: AtomicU64,
    large: AtomicU64,
    /// The most calls under way at the same time.
    pub most_under_way: AtomicU64,
    /// Responses that say something else.
    pub strange: Mutex<Vec<String>>,
}

/// How one call ended.
enum Ended {
    Whole,
    Refused,
    Broken,
}

/// One call: its body, and the most that it lets the model write.
struct Sending {
    path: &'static str,
    body: String,
    output: u64,
    most: u64,
}

impl Sending {
    fn new(prompt: u64, output: u64, most: u64, anthropic: bool) -> Self {
        let text = "x".repeat(usize::try_from(prompt.saturating_mul(4)).unwrap_or(0));
        let messages = json!([{"role": "user", "content": text}]);
        let mut body =
            json!({"model": "m", "max_tokens": most, "stream": true, "messages": messages});
        if !anthropic {
            body["stream_options"] = json!({"include_usage": true});
        }
        let body = body.to_string();
        Self {
            path: if anthropic {
                "/v1/messages"
            } else {
                "/v1/chat/completions"
            },
            body,
            output,
            most,
        }
    }

    /// Its head, with these headers too.
    fn head(&self, more: &str) -> String {
        format!(
            "POST {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-output: {}\r\n{more}content-length: {}\r\n\r\n",
            self.path,
            self.output,
            self.body.len()
        )
    }

    /// What it uses if it ends well.
    fn used(&self, tariff: &Tariff) -> u64 {
        (tariff.used)(self.body.len() as u64 / 4, self.output)
    }

    /// What is reserved for it.
    fn reserved(&self, tariff: &Tariff) -> u64 {
        (tariff.reserved)(self.most, self.body.len() as u64)
    }
}

impl Crowd {
    /// Sends calls until the budget is used up: a client whose call is refused sends small ones, until
    /// one of those is refused when all clients send small ones. `meanwhile` runs beside the clients.
    pub fn run(&self, meanwhile: impl FnOnce(&Outcome)) -> Outcome {
        let outcome = Outcome::default();
        outcome.large.store(self.clients as u64, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for client in 0..self.clients {
                let outcome = &outcome;
                scope.spawn(move || self.client(client, outcome));
            }
            meanwhile(&outcome);
        });
        outcome
    }

    fn client(&self, client: usize, outcome: &Outcome) {
        let mut rng = Rng::with_seed(self.seed.wrapping_mul(1_000_003) + client as u64);
        let gateway = self.gateways[client % self.gateways.len()];
        let mut connection = None;
        let (mut small, end) = (false, Instant::now() + 3 * PATIENCE);
        while Instant::now() < end {
            let sending = if small {
                Sending::new(4, 8, 16, rng.bool())
            } else {
                let output = length(&mut rng, &OUTPUTS);
                Sending::new(length(&mut rng, &PROMPTS), output, 1_000, rng.bool())
            };
            let cut = match rng.u64(0..100) {
                roll if roll < self.cuts => Some(true),
                roll if roll < 2 * self.cuts => Some(false),
                _ => None,
            };
            let now = outcome.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            outcome.most_under_way.fetch_max(now, Ordering::SeqCst);
            let ended = one(&mut connection, gateway, &sending, cut, outcome);
            outcome.under_way.fetch_sub(1, Ordering::SeqCst);
            match ended {
                Ended::Whole => {
                    let used = sending.used(&self.tariff);
                    outcome.whole.fetch_add(1, Ordering::SeqCst);
                    outcome.used.fetch_add(used, Ordering::SeqCst);
                }
                Ended::Broken => {
                    connection = None;
                    outcome.broken.fetch_add(1, Ordering::SeqCst);
                    let kept = sending.reserved(&self.tariff);
                    outcome.kept.fetch_add(kept, Ordering::SeqCst);
                }
                Ended::Refused => {
                    outcome.refused.fetch_add(1, Ordering::SeqCst);
                    if small && outcome.large.load(Ordering::SeqCst) == 0 {
                        return;
                    }
                    if !small {
                        outcome.large.fetch_sub(1, Ordering::SeqCst);
                    }
                    small = true;
                    // The calls of the others need the processor to end.
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// Sends one call. `cut`: whether the client breaks it off, or the upstream.
fn one(
    connection: &mut Option<Connection>,
    gateway: SocketAddr,
    sending: &Sending,
    cut: Option<bool>,
    outcome: &Outcome,
) -> Ended {
    let Some(open) = connection.take().or_else(|| Connection::try_open(gateway)) else {
        // Nothing was sent: the gateway is gone.
        std::thread::sleep(Duration::from_millis(20));
        return Ended::Refused;
    };
    let open = connection.insert(open);
    let end = if cut == Some(false) {
        "x-end: cut\r\n"
    } else {
        ""
    };
    let head = sending.head(end);
    if open.try_send(head + &sending.body).is_err() {
        return Ended::Broken;
    }
    if cut == Some(true) {
        return Ended::Broken;
    }
    match open.try_answer("POST") {
        Ok(answer) if answer.status == 429 => Ended::Refused,
        Ok(answer) if answer.status == 200 && cut.is_none() => Ended::Whole,
        Ok(answer) if cut.is_none() && answer.status != 502 => {
            let strange = format!("{}: {}", answer.status, answer.text());
            outcome.strange.lock().expect("no panic").push(strange);
            Ended::Broken
        }
        _ => Ended::Broken,
    }
}

/// What a gateway says is charged: it is asked for more than is left, refuses, and tells what that is.
///
/// # Panics
/// If it does not refuse.
pub fn charged(tariff: &Tariff, gateway: SocketAddr) -> u64 {
    let asking = Sending::new(4, 0, 49_000, false);
    let mut connection = Connection::open(gateway);
    connection.send(asking.head("") + &asking.body);
    let answer = connection.answer("POST");
    assert_eq!(answer.status, 429, "{answer:?}");
    tariff.budget - answer.left().unwrap_or_else(|| panic!("{answer:?}"))
}

/// Checks that the calls used no unit beyond their budget, that 95 % of it was usable, and that no unit was
/// lost: what is `charged` in the end is what whole calls used, and what was reserved for those that
/// broke. `exact`: no call broke, so both are equal.
///
/// # Panics
/// When one of that is not so.
pub fn check(
    model: &Llm,
    outcome: &Outcome,
    tariff: &Tariff,
    charged: impl Fn() -> u64,
    exact: bool,
) {
    let budget = tariff.budget;
    let at = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let by_model = tariff.used_by(model);
    let (used, kept) = (at(&outcome.used), at(&outcome.kept));
    let told = format!("{used} used, {kept} kept, {by_model} by the model: {outcome:?}");
    assert!(by_model <= budget, "{told}");
    assert!(at(&outcome.most_under_way) > 200, "{told}");
    assert!((used + kept) * 100 >= budget * 95, "{told}");
    if exact {
        assert_eq!((at(&outcome.broken), used), (0, by_model), "{told}");
        crate::eventually("every call is settled", || charged() == used);
    } else {
        let charged = charged();
        assert!(at(&outcome.broken) > 0, "{told}");
        assert!(
            (used..=budget).contains(&charged),
            "{charged} charged, {told}"
        );
    }
}
