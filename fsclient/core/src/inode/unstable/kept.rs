//! Bytes of one file that the server has, and its disk may not.

use super::Covered;
use crate::inode::{Hearers, Writer};
use leasefs_lease::client::{Batch, Run, Tenure};
use leasefs_protocol::{BootId, Caller, Handle, Version};
use std::path::PathBuf;
use std::sync::Arc;

/// A write that the server has answered.
#[derive(Clone, Debug)]
pub(crate) struct Wrote {
    /// The file.
    pub object: Handle,
    /// What was written where.
    pub batch: Batch,
    /// The file after it.
    pub version: Version,
    /// Through which open.
    pub writer: Writer,
    /// Who may have written it.
    pub hearers: Arc<Hearers>,
    /// Where the file is, as far as it is known.
    pub path: Option<PathBuf>,
    /// Under which lease: `None` if others may have changed the file since.
    pub tenure: Option<Tenure>,
    /// It is on the server's disk already.
    pub durable: bool,
}

/// Bytes of a file that the server had, and that a crash of its host may have undone.
#[derive(Debug)]
pub(crate) struct Undone {
    /// The file.
    pub object: Handle,
    /// The bytes, the oldest first.
    pub runs: Vec<Run>,
    /// As the last of them left the file.
    pub base: Version,
    /// Through which they are written again.
    pub writer: Writer,
    /// Whose they are: `None` if several users'.
    pub owner: Option<Caller>,
    /// Who wrote them.
    pub hearers: Hearers,
    /// Where the file is, as far as it is known.
    pub path: Option<PathBuf>,
    /// Under which lease they were written.
    pub tenure: Tenure,
}

#[derive(Debug)]
struct Piece {
    run: Run,
    uid: u32,
    hearers: Arc<Hearers>,
    /// The number of the change.
    change: u64,
    host: BootId,
}

/// How a write left its file, and where that was.
#[derive(Debug)]
pub(super) struct Last {
    pub base: Version,
    pub path: Option<PathBuf>,
}

/// What is kept of one file until it is known to be on the server's disk.
#[derive(Debug, Default)]
pub(in crate::inode) struct Kept {
    pieces: Vec<Piece>,
    bytes: usize,
    last: Option<Last>,
    /// Under which lease all of them were written: they may be written again under it alone, since
    /// others may have changed the file when it had ended.
    tenure: Tenure,
}

impl Kept {
    /// How much memory they take up.
    pub fn memory(&self) -> usize {
        self.bytes + self.pieces.len() * size_of::<Piece>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether bytes of this tenure can be kept beside those that are.
    pub fn goes_with(&self, tenure: Tenure) -> bool {
        self.is_empty() || self.tenure == tenure
    }

    /// Keeps the bytes of a write, which was the client's change of this number.
    pub(super) fn keep(
        &mut self,
        (batch, uid, hearers): (Batch, u32, &Arc<Hearers>),
        last: Last,
        tenure: Tenure,
        (change, host): (u64, BootId),
    ) {
        self.tenure = tenure;
        self.bytes += batch.len();
        let piece = |run| Piece {
            run,
            uid,
            hearers: Arc::clone(hearers),
            change,
            host,
        };
        self.pieces.extend(batch.into_runs().into_iter().map(piece));
        let key = |v: &Version| (v.ctime, v.size);
        let base = self.last.take().map(|last| last.base);
        let base = base.filter(|base| key(base) > key(&last.base));
        self.last = Some(Last {
            base: base.unwrap_or(last.base),
            path: last.path,
        });
    }

    /// Lets go what this life of the host has committed.
    pub fn committed(&mut self, covered: &Covered, host: BootId) {
        self.pieces
            .retain(|piece| !covered.covers(piece.change) || piece.host != host);
        self.recount();
    }

    /// Lets go of everything.
    pub fn drop_all(&mut self) {
        self.pieces.clear();
        self.recount();
    }

    fn recount(&mut self) {
        self.bytes = self.pieces.iter().map(|piece| piece.run.data.len()).sum();
        if self.is_empty() {
            self.last = None;
        }
    }

    /// Whether a commit is to cover some of it.
    pub fn waits_for(&self, covered: &Covered) -> bool {
        self.pieces.iter().any(|piece| covered.covers(piece.change))
    }

    /// Takes out what was written by these changes, each in a life of the host.
    pub fn take_out(
        &mut self,
        object: Handle,
        writer: &Writer,
        which: impl Fn(u64, BootId) -> bool,
    ) -> Option<Undone> {
        let (gone, here): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pieces)
            .into_iter()
            .partition(|piece| which(piece.change, piece.host));
        self.pieces = here;
        if gone.is_empty() {
            return None;
        }
        let last = self.last.as_ref()?;
        let mut hearers = Hearers::default();
        gone.iter()
            .for_each(|piece| hearers.add_all(&piece.hearers));
        let one = gone.iter().all(|piece| piece.uid == writer.caller.uid);
        let undone = Undone {
            object,
            owner: one.then(|| writer.caller.clone()),
            writer: writer.clone(),
            hearers,
            runs: gone.into_iter().map(|piece| piece.run).collect(),
            base: last.base,
            path: last.path.clone(),
            tenure: self.tenure,
        };
        self.recount();
        Some(undone)
    }
}
