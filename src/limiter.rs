//! Decides: deadlines, what a dead store means, shadow limits, candidates. The only maker of a [`Permit`].
