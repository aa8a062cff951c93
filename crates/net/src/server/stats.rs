//! Counters of connection events, which are rare: plain shared counters suffice.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Stats {
    pub accepted: Count,
    /// Connections refused because too many were open.
    pub refused_total: Count,
    /// Connections refused because too many were open from their address.
    pub refused_address: Count,
    /// Times that accepting failed (descriptors or memory ran out) and was paused.
    pub accept_failures: Count,
    /// Connections closed because a head did not come in time.
    pub slow_heads: Count,
    /// Connections closed because the client did not read what was sent.
    pub slow_reads: Count,
    /// Connections closed because they stood without a request.
    pub idle_closed: Count,
    /// Times that an idle connection gave its buffers back.
    pub rested: Count,
    /// Requests refused because their syntax was broken.
    pub malformed: Count,
    /// Requests refused because their head or target was too large.
    pub oversized_heads: Count,
    pub handshake_failures: Count,
    /// Connections refused because of a wrong or missing PROXY protocol header.
    pub proxy_header_failures: Count,
    /// Requests whose handler panicked, and connections that did.
    pub panics: Count,
    /// HTTP/2: resets of streams and ends of connections, by error code.
    pub http2_errors: [Count; HTTP2_ERRORS.len()],
}

impl Stats {
    /// Counts a reset of a stream, or the end of a connection, with this code. An orderly end does
    /// not count (RFC 9113 7).
    pub(super) fn http2_error(&self, code: u32) {
        let index = usize::try_from(code).unwrap_or(usize::MAX).checked_sub(1);
        if let Some(count) = index.and_then(|index| self.http2_errors.get(index)) {
            count.add();
        }
    }

    pub fn each(&self) -> [(&'static str, u64); 13] {
        [
            ("accepted", self.accepted.value()),
            ("refused_total", self.refused_total.value()),
            ("refused_address", self.refused_address.value()),
            ("accept_failures", self.accept_failures.value()),
            ("slow_heads", self.slow_heads.value()),
            ("slow_reads", self.slow_reads.value()),
            ("idle_closed", self.idle_closed.value()),
            ("rested", self.rested.value()),
            ("malformed", self.malformed.value()),
            ("oversized_heads", self.oversized_heads.value()),
            ("handshake_failures", self.handshake_failures.value()),
            ("proxy_header_failures", self.proxy_header_failures.value()),
            ("panics", self.panics.value()),
        ]
    }
}

/// The names of HTTP/2's error codes from 1 on (RFC 9113 7).
pub const HTTP2_ERRORS: [&str; 13] = [
    "protocol_error",
    "internal_error",
    "flow_control_error",
    "settings_timeout",
    "stream_closed",
    "frame_size_error",
    "refused_stream",
    "cancel",
    "compression_error",
    "connect_error",
    "enhance_your_calm",
    "inadequate_security",
    "http_1_1_required",
];
