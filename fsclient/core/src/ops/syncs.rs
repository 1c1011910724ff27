//! `fsync`.

use super::{Ask, Ops};
use crate::call::{Asker, Fh};
use crate::inode::{Brought, Committed, DurableAlong, LossesTold};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{Durability, Handle, OpenId, Refusal, query};
use std::sync::Arc;

impl Ops {
    /// Makes durable what was written to the file or directory.
    ///
    /// # Errors
    /// The server's refusal; once for each descriptor, why bytes it wrote could not be brought in, and
    /// [`Refusal::Lost`] if a crash of the server's host may have undone something.
    pub async fn fsync(
        self: &Arc<Self>,
        ask: &Ask,
        fh: Fh,
        data_only: bool,
    ) -> Result<(), Refusal> {
        let (file, dir) = (self.opens.file(fh), self.opens.dir(fh));
        let (object, open, told) = match (&file, &dir) {
            (Some(open), _) => (open.object, open.server.id(), &open.told),
            (None, Some(open)) => {
                self.inodes().listings_are_taken_up(open.node);
                (open.object, open.server.id(), &open.told)
            }
            (None, None) => return Err(Refusal::BadOpen),
        };
        let durability = match data_only {
            true => Durability::Data,
            false => Durability::All,
        };
        let mut along = match dir {
            Some(_) => self.brought_along(ask, (&object, open), told).await?,
            None => {
                self.sync_along(ask, &object);
                None
            }
        };
        loop {
            let life = self.writeback.life();
            let asked = self.inodes().commit_covers(life, data_only);
            let flushed = match planted::is(Bug::SyncUnflushed) {
                true => None,
                false => self.settle_durably(ask, &object, durability).await?,
            };
            if let Some(file) = file.as_ref().filter(|_| !planted::is(Bug::SyncUntold)) {
                file.written
                    .check()
                    .inspect_err(|_| self.inodes().is_told(&object, told))?;
            }
            let flushed = flushed.filter(|flushed| asked.is_within(*flushed, open));
            let (covered, host) = match (flushed, along.take()) {
                (Some(flushed), _) => (asked, flushed.host),
                (None, Some(durable)) => durable,
                (None, None) => {
                    let covered = self.inodes().commit_covers(life, data_only);
                    let request = query::Commit { open, durability };
                    let done = self.call(ask, request).await;
                    if let Err(Refusal::Host(_)) = done {
                        self.inodes().is_told(&object, told);
                    }
                    (covered, done?.host)
                }
            };
            let verdict = self.inodes().committed(&object, covered, host, told);
            match verdict {
                Committed::Durable => return Ok(()),
                Committed::Lost if planted::is(Bug::SyncUntold) => return Ok(()),
                Committed::Again => self.writeback.host_is(host),
                Committed::Lost => return Err(self.inodes().why_lost(&object)),
            }
        }
    }

    /// What was made durable of a directory along with the file that was made in it last, if it hasn't changed since.
    ///
    /// # Errors
    /// Why it could not be made durable.
    async fn brought_along(
        &self,
        ask: &Ask,
        (dir, open): (&Handle, OpenId),
        told: &LossesTold,
    ) -> Result<Option<DurableAlong>, Refusal> {
        self.inodes().is_synced_itself(dir);
        loop {
            let tier = self.cache().live();
            match tier.map(|mut tier| tier.brought_along(dir, open)) {
                None | Some(Brought::Nothing) => return Ok(None),
                Some(Brought::Durable(durable)) => return Ok(Some(durable)),
                Some(Brought::Soon(end)) => {
                    // Dropped without a word if the directory is changed.
                    let end = async { Ok(end.await.unwrap_or(Ok(()))) };
                    let ended = ask.unless_left(end).await?;
                    ended.inspect_err(|_| self.inodes().is_told(dir, told))?;
                }
            }
        }
    }

    /// A file is made durable, and maybe its directory along with it.
    fn sync_along(self: &Arc<Self>, ask: &Ask, file: &Handle) {
        let Some(dir) = self.inodes().is_synced_with(file) else {
            return;
        };
        let caller = self.caller(ask);
        let covered = {
            let life = self.writeback.life();
            self.inodes().commit_covers(life, false)
        };
        let begun = self.cache().live();
        let begun = begun.and_then(|mut tier| tier.begin_along(&dir, &caller));
        let Some((number, open)) = begun else {
            return;
        };
        let ops = Arc::clone(self);
        self.cx.spawn(async move {
            let nobody = Ask::new(Asker::default());
            let commit = query::Commit {
                open: open.id(),
                durability: Durability::All,
            };
            let told = ops.call_as(&nobody, caller, commit).await;
            let mut inodes = ops.inodes();
            if let Err(refusal) = &told
                && leaves_open(*refusal)
            {
                inodes.is_lost(dir, *refusal);
            }
            let done = told.map(|told| (covered, told.host));
            inodes.end_along(&dir, number, done);
        });
    }
}

/// Whether the disk may have failed, which the host tells once: whoever makes the directory durable next has to be told. Directories of
/// which it makes none durable (EINVAL) have lost nothing.
fn leaves_open(refusal: Refusal) -> bool {
    match refusal {
        Refusal::Host(errno) => i32::from(errno) != libc::EINVAL,
        refusal => refusal == Refusal::TimedOut,
    }
}
