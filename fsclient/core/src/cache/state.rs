//! Everything that must change together: leases, what is cached under them, and what of it
//! the kernel may hold.

use super::pace::Pace;
use crate::inode::{Approvable, Dentry, Dropped, Inodes, Outcome, PagesOf, Then};
use crate::locks::MountLocks;
use crate::memory::Memory;
use crate::run::Set;
use leasefs_lease::client::{Asked, ChangeOf, DropKind, Leases, Renewal, SessionClock};
use leasefs_lease::planted::{self, Bug};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Attr, BootId, Grant, Handle, Parts, Recall, Release, Scope, Stamp};
use std::path::PathBuf;
use std::time::Duration;

/// Idle leases that are looked at at a time.
const RELEASED: usize = 512;

/// What has been dropped here and must be dropped from the kernel, or told to the server.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// To be dropped from the kernel at once; never blocks.
    pub dropped: Dropped,
    /// To be done after that.
    pub outcome: Outcome,
}

/// A session's leases and all that depends on them.
#[derive(Debug)]
pub(crate) struct State {
    pub session: SessionClock,
    pub leases: Leases,
    pub inodes: Inodes,
    /// How fast bytes go to the server.
    pub pace: Pace,
    /// The server process that stamps and recall numbers are of.
    pub process: Option<BootId>,
    /// The life of the server's host in which what is cached was told.
    host: Option<BootId>,
    /// What a loss of all leases has left to be done, by whoever comes first.
    pub swept: Option<Work>,
    /// Objects whose pages the kernel has forgotten: their leases are worth nothing.
    pub idle: Vec<Handle>,
    /// Directories of which no name is known any more.
    nameless: Set<Handle>,
    /// What this mount's processes hold of files' locks.
    pub locks: MountLocks,
}

impl State {
    /// Where an object was found last, for people.
    pub fn path_of(&self, object: &Handle) -> Option<PathBuf> {
        self.inodes.path(self.inodes.node_of(object)?)
    }

    pub fn new(root: Handle, memory: Memory) -> Self {
        Self {
            session: SessionClock::new(),
            leases: Leases::new(),
            inodes: Inodes::new(root, memory),
            pace: Pace::default(),
            process: None,
            host: None,
            swept: None,
            idle: Vec::new(),
            nameless: Set::default(),
            locks: MountLocks::default(),
        }
    }

    /// Takes in a renewal. If it begins the session anew, what was held before goes first.
    pub fn renewed(&mut self, sent: BootTime, term: Duration, drift_ppm: u32) {
        if self.session.renew(sent, term, drift_ppm) == Renewal::Begins {
            self.drop_everything();
        }
    }

    /// What is held of files' locks, as of now.
    pub fn locks_at(&mut self, now: BootTime) -> &mut MountLocks {
        if !self.locks.is_idle() {
            let live = self.session.witness(now).is_some();
            self.locks.look(live);
        }
        &mut self.locks
    }

    /// All leases are gone at `now`.
    pub fn expire(&mut self, now: BootTime) {
        self.session.end(now);
        self.drop_everything();
    }

    /// The machine is about to sleep: what the kernel has of names and attributes goes, and is returned, with what
    /// may be given back when it has; nothing of that is cached before.
    pub fn sleep(&mut self) -> (Dropped, Vec<ChangeOf>) {
        self.session.set_asleep(true);
        let leased = self.leases.reclaim_list().map(|lease| lease.object);
        let clean = leased.filter(|object| !self.inodes.is_dirty(object));
        let given_back: Vec<ChangeOf> = clean.map(ChangeOf::whole).collect();
        self.leases.begin_change(&given_back);
        let mut dropped = Dropped::default();
        self.drop_cached(&mut dropped);
        dropped.opens.clear();
        (dropped, given_back)
    }

    /// The server's host is in this life. What was cached in another may never have reached its disk.
    /// The leases of dirty files stay: what is here of them is newer than anything there.
    pub fn host_is(&mut self, host: BootId) {
        let same = |known| known == host || planted::is(Bug::KeepAfterHostCrash);
        if self.host.replace(host).is_none_or(same) {
            return;
        }
        self.inodes.forget_clean_attrs();
        let inodes = &self.inodes;
        self.leases.lose_all_but(|object| inodes.is_dirty(object));
        self.sweep();
    }

