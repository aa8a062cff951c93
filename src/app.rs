//! The composition root: configuration in, running gateway out; owns reload and drain.
