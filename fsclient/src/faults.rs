//! Faults that the coherence tests must find. Not compiled into release builds.
//!
//! `LEASEFS_TEST_FAULT` names one: `no-invalidation` (the kernel is never told to drop anything),
//! `approve-early` (recalls are approved before anything is dropped), `lookup-attr-timeout`
//! (LOOKUP replies carry an attribute timeout, and the kernel isn't made to ignore them).

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel is never told to drop anything.
    NoInvalidation,
    /// One of the core's.
    InCore(leasefs_client::Fault),
}

/// The fault this process was told to have, if it is a debug build.
pub fn fault() -> Option<Fault> {
    if !cfg!(debug_assertions) {
        return None;
    }
    match std::env::var("LEASEFS_TEST_FAULT").ok()?.as_str() {
        "no-invalidation" => Some(Fault::NoInvalidation),
        "approve-early" => Some(Fault::InCore(leasefs_client::Fault::ApproveEarly)),
        "lookup-attr-timeout" => Some(Fault::InCore(leasefs_client::Fault::LookupAttrTimeout)),
        _ => None,
    }
}
