//! An upstream that plays a language model in the formats of OpenAI (chat completions and
//! responses) and Anthropic (messages), whole or streamed. The test says what each call uses.
//!
//! It has no model: its text is the word `token`, repeated. Calls can be held in the middle, cut
//! off, or end without stating what they used.

pub mod crowd;
mod formats;
pub mod tariff;

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

use formats::{streamed, whole};

use super::upstream::{Reply, Seen, Stream, Upstream};

/// The tokens of a call, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Read from the request, neither from a cache nor into one.
    pub input: u64,
    /// Read from a cache.
    pub cached_input: u64,
    /// Written into a cache: only Anthropic's format states them.
    pub cache_write: u64,
    /// Written by the model, without reasoning.
    pub output: u64,
    /// Thought by the model: only OpenAI's formats state them.
    pub reasoning: u64,
}

impl Tokens {
    /// These tokens of input and output.
    pub fn new(input: u64, output: u64) -> Self {
        Self {
            input,
            output,
            ..Self::default()
        }
    }

    /// All of them.
    pub fn total(self) -> u64 {
        self.input + self.cached_input + self.cache_write + self.output + self.reasoning
    }
}

/// How a response ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// As its format says, with what was used.
    #[default]
    Whole,
    /// It states no usage.
    Untold,
    /// The connection closes in the middle.
    Cut,
}

/// The format of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `POST /v1/chat/completions` of OpenAI.
    Chat,
    /// `POST /v1/responses` of OpenAI.
    Responses,
    /// `POST /v1/messages` of Anthropic.
    Messages,
}

/// A call of the model.
#[derive(Clone, Debug)]
pub struct Call {
    pub format: Format,
    pub body: Value,
    /// The request.
    pub seen: Seen,
}

impl Call {
    /// The model that it names.
    pub fn model(&self) -> &str {
        self.body["model"].as_str().unwrap_or("unknown")
    }

    /// The most tokens that it lets the model write, if it says so.
    pub fn most_output(&self) -> Option<u64> {
        ["max_tokens", "max_completion_tokens", "max_output_tokens"]
            .iter()
            .find_map(|name| self.body[*name].as_u64())
    }

    /// Whether it asks for a stream.
    pub fn streams(&self) -> bool {
        self.body["stream"] == true
    }
}

/// The upstream; it ends when dropped.
pub struct Llm {
    upstream: Upstream,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Whether calls stop in the middle.
    held: Mutex<bool>,
    released: Condvar,
    /// What was used by the calls so far, in the order of their beginning.
    used: Mutex<Vec<Tokens>>,
}

impl Llm {
    /// Starts one whose calls use what `uses` says.
    pub fn start(uses: impl Fn(&Call) -> (Tokens, End) + Send + Sync + 'static) -> Self {
        let state = Arc::new(State::default());
        let its = Arc::clone(&state);
        let upstream = Upstream::start(move |seen| {
            let Some(call) = call(seen) else {
                return Reply::new(404, &[], "no such API");
            };
            let (tokens, end) = uses(&call);
            its.used.lock().expect("no panic").push(tokens);
            let its = Arc::clone(&its);
            Reply::Stream(Stream::new(move |out| write(out, &call, tokens, end, &its)))
        });
        Self { upstream, state }
    }

    /// Starts one whose calls use a token for every four bytes of the request, and as many tokens
    /// of output as they allow, 100 without a maximum.
    pub fn greedy() -> Self {
        Self::start(|call| {
            let input = call.seen.body.len().div_ceil(4) as u64;
            let output = call.most_output().unwrap_or(100);
            (Tokens::new(input, output), End::Whole)
        })
    }

    pub fn url(&self) -> String {
        self.upstream.url()
    }

    /// The upstream itself, for what it has seen.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// What each call so far has used, or uses when it ends.
    pub fn used(&self) -> Vec<Tokens> {
        self.state.used.lock().expect("no panic").clone()
    }

    /// Lets calls stop in the middle: streams after their first word, others before the response.
    pub fn hold(&self) {
        *self.state.held.lock().expect("no panic") = true;
    }

    /// Lets them go on.
    pub fn release(&self) {
        *self.state.held.lock().expect("no panic") = false;
        self.state.released.notify_all();
    }
}

impl Drop for Llm {
    fn drop(&mut self) {
        self.release();
    }
}

impl State {
    fn pass(&self) {
        let held = self.held.lock().expect("no panic");
        drop(self.released.wait_while(held, |held| *held));
    }
}

fn call(seen: &Seen) -> Option<Call> {
    let path = seen.line().split(' ').nth(1)?.split('?').next()?;
    let format = match path {
        _ if path.ends_with("/chat/completions") => Format::Chat,
        _ if path.ends_with("/responses") => Format::Responses,
        _ if path.ends_with("/messages") => Format::Messages,
        _ => return None,
    };
    Some(Call {
        format,
        body: serde_json::from_slice(&seen.body).ok()?,
        seen: seen.clone(),
    })
}

fn write(
    out: &mut dyn Write,
    call: &Call,
    tokens: Tokens,
    end: End,
    state: &State,
) -> io::Result<()> {
    if !call.streams() {
        state.pass();
        let body = whole(call, tokens, end).to_string();
        let length = body.len();
        let (body, length) = match end {
            End::Cut => (&body[..length / 2], length),
            End::Whole | End::Untold => (body.as_str(), length),
        };
        write!(
            out,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        return broken(end);
    }
    write!(
        out,
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )?;
    let events = streamed(call, tokens, end);
    let words = events.len() / 2;
    for (place, event) in events.iter().enumerate() {
        if place == words {
            state.pass();
            broken(end)?;
        }
        write!(out, "{:x}\r\n{event}\r\n", event.len())?;
        out.flush()?;
    }
    write!(out, "0\r\n\r\n")
}

/// Closes the connection of a response that is cut.
fn broken(end: End) -> io::Result<()> {
    match end {
        End::Cut => Err(io::ErrorKind::ConnectionAborted.into()),
        End::Whole | End::Untold => Ok(()),
    }
}
