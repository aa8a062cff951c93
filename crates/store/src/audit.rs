//! The findings of an audit of a server's settings: settings that could lose buckets.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub weight: Weight,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Limits hold, but some events can break them.
    Warning,
    Refusal,
}

impl Weight {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Refusal => "refusal",
        }
    }
}

/// Clocks that differ by more are reported: nothing depends on it, but one of them is wrong.
const CLOCK_DISTANCE_MICROS: u64 = 5_000_000;

/// The finding about two clocks that are far apart, in microseconds since the epoch.
pub(super) fn distant_clock(server: u64, ours: u64) -> Option<Finding> {
    let distance = server.abs_diff(ours);
    let message = format!("the server's clock is {} s from ours", distance / 1_000_000);
    (distance > CLOCK_DISTANCE_MICROS).then_some(Finding {
        weight: Weight::Warning,
        message,
    })
}
