//! Bytes of one file that the server has, and its disk may not.

use crate::cache::{Undone, Writer};
use leasefs_lease::client::{Run, Tenure};
use leasefs_protocol::{BootId, Handle, OpenId, Version};
use std::path::PathBuf;
use std::sync::Arc;

/// A write of one run of bytes that the server has answered.
#[derive(Clone, Debug)]
pub struct Wrote {
    /// The file.
    pub object: Handle,
    /// What was written where.
    pub run: Run,
    /// The file after it.
    pub version: Version,
    /// Through which open.
    pub writer: Writer,
    /// Who may have written it.
    pub writers: Arc<[Writer]>,
    /// Where the file is, as far as it is known.
    pub path: Option<PathBuf>,
    /// Under which lease: `None` if others may have changed the file since.
    pub tenure: Option<Tenure>,
    /// It is on the server's disk already.
    pub durable: bool,
}

#[derive(Debug)]
struct Piece {
    run: Run,
    writers: Arc<[Writer]>,
    /// The number of the change.
    change: u64,
    host: BootId,
}

#[derive(Debug)]
struct Last {
    base: Version,
    writer: Writer,
    path: Option<PathBuf>,
}

/// What is kept of one file until it is known to be on the server's disk.
#[derive(Debug, Default)]
pub struct Kept {
    pieces: Vec<Piece>,
    bytes: usize,
    last: Option<Last>,
    closing: Vec<OpenId>,
    /// Under which lease all of them were written: they may be written again under it alone, since
    /// others may have changed the file when it had ended.
    tenure: Tenure,
}

impl Kept {
    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
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
    pub fn keep(&mut self, wrote: Wrote, tenure: Tenure, change: u64, host: BootId) {
        self.tenure = tenure;
        self.bytes += wrote.run.data.len();
        self.pieces.push(Piece {
            run: wrote.run,
            writers: wrote.writers,
            change,
            host,
        });
        let key = |v: &Version| (v.ctime, v.size);
        let base = self.last.take().map(|last| last.base);
        let base = base.filter(|base| key(base) > key(&wrote.version));
        self.last = Some(Last {
            base: base.unwrap_or(wrote.version),
            writer: wrote.writer,
            path: wrote.path,
        });
    }

    /// Lets go what this life of the host has committed: changes up to this number. Returns the
    /// opens that nothing is written through any more.
    pub fn committed(&mut self, covered: u64, host: BootId) -> Vec<OpenId> {
        self.pieces
            .retain(|piece| piece.change > covered || piece.host != host);
        self.recount()
    }

    /// Lets go of everything; returns the opens that nothing is written through any more.
    pub fn drop_all(&mut self) -> Vec<OpenId> {
        self.pieces.clear();
        self.recount()
    }

    fn recount(&mut self) -> Vec<OpenId> {
        self.bytes = self.pieces.iter().map(|piece| piece.run.data.len()).sum();
        match self.is_empty() {
            true => {
                self.last = None;
                std::mem::take(&mut self.closing)
            }
            false => Vec::new(),
        }
    }

    /// Whether the open must stay open at the server: bytes may have to be written through it again.
    pub fn close_later(&mut self, open: OpenId) -> bool {
        let last = self.last.as_ref();
        let writes = last.is_some_and(|last| last.writer.open == open);
        if writes {
            self.closing.push(open);
        }
        writes
    }

    /// Takes out what was written in other lives of the host than this.
    pub fn undone(&mut self, object: Handle, host: Option<BootId>) -> Option<Undone> {
        let (gone, here): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pieces)
            .into_iter()
            .partition(|piece| Some(piece.host) != host);
        self.pieces = here;
        if gone.is_empty() {
            return None;
        }
        let last = self.last.as_ref()?;
        let mut undone = Undone {
            object,
            writers: writers(&gone, &last.writer),
            runs: gone.into_iter().map(|piece| piece.run).collect(),
            base: last.base,
            path: last.path.clone(),
            closing: Vec::new(),
            tenure: self.tenure,
        };
        undone.closing = self.recount();
        Some(undone)
    }
}

/// Who wrote these pieces, each once, `last` behind all others: its open still stands.
fn writers(pieces: &[Piece], last: &Writer) -> Vec<Writer> {
    let mut writers: Vec<Writer> = Vec::new();
    for writer in pieces.iter().flat_map(|piece| piece.writers.iter()) {
        let is_known = |known: &Writer| known.open == writer.open;
        if writer.open != last.open && !writers.iter().any(is_known) {
            writers.push(writer.clone());
        }
    }
    writers.push(last.clone());
    writers
}
