//! Brings buffered bytes to the server: when they are a second old, when they are many, when
//! somebody waits for them, or when their lease is recalled.
//!
//! Each dirty file has one task, its *flusher*, from its first buffered write until it is clean.

mod commit;
mod flusher;

use crate::cache::{Cache, DirtyFile, Stored};
use crate::recall::Server;
use crate::recovery::{Folder, Reason, RecoveryId, path_for_people};
use crate::rpc::Rpc;
use crate::uncommitted::Uncommitted;
use leasefs_lease::client::Run;
use leasefs_protocol::{Approval, BootId, Handle, OpenId, Release};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{Notify, Semaphore};

/// How old buffered bytes get at most before they are sent.
const AGE: Duration = Duration::from_secs(1);
/// How long after a failure that may pass the same bytes are sent again.
const RETRY: Duration = Duration::from_millis(100);
/// Memory that buffered bytes may use, in bytes.
pub const BUDGET: usize = 512 << 20;
/// So many buffered bytes are sent at once, however young they are.
const MANY: usize = BUDGET / 4;
/// Requests of all files under way at a time.
const WINDOW: usize = 16;

/// The write-back of a mount. Cheap to clone.
#[derive(Clone)]
pub struct Writeback(Arc<Inner>);

/// Where bytes go that can't be brought to the server.
#[derive(Clone, Debug)]
pub struct Refuge {
    /// The recovery folder.
    pub folder: Folder,
    /// What is mounted, as it is shown to people.
    pub source: String,
}

struct Inner {
    cache: Arc<Cache>,
    rpc: Rpc,
    refuge: Refuge,
    uncommitted: Arc<Uncommitted>,
    runtime: Runtime,
    window: Semaphore,
    /// Something has been flushed.
    room: Notify,
    /// Much waits for a commit.
    many: Arc<Notify>,
    /// What could not be brought in: where it is kept, if it is.
    left_behind: Mutex<Vec<Option<RecoveryId>>>,
    /// Held while what another life of the server's host has lost is taken up: whoever knows the new
    /// life finds all of it buffered.
    taking_up: Mutex<()>,
}

impl std::fmt::Debug for Writeback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback").finish_non_exhaustive()
    }
}

impl Writeback {
    /// The write-back of the mount with this cache.
    pub fn new(
        cache: Arc<Cache>,
        rpc: Rpc,
        (refuge, uncommitted): (Refuge, Arc<Uncommitted>),
        runtime: Runtime,
    ) -> Self {
        let inner = Arc::new(Inner {
            cache,
            rpc,
            refuge,
            uncommitted,
            runtime,
            window: Semaphore::new(WINDOW),
            room: Notify::new(),
            many: Arc::default(),
            left_behind: Mutex::default(),
            taking_up: Mutex::default(),
        });
        let committer = commit::keep_committing(Arc::downgrade(&inner));
        inner.runtime.spawn(committer);
        Self(inner)
    }

    /// To be told of every write of a file that was kept here; `path` says where it is.
    pub fn stored(&self, object: Handle, stored: Stored, path: impl FnOnce() -> Option<PathBuf>) {
        if stored == (Stored::Done { first: true }) {
            self.0.cache.lock().dirty_at(&object, path());
            let inner = Arc::clone(&self.0);
            self.0.runtime.spawn(inner.keep_flushing(object));
        }
        self.0.hurry_if_many();
    }

    /// Waits until every byte of the file that is here now is at the server, or has failed.
    pub async fn flush(&self, object: &Handle) {
        let told = self.0.cache.lock().wait_flushed(object);
        if let Some(told) = told {
            // The sender goes away only together with what was waited for.
            let _ = told.await;
        }
    }

    /// As [`Writeback::flush`], of every file.
    pub async fn flush_all(&self) {
        let waits: Vec<_> = {
            let mut state = self.0.cache.lock();
            let files = state.dirty.objects();
            let waits = files.iter().filter_map(|file| state.wait_flushed(file));
            waits.collect()
        };
        for told in waits {
            let _ = told.await;
        }
    }

    /// Keeps bytes of a mapped page in the recovery folder that came too late for a file of this size.
    pub async fn keep_page(&self, object: Handle, path: Option<PathBuf>, size: u64, page: Run) {
        let reason = Reason::ChangedElsewhere;
        let lost = self.0.lost(object, path, size, vec![page], reason);
        self.0.keep(lost).await;
    }

    /// Keeps what could not be brought to the server in the recovery folder. Blocks on the disk.
    /// Returns of how many files.
    pub fn keep_all(&self) -> usize {
        self.take_back();
        let files = {
            let state = self.0.cache.lock();
            let files = state.dirty.objects();
            let found = files
                .iter()
                .map(|file| (*file, state.dirty_file(file), state.buffered(file)));
            found.collect::<Vec<_>>()
        };
        let kept = files.into_iter().filter_map(|(object, file, runs)| {
            let DirtyFile { path, size } = file?;
            let lost = self.0.lost(object, path, size, runs, Reason::Unreachable);
            // What becomes of it is logged there.
            Some(self.0.refuge.folder.keep(&lost))
        });
        kept.count()
    }

    /// How often bytes could not be brought in of which nobody has disposed since. Blocks on the disk.
    pub fn left_behind(&self) -> usize {
        let left = self.0.left_behind().clone();
        let stands =
            |id: &Option<RecoveryId>| id.is_none_or(|id| self.0.refuge.folder.item(id).is_ok());
        left.iter().filter(|id| stands(id)).count()
    }

    /// The files that are not flushed, for people.
    pub fn dirty_paths(&self) -> Vec<String> {
        let state = self.0.cache.lock();
        let files = state.dirty.objects();
        let path = |object: &Handle| {
            let file = state.dirty_file(object)?;
            let path = file.path.map(|path| path_for_people(&path));
            Some(path.unwrap_or_else(|| object.to_string()))
        };
        files.iter().filter_map(path).collect()
    }

    /// Waits until some bytes have been flushed.
    pub async fn room(&self) {
        let freed = self.0.room.notified();
        self.0.hurry_all();
        let _ = tokio::time::timeout(AGE, freed).await;
    }
}

impl Inner {
    fn left_behind(&self) -> MutexGuard<'_, Vec<Option<RecoveryId>>> {
        let left = self.left_behind.lock();
        left.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server for Writeback {
    fn approve(&self, approvals: Vec<Approval>) {
        self.0.rpc.approve(approvals);
    }

    fn release(&self, releases: Vec<Release>) {
        self.0.rpc.release(releases);
    }

    fn close(&self, open: OpenId) {
        self.0.rpc.close(open);
    }

    fn host_is(&self, host: BootId) {
        Self::host_is(self, host);
    }

    fn flush(&self, files: Vec<Handle>, then: Box<dyn FnOnce() + Send>) {
        let writeback = self.clone();
        self.0.runtime.spawn(async move {
            for file in &files {
                writeback.flush(file).await;
            }
            then();
        });
    }
}
