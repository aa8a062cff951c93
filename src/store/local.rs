//! The local store: buckets in the process.
