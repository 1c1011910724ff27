//! Faults that the coherence tests must find. Not compiled into release builds.
//!
//! `LEASEFS_TEST_FAULT` names one: `no-invalidation` (the kernel is never told to drop anything),
//! `approve-early` (recalls are approved before anything is dropped), `lookup-attr-timeout`
//! (LOOKUP replies carry an attribute timeout, and the kernel isn't made to ignore them).

use super::KernelCache;
use leasefs_protocol::Handle;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How late the drop comes behind an early approval.
pub(super) const LATE: Duration = Duration::from_millis(200);

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel is never told to drop anything.
    NoInvalidation,
    /// Recalls are approved before anything is dropped.
    ApproveEarly,
    /// LOOKUP replies carry an attribute timeout, and the kernel believes them.
    LookupAttrTimeout,
}

/// The fault this process was told to have, if it is a debug build.
pub fn fault() -> Option<Fault> {
    if !cfg!(debug_assertions) {
        return None;
    }
    match std::env::var("LEASEFS_TEST_FAULT").ok()?.as_str() {
        "no-invalidation" => Some(Fault::NoInvalidation),
        "approve-early" => Some(Fault::ApproveEarly),
        "lookup-attr-timeout" => Some(Fault::LookupAttrTimeout),
        _ => None,
    }
}

/// The kernel as the engine sees it under the fault.
pub(super) fn kernel(fault: Option<Fault>, real: Arc<dyn KernelCache>) -> Arc<dyn KernelCache> {
    match fault {
        Some(Fault::NoInvalidation) => Arc::new(Deaf),
        _ => real,
    }
}

/// A kernel that is told nothing.
struct Deaf;

impl KernelCache for Deaf {
    fn drop_attrs(&self, _: &Handle) -> io::Result<()> {
        Ok(())
    }

    fn drop_pages(&self, _: &Handle, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn can_forget_names(&self) -> bool {
        true
    }

    fn forget_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn drop_name(&self, _: &Handle, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}
