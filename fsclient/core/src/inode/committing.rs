//! What is changed and committed, over all inodes.

use super::unstable::{
    Committed, Covered, HostLife, LossesTold, MANY_OBJECTS, MOST_FILES, Noted, SYNCED_AT_ONCE,
    Undone, Unstable, Wrote, WroteIn,
};
use super::{Access, Content, Inodes, Weight};
use crate::opens::ServerOpen;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{BootId, Caller, Handle, Refusal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

impl Inodes {
    /// A change of the object was answered in this life of the host, which can't be done again.
    /// `content`: it was one of its bytes.
    pub fn unstable_change(&mut self, object: Handle, host: BootId, content: bool) {
        let number = self.commits.next();
        self.make_unstable(object, |unstable| {
            unstable.forgotten = false;
            unstable.since.get_or_insert(host);
            unstable.last = number;
            unstable.attributes |= !content;
            // Written again, they would come behind it.
            if content {
                unstable.drop_written();
                unstable.written = u64::MAX;
            }
        });
    }

    /// As [`Inodes::unstable_change`], of all of these objects that the kernel knows; of `content` the bytes were changed.
    pub fn unstable_changes(&mut self, objects: &[Handle], content: Option<Handle>, host: BootId) {
        for object in objects {
            if self.node_of(object).is_some() {
                self.unstable_change(*object, host, content == Some(*object));
            }
        }
    }

    /// The object is about to be changed by bytes that are flushed later.
    pub fn will_be_unstable(&mut self, object: &Handle) {
        self.change_unstable(object, |unstable| unstable.forgotten = false);
    }

    /// Bytes were written in this life of the host. They are kept, within bounds.
    pub fn unstable_write(&mut self, wrote: Wrote, host: BootId) -> Noted {
        if self.commits.before == Some(host) {
            return Noted {
                undone: true,
                ..Noted::default()
            };
        }
        let number = self.commits.next();
        let more = self.weight.kept + wrote.batch.len();
        let room = more <= self.memory.for_unstable() && self.weight.kept_open < MOST_FILES;
        let object = wrote.object;
        self.make_unstable(object, |unstable| {
            unstable.wrote(wrote, WroteIn { number, host, room })
        });
        let Weight {
            kept, kept_open, ..
        } = self.weight;
        Noted {
            undone: false,
            number: Some(number),
            many: kept > self.memory.many_unstable() || kept_open > MOST_FILES / 4,
        }
    }

    /// Whether bytes are kept of a file until they are durable.
    pub fn keeps_written(&self, object: &Handle) -> bool {
        self.unstable(object).is_some_and(Unstable::keeps)
    }

    /// Whether the open of a file's writer is kept, and the file isn't open here.
    pub fn is_kept_open(&self, object: &Handle) -> bool {
        self.unstable(object).is_some_and(Unstable::keeps_open) && !self.is_open(object)
    }

    fn unstable(&self, object: &Handle) -> Option<&Unstable> {
        self.content(object)?.unstable.as_deref()
    }

    /// The open by which bytes of a file are brought to the server, or may be once more, and what it allows, if it is of this identity and allows
    /// this, and the file is open here for whoever asks alone. (Of two that share one only the first hears of a failure of the server's disk.)
    pub fn open_of_writer(
        &self,
        object: &Handle,
        caller: &Caller,
        access: Access,
    ) -> Option<(Arc<ServerOpen>, Access)> {
        let content = self.content(object)?;
        content.in_use.as_ref().filter(|in_use| in_use.opens == 1)?;
        let dirty = content.dirty.as_deref().map(|dirty| &dirty.writer);
        let kept = || content.unstable.as_deref()?.writer.as_ref();
        let writer = dirty.or_else(kept)?;
        let stands = writer.allows.covers(access) && writer.open.stands();
        let own = stands && writer.caller == *caller;
        own.then(|| (Arc::clone(&writer.open), writer.allows))
    }

    /// Nobody here can reach the file any more: nothing of it is kept from now on, until
    /// [`Inodes::nothing_to_flush`].
    pub fn out_of_reach(&mut self, object: &Handle) {
        self.make_unstable(*object, |unstable| {
            unstable.forgotten = false;
            unstable.out_of_reach = true;
            unstable.drop_written();
        });
    }

    /// No bytes of the file are to be flushed.
    pub fn nothing_to_flush(&mut self, object: &Handle) {
        self.change_content(object, |content| {
            content.unstable.take_if(|unstable| unstable.out_of_reach);
        });
    }

    /// For a new open of the object, which earlier losses don't concern, unless nobody was told of them.
    pub fn losses_told(&mut self, object: &Handle) -> LossesTold {
        let known = self.change_unstable(object, |unstable| {
            (unstable.out_of_reach, unstable.forgotten) = (false, false);
            unstable.known
        });
        LossesTold(AtomicU64::new(known.unwrap_or(0)))
    }

    /// The life of the server's host; to be asked before what is to be committed is flushed.
    pub fn host_life(&self) -> HostLife {
        HostLife(self.commits.host)
    }

    /// A commit is about to be sent; `data_only`: as `fdatasync`.
    pub fn commit_covers(&self, life: HostLife, data_only: bool) -> Covered {
        Covered {
            changes: self.commits.changes,
            with: Vec::new(),
            life,
            data_only,
        }
    }

    /// The commit that was asked for through an open has succeeded in this life of the host.
    pub fn committed(
        &mut self,
        object: &Handle,
        covered: Covered,
        host: BootId,
        told: &LossesTold,
    ) -> Committed {
        if covered.is_of_another(host) {
            return Committed::Again;
        }
        let done = self.change_unstable(object, |unstable| {
            unstable.committed(&covered, host);
            let known = told.0.swap(unstable.losses, Ordering::Relaxed);
            unstable.known = unstable.losses;
            Committed::of(known != unstable.losses)
        });
        done.unwrap_or(Committed::Durable)
    }

    /// Whether what is not yet durable of a dirty file is so little that a disk has it soon.
    pub fn is_soon_durable(&self, file: &Handle) -> bool {
        let Some(content) = self.content(file) else {
            return true;
        };
        let written = content.unstable.as_ref().map_or(0, |u| u.written);
        let dirty = content.dirty.as_ref().map_or(0, |dirty| dirty.bytes());
        written.saturating_add(dirty as u64) <= SYNCED_AT_ONCE
    }

    /// What was written to the file is durable in this life of the host, and so is what the commit covers besides.
    pub fn written_durably(&mut self, object: &Handle, covered: &Covered, host: BootId) {
        self.change_unstable(object, |unstable| unstable.committed(covered, host));
    }

    /// A commit of everything has succeeded in this life of the host.
    pub fn all_committed(&mut self, covered: Covered, host: BootId) -> Committed {
        if covered.is_of_another(host) {
            return Committed::Again;
        }
        let mut lost = false;
        for object in self.unstable_objects(|_| true) {
            let loses = self.change_unstable(&object, |unstable| {
                let losses = unstable.losses;
                unstable.committed(&covered, host);
                unstable.losses > losses
            });
            if loses == Some(true) {
                lost = true;
                self.has_untold(object);
            }
            // They were there to be read for as long as they had to be here.
            if !self.keeps_written(&object) && !self.is_open(&object) {
                self.drop_clean(&object);
            }
        }
        Committed::of(lost)
    }

    /// The files to which bytes were written that no commit covers, each with the open by which it was.
    pub fn written_by_opens(&self) -> Vec<(Handle, Arc<ServerOpen>)> {
        let open = |content: &Content| {
            let writer = content.unstable.as_deref()?.writer.as_ref()?;
            Some(Arc::clone(&writer.open))
        };
        self.contents()
            .filter_map(|(object, content)| Some((**object, open(content)?)))
            .collect()
    }

    /// The server's disk hasn't taken something that a commit was to cover: all that it was to, and that isn't known to be durable, counts as
    /// lost. Returns of how many objects, and what is kept of them.
    pub fn not_taken(&mut self, why: Refusal, covered: &Covered) -> (usize, Vec<Undone>) {
        let waits = self.unstable_objects(|unstable| unstable.waits_for(covered));
        let mut undone = Vec::new();
        for object in &waits {
            self.is_lost(*object, why);
            let taken = self.change_unstable(object, |unstable| {
                unstable.take_out(*object, |change, _| covered.covers(change))
            });
            undone.extend(taken.flatten());
        }
        (waits.len(), undone)
    }

    /// Whether a commit would let go of anything that matters.
    pub fn has_to_commit(&self) -> bool {
        self.weight.kept_open > 0
            || self.weight.uncommitted > 0
            || self.weight.unstable > MANY_OBJECTS
    }

    /// The server's host is in this life. Returns what was written in another and no commit covers.
    pub fn server_host_is(&mut self, host: BootId) -> Vec<Undone> {
        if self.commits.host == Some(host) || planted::is(Bug::ForgetHostCrash) {
            return Vec::new();
        }
        self.commits.before = self.commits.host.replace(host);
        self.undone(Some(host))
    }

    /// Something of the file is lost: what was written in another life of the host can't be written again, since
    /// others may have changed the file, or is refused. The next commit fails, once for each who has it open; where nobody
    /// has, for the next who does.
    pub fn is_lost(&mut self, object: Handle, why: Refusal) {
        let first = self.make_unstable(object, |unstable| {
            let first = unstable.losses == unstable.known;
            unstable.forgotten = false;
            unstable.losses += 1;
            // Whose lock it was has been told himself.
            unstable.why = Some(why).filter(|why| *why != Refusal::LockLost);
            first
        });
        if first {
            self.has_untold(object);
        }
    }

    /// Something of an object was lost that nobody has been told of. Of more than so many nobody ever is.
    fn has_untold(&mut self, object: Handle) {
        self.commits.untold.push_back(object);
        if self.commits.untold.len() > MOST_FILES
            && let Some(earliest) = self.commits.untold.pop_front()
            && !self.is_open(&earliest)
        {
            self.tells_of_loss(&earliest);
            self.nobody_commits(&earliest);
        }
    }

    /// Why something of the object was lost last.
    pub fn why_lost(&self, object: &Handle) -> Refusal {
        let unstable = self.content(object).and_then(|c| c.unstable.as_deref());
        unstable.and_then(|u| u.why).unwrap_or(Refusal::Lost)
    }

    /// Who has it open in this way is told of all that was lost of the object.
    pub fn is_told(&mut self, object: &Handle, told: &LossesTold) {
        self.change_unstable(object, |unstable| {
            told.0.store(unstable.losses, Ordering::Relaxed);
            unstable.known = unstable.losses;
        });
    }

    /// Whether something of the object was lost that nobody has been told of; who asks tells.
    pub fn tells_of_loss(&mut self, object: &Handle) -> bool {
        let told = self.change_unstable(object, |unstable| {
            let untold = unstable.losses != unstable.known;
            unstable.known = unstable.losses;
            untold
        });
        told.unwrap_or(false)
    }

    /// Takes out everything that is kept: nobody will commit it any more.
    pub fn give_up_unstable(&mut self) -> Vec<Undone> {
        self.undone(None)
    }

    /// The kernel doesn't know the object any more: nobody has it open. A loss that nobody has been told of is kept for who
    /// looks it up again.
    pub fn nobody_commits(&mut self, object: &Handle) {
        self.change_unstable(object, |unstable| {
            unstable.forgotten = unstable.losses == unstable.known;
        });
    }

    fn undone(&mut self, host: Option<BootId>) -> Vec<Undone> {
        let keeping = self.unstable_objects(|unstable| !unstable.kept.is_empty());
        let take = |object: Handle| {
            let gone = |_, of| Some(of) != host;
            self.change_unstable(&object, |unstable| unstable.take_out(object, gone))?
        };
        keeping.into_iter().filter_map(take).collect()
    }

    fn unstable_objects(&self, which: impl Fn(&Unstable) -> bool) -> Vec<Handle> {
        let unstable = |content: &Content| content.unstable.as_deref().is_some_and(&which);
        let objects = self.contents().filter(|(_, content)| unstable(content));
        objects.map(|(object, _)| **object).collect()
    }

    fn change_unstable<R>(
        &mut self,
        object: &Handle,
        change: impl FnOnce(&mut Unstable) -> R,
    ) -> Option<R> {
        self.change_content(object, |content| {
            let result = change(content.unstable.as_mut()?);
            content.unstable.take_if(|unstable| unstable.is_over());
            Some(result)
        })?
    }

    fn make_unstable<R>(&mut self, object: Handle, change: impl FnOnce(&mut Unstable) -> R) -> R {
        self.make_content(object, |content| {
            let result = change(content.unstable.get_or_insert_default());
            content.unstable.take_if(|unstable| unstable.is_over());
            result
        })
    }
}
