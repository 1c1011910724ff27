//! Everything that must change together: leases, what is cached under them, and what of it
//! the kernel may hold.

use super::content::Content;
use super::dirty::Dirty;
use super::entry::{Dropped, Known};
use super::pages::{Outcome, Pages, Then};
use super::tables::Tables;
use crate::run::Set;
use leasefs_lease::client::{Asked, ChangeOf, DropKind, Leases, Renewal, SessionClock, Span};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{
    Approval, Attr, BootId, Grant, Handle, Parts, Recall, Release, Scope, Stamp,
};
use std::time::Duration;

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
    pub tables: Tables,
    pub pages: Pages,
    pub dirty: Dirty,
    pub(super) content: Content,
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
}

impl State {
    pub fn new() -> Self {
        Self {
            session: SessionClock::new(),
            leases: Leases::new(),
            tables: Tables::new(),
            pages: Pages::default(),
            dirty: Dirty::default(),
            content: Content::default(),
            process: None,
            host: None,
            swept: None,
            idle: Vec::new(),
            nameless: Set::default(),
        }
    }

    /// Takes in a renewal. If it begins the session anew, what was held before goes first.
    pub fn renewed(&mut self, sent: BootTime, term: Duration, drift_ppm: u32) {
        if self.session.renew(sent, term, drift_ppm) == Renewal::Begins {
            self.drop_everything();
        }
    }

    /// All leases are gone at `now`.
    pub fn expire(&mut self, now: BootTime) {
        self.session.end(now);
        self.drop_everything();
    }

    /// The server's host is in this life. What was cached in another may never have reached its disk.
    /// The leases of dirty files stay: what is here of them is newer than anything there.
    pub fn host_is(&mut self, host: BootId) {
        if self.host.replace(host).is_none_or(|known| known == host) {
            return;
        }
        let dirty = &self.dirty;
        self.leases.lose_all_but(|object| dirty.contains(object));
        self.sweep();
    }

    /// Drops what can be dropped here and leaves the kernel's part in `swept`.
    fn drop_everything(&mut self) {
        if self.leases.is_empty() && self.swept.is_none() && self.pages.filled().is_empty() {
            self.content.drop_all();
            // Nothing was cached; replies under way still belong to the time before.
            self.leases.expire();
            return;
        }
        self.leases.expire();
        self.sweep();
    }

    fn sweep(&mut self) {
        self.content.drop_all();
        let mut work = self.swept.take().unwrap_or_default();
        self.tables.drop_all(&mut work.dropped);
        self.pages.void_recalls(&mut work.outcome);
        let filled = self.pages.filled();
        self.pages
            .drop_pages(&filled, DropKind::Sweep, Then::Nothing, &mut work.outcome);
        self.swept = Some(work);
    }

    /// The server is another process: stamps and recall numbers begin anew.
    pub fn restarted(&mut self, process: BootId, out: &mut Outcome) {
        if self.process.replace(process) != Some(process) {
            self.leases.restarted();
            self.pages.void_recalls(out);
        }
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
                self.content.drop_all();
                self.tables.drop_all(&mut dropped);
            }
            Scope::Object {
                object,
                parts,
                names,
            } => {
                if parts.contains(Parts::DATA) {
                    self.content.drop_file(object);
                }
                let singly = names.iter().map(|name| name.0.as_slice());
                self.tables.drop_parts(object, *parts, singly, &mut dropped);
                if !names.is_empty() && self.tables.knows_no_name(object) {
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
            Scope::Everything => self.dirty.objects(),
            Scope::Object { object, parts, .. }
                if parts.intersects(content) && self.dirty.contains(object) =>
            {
                vec![*object]
            }
            Scope::Object { .. } => Vec::new(),
        }
    }

    /// Files whose pages a recall covers.
    pub fn recalled_files(&self, recall: &Recall) -> Vec<(Handle, Span)> {
        match &recall.scope {
            Scope::Everything => self.pages.filled(),
            Scope::Object { object, parts, .. } if parts.contains(Parts::DATA) => {
                vec![(*object, Span::ALL)]
            }
            Scope::Object { .. } => Vec::new(),
        }
    }

    /// An own change begins: what it changes, its pages apart, is neither cached nor cacheable.
    pub fn begin_change(&mut self, changes: &[ChangeOf]) -> Dropped {
        let mut dropped = Dropped::default();
        self.leases.begin_change(changes);
        for change in changes {
            let names = change.names.iter().map(|name| name.0.as_slice());
            self.tables
                .drop_parts(&change.object, change.parts, names, &mut dropped);
        }
        dropped
    }

    /// An own change of a file's bytes begins: none of them is cached before it ends.
    pub fn begin_content(&mut self, file: Handle) {
        self.content.begin_change(file);
    }

    /// It has ended.
    pub fn end_content(&mut self, file: &Handle) {
        self.content.end_change(file);
    }

    /// The kernel has forgotten the inode: nobody has it open.
    pub fn forgotten(&mut self, object: &Handle) {
        self.tables.forgotten(object);
        self.content.drop_file(object);
    }

    /// A lease could not be reclaimed.
    pub fn lost(&mut self, object: &Handle, dropped: &mut Dropped) {
        self.leases.lost(object);
        self.content.drop_file(object);
        self.tables.drop_parts(object, Parts::ALL, [], dropped);
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
            self.tables.put_attr(*object, *attr);
        }
        cacheable
    }

    /// Caches a name if the reply allows it.
    pub fn put_name(
        &mut self,
        asked: Asked,
        grants: &[Grant],
        (dir, name): (&Handle, &[u8]),
        known: Known,
    ) -> bool {
        let leases = &self.leases;
        let cacheable = grants_of(grants, dir, Parts::NAMES)
            .any(|grant| leases.name_cacheable(asked, dir, name, grant.stamp));
        if cacheable {
            self.tables.put_name(*dir, name, known);
        }
        cacheable
    }

    /// Only these names can be there: a reply with a NAMES grant of this stamp has said so of the whole
    /// directory.
    pub fn put_all_names<'a>(
        &mut self,
        asked: Asked,
        (dir, stamp): (&Handle, Stamp),
        names: impl Iterator<Item = &'a [u8]>,
    ) {
        let names_held = self.leases.cacheable(asked, dir, Parts::NAMES, stamp);
        if !names_held.contains(Parts::NAMES) {
            return;
        }
        let unsettled = self.leases.unsettled_names(dir, stamp);
        let names = names.map(Into::into).chain(unsettled);
        self.tables.put_others(*dir, names);
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
    pub fn approved(&mut self, approvals: &[Approval]) {
        let recalls = approvals.iter().map(|approval| approval.recall);
        recalls.for_each(|id| self.leases.approved(id));
    }

    /// Gives back leases whose objects nobody caches anything of.
    pub fn release_idle(&mut self) -> Vec<Release> {
        let idle = std::mem::take(&mut self.idle);
        // The lease of a dirty file keeps others from what they would not see.
        let dirty = |object: &Handle| self.dirty.contains(object);
        let (dirty, idle): (Vec<Handle>, Vec<Handle>) = idle.into_iter().partition(dirty);
        self.idle = dirty;
        let unused = idle
            .into_iter()
            .filter(|object| !self.pages.may_hold(object) && !self.content.holds(object));
        let unused: Vec<Handle> = unused.collect();
        let data = |object: Handle| self.leases.release(&object, Parts::DATA);
        let mut releases: Vec<Release> = unused.into_iter().filter_map(data).collect();
        for dir in std::mem::take(&mut self.nameless) {
            if self.tables.knows_no_name(&dir) {
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
