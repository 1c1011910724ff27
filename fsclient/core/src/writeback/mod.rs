//! Brings buffered bytes to the server: when they are a second old, when they are many, when
//! somebody waits for them, or when their lease is recalled.
//!
//! Each dirty file has one task, its *flusher*, from its first buffered write until it is clean.

mod commit;
mod flusher;
mod pages;
mod status;

pub(crate) use pages::MappedPages;
pub use status::WriteBackStatus;

use crate::api::{Undelivered, WhyNot};
use crate::cache::{Cache, Stored};
use crate::call::NodeId;
use crate::inode::{Durably, Undone};
use crate::outside::Outside;
use crate::run::{Bell, Cx, Part, Places};
use crate::session::Rpc;
use leasefs_lease::client::{Buffer, Run};
use leasefs_protocol::{Caller, Durability, Handle, Version};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How old buffered bytes get at most before they are sent.
const AGE: Duration = Duration::from_secs(1);
/// Files that come of age within so many nanoseconds are sent at once: their requests share datagrams and wake-ups.
const TOGETHER: u64 = 5_000_000;
/// How long after a failure that may pass the same bytes are sent again.
const RETRY: Duration = Duration::from_millis(100);
/// Requests of all files under way at a time.
const WINDOW: usize = 16;

/// The write-back of a mount. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Writeback(Arc<WritebackInner>);

struct WritebackInner {
    cx: Cx,
    cache: Arc<Cache>,
    rpc: Rpc,
    outside: Outside,
    window: Places,
    /// Something has been flushed.
    room: Bell,
    /// Much waits for a commit.
    many: Bell,
    /// Commits of everything come one behind the other.
    committing: Places,
    /// Mapped pages that were sent and aren't answered.
    pages: Part<BTreeMap<u64, MappedPages>>,
}

impl std::fmt::Debug for Writeback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback").finish_non_exhaustive()
    }
}

impl Writeback {
    /// The write-back of the mount with this cache.
    pub fn new(cx: Cx, cache: Arc<Cache>, rpc: Rpc, outside: Outside) -> Self {
        let inner = Arc::new(WritebackInner {
            cx: cx.clone(),
            cache,
            rpc,
            outside,
            window: Places::new(WINDOW),
            room: Bell::default(),
            many: Bell::default(),
            committing: Places::new(1),
            pages: Part::default(),
        });
        cx.spawn(commit::keep_committing(Arc::clone(&inner)));
        Self(inner)
    }

    /// To be told of every write of a file that was kept here.
    pub fn stored(&self, object: Handle, node: NodeId, stored: Stored) {
        if stored == (Stored::Done { first: true }) {
            self.0.cache.state().is_dirty_at(&object, node);
            let inner = Arc::clone(&self.0);
            self.0.cx.spawn(inner.keep_flushing(object));
        }
        self.0.hurry_if_many();
    }

    /// Waits until every byte of the file that is here now is at the server, or has failed.
    pub async fn flush(&self, object: &Handle) {
        self.flush_durably(object, Durability::None).await;
    }

    /// As [`Writeback::flush`]. Tells if all that was written to the file is durable then, which is done along the way if
    /// there isn't much of it.
    pub async fn flush_durably(&self, object: &Handle, durability: Durability) -> Option<Durably> {
        let told = self.0.cache.state().wait_flushed(object, durability)?;
        // The sender goes away only together with what was waited for.
        told.await.unwrap_or_default()
    }

    /// As [`Writeback::flush`], of every file.
    pub async fn flush_all(&self) {
        let waits: Vec<_> = {
            let mut state = self.0.cache.state();
            let files = state.inodes.dirty_files();
            let flushed = |file| state.wait_flushed(file, Durability::None);
            files.iter().filter_map(flushed).collect()
        };
        for told in waits {
            let _ = told.await;
        }
    }

    /// Everything that could not be brought to the server, or to its disk. What was written and isn't committed stays
    /// out of the file: others may have changed it since.
    pub fn take_undelivered(&self) -> Vec<Undelivered> {
        let given_up = self.0.cache.inodes().give_up_unstable();
        let left = |undone: Undone| {
            let size = undone.base.size;
            let from = From(undone.path, undone.owner);
            (undone.object, (from, size, undone.runs))
        };
        let mut left: BTreeMap<Handle, _> = given_up.into_iter().map(left).collect();
        let state = self.0.cache.state();
        for object in state.inodes.dirty_files() {
            let Some(file) = state.dirty_file(&object) else {
                continue;
            };
            let buffered = state.buffered(&object);
            let known = left.remove(&object);
            let (from, runs) = match known {
                None => (From(file.path, file.owner), buffered),
                Some((From(path, owner), _, runs)) => {
                    let one = file
                        .owner
                        .filter(|of| owner.is_some_and(|o| o.uid == of.uid));
                    (From(file.path.or(path), one), [runs, buffered].concat())
                }
            };
            left.insert(object, (from, file.size, runs));
        }
        let undelivered = |(object, (from, size, runs))| {
            undelivered(object, from, size, merged(runs), WhyNot::Unreachable)
        };
        left.into_iter()
            .map(undelivered)
            .chain(self.take_pages())
            .collect()
    }

    /// The files that are not flushed, and where they are, as far as it is known.
    pub fn dirty_files(&self) -> Vec<(Handle, Option<PathBuf>)> {
        let state = self.0.cache.state();
        let files = state.inodes.dirty_files().into_iter();
        files.map(|file| (file, state.dirty_path(&file))).collect()
    }

    /// Waits until some bytes have been flushed.
    pub async fn room(&self) {
        let freed = self.0.room.listen();
        self.0.hurry_all();
        // A while is enough.
        let _ = self.0.cx.timeout(AGE, freed).await;
    }
}

/// Of bytes that were written several times the last, given the oldest first.
fn merged(runs: Vec<Run>) -> Vec<Run> {
    let mut buffer = Buffer::new(Version::default());
    buffer.restore(runs);
    buffer.everything()
}

/// Where a file is, and whose the bytes are, as far as it is known: root keeps those of several users.
#[derive(Default)]
struct From(Option<PathBuf>, Option<Caller>);

fn undelivered(
    object: Handle,
    From(path, writer): From,
    size: u64,
    runs: Vec<Run>,
    reason: WhyNot,
) -> Undelivered {
    Undelivered {
        object,
        path,
        writer,
        size,
        extents: runs.into_iter().map(|run| (run.offset, run.data)).collect(),
        reason,
    }
}
