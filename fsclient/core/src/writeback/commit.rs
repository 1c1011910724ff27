//! Commits: what is written is let go of when it is on the server's disk, and written again after a
//! crash of the server's host.

use super::{From, Writeback, WritebackInner, undelivered};
use crate::api::WhyNot;
use crate::inode::{Committed, Covered, HostLife, Noted, Undone, Wrote};
use crate::opens::ServerOpen;
use crate::session::CallOptions;
use futures_channel::oneshot;
use futures_util::future::join_all;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{BootId, Caller, Durability, Handle, Operation, Query, Refusal, query};
use std::sync::Arc;
use std::time::Duration;

/// How long written bytes are kept at most before a commit is asked for.
const COMMIT_AGE: Duration = Duration::from_secs(15);

/// So many files are committed at a time where each has to be asked of.
const COMMITTED_AT_ONCE: usize = 16;

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
    /// Brings everything to the server's disk. What that says it says once: one is asked for behind the other, and heard whoever leaves.
    async fn commit_all(self: &Arc<Self>, life: HostLife) -> Result<Committed, Refusal> {
        let (tell, told) = oneshot::channel();
        let inner = Arc::clone(self);
        self.cx.spawn(async move {
            let _turn = inner.committing.next().await;
            let committed = inner.commit_in_turn(life).await;
            // Who has asked may be gone.
            let _ = tell.send(committed);
        });
        told.await.unwrap_or(Err(Refusal::Cancelled))
    }

    async fn commit_in_turn(&self, life: HostLife) -> Result<Committed, Refusal> {
        let covered = self.cache.inodes().commit_covers(life, false);
        match self.ask(query::CommitAll).await {
            Ok(host) => Ok(self.cache.inodes().all_committed(covered, host)),
            Err(refusal @ Refusal::Host(_)) => {
                let lost = self.is_not_taken(refusal, &covered).await;
                let host = self.ask(query::CommitAll).await?;
                let rest = self.cache.inodes().all_committed(covered, host);
                if lost { Err(refusal) } else { Ok(rest) }
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// The server's disk hasn't taken something, of whomever. Of a file with an open by which it was written the host tells whether it is
    /// of that; what else was changed and isn't known to be durable counts as lost. True if anything does.
    async fn is_not_taken(&self, refusal: Refusal, covered: &Covered) -> bool {
        let files = self.cache.inodes().written_by_opens();
        for few in files.chunks(COMMITTED_AT_ONCE) {
            join_all(few.iter().map(|(file, open)| self.commit_one(file, open))).await;
        }
        let (lost, undone) = self.cache.inodes().not_taken(refusal, covered);
        if lost > 0 {
            tracing::warn!(%refusal, objects = lost, "the server's disk hasn't taken everything that was written");
        }
        for undone in undone {
            self.keep_undone(undone, WhyNot::Refused(refusal)).await;
        }
        lost > 0
    }

    /// What was written to the file is on the server's disk if that says so.
    async fn commit_one(&self, file: &Handle, open: &ServerOpen) {
        let covered = {
            let inodes = self.cache.inodes();
            inodes.commit_covers(inodes.host_life(), false)
        };
        let commit = query::Commit {
            open: open.id(),
            durability: Durability::All,
        };
        if let Ok(host) = self.ask(commit).await {
            self.cache.inodes().written_durably(file, &covered, host);
        }
    }

    async fn keep_undone(&self, undone: Undone, reason: WhyNot) {
        let from = From(undone.path, undone.owner);
        let lost = undelivered(undone.object, from, undone.base.size, undone.runs, reason);
        self.outside.keep(lost).await;
    }

    /// Asks for something to be made durable. Returns the life of the host that has done it.
    async fn ask<Q>(&self, query: Q) -> Result<BootId, Refusal>
    where
        Q: Operation<Answer = ()> + Into<Query>,
    {
        let (caller, options) = (Caller::default(), CallOptions::default());
        let answer = self.rpc.call(caller, query, options).await?;
        answer.reply.result.map(|()| answer.host)
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
                let inner = Arc::clone(self);
                self.cx.spawn(
                    async move { inner.keep_undone(undone, WhyNot::ChangedElsewhere).await },
                );
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
