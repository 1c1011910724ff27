//! Brings buffered bytes to the server: when they are a second old, when they are many, when
//! somebody waits for them, or when their lease is recalled.
//!
//! Each dirty file has one task, its *flusher*, from its first buffered write until it is clean.

use crate::cache::{Asked, Cache, DirtyFile, Ended, Flushed, Round, Stored};
use crate::recall::Server;
use crate::recovery::{Folder, Lost, Reason};
use crate::rpc::{Answer, CallOptions, Rpc, Settlement};
use crate::uncommitted::Uncommitted;
use bytes::Bytes;
use leasefs_lease::client::Run;
use leasefs_protocol::limits::MAX_PAYLOAD;
use leasefs_protocol::request::{Durability, WriteAt, WriteKind};
use leasefs_protocol::{
    Approval, Attr, Caller, Handle, OpenId, Refusal, Release, Reply, Request, Response,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle as Runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

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

/// A request of a round that has ended, and when it was asked.
type Sent = (Asked, Flushed);

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
        Self(Arc::new(Inner {
            cache,
            rpc,
            refuge,
            uncommitted,
            runtime,
            window: Semaphore::new(WINDOW),
            room: Notify::new(),
        }))
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

    /// Makes everything durable that was written to the server.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn commit_all(&self) -> Result<(), Refusal> {
        let (caller, options) = (Caller::default(), CallOptions::default());
        let request = Request::CommitAll;
        let answer = self.0.rpc.call(caller, request, Bytes::new(), options);
        answer.await?.into_response().map(drop)
    }

    /// Keeps what could not be brought to the server in the recovery folder. Blocks on the disk.
    /// Returns of how many files.
    pub fn keep_all(&self) -> usize {
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

    /// The files that are not flushed, for people.
    pub fn dirty_paths(&self) -> Vec<String> {
        let state = self.0.cache.lock();
        let files = state.dirty.objects();
        let path = |object: &Handle| {
            let file = state.dirty_file(object)?;
            let path = file.path.map(|path| path.display().to_string());
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
    fn hurry_if_many(&self) {
        if self.cache.lock().dirty.bytes() > MANY {
            self.hurry_all();
        }
    }

    fn hurry_all(&self) {
        let state = self.cache.lock();
        for object in state.dirty.objects() {
            if let Some(hurry) = state.hurry(&object) {
                hurry.notify_one();
            }
        }
    }

    /// The flusher of one file.
    async fn keep_flushing(self: Arc<Self>, object: Handle) {
        loop {
            let Some(hurry) = self.cache.lock().hurry(&object) else {
                return;
            };
            let _ = tokio::time::timeout(AGE, hurry.notified()).await;
            let round = self.cache.lock().begin_round(&object, MAX_PAYLOAD);
            if let Some(round) = round
                && !self.clone().send(object, round).await
            {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Sends a round; false if some of it has to be sent again.
    async fn send(self: Arc<Self>, object: Handle, round: Round) -> bool {
        let Round {
            runs,
            writer,
            kill_priv,
            base,
        } = round;
        let request = Request::Write {
            open: writer.open,
            at: WriteAt::Offset(0),
            kill_priv,
            durability: Durability::None,
            kind: WriteKind::Flush { base },
        };
        let mut under_way = JoinSet::new();
        for run in runs {
            let (inner, mut request) = (Arc::clone(&self), request.clone());
            if let Request::Write { at, .. } = &mut request {
                *at = WriteAt::Offset(run.offset);
            }
            let caller = writer.caller.clone();
            under_way.spawn(async move {
                let asked = inner.cache.ask();
                (asked, inner.send_one(object, caller, request, run).await)
            });
        }
        let ends = under_way.join_all().await;
        self.keep_failed(object, &ends).await;
        let mut sent = true;
        for (asked, flushed) in ends {
            sent &= self.ended(asked, &object, flushed);
        }
        sent
    }

    /// Keeps the bytes that the server refuses in the recovery folder, before anybody is told. Where
    /// the file has changed elsewhere none of its bytes are sent any more.
    async fn keep_failed(self: &Arc<Self>, object: Handle, ends: &[Sent]) {
        let failed = ends.iter().filter_map(|(_, flushed)| match flushed {
            Flushed::Failed(run, refusal) => Some((run.clone(), *refusal)),
            Flushed::Answered(..) | Flushed::Again(_) => None,
        });
        let (mut runs, refusals): (Vec<Run>, Vec<Refusal>) = failed.unzip();
        let Some(refusal) = refusals.first().copied() else {
            return;
        };
        let (reason, file) = {
            let mut state = self.cache.lock();
            let file = state.dirty_file(&object);
            let reason = match refusal {
                Refusal::Changed => {
                    runs.append(&mut state.abandon(&object, refusal));
                    Reason::ChangedElsewhere
                }
                refusal => Reason::Refused {
                    errno: refusal.errno(),
                },
            };
            (reason, file)
        };
        let (path, size) = file.map_or((None, 0), |file| (file.path, file.size));
        let lost = self.lost(object, path, size, runs, reason);
        let folder = self.refuge.folder.clone();
        // What becomes of it is logged there.
        let _ = tokio::task::spawn_blocking(move || folder.keep(&lost)).await;
    }

    fn lost(
        &self,
        object: Handle,
        path: Option<PathBuf>,
        size: u64,
        runs: Vec<Run>,
        reason: Reason,
    ) -> Lost {
        Lost {
            source: self.refuge.source.clone(),
            path,
            object,
            reason,
            time: SystemTime::now(),
            size,
            extents: runs.into_iter().map(|run| (run.offset, run.data)).collect(),
        }
    }

    async fn send_one(
        &self,
        object: Handle,
        caller: Caller,
        request: Request,
        run: Run,
    ) -> Flushed {
        // Never closed.
        let _place = self.window.acquire().await;
        let dropped = vec![object];
        let data = run.data.clone();
        let options = CallOptions::default();
        let changed = self
            .rpc
            .change(caller, request, data, &[object], dropped, options)
            .await;
        let settled = match changed.unsettled {
            None => changed.result,
            Some(unsettled) => match unsettled.await {
                Settlement::Answered(answer) => Ok(*answer),
                Settlement::NeverHappens | Settlement::SessionLost => Err(Refusal::Lost),
            },
        };
        if let Ok(answer) = &settled {
            self.uncommitted.flushed(&object, answer.host);
        }
        outcome(settled, &object, run)
    }

    fn ended(&self, asked: Asked, object: &Handle, flushed: Flushed) -> bool {
        let again = matches!(flushed, Flushed::Again(_));
        let Ended { wake, closes } = self.cache.lock().flushed(asked, object, flushed);
        for open in closes {
            self.rpc.close(open);
        }
        for tell in wake {
            // Whoever waited may be gone.
            let _ = tell.send(());
        }
        self.room.notify_waiters();
        !again
    }
}

/// What an answer means for the bytes it is about.
fn outcome(result: Result<Answer, Refusal>, object: &Handle, run: Run) -> Flushed {
    let reply = match result {
        Ok(answer) => answer.reply,
        // It never happened, or may be done again: the lease keeps everybody else away.
        Err(_) => return Flushed::Again(run),
    };
    match &reply.result {
        Ok(Response::Written { len, .. }) if *len == run.data.len() as u64 => {
            let attr = attr_after(&reply, object);
            Flushed::Answered(Box::new(reply), attr)
        }
        Ok(_) | Err(Refusal::Lost) => Flushed::Again(run),
        Err(refusal) => Flushed::Failed(run, *refusal),
    }
}

fn attr_after(reply: &Reply, object: &Handle) -> Option<Attr> {
    let touched = reply.touched.iter().find(|t| t.object == *object);
    touched.map(|touched| touched.attr)
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
