//! Commits: what is written is let go of when it is on the server's disk, and written again after a
//! crash of the server's host.

use super::{From, Writeback, WritebackInner, undelivered};
use crate::api::WhyNot;
use crate::inode::{Committed, HostLife, Noted, Undone, Wrote};
use crate::session::CallOptions;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{BootId, Caller, Handle, Refusal, query};
use std::sync::Arc;
use std::time::Duration;

/// How long written bytes are kept at most before a commit is asked for.
const COMMIT_AGE: Duration = Duration::from_secs(15);

/// Commits everything now and then.
pub(super) async fn keep_committing(inner: Arc<WritebackInner>) {
    loop {
        let many = inner.many.listen();
        // Either is reason to look.
        let _ = inner.cx.timeout(COMMIT_AGE, many).await;
        if inner.cache.inodes().has_to_commit() {
            let life = inner.cache.inodes().host_life();
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
            let life = self.0.cache.inodes().host_life();
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
        let inodes = self.0.cache.inodes();
        inodes.has_to_commit() || !inodes.dirty_files().is_empty()
    }

    /// To be asked before what is to be committed, or to be followed, is flushed.
    pub fn life(&self) -> HostLife {
        self.0.cache.inodes().host_life()
    }

    /// The server's host is in this life: what another has lost is to be written again.
    pub fn host_is(&self, host: BootId) {
        self.0.host_is(host);
    }

    /// Bytes were written, and answered in this life of the host. False if it has crashed since.
    pub fn wrote(&self, wrote: Wrote, host: BootId) -> bool {
        !self.0.wrote(wrote, host).undone
    }

    /// The file has no name and isn't open here: it must not take up room for longer than the server
    /// needs it.
    pub fn out_of_reach(&self, object: &Handle) {
        let hurry = self.0.cache.state().hurry(object);
        if let Some(hurry) = hurry {
            hurry.ring_one();
        }
        self.0.cache.inodes().out_of_reach(object);
        if !self.0.cache.is_dirty(object) {
            self.0.cache.inodes().nothing_to_flush(object);
        }
    }
}

impl WritebackInner {
    async fn commit_all(&self, life: HostLife) -> Result<Committed, Refusal> {
        let covered = self.cache.inodes().commit_covers(life, false);
        let (caller, options) = (Caller::default(), CallOptions::default());
        let answer = self.rpc.call(caller, query::CommitAll, options).await?;
        answer.reply.result?;
        Ok(self.cache.inodes().all_committed(covered, answer.host))
    }

    pub(super) fn wrote(&self, wrote: Wrote, host: BootId) -> Noted {
        let noted = self.cache.inodes().unstable_write(wrote, host);
        if noted.many {
            self.many.ring_one();
        }
        noted
    }

    pub(super) fn host_is(self: &Arc<Self>, host: BootId) {
        let undone = self.cache.inodes().server_host_is(host);
        for undone in undone {
            let object = undone.object;
            let anyway = planted::is(Bug::RestoreAnyway);
            if self.cache.tenure(&object) == Some(undone.tenure) || anyway {
                tracing::info!(%object, "the server's host has crashed: writing again");
                self.restore(undone);
            } else {
                tracing::warn!(%object, "the server's host has crashed, and others have used the file since it was written: it may have lost bytes");
                self.cache.inodes().is_lost(object, Refusal::Lost);
                let (size, reason) = (undone.base.size, WhyNot::ChangedElsewhere);
                let from = From(undone.path, undone.owner);
                let lost = undelivered(object, from, size, undone.runs, reason);
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
