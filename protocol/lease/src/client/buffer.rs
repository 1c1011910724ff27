//! What a client has written to one file and not yet brought to the server.
//!
//! Bytes are brought in *rounds*: a round takes all that is there; what is written meanwhile
//! belongs to the next. So no two requests under way overlap, and they may be carried out in any
//! order. Whoever must know that his bytes are at the server waits for the round they are in.

use super::batch::Batch;
use super::extents::{Extents, Known, Run};
use crate::planted::{self, Bug};
use bytes::Bytes;
use leasefs_protocol::Version;

/// Bytes of one file that the server doesn't have, or may not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Written and not sent.
    dirty: Extents,
    /// Sent and not answered: the round under way.
    sent: Extents,
    /// Requests of the round that are not answered.
    under_way: usize,
    base: Version,
    /// As the writer knows it.
    size: u64,
    kill_priv: bool,
}

impl Buffer {
    /// Nothing is written yet to a file of this version.
    pub fn new(base: Version) -> Self {
        Self {
            dirty: Extents::default(),
            sent: Extents::default(),
            under_way: 0,
            base,
            size: base.size,
            kill_priv: false,
        }
    }

    /// The file's size with all that is written.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What the file was when the session's last operation on it was answered.
    pub fn base(&self) -> Version {
        self.base
    }

    /// Whether setuid and setgid bits go with the next bytes.
    pub fn kill_priv(&self) -> bool {
        self.kill_priv
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.dirty.bytes() + self.sent.bytes()
    }

    /// How much memory they take up, within a factor of two.
    pub fn memory(&self) -> usize {
        self.dirty.memory() + self.sent.memory()
    }

    /// Whether the server has everything.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.under_way == 0
    }

    /// Whether bytes wait that no round has taken.
    pub fn has_unsent(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether a round is under way.
    pub fn is_flushing(&self) -> bool {
        self.under_way > 0
    }

    /// Takes in a write.
    pub fn put(&mut self, offset: u64, data: Bytes, kill_priv: bool) {
        self.size = self.size.max(offset.saturating_add(data.len() as u64));
        self.kill_priv |= kill_priv;
        self.dirty.put(offset, data);
    }

    /// Takes in bytes that the server had and has lost, the oldest first: older than all that are here.
    pub fn restore(&mut self, runs: Vec<Run>) {
        let mut older = Extents::default();
        for run in runs {
            self.size = self.size.max(run.end());
            older.put(run.offset, run.data);
        }
        older.remove_all(&self.sent);
        for run in older.runs(usize::MAX) {
            if planted::is(Bug::RestoreOver) {
                self.dirty.put(run.offset, run.data.clone());
            }
            self.dirty.put_under(run.offset, &run.data);
        }
    }

    /// Copies what there is of `[offset, offset + into.len())` into place.
    pub fn overlay(&self, offset: u64, into: &mut [u8], known: &mut Known) {
        self.sent.overlay(offset, into, known);
        self.dirty.overlay(offset, into, known);
    }

    /// Begins a round, unless one is under way: the requests to be sent, of `most` bytes each, none if there is nothing.
    /// `scatters`: one request may bring bytes that lie apart.
    pub fn begin_round(&mut self, most: usize, scatters: bool) -> Vec<Batch> {
        if self.is_flushing() {
            return Vec::new();
        }
        self.sent = std::mem::take(&mut self.dirty);
        let runs = self.sent.runs(most);
        let batches = match scatters {
            true => Batch::together(runs, most),
            false => Batch::apart(runs),
        };
        self.under_way = batches.len();
        batches
    }

    /// A request of the round was carried out, and left the file as this.
    pub fn answered(&mut self, version: Option<Version>) {
        let key = |v: &Version| (v.ctime, v.size);
        if let Some(version) = version.filter(|v| key(v) >= key(&self.base)) {
            self.base = version;
        }
        self.end_one();
    }

    /// A request of the round, or the rest of it, has to be sent again.
    pub fn again(&mut self, batch: &Batch) {
        for run in batch.runs() {
            self.dirty.put_under(run.offset, &run.data);
        }
        self.end_one();
    }

    /// A request of the round will never be carried out.
    pub fn given_up(&mut self) {
        self.end_one();
    }

    fn end_one(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.sent = Extents::default();
            self.kill_priv &= self.has_unsent();
        }
    }

    /// Gives up all that no round has taken.
    pub fn take_unsent(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.dirty).runs(usize::MAX)
    }

    /// Everything that the server may not have.
    pub fn everything(&self) -> Vec<Run> {
        let mut all = self.sent.clone();
        for run in self.dirty.runs(usize::MAX) {
            all.put(run.offset, run.data);
        }
        all.runs(usize::MAX)
    }
}

#[cfg(test)]
mod tests;
