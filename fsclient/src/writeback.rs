//! Brings buffered bytes to the server: when they are a second old, when they are many, when
//! somebody waits for them, or when their lease is recalled.
//!
//! Each dirty file has one task, its *flusher*, from its first buffered write until it is clean.

use crate::cache::{Asked, Cache, Ended, Flushed, Round, Stored};
use crate::recall::Server;
use crate::rpc::{Answer, CallOptions, Rpc, Settlement};
use leasefs_lease::client::Run;
use leasefs_protocol::limits::MAX_PAYLOAD;
use leasefs_protocol::request::{Durability, WriteAt, WriteKind};
use leasefs_protocol::{
    Approval, Attr, BootId, Handle, OpenId, Refusal, Release, Reply, Request, Response,
};
use std::sync::Arc;
use std::time::Duration;
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

/// The write-back of a mount. Cheap to clone.
#[derive(Clone)]
pub struct Writeback(Arc<Inner>);

struct Inner {
    cache: Arc<Cache>,
    rpc: Rpc,
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
    pub fn new(cache: Arc<Cache>, rpc: Rpc, runtime: Runtime) -> Self {
        Self(Arc::new(Inner {
            cache,
            rpc,
            runtime,
            window: Semaphore::new(WINDOW),
            room: Notify::new(),
        }))
    }

    /// To be told of every write of a file that was kept here.
    pub fn stored(&self, object: Handle, stored: Stored) {
        if stored == (Stored::Done { first: true }) {
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
                let asked = (inner.cache.ask(), inner.rpc.host());
                let flushed = inner.send_one(object, caller, request, run).await;
                inner.ended(asked, &object, flushed)
            });
        }
        let ends = under_way.join_all().await;
        ends.into_iter().all(|sent| sent)
    }

    async fn send_one(
        &self,
        object: Handle,
        caller: leasefs_protocol::Caller,
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
        outcome(settled, &object, run)
    }

    fn ended(&self, asked: (Asked, BootId), object: &Handle, flushed: Flushed) -> bool {
        let again = matches!(flushed, Flushed::Again(_));
        if let Flushed::Failed(refusal) = &flushed {
            tracing::error!(%object, %refusal, "buffered writes are lost: the server refuses them");
        }
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
            Flushed::Answered(reply, attr)
        }
        Ok(_) | Err(Refusal::Lost) => Flushed::Again(run),
        Err(refusal) => Flushed::Failed(*refusal),
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
