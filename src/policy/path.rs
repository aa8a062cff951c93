//! Decodes and normalises a request path once, so that no spelling slips past a limit.
