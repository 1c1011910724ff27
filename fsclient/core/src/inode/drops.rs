//! Drops of pages from the kernel: what they are for, and what follows.

use crate::opens::ServerOpen;
use crate::run::Map;
use futures_channel::oneshot;
use leasefs_lease::client::{DropId, DropKind, ReadId, Span};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Handle, RecallId};
use std::sync::Arc;

/// A recall that nothing is in the way of, pages in the kernel apart.
#[derive(Debug)]
pub(crate) struct Approvable {
    pub recall: RecallId,
    /// Those that nobody uses are closed by the approval.
    pub opens: Vec<Arc<ServerOpen>>,
    /// Files whose locks were decided here: what is held of them is said before.
    pub locks: Vec<Handle>,
}

/// What follows when pages have been dropped.
#[derive(Debug)]
pub(crate) enum Then {
    /// A recall is approved.
    Approve(Approvable),
    /// Somebody goes on.
    Wake(oneshot::Sender<()>),
    /// Nothing.
    Nothing,
}

/// What a change of state has brought about, to be done without the lock.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Recalls that have become approvable: nothing they cover is left. First of all.
    pub approve: Vec<Approvable>,
    /// Those who go on.
    pub wake: Vec<oneshot::Sender<()>>,
    /// Files that need a pass.
    pub passes: Vec<Handle>,
}

/// A READ that has arrived at its gate.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub id: ReadId,
    /// If present: it waits until told.
    pub told: Option<oneshot::Receiver<()>>,
}

/// Pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagesOf {
    pub file: Handle,
    pub span: Span,
}

impl PagesOf {
    /// All of them.
    pub fn all(file: Handle) -> Self {
        let span = Span::ALL;
        Self { file, span }
    }
}

#[derive(Debug)]
pub(super) struct Ticket {
    pub files: Vec<Handle>,
    pub pending: usize,
    pub then: Then,
    pub kind: DropKind,
}

/// What drops of pages are for, and which are under way.
#[derive(Debug, Default)]
pub(super) struct Drops {
    pub tickets: Map<DropId, Ticket>,
    last: u64,
    /// Which pages the kernel is dropping, and since when.
    pub under_way: Vec<(PagesOf, BootTime)>,
}

impl Drops {
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}
