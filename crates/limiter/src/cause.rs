//! Who brought about how a request ended. What the upstream alone brought about can be credited to a caller, and nothing
//! else: otherwise callers would choose what they pay.

/// Who brought about how a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The upstream alone, or what a route has in its place: its response, or its failure to take the request, or to
    /// answer one that had come whole.
    Upstream,
    /// The gateway, of a request that reached no upstream.
    Gateway,
    /// The client, or it may have: by its deadline, by a body or connection that it breaks off, by a request that makes
    /// an upstream hang up. The upstream may have done all of its work.
    Client,
}

/// Leave to lower a charge: [`Permit::refund`](super::Permit::refund) asks for it, and only [`Cause::credit`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct Credit(());

impl Cause {
    /// Leave to lower the charge of a request that ended so, where no caller can bring that about.
    pub const fn credit(self) -> Option<Credit> {
        match self {
            Self::Upstream => Some(Credit(())),
            Self::Gateway | Self::Client => None,
        }
    }
}