    /// Drops what can be dropped here and leaves the kernel's part in `swept`.
    fn drop_everything(&mut self) {
        self.locks.lose_all();
        if self.leases.is_empty() && self.swept.is_none() && self.inodes.filled().is_empty() {
            self.inodes.drop_all_clean();
            // Nothing was cached; replies under way still belong to the time before.
            self.leases.expire();
            return;
        }
        self.leases.expire();
        self.sweep();
    }

    /// Drops all that is cached; what the kernel has of it goes into `dropped`.
    fn drop_cached(&mut self, dropped: &mut Dropped) {
        self.inodes.drop_all_clean();
        self.inodes.drop_cached(dropped);
    }

    fn sweep(&mut self) {
        let mut work = self.swept.take().unwrap_or_default();
        self.drop_cached(&mut work.dropped);
        let filled = self.inodes.filled();
        self.inodes
            .drop_pages(&filled, DropKind::Sweep, Then::Nothing, &mut work.outcome);
        self.swept = Some(work);
    }

    /// The server is another process: stamps and recall numbers begin anew.
    pub fn restarted(&mut self, process: BootId, out: &mut Outcome) {
        if self.process.replace(process) != Some(process) {
            self.leases.restarted();
            self.locks.restarted();
            self.inodes.void_recalls(out);
        }
    }

    /// The session's leases have ended at the server, and with them its recalls.
    pub fn ended(&mut self, out: &mut Outcome) {
        self.leases.void_recalls();
        self.inodes.void_recalls(out);
    }

    /// Acts on a recall: the daemon's part goes, the kernel's part is in the result. `None` if it
    /// is under way already.
    pub fn recall(&mut self, recall: &Recall) -> Option<Dropped> {
        if !self.leases.recall(recall) {
            return None;
        }
        let mut dropped = Dropped::default();
        match &recall.scope {
            Scope::Everything => {
                self.drop_cached(&mut dropped);
            }
            Scope::Object {
                object,
                parts,
                names,
            } => {
                if parts.contains(Parts::DATA) && !planted::is(Bug::BytesKept) {
                    self.inodes.drop_clean(object);
                }
                let singly = names.iter().map(|name| name.0.as_slice());
                self.inodes.drop_parts(object, *parts, singly, &mut dropped);
                if !names.is_empty() && self.inodes.knows_no_name(object) {
                    self.nameless.insert(*object);
                }
            }
        }
        Some(dropped)
    }

    /// Files whose buffered bytes a recall waits for.
    pub fn recalled_dirty(&self, recall: &Recall) -> Vec<Handle> {
        let content = Parts::ATTRS | Parts::DATA;
        match &recall.scope {
            Scope::Everything => self.inodes.dirty_files(),
            Scope::Object { object, parts, .. }
                if parts.intersects(content) && self.inodes.is_dirty(object) =>
            {
                vec![*object]
            }
            Scope::Object { .. } => Vec::new(),
        }
    }

    /// Pages that a recall covers.
    pub fn recalled_pages(&self, recall: &Recall) -> Vec<PagesOf> {
        match &recall.scope {
            Scope::Everything => self.inodes.filled(),
            _ if planted::is(Bug::ApproveUndropped) => Vec::new(),
            Scope::Object { object, parts, .. } if parts.contains(Parts::DATA) => {
                vec![PagesOf::all(*object)]
            }
            Scope::Object { .. } => Vec::new(),
        }
    }

    /// The kernel has forgotten the inode: nobody has it open.
    pub fn forgotten(&mut self, object: &Handle) {
        self.inodes.kernel_forgot(object);
        self.inodes.nobody_commits(object);
        self.inodes.drop_clean(object);
    }

    /// A lease could not be reclaimed.
    pub fn lost(&mut self, object: &Handle, dropped: &mut Dropped) {
        self.leases.lost(object);
        if planted::is(Bug::LostKept) {
            return;
        }
        self.inodes.drop_clean(object);
        self.inodes.drop_parts(object, Parts::ALL, [], dropped);
    }

    /// Caches attributes if the reply allows it.
    pub fn put_attr(
        &mut self,
        asked: Asked,
        grants: &[Grant],
        object: &Handle,
        attr: &Attr,
    ) -> bool {
        let cacheable = self.covered(asked, grants, object, Parts::ATTRS);
        if cacheable {
            self.inodes.put_attr(self.leases.shared(object), attr);
        }
        cacheable
    }

