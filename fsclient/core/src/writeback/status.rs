//! What waits to be written back, for people and for those who wait for it.

use super::Writeback;
use std::time::Duration;

/// How write-back gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteBackStatus {
    /// Files with bytes that the server may not have.
    pub files: usize,
    /// How many bytes.
    pub bytes: usize,
    /// What the server was seen to take in a second, lately; `None` if nothing was sent.
    pub rate: Option<u64>,
    /// For how long no bytes have come through, to the server or from it.
    pub still: Duration,
    /// Whether the server is in contact.
    pub in_contact: bool,
    /// Term of the leases: others' may have to run out before bytes can go.
    pub term: Duration,
}

impl Writeback {
    /// How it gets on.
    pub fn status(&self) -> WriteBackStatus {
        let inner = &self.0;
        let session = inner.rpc.status();
        let state = inner.cache.state();
        WriteBackStatus {
            files: state.inodes.dirty_files().len(),
            bytes: state.inodes.dirty_bytes(),
            rate: state.pace.rate().map(|rate| rate as u64),
            still: inner.cx.monotonic().since(state.pace.progress()),
            in_contact: session.in_contact,
            term: session.term,
        }
    }
}
