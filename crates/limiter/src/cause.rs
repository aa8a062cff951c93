//! Classifies who caused the outcome of a request. A caller gets credit only for outcomes that the
//! upstream alone caused; otherwise callers could choose what they pay.

/// Who caused the outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The upstream alone, or the route's target in its place: it responded, or did not accept.
    Upstream,
    /// The upstream, which did not respond in time to a request that it received completely. It may
    /// have done all of its work, so a charge for that work stays; only a count of requests is
    /// lowered.
    Silence,
    /// The upstream, by a response that began before the request had arrived completely, or that a
    /// deadline of the request may have ended. The caller may have caused it: the response can raise
    /// a charge, not lower it.
    Early,
    /// The gateway, for a request that reached no upstream.
    Gateway,
    /// The client, or possibly the client: by its deadline, by breaking off a body or connection,
    /// or by a request that makes an upstream close the connection. The upstream may have done all
    /// of its work.
    Client,
}

/// Permission to lower a charge: [`Permit::refund`](super::Permit::refund) requires it, and only
/// [`Cause::credit`] creates it.
#[derive(Clone, Copy, Debug)]
pub struct Credit(());

impl Cause {
    /// Permission to lower a charge, if no caller can provoke this cause.
    pub const fn credit(self) -> Option<Credit> {
        match self {
            Self::Upstream | Self::Silence => Some(Credit(())),
            Self::Early | Self::Gateway | Self::Client => None,
        }
    }
}
