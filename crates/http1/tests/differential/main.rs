//! Second opinions. Whatever is accepted, hyper and httparse accept with the same body end; whatever is written, hyper, llhttp
//! (Node.js) and nginx read alike.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod hyper_peer;
mod nginx;
mod node;
mod ours;
mod streams;

use fastrand::Rng;
use ours::Message;
use streams::Written;

/// Streams of each random run.
const ROUNDS: usize = 1_500;

#[test]
fn http1_requests_accepted_are_those_that_hyper_and_httparse_accept() {
    let mut dice = Rng::with_seed(9112);
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let bytes = streams::requests(&mut dice);
        let ours = ours::requests(&bytes);
        accepted += ours.len();
        let summary = || format!("round {round}: {}", bytes.escape_ascii());
        for message in &ours {
            let end = hyper_peer::httparse_request(&bytes[message.from..]);
            assert_eq!(end, Some(message.to - message.from), "{}", summary());
        }
        let theirs = hyper_peer::requests(&bytes);
        // hyper refuses a target with a character that no URI has.
        let is_encoded = |message: &Message| {
            let mut raw = bytes[message.from..message.to].iter();
            message.what.contains('%') && raw.any(|byte| b"\"<>`".contains(byte))
        };
        let encoded = ours.iter().position(is_encoded).unwrap_or(ours.len());
        assert_prefix(&ours[..encoded], &theirs, summary);
    }
    assert!(accepted > ROUNDS / 2, "{accepted} were accepted");
}

#[test]
fn http1_responses_accepted_are_those_that_hyper_accepts() {
    let mut dice = Rng::with_seed(9110);
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let (bytes, heads) = streams::responses(&mut dice);
        let ours = ours::responses(&bytes, &heads);
        accepted += ours.len();
        for (index, message) in ours.iter().enumerate() {
            let alone = &bytes[message.from..message.to];
            let theirs = hyper_peer::response(alone, heads[index]);
            let ours = Ok((message.what.clone(), message.body.clone()));
            assert_eq!(theirs, ours, "round {round}: {}", alone.escape_ascii());
        }
    }
    assert!(accepted > ROUNDS / 2, "{accepted} were accepted");
}

#[test]
fn http1_requests_written_are_read_alike_by_hyper_and_llhttp() {
    let mut dice = Rng::with_seed(1);
    let written: Vec<Written> = (0..200)
        .map(|_| streams::written_requests(&mut dice))
        .collect();
    for stream in &written {
        let ours = ours::requests(&stream.bytes);
        assert_same(&stream.messages, &ours, &stream.bytes);
        assert_same(
            &stream.messages,
            &hyper_peer::requests(&stream.bytes),
            &stream.bytes,
        );
    }
    node::compare("request", &written);
}

#[test]
fn http1_responses_written_are_read_alike_by_hyper_and_llhttp() {
    let mut dice = Rng::with_seed(2);
    let written: Vec<Written> = (0..200)
        .map(|_| streams::written_responses(&mut dice, true))
        .collect();
    for stream in &written {
        let ours = ours::responses(&stream.bytes, &stream.heads);
        assert_same(&stream.messages, &ours, &stream.bytes);
        for (index, message) in ours.iter().enumerate() {
            let alone = &stream.bytes[message.from..message.to];
            let theirs = hyper_peer::response(alone, stream.heads[index]);
            assert_eq!(theirs, Ok((message.what.clone(), message.body.clone())));
        }
    }
    node::compare("response", &written);
}

#[test]
fn http1_requests_written_are_read_alike_by_nginx() {
    let mut dice = Rng::with_seed(3);
    let written: Vec<Written> = (0..40)
        .map(|_| streams::written_requests(&mut dice))
        .collect();
    nginx::compare_requests(&written);
}

#[test]
fn http1_responses_written_are_read_alike_by_nginx() {
    let mut dice = Rng::with_seed(4);
    let written: Vec<Written> = (0..40)
        .map(|_| streams::written_responses(&mut dice, false))
        .collect();
    nginx::compare_responses(&written);
}

fn summary(message: &Message) -> (&str, &[u8]) {
    (&message.what, &message.body)
}

fn assert_same(expected: &[Message], read: &[Message], bytes: &[u8]) {
    let both = [expected, read].map(|list| list.iter().map(summary).collect::<Vec<_>>());
    assert_eq!(both[0], both[1], "{}", bytes.escape_ascii());
}

fn assert_prefix(ours: &[Message], theirs: &[Message], say: impl Fn() -> String) {
    assert!(
        ours.len() <= theirs.len(),
        "refused by the other: {}",
        say()
    );
    for (mine, other) in ours.iter().zip(theirs) {
        assert_eq!(summary(mine), summary(other), "{}", say());
    }
}
