//! A directory that is brought to the server's disk along with a file that was made in it.
//!
//! That a file is on the disk doesn't say that its name is (fsync(2)), so who makes a file durable that is new (sqlite its journal, a
//! store its log) often makes its directory durable next. Where it went so the last time the server is asked for both at once. What
//! comes of it stands with the directory's attributes, and so under their lease: each change of the directory, here or elsewhere,
//! takes it away.

use super::Inodes;
use super::cached::{Along, Cached, DurableAlong};
use super::habit::Habit;
use crate::call::NodeId;
use futures_channel::oneshot;
use leasefs_lease::client::Live;
use leasefs_protocol::{Handle, OpenId, Refusal};

/// The file that was made last in a directory, until it is made durable.
#[derive(Debug, Default)]
pub(super) struct Newest {
    file: Option<Handle>,
    /// It was made durable, and no name has been changed since.
    synced: bool,
    habit: Habit,
}

impl Newest {
    /// Names are changed: whoever makes the directory durable then doesn't do it for the file's sake.
    pub fn others_follow(&mut self) {
        self.synced = false;
    }
}

/// What is known of a directory that is to be made durable.
#[derive(Debug)]
pub(crate) enum Brought {
    Nothing,
    /// It is being brought to the disk: if it can't be whoever waits is told so.
    Soon(oneshot::Receiver<Result<(), Refusal>>),
    Durable(DurableAlong),
}

impl Inodes {
    /// A file was made here.
    pub fn is_newest(&mut self, dir: NodeId, file: Handle) {
        if let Some(looks) = self.looks_mut(dir) {
            looks.newest.file = Some(file);
        }
    }

    /// A file is made durable: the directory that is to be along with it, if any is.
    pub fn is_synced_with(&mut self, file: &Handle) -> Option<Handle> {
        let id = self.node_of(file)?;
        let parent = self.known(id)?.stands.last()?.parent;
        let newest = self.newest(parent)?;
        newest.file.take_if(|newest| newest == file)?;
        newest.synced = true;
        let along = newest.habit.begins();
        let dir = self.nodes.get(&parent).filter(|_| along)?;
        Some(**dir)
    }

    /// A directory is made durable.
    pub fn is_synced_itself(&mut self, dir: &Handle) {
        let id = self.node_of(dir);
        if let Some(newest) = id.and_then(|id| self.newest(id))
            && std::mem::take(&mut newest.synced)
        {
            newest.habit.follows();
        }
    }

    fn newest(&mut self, dir: NodeId) -> Option<&mut Newest> {
        Some(&mut self.refs_mut(dir)?.looks.as_mut()?.newest)
    }

    /// A directory is about to be brought to the disk by this open, as its attributes tell it now. Under which number; `None` if these
    /// aren't known, or it is or was already.
    pub fn begin_along(&mut self, _: &Live<'_>, dir: &Handle, open: OpenId) -> Option<u64> {
        let number = self.next_use();
        let cached = self.used(dir)?;
        let may = cached.attr.is_some() && cached.along_mut().is_none();
        may.then(|| cached.put_along(Along::Asked(number, open, Vec::new())))?;
        Some(number)
    }

    /// It was, or can't be.
    pub fn end_along(&mut self, dir: &Handle, number: u64, done: Result<DurableAlong, Refusal>) {
        let Some(cached) = self.used(dir) else {
            return;
        };
        let open = match cached.along_mut() {
            Some(Along::Asked(asked, open, _)) if *asked == number => *open,
            _ => return,
        };
        let told = done.as_ref().map(|_| ()).map_err(|refusal| *refusal);
        let asked = match done {
            Ok(done) => cached.put_along(Along::Durable(open, done)),
            Err(_) => cached.take_along(),
        };
        if let Some(Along::Asked(_, _, waiting)) = asked {
            for tell in waiting {
                // Who has waited may be gone.
                let _ = tell.send(told);
            }
        }
    }

    /// What is known of a directory that is to be made durable through this open: of a failure of the disk the host tells each once.
    pub fn brought_along(&mut self, _: &Live<'_>, dir: &Handle, open: OpenId) -> Brought {
        let along = self.used(dir).and_then(Cached::along_mut);
        match along {
            Some(Along::Durable(by, done)) if *by == open => Brought::Durable(done.clone()),
            Some(Along::Asked(_, by, waiting)) if *by == open => {
                let (tell, told) = oneshot::channel();
                waiting.push(tell);
                Brought::Soon(told)
            }
            _ => Brought::Nothing,
        }
    }
}
