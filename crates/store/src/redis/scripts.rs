//! The scripts, as they are sent. (The tests of leases call them directly.)

/// Decides every batch. One text: the arithmetic of a token bucket, a head, the kinds of buckets,
/// and the operations on them.
pub(super) const DRAW: &str = concat!(
    include_str!("draw/level.lua"),
    include_str!("draw/head.lua"),
    include_str!("draw/token_bucket.lua"),
    include_str!("draw/stepped.lua"),
    include_str!("draw/sliding_window.lua"),
    include_str!("draw/sliding_log.lua"),
    include_str!("draw/in_flight.lua"),
    include_str!("draw/decide.lua"),
);

pub(super) const DRAW_BUCKET: &str = concat!(
    include_str!("draw/level.lua"),
    include_str!("draw_bucket.lua")
);
