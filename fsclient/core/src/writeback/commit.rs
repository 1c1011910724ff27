//! Commits: what is written is let go of when it is on the server's disk, and written again after a
//! crash of the server's host.

use super::undelivered;
use super::{Inner, Writeback};
use crate::api::WhyNot;
use crate::cache::Undone;
use crate::session::CallOptions;
use crate::uncommitted::{Committed, Life, Noted, Wrote};
use bytes::Bytes;
use leasefs_protocol::{BootId, Caller, Handle, OpenId, Refusal, Request};
use std::sync::Arc;
use std::time::Duration;

/// How long written bytes are kept at most before a commit is asked for.
const COMMIT_AGE: Duration = Duration::from_secs(15);

/// Commits everything now and then.
pub(super) async fn keep_committing(inner: Arc<Inner>) {
    loop {
        let many = inner.many.listen();
        // Either is reason to look.
        let _ = inner.cx.timeout(COMMIT_AGE, many).await;
        if inner.uncommitted.keeps() {
            let life = inner.uncommitted.life();
            if let Err(error) = inner.commit_all(life).await {
                tracing::warn!(%error, "written bytes can't be committed yet");
            }
        }
    }
}

impl Writeback {
    /// Brings everything to the server's disk.
    ///
    /// # Errors
    /// The server's refusal; [`Refusal::Lost`] if a crash of its host has undone something that
    /// can't be done again.
    pub async fn sync_all(&self) -> Result<(), Refusal> {
        loop {
            let life = self.0.uncommitted.life();
            self.flush_all().await;
            match self.0.commit_all(life).await? {
                Committed::Durable => return Ok(()),
                Committed::Again => {}
                Committed::Lost => return Err(Refusal::Lost),
            }
        }
    }

    /// Whether files are open at the server for the sake of what was written to them alone.
    pub fn keeps_opens(&self) -> bool {
        self.0.uncommitted.keeps() || !self.0.cache.state().dirty.objects().is_empty()
    }

    /// To be asked before what is to be committed, or to be followed, is flushed.
    pub fn life(&self) -> Life {
        self.0.uncommitted.life()
    }

    /// The server's host is in this life: what another has lost is to be written again.
    pub fn host_is(&self, host: BootId) {
        self.0.host_is(host);
    }

    /// What was written and not committed counts as not written.
    pub fn take_back(&self) {
        for undone in self.0.uncommitted.give_up() {
            self.0.restore(undone);
        }
    }

    /// Bytes were written, and answered in this life of the host. False if it has crashed since.
    pub fn wrote(&self, wrote: Wrote, host: BootId) -> bool {
        self.0.wrote(wrote, host)
    }

    /// The file has no name and isn't open here: it must not take up room for longer than the server
    /// needs it.
    pub fn out_of_reach(&self, object: &Handle) {
        if let Some(hurry) = self.0.cache.state().hurry(object) {
            hurry.ring_one();
        }
        let closes = self.0.uncommitted.out_of_reach(object);
        self.0.rpc.close_all(closes);
        if !self.0.cache.is_dirty(object) {
            self.0.uncommitted.flushed(object);
        }
    }

    /// Ends an open at the server, once nothing has to be written through it any more.
    pub fn close(&self, object: &Handle, open: OpenId) {
        if !self.0.cache.close_when_clean(object, open) {
            self.0.close(object, open);
        }
    }
}

impl Inner {
    async fn commit_all(&self, life: Life) -> Result<Committed, Refusal> {
        let covered = self.uncommitted.commits(life, false);
        let (caller, options) = (Caller::default(), CallOptions::default());
        let request = Request::CommitAll;
        let answer = self.rpc.call(caller, request, Bytes::new(), options);
        let answer = answer.await?;
        let host = answer.host;
        answer.into_response()?;
        let (closes, verdict) = self.uncommitted.all_committed(covered, host);
        self.rpc.close_all(closes);
        Ok(verdict)
    }

    /// False if the host has crashed since it answered.
    pub(super) fn wrote(&self, wrote: Wrote, host: BootId) -> bool {
        let Noted {
            undone,
            closes,
            many,
        } = self.uncommitted.wrote(wrote, host);
        self.rpc.close_all(closes);
        if many {
            self.many.ring_one();
        }
        !undone
    }

    /// Ends an open of a clean file.
    pub(super) fn close(&self, object: &Handle, open: OpenId) {
        if !self.uncommitted.close_later(object, open) {
            self.rpc.close(open);
        }
    }

    pub(super) fn host_is(self: &Arc<Self>, host: BootId) {
        for undone in self.uncommitted.host_is(host) {
            let object = undone.object;
            if self.cache.tenure(&object) == Some(undone.tenure) {
                tracing::info!(%object, "the server's host has crashed: writing again");
                self.restore(undone);
            } else {
                tracing::warn!(%object, "the server's host has crashed, and others have used the file since it was written: it may have lost bytes");
                self.uncommitted.is_lost(object);
                self.rpc.close_all(undone.closing);
                let (size, reason) = (undone.base.size, WhyNot::ChangedElsewhere);
                let lost = undelivered(object, undone.path, size, undone.runs, reason);
                let outside = self.outside.clone();
                self.cx.spawn(async move { outside.keep(lost).await });
            }
        }
    }

    fn restore(self: &Arc<Self>, undone: Undone) {
        let object = undone.object;
        let first = self.cache.state().restore(undone);
        self.cache.call_keeper();
        if first {
            self.cx.spawn(Arc::clone(self).keep_flushing(object));
        }
    }
}