    /// Caches a name if the reply allows it.
    pub fn put_name(
        &mut self,
        asked: Asked,
        grants: &[Grant],
        dir: &Handle,
        name: &[u8],
        dentry: Dentry,
    ) -> bool {
        let leases = &self.leases;
        let cacheable = grants_of(grants, dir, Parts::NAMES)
            .any(|grant| leases.name_cacheable(asked, dir, name, grant.stamp));
        if cacheable {
            self.inodes.put_name(*dir, name, dentry);
        }
        cacheable
    }

    /// Only these names can be there: a reply with a NAMES grant of this stamp has said so of the whole
    /// directory.
    pub fn put_all_names<'a>(
        &mut self,
        asked: Asked,
        dir: &Handle,
        stamp: Stamp,
        names: impl Iterator<Item = &'a [u8]>,
    ) {
        let names_held = self.leases.cacheable(asked, dir, Parts::NAMES, stamp);
        if !names_held.contains(Parts::NAMES) {
            return;
        }
        let unsettled = self.leases.unsettled_names(dir, stamp);
        let names = names.map(Into::into).chain(unsettled);
        self.inodes.put_others(*dir, names);
    }

    /// Whether what a reply with these grants says of a part may be cached now.
    pub fn covered(&self, asked: Asked, grants: &[Grant], object: &Handle, part: Parts) -> bool {
        grants_of(grants, object, part).any(|grant| {
            let cacheable = self.leases.cacheable(asked, object, part, grant.stamp);
            cacheable.contains(part)
        })
    }

    /// Takes in the grants of a reply.
    pub fn granted(&mut self, asked: Asked, grants: &[Grant]) {
        for grant in grants {
            self.leases.granted(asked, grant);
        }
    }

    /// Recalls approved: what comes behind them is cacheable again.
    pub fn approved(&mut self, approvable: &[Approvable]) {
        let recalls = approvable.iter().map(|approvable| approvable.recall);
        recalls.for_each(|id| self.leases.approved(id));
    }

    /// What of an object's lease may be given back when nothing of it is cached but bytes. Bytes that are here would be taken
    /// for what a further lease covers; those that are buffered are seen by nobody else; and those that are kept until
    /// they are durable are written again under their lease alone. What the kernel may still come to know ends with its
    /// timeouts.
    pub fn uncovering(&self, object: &Handle) -> Parts {
        let inodes = &self.inodes;
        if inodes.is_dirty(object) {
            return Parts::NONE;
        }
        let bytes = inodes.may_hold_pages(object)
            || inodes.has_clean_bytes(object)
            || inodes.keeps_written(object);
        let covering = [
            (bytes, Parts::DATA),
            (inodes.is_unseen(object), Parts::ATTRS),
            (inodes.owes_names(object), Parts::NAMES),
        ];
        let covering = covering.into_iter().filter(|(covers, _)| *covers);
        covering.fold(Parts::ALL, |uncovering, (_, parts)| uncovering - parts)
    }

    /// Gives back leases whose objects nobody caches anything of, a few at a time: keep-alives and approvals go the same way.
    pub fn release_idle(&mut self) -> Vec<Release> {
        let few = self.idle.len().min(RELEASED);
        let idle: Vec<Handle> = self.idle.drain(..few).collect();
        // The lease of a dirty file keeps others from what they would not see, and without it nothing is written again
        // after a crash of the server's host.
        let needed = |file: &Handle| self.inodes.is_dirty(file) || self.inodes.keeps_written(file);
        let (needed, idle): (Vec<Handle>, Vec<Handle>) = idle.into_iter().partition(needed);
        // They are looked at again when it is their turn.
        self.idle.extend(needed);
        let unused = idle.into_iter().filter(|object| {
            !self.inodes.may_hold_pages(object) && !self.inodes.has_clean_bytes(object)
        });
        let unused: Vec<Handle> = unused.collect();
        let data = |object: Handle| self.leases.release(&object, Parts::DATA);
        let mut releases: Vec<Release> = unused.into_iter().filter_map(data).collect();
        for dir in std::mem::take(&mut self.nameless) {
            if self.inodes.knows_no_name(&dir) {
                releases.extend(self.leases.release_names(&dir));
            }
        }
        releases
    }
}

fn grants_of<'a>(
    grants: &'a [Grant],
    object: &'a Handle,
    part: Parts,
) -> impl Iterator<Item = &'a Grant> {
    grants
        .iter()
        .filter(move |grant| grant.object == *object && grant.parts.contains(part))
}
