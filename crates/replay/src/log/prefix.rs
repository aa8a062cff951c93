//! What a collector of logs writes before a server's line: syslog, docker compose, kubectl, a container's runtime.

use super::clf::{token, tokens};

/// The line behind what a collector put before it; `None`: nothing that is known stands there.
pub(crate) fn stripped(line: &[u8]) -> Option<&[u8]> {
    let behind = kubectl(line)
        .or_else(|| compose(line))
        .or_else(|| container(line));
    // `--timestamps` of docker and kubectl stands behind their own prefix, or alone.
    let stamped = |line| {
        let (time, rest) = token(line)?;
        is_time(time).then_some(rest)
    };
    match behind {
        Some(rest) => Some(stamped(rest).unwrap_or(rest)),
        None => syslog(line).or_else(|| stamped(line)),
    }
    .map(<[u8]>::trim_ascii_start)
}

fn kubectl(line: &[u8]) -> Option<&[u8]> {
    let ([name], rest) = tokens(line)?;
    (name.starts_with(b"[") && name.ends_with(b"]") && name.contains(&b'/')).then_some(rest)
}

fn compose(line: &[u8]) -> Option<&[u8]> {
    let ([name, bar], rest) = tokens(line)?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (name.iter().all(is_name) && bar == b"|").then_some(rest)
}

/// `TIME stdout F LINE`: the F marks a line that is whole.
fn container(line: &[u8]) -> Option<&[u8]> {
    let ([time, stream, whole], rest) = tokens(line)?;
    (is_time(time) && [&b"stdout"[..], b"stderr"].contains(&stream) && whole == b"F")
        .then_some(rest)
}

/// `[<PRI>]May  1 10:00:00 HOST NAME[PID]: LINE`, the same with a time of RFC 3339, and RFC 5424.
fn syslog(line: &[u8]) -> Option<&[u8]> {
    let behind = line.strip_prefix(b"<").and_then(|inside| {
        let end = inside.iter().take(4).position(|byte| *byte == b'>')?;
        Some(&inside[end + 1..])
    });
    if let Some(rest) = behind.and_then(|rest| rest.strip_prefix(b"1 ")) {
        let ([time, _host, _name, _process, _message], rest) = tokens(rest)?;
        return (is_time(time) || time == b"-").then(|| structured(rest))?;
    }
    let rest = behind.unwrap_or(line);
    let ([first], after) = tokens(rest)?;
    let after = match MONTHS.contains(&first) {
        true => {
            let ([_day, time], after) = tokens(after)?;
            (time.len() >= 8 && time[2] == b':' && time[5] == b':').then_some(after)?
        }
        false => is_time(first).then_some(after)?,
    };
    let ([_host, name], rest) = tokens(after)?;
    name.ends_with(b":").then_some(rest)
}

/// What follows the structured data of RFC 5424: `-`, or elements in brackets, whose values may hold escaped ones.
fn structured(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text.trim_ascii_start();
    if let Some(rest) = rest.strip_prefix(b"- ") {
        return Some(rest);
    }
    while let Some(inside) = rest.strip_prefix(b"[") {
        let is_end = |at: &usize| inside[*at] == b']' && (*at == 0 || inside[*at - 1] != b'\\');
        let end = (0..inside.len()).find(is_end)?;
        rest = &inside[end + 1..];
    }
    rest.strip_prefix(b" ")
}

/// Whether a word is a moment as RFC 3339 has it.
pub(crate) fn is_time(word: &[u8]) -> bool {
    word.len() >= 20
        && word[0].is_ascii_digit()
        && word[4] == b'-'
        && word[10] == b'T'
        && word[13] == b':'
}

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
