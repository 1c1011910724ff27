//! The kernel of a client's host, as far as FUSE's caches go. It never stands still: what it has
//! been told is believed for as long as it was told, whatever the daemon does.
//!
//! - A page that a READ fills is *locked* until the reader has the answer; a page that is written back
//!   until its WRITE is answered. Dropping a range waits for such pages in it, in order, and writes dirty
//!   ones back first; new READs may come behind it meanwhile.
//! - A name is looked for, and a file opened, by the mode that is believed, which a change of the contents leaves.
//! - `read` looks at the attributes' timeout first and asks for them when it is over; a mapped read
//!   doesn't. A size that is told is believed at once; the pages follow a little later.
//! - An attribute reply that was asked for before an invalidation isn't believed; what makes an inode known isn't
//!   if another was forgotten since. What isn't known can't be invalidated.
//! - A name counts while its timeout lasts and no newer epoch has begun since it was asked for, or since it was taken up
//!   if it came along with a listing; a rename takes timeout and epoch along.
//! - LOOKUP of an unknown name and READDIR hold their directory shared; what changes names holds it alone. Truncations
//!   and writes beyond the end hold their file alone.
//! - While a size changes, what is to be written back is held back.

use super::client::ClientEv;
use super::clock::HostClock;
use super::cx::{Cx, Ev};
use super::ledger::FdId;
use super::model::{CELL, CELLS, Item, MS, Nanos, Obj, PAGE, US, bytes_of, rights_of, value_of};
use super::procs::{Proc, Want};
use leasefs_client::call::{At, Entry, Fh, ShownFor, Writing};
use leasefs_client::{Answer, Asker, Call, EffectId, NodeId, Notice, Noticed};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Attr, FileKind, Handle, Refusal};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Number of a request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// What happens in the kernel and its processes.
#[derive(Debug)]
pub enum KernelEv {
    /// A process begins its next operation.
    Next(usize),
    /// A process goes on.
    Go(usize),
    /// The daemon's answer is taken up by whom it is for.
    Told(Unique, Box<Result<Answer, Refusal>>),
    /// Dirty pages are written back.
    WriteBack,
    /// Memory is short: a file is forgotten.
    Shrink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A READ is to fill it.
    Locked,
    Full,
    Dirty,
    /// Its WRITE is unanswered, or held back.
    Writeback,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub state: State,
    pub cells: [u64; CELLS as usize],
    /// Values that were stored and that the server may not have.
    pub stored: [bool; CELLS as usize],
}

#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub handle: Handle,
    pub kind: FileKind,
    lookups: u64,
    pub size: u64,
    attr: Attr,
    until: BootTime,
    /// Size and times count no more.
    outdated: bool,
    /// Of the last invalidation or change.
    version: u64,
    /// Sizes that are being changed.
    pub unstable: u32,
    nowrite: bool,
    held_back: Vec<u32>,
    pub pages: BTreeMap<u32, Page>,
    /// Failures of writing back so far.
    pub errors: u64,
    /// Processes that wait for a page.
    pub waiters: Vec<usize>,
}

impl Inode {
    pub fn object(&self) -> Obj {
        Obj::of(&self.handle)
    }
}

#[derive(Clone, Copy, Debug)]
struct Dentry {
    node: NodeId,
    until: BootTime,
    epoch: u64,
}

/// Who holds a lock, or wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Process(usize),
    Notice(EffectId),
}

#[derive(Clone, Debug, Default)]
struct Lock {
    shared: u32,
    alone: bool,
    queue: VecDeque<(Who, bool)>,
}

/// For whom pages are dropped or written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Process(usize),
    Notice(EffectId),
    Nobody,
}

/// What becomes of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Dirty ones are written back.
    WriteBack,
    /// They are dropped, dirty ones written back before.
    Drop,
}

/// How long a drop may be held up before what is behind counts.
const BESIDE: Nanos = 100 * MS;

#[derive(Clone, Debug)]
struct Dropping {
    node: NodeId,
    at: u32,
    end: u32,
    how: How,
    whose: For,
    began: Nanos,
    blocked: bool,
}

/// A request that is not answered.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub process: Option<usize>,
    pub want: Want,
    epoch: u64,
    version: u64,
    evictions: u64,
    pub since: Nanos,
}

/// What the processes of a run do.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    /// Chance that a file is the host's own, percent.
    pub own: usize,
    /// How long the kernel keeps everything at most.
    pub memory: Nanos,
    /// Chance that a process stores into maps where it can, percent.
    pub stores: usize,
    /// Whether files that are stored into are written otherwise too, on the same mount.
    pub mixed: bool,
    /// Chance that a name is changed which might be, in a thousand.
    pub names: usize,
    /// Whether nothing but names is looked at and changed.
    pub only_names: bool,
    /// Cells that a write has at most.
    pub run: usize,
    /// Cells that a file has as a rule.
    pub cells: usize,
    /// Whether processes lock files.
    pub locks: bool,
}

impl Habit {
    /// The habit of a run.
    pub fn any(cx: &mut Cx) -> Self {
        Self {
            own: [0, 50, 90][cx.rng.below(3)],
            memory: [100, 1_000, 5_000][cx.rng.below(3)] * MS,
            stores: [0, 40, 90][cx.rng.below(3)],
            mixed: false,
            names: [0, 20, 1_000, 1_000][cx.rng.below(4)],
            only_names: false,
            run: 3,
            cells: 14,
            locks: false,
        }
    }
}

/// The kernel and its processes.
pub struct Kernel {
    pub(super) client: usize,
    pub(super) life: u64,
    pub(super) clock: HostClock,
    epoch: u64,
    version: u64,
    /// Inodes that it has forgotten.
    evictions: u64,
    pub(super) inodes: BTreeMap<NodeId, Inode>,
    dentries: BTreeMap<(NodeId, Vec<u8>), Dentry>,
    locks: BTreeMap<NodeId, Lock>,
    pub(super) asked: BTreeMap<Unique, Asked>,
    next: u64,
    drops: BTreeMap<u64, Dropping>,
    next_drop: u64,
    pub(super) next_fd: u64,
    pub(super) processes: Vec<Proc>,
    /// The daemon stands or stood still, and has not cleaned up since: mapped pages may be stale.
    pub stale_until: Nanos,
    /// The daemon is or was cut off: a page that was on its way meanwhile may have outlived its lease.
    pub cut_until: Nanos,
    /// No further operations begin.
    pub winding_down: bool,
    /// How long processes pause at most.
    pub pace: Nanos,
    /// What they do.
    pub habit: Habit,
}

impl Kernel {
    /// A kernel that knows the root alone.
    pub fn new(
        (client, life): (usize, u64),
        clock: HostClock,
        (root, root_attr): (Handle, Attr),
        processes: usize,
        (pace, habit): (Nanos, Habit),
    ) -> Self {
        let mut kernel = Self {
            client,
            life,
            clock,
            epoch: 1,
            version: 1,
            evictions: 0,
            inodes: BTreeMap::new(),
            dentries: BTreeMap::new(),
            locks: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            drops: BTreeMap::new(),
            next_drop: 0,
            next_fd: 0,
            processes: (0..processes).map(|_| Proc::default()).collect(),
            stale_until: 0,
            cut_until: 0,
            winding_down: false,
            pace,
            habit,
        };
        kernel.know(NodeId::ROOT, root, &root_attr);
        kernel
    }

    fn know(&mut self, node: NodeId, handle: Handle, attr: &Attr) {
        let inode = Inode {
            handle,
            kind: attr.kind,
            lookups: 0,
            size: attr.size,
            attr: *attr,
            until: BootTime::ZERO,
            outdated: false,
            version: self.version,
            unstable: 0,
            nowrite: false,
            held_back: Vec::new(),
            pages: BTreeMap::new(),
            errors: 0,
            waiters: Vec::new(),
        };
        self.inodes.insert(node, inode);
    }

    pub(super) fn later(&self, cx: &mut Cx, wait: Nanos, ev: KernelEv) {
        cx.after(wait, Ev::Kernel(self.client, self.life, ev));
    }

    pub(super) fn tell_daemon(&self, cx: &mut Cx, wait: Nanos, ev: ClientEv) {
        cx.after(wait, Ev::Client(self.client, self.life, ev));
    }

    pub(super) fn object(&self, node: NodeId) -> Option<Obj> {
        self.inodes.get(&node).map(Inode::object)
    }

    pub(super) fn new_fd(&mut self) -> FdId {
        self.next_fd += 1;
        FdId(self.life << 32 | self.next_fd)
    }

    /// Process id of a process.
    pub(super) fn pid(&self, process: usize) -> u32 {
        (self.client * 100 + process + 1) as u32
    }

    fn monotonic(&self, cx: &Cx) -> BootTime {
        self.clock.monotonic(cx.now)
    }

    /// Sends a request to the daemon.
    pub(super) fn ask(
        &mut self,
        cx: &mut Cx,
        (process, asker): (Option<usize>, Asker),
        want: Want,
        call: Call,
    ) -> Unique {
        self.next += 1;
        let unique = Unique(self.next);
        let asked = Asked {
            process,
            want,
            epoch: self.epoch,
            version: self.version,
            evictions: self.evictions,
            since: cx.now,
        };
        cx.stats.calls += 1;
        self.asked.insert(unique, asked);
        let wait = US + cx.short(300 * US);
        self.tell_daemon(cx, wait, ClientEv::Ask(unique, asker, Box::new(call)));
        unique
    }

    /// Attributes that are still believed.
    pub(super) fn attrs(&self, cx: &Cx, node: NodeId) -> Option<Attr> {
        let outdated = self.inodes.get(&node)?.outdated;
        self.rights(cx, node).filter(|_| !outdated)
    }

    /// Attributes of which all but size and times are still believed.
    pub(super) fn rights(&self, cx: &Cx, node: NodeId) -> Option<Attr> {
        let inode = self.inodes.get(&node)?;
        (self.monotonic(cx) < inode.until).then_some(inode.attr)
    }

    /// A name that is still believed; the flag: the kernel has a dentry for it at all.
    pub(super) fn name(&self, cx: &Cx, dir: NodeId, name: &[u8]) -> (Option<NodeId>, bool) {
        let Some(dentry) = self.dentries.get(&(dir, name.to_vec())) else {
            return (None, false);
        };
        let valid = dentry.epoch == self.epoch && self.monotonic(cx) < dentry.until;
        (valid.then_some(dentry.node), true)
    }

    /// Whether a name denotes something else than the kernel's dentry says.
    pub(super) fn is_other(&self, dir: NodeId, name: &[u8], found: Option<NodeId>) -> bool {
        let dentry = self.dentries.get(&(dir, name.to_vec()));
        dentry.is_some_and(|dentry| Some(dentry.node) != found)
    }

    /// Drops a dentry.
    pub(super) fn forget_name(&mut self, dir: NodeId, name: &[u8]) {
        self.dentries.remove(&(dir, name.to_vec()));
    }

    /// Moves a dentry with its timeout and epoch.
    pub(super) fn move_name(&mut self, from: (NodeId, &[u8]), to: (NodeId, &[u8])) {
        let key = |(dir, name): (NodeId, &[u8])| (dir, name.to_vec());
        let both = (self.dentries.get(&key(from)), self.dentries.get(&key(to)));
        if let (Some(a), Some(b)) = both
            && a.node == b.node
        {
            // Two names of one inode: nothing has happened.
            return;
        }
        match self.dentries.remove(&key(from)) {
            Some(dentry) => drop(self.dentries.insert(key(to), dentry)),
            None => drop(self.dentries.remove(&key(to))),
        }
    }

    /// Until when something is believed that is told for `valid` now.
    fn until(&self, cx: &mut Cx, valid: Duration) -> BootTime {
        if valid.is_zero() {
            return BootTime::ZERO;
        }
        let jiffies = cx.rng.below(8 * MS as usize) as u64;
        self.monotonic(cx) + valid + Duration::from_nanos(jiffies)
    }

    /// Takes up an entry; counted as a reference. Returns whether its pages have to follow.
    pub(super) fn told_entry(
        &mut self,
        cx: &mut Cx,
        asked: &Asked,
        at: Option<(NodeId, &[u8])>,
        entry: &Entry,
    ) -> Option<PagesFollow> {
        let node = entry.node.id;
        let mut follow = None;
        let same = |inode: &Inode| inode.handle == entry.node.handle;
        let is_new = !self.inodes.get(&node).is_some_and(same);
        if !is_new {
            let shown = ShownFor {
                shown: entry.shown,
                valid: entry.attr_valid,
            };
            follow = self.told_attr(cx, asked, node, &shown);
        } else {
            self.know(node, entry.node.handle, &entry.shown.attr);
        }
        let until = self.until(cx, entry.attr_valid);
        let evicted = asked.evictions != self.evictions;
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.lookups += 1;
            // Else it has been taken up, or is outdated.
            if is_new && !evicted {
                inode.until = until;
            }
        }
        let until = self.until(cx, entry.valid);
        if let Some((dir, name)) = at {
            let dentry = Dentry {
                node,
                until,
                epoch: asked.epoch,
            };
            self.dentries.insert((dir, name.to_vec()), dentry);
        }
        follow
    }

    /// Of an entry that came along with its listing: as of now, whenever that was asked for.
    pub(super) fn as_listed(&self, asked: &Asked) -> Asked {
        Asked {
            epoch: self.epoch,
            ..asked.clone()
        }
    }

    /// Of what was made: taken up whatever has changed since that was asked for.
    pub(super) fn as_made(&self, asked: &Asked) -> Asked {
        Asked {
            version: u64::MAX,
            evictions: self.evictions,
            ..asked.clone()
        }
    }

    /// A reference that nothing keeps is given back.
    pub(super) fn give_back(&self, cx: &mut Cx, node: NodeId) {
        if node == NodeId::ROOT {
            return;
        }
        self.tell_daemon(cx, US, ClientEv::Forget(node, 1));
    }

    /// Takes up attributes, unless they are outdated. Returns whether pages have to follow.
    pub(super) fn told_attr(
        &mut self,
        cx: &mut Cx,
        asked: &Asked,
        node: NodeId,
        told: &ShownFor,
    ) -> Option<PagesFollow> {
        let until = self.until(cx, told.valid);
        let next = self.version + 1;
        let inode = self.inodes.get_mut(&node)?;
        if inode.version > asked.version || inode.unstable > 0 {
            return None;
        }
        self.version = next;
        inode.version = next;
        inode.until = until;
        inode.outdated = false;
        Self::take(inode, &told.shown.attr)
    }

    /// Attributes after an own truncation, which no invalidation makes outdated.
    pub(super) fn told_set(&mut self, node: NodeId, attr: &Attr) -> Option<PagesFollow> {
        self.version += 1;
        let version = self.version;
        let inode = self.inodes.get_mut(&node)?;
        inode.version = version;
        inode.until = BootTime::ZERO;
        Self::take(inode, attr)
    }

    fn take(inode: &mut Inode, attr: &Attr) -> Option<PagesFollow> {
        let resized = inode.size != attr.size;
        let changed = inode.attr.mtime != attr.mtime;
        inode.attr = *attr;
        inode.size = attr.size;
        let pages = inode.kind == FileKind::File && !inode.pages.is_empty();
        ((resized || changed) && pages).then_some(PagesFollow { resized })
    }

    /// A write has been answered: its file is at least so large.
    pub(super) fn wrote(&mut self, node: NodeId, end: u64) {
        self.version += 1;
        let version = self.version;
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.version = version;
            inode.outdated = true;
            inode.size = inode.size.max(end);
        }
    }

    /// Names in a directory have changed.
    pub(super) fn dir_changed(&mut self, node: NodeId) {
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.outdated = true;
        }
    }

    /// Attributes are asked for again.
    pub(super) fn forget_attrs(&mut self, node: NodeId) {
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.until = BootTime::ZERO;
        }
    }

    /// Cuts the pages off that are behind the size. Nothing of what is being read, or written back.
    pub(super) fn cut(&mut self, cx: &mut Cx, node: NodeId) {
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        let size = inode.size;
        let mut gone = Vec::new();
        for (number, page) in &mut inode.pages {
            for cell in 0..CELLS {
                let begins = u64::from(*number) * PAGE + u64::from(cell) * CELL;
                if begins >= size && page.state != State::Locked {
                    let at = cell as usize;
                    if std::mem::take(&mut page.stored[at]) {
                        gone.push(page.cells[at]);
                    }
                    page.cells[at] = 0;
                }
            }
        }
        for value in gone {
            cx.judge.page_gone(cx.now, value);
        }
        self.cut_whole(node);
    }

    /// As [`Kernel::cut`], of pages that are behind the size altogether.
    fn cut_whole(&mut self, node: NodeId) {
        if let Some(Inode { size, pages, .. }) = self.inodes.get_mut(&node) {
            pages.retain(|number, page| {
                u64::from(*number) * PAGE < *size
                    || matches!(page.state, State::Locked | State::Writeback)
            });
        }
    }

    /// Locks the missing pages from `first` on and reads them, a few at a time.
    pub(super) fn read_pages(
        &mut self,
        cx: &mut Cx,
        process: usize,
        (node, fh): (NodeId, Fh),
        first: u32,
    ) {
        let ahead = cx.rng.between(1, 3) as u32;
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        let end = inode.size.div_ceil(PAGE) as u32;
        let missing = |page: &u32| !inode.pages.contains_key(page);
        let count = (first..end.min(first + ahead)).take_while(missing).count() as u32;
        let count = count.max(1);
        for page in first..first + count {
            let locked = Page {
                state: State::Locked,
                cells: Default::default(),
                stored: Default::default(),
            };
            inode.pages.insert(page, locked);
        }
        let at = At {
            fh,
            offset: u64::from(first) * PAGE,
        };
        let len = count * PAGE as u32;
        let asker = self.asker(process, None);
        let want = Want::Pages { node, first, count };
        self.ask(
            cx,
            (Some(process), asker),
            want,
            Call::ReadPages { at, len },
        );
    }

    /// Pages come, or don't: they are unlocked.
    pub(super) fn told_pages(
        &mut self,
        cx: &mut Cx,
        asked: &Asked,
        (node, first, count): (NodeId, u32, u32),
        told: Option<&[u64]>,
    ) {
        let next = self.version + 1;
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        match told {
            None => inode
                .pages
                .retain(|page, _| !(first..first + count).contains(page)),
            Some(cells) => {
                for number in 0..count {
                    let from = (number * CELLS) as usize;
                    let mut page = Page {
                        state: State::Full,
                        cells: Default::default(),
                        stored: Default::default(),
                    };
                    for (to, cell) in page.cells.iter_mut().zip(cells.iter().skip(from)) {
                        *to = *cell;
                    }
                    inode.pages.insert(first + number, page);
                }
                // A short read: the file ends there, unless that is outdated.
                let end = u64::from(first) * PAGE + cells.len() as u64 * CELL;
                let is_short = cells.len() < (count * CELLS) as usize;
                let believed = inode.version <= asked.version && inode.unstable == 0;
                if is_short && believed && end < inode.size {
                    inode.size = end;
                    inode.version = next;
                    self.version = next;
                }
            }
        }
        self.page_event(cx, node);
    }

    /// The state of a page has changed: whoever waits looks again.
    pub(super) fn page_event(&mut self, cx: &mut Cx, node: NodeId) {
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        for process in std::mem::take(&mut inode.waiters) {
            let wait = cx.short(50 * US);
            self.later(cx, wait, KernelEv::Go(process));
        }
        let of_it = self.drops.iter().filter(|(_, d)| d.node == node);
        let of_it: Vec<u64> = of_it.map(|(id, _)| *id).collect();
        for id in of_it {
            self.go_on_dropping(cx, id);
        }
    }

    /// Forgets attributes, also those of replies under way if it knows the inode. Never blocks.
    fn drop_attrs(&mut self, node: NodeId) -> Noticed {
        self.version += 1;
        let version = self.version;
        let Some(inode) = self.inodes.get_mut(&node) else {
            return Noticed::Unknown;
        };
        inode.version = version;
        inode.until = BootTime::ZERO;
        Noticed::Done
    }

    /// What never blocks is done here and now.
    pub fn notice_at_once(&mut self, notice: &Notice) -> Noticed {
        match notice {
            Notice::DropAttrs(node) => return self.drop_attrs(*node),
            Notice::ForgetNames => self.epoch += 1,
            _ => {}
        }
        Noticed::Done
    }

    /// What may block.
    pub fn notice(&mut self, cx: &mut Cx, id: EffectId, notice: Notice) {
        match notice {
            Notice::DropPages { node, offset, len } => {
                self.drop_range(cx, node, (offset, len), For::Notice(id));
            }
            Notice::DropWritten { node, offset, len } => {
                // Who waits for a page that is being written back holds its lock.
                self.drop_range(cx, node, (offset, len), For::Nobody);
                self.notice_done(cx, id);
            }
            Notice::Grow { node, size } => {
                if let Some(inode) = self.inodes.get_mut(&node) {
                    inode.size = inode.size.max(size);
                    self.version += 1;
                    inode.version = self.version;
                }
                // Only what carries it out waits for the page.
                self.notice_done(cx, id);
            }
            Notice::DropName { dir, name } => {
                if self.lock(dir, Who::Notice(id), true) {
                    self.forget_name(dir, &name);
                    self.unlock(cx, dir, true);
                    self.notice_done(cx, id);
                } else {
                    // By the time it has the lock the name is dropped.
                    self.forget_name(dir, &name);
                }
            }
            other => {
                self.notice_at_once(&other);
                self.notice_done(cx, id);
            }
        }
    }

    fn drop_range(&mut self, cx: &mut Cx, node: NodeId, (offset, len): (u64, u64), whose: For) {
        self.drop_attrs(node);
        let page = |at: u64| (at / PAGE).min(u64::from(u32::MAX)) as u32;
        let end = match len {
            0 => u32::MAX,
            len => page(offset + len - 1).saturating_add(1),
        };
        self.drop_pages(cx, node, (page(offset), end), How::Drop, whose);
    }

    fn notice_done(&self, cx: &mut Cx, id: EffectId) {
        let wait = US + cx.short(200 * US);
        self.tell_daemon(cx, wait, ClientEv::Notified(id));
    }

    /// Writes back, and maybe drops, pages; whoever wants it is told.
    pub(super) fn drop_pages(
        &mut self,
        cx: &mut Cx,
        node: NodeId,
        (at, end): (u32, u32),
        how: How,
        whose: For,
    ) {
        self.next_drop += 1;
        let dropping = Dropping {
            node,
            at,
            end,
            how,
            whose,
            began: cx.now,
            blocked: false,
        };
        self.drops.insert(self.next_drop, dropping);
        self.go_on_dropping(cx, self.next_drop);
    }

    fn go_on_dropping(&mut self, cx: &mut Cx, id: u64) {
        let Some(dropping) = self.drops.get(&id).cloned() else {
            return;
        };
        let node = dropping.node;
        let mut at = dropping.at;
        while let Some((number, page)) = self.page_from(node, at).filter(|(n, _)| *n < dropping.end)
        {
            at = number;
            let waits = match page.state {
                State::Locked => dropping.how != How::WriteBack,
                State::Full => false,
                State::Dirty => {
                    self.write_back(cx, node, number);
                    true
                }
                State::Writeback => true,
            };
            // Writing back may have ended at once.
            let state = self
                .page_from(node, number)
                .map(|(n, page)| (n, page.state));
            if waits && !matches!(state, Some((n, State::Full)) if n == number) {
                if let Some(dropping) = self.drops.get_mut(&id) {
                    cx.stats.blocked_drops += u64::from(!dropping.blocked);
                    dropping.blocked = true;
                    dropping.at = at;
                }
                return;
            }
            if dropping.how == How::Drop {
                self.remove_page(cx, node, number);
            }
            at = number + 1;
        }
        self.drops.remove(&id);
        match dropping.whose {
            For::Notice(effect) => self.notice_done(cx, effect),
            For::Nobody => {}
            For::Process(process) => {
                let wait = cx.short(20 * US);
                self.later(cx, wait, KernelEv::Go(process));
            }
        }
    }

    fn page_from(&self, node: NodeId, at: u32) -> Option<(u32, Page)> {
        let inode = self.inodes.get(&node)?;
        let (number, page) = inode.pages.range(at..).next()?;
        Some((*number, *page))
    }

    fn remove_page(&mut self, cx: &mut Cx, node: NodeId, number: u32) {
        let inode = self.inodes.get_mut(&node);
        let page = inode.and_then(|inode| inode.pages.remove(&number));
        let Some(page) = page else { return };
        for (value, stored) in page.cells.iter().zip(page.stored) {
            if stored {
                cx.judge.page_gone(cx.now, *value);
            }
        }
    }

    /// Whether somebody waits for a drop.
    pub(super) fn is_dropping_for(&self, process: usize) -> bool {
        let mut drops = self.drops.values();
        drops.any(|d| d.whose == For::Process(process))
    }

    /// Begins to write a dirty page back.
    fn write_back(&mut self, cx: &mut Cx, node: NodeId, number: u32) {
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        let Some(page) = inode.pages.get_mut(&number) else {
            return;
        };
        page.state = State::Writeback;
        match inode.nowrite {
            true => inode.held_back.push(number),
            false => self.send_page(cx, node, number),
        }
    }

    fn send_page(&mut self, cx: &mut Cx, node: NodeId, number: u32) {
        let fh = self.writable(node);
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        let Some(page) = inode.pages.get_mut(&number) else {
            return;
        };
        let begins = u64::from(number) * PAGE;
        let cells = inode.size.saturating_sub(begins).div_ceil(CELL);
        let cells = cells.min(u64::from(CELLS)) as usize;
        let values = page.cells[..cells].to_vec();
        // What lies behind the end is cleared, be it the server's (`iomap_writeback_handle_eof`, Linux 6.17).
        page.cells[cells..].fill(0);
        let (Some(fh), false) = (fh, values.is_empty()) else {
            page.state = State::Full;
            return;
        };
        cx.stats.writebacks += 1;
        let writing = Writing {
            offset: begins,
            data: bytes_of(&values).into(),
            flags: 2,
            writeback: true,
            kill_priv: false,
            owner: None,
        };
        let want = Want::Page { node, number };
        let nobody = (None, Asker::default());
        self.ask(cx, nobody, want, Call::Write { fh, writing });
    }

    /// A descriptor by which pages of a file are written back.
    fn writable(&self, node: NodeId) -> Option<Fh> {
        let fds = self.processes.iter().flat_map(Proc::fds);
        let mut of_it = fds.filter(|fd| fd.node == node && fd.writes());
        of_it.next().map(|fd| fd.fh)
    }

    /// A page was written back, or not.
    pub(super) fn told_page(&mut self, cx: &mut Cx, node: NodeId, number: u32, done: bool) {
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        if let Some(page) = inode.pages.get_mut(&number) {
            // It counts as clean either way.
            page.state = State::Full;
            for (value, stored) in page.cells.iter().zip(&mut page.stored) {
                if *stored {
                    match done {
                        true => *stored = false,
                        false => cx.judge.page_failed(*value),
                    }
                }
            }
        }
        inode.errors += u64::from(!done);
        if done {
            inode.until = BootTime::ZERO;
        }
        self.cut_whole(node);
        self.page_event(cx, node);
    }

    /// While a size changes nothing is written back; whether nothing is under way.
    pub(super) fn hold_writes(&mut self, node: NodeId) -> bool {
        let under_way = self.asked.values().any(|asked| match asked.want {
            Want::Page { node: of, .. } => of == node,
            _ => false,
        });
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.nowrite = true;
        }
        !under_way
    }

    /// What was held back is written.
    pub(super) fn release_writes(&mut self, cx: &mut Cx, node: NodeId) {
        let Some(inode) = self.inodes.get_mut(&node) else {
            return;
        };
        inode.nowrite = false;
        for number in std::mem::take(&mut inode.held_back) {
            self.send_page(cx, node, number);
        }
        self.page_event(cx, node);
    }

    /// Something happens.
    pub fn happens(&mut self, cx: &mut Cx, ev: KernelEv) {
        match ev {
            KernelEv::Next(process) => self.begin(cx, process),
            KernelEv::Go(process) => self.go_on(cx, process),
            KernelEv::Told(unique, told) => self.told(cx, unique, *told),
            KernelEv::WriteBack => self.write_some_back(cx),
            KernelEv::Shrink => self.shrink(cx),
        }
    }

    fn write_some_back(&mut self, cx: &mut Cx) {
        let wait = (100 + cx.rng.below(2_000) as u64) * MS;
        self.later(cx, wait, KernelEv::WriteBack);
        let dirty = self.inodes.iter().flat_map(|(node, inode)| {
            let pages = inode.pages.iter();
            let dirty = pages.filter(|(_, page)| page.state == State::Dirty);
            dirty.map(|(number, _)| (*node, *number))
        });
        let dirty: Vec<(NodeId, u32)> = dirty.collect();
        for (node, number) in dirty {
            self.write_back(cx, node, number);
        }
    }

    fn shrink(&mut self, cx: &mut Cx) {
        let wait = self.habit.memory / 10 + cx.rng.below(self.habit.memory as usize) as u64;
        self.later(cx, wait, KernelEv::Shrink);
        let files = self.known_files();
        if let Some(node) = files.get(cx.rng.below(files.len())) {
            self.forget_file(cx, *node);
        }
    }

    /// Forgets all files that can be forgotten.
    pub(super) fn shrink_all(&mut self, cx: &mut Cx) {
        for node in self.known_files() {
            self.forget_file(cx, node);
        }
    }

    fn known_files(&self) -> Vec<NodeId> {
        let files = self.inodes.iter().filter(|(node, inode)| {
            **node != NodeId::ROOT && inode.kind == FileKind::File && inode.lookups > 0
        });
        files.map(|(node, _)| *node).collect()
    }

    fn forget_file(&mut self, cx: &mut Cx, node: NodeId) {
        if self.is_used(node) {
            return;
        }
        let Some(inode) = self.inodes.remove(&node) else {
            return;
        };
        self.evictions += 1;
        self.dentries.retain(|_, dentry| dentry.node != node);
        self.locks.remove(&node);
        self.tell_daemon(cx, US, ClientEv::Forget(node, inode.lookups));
    }

    /// Whether an inode can't be forgotten just now.
    fn is_used(&self, node: NodeId) -> bool {
        let clean = |inode: &Inode| {
            inode.unstable == 0 && inode.pages.values().all(|page| page.state == State::Full)
        };
        let open = self.processes.iter().flat_map(Proc::fds);
        let lock = self.locks.get(&node);
        let locked = lock.is_some_and(|l| l.alone || l.shared > 0 || !l.queue.is_empty());
        !self.inodes.get(&node).is_some_and(clean)
            || locked
            || open.into_iter().any(|fd| fd.node == node)
            || self.processes.iter().any(|p| p.uses(node))
            || self.drops.values().any(|d| d.node == node)
            || self.asked.values().any(|a| a.want.is_of(node))
    }

    /// What a process would be told of an item now without the daemon being asked, if anything.
    pub fn believes(&self, cx: &Cx, item: Item) -> Option<u64> {
        let object = item.object();
        let of_it = |inode: &Inode| inode.object() == object;
        match item {
            Item::Attrs(_) => {
                let (node, _) = self.inodes.iter().find(|(_, inode)| of_it(inode))?;
                Some(value_of(&self.attrs(cx, *node)?))
            }
            Item::Rights(_) => {
                let (node, _) = self.inodes.iter().find(|(_, inode)| of_it(inode))?;
                Some(rights_of(&self.rights(cx, *node)?))
            }
            Item::Name(_, name) => {
                let (node, _) = self.inodes.iter().find(|(_, inode)| of_it(inode))?;
                let found = self.name(cx, *node, &[b'a' + name]).0?;
                Some(self.object(found)?.0.into())
            }
            Item::Listing(_) => None,
            Item::Cell(_, cell) => {
                let (node, inode) = self.inodes.iter().find(|(_, inode)| of_it(inode))?;
                let mapped = self.maps_count(cx);
                if !self.is_read(*node) || !mapped && self.attrs(cx, *node).is_none() {
                    return None;
                }
                let number = cell / CELLS;
                let blocked = !self.is_shown(cx, *node, number);
                let page = inode.pages.get(&number)?;
                let within = u64::from(cell) * CELL < inode.size;
                let readable = matches!(page.state, State::Full | State::Dirty);
                (within && readable && !blocked).then(|| page.cells[(cell % CELLS) as usize])
            }
        }
    }

    /// Whether a process can look at pages of a file: it has it open to read, as it has for a mapping too.
    fn is_read(&self, node: NodeId) -> bool {
        let mut open = self.processes.iter().flat_map(Proc::fds);
        open.any(|fd| fd.node == node && fd.reads())
    }

    /// Whether its processes have done all that they were told.
    pub fn is_through(&self) -> bool {
        self.processes.iter().all(Proc::is_through)
    }

    /// How many pages of an object hold something.
    pub fn pages_of(&self, object: Obj) -> usize {
        let inodes = self.inodes.values();
        let pages = inodes.filter(|inode| inode.object() == object);
        let pages = pages.flat_map(|inode| inode.pages.values());
        pages.filter(|page| page.state != State::Locked).count()
    }

    /// Whether what mapped pages show is promised: not while the daemon stands still.
    pub(super) fn maps_count(&self, cx: &Cx) -> bool {
        cx.now > self.stale_until
    }

    /// Not a page that a drop has yet to reach: it may be written back first, or the drop be held up by another
    /// page, but that not for long, since it is dropped beside then.
    fn is_shown(&self, cx: &Cx, node: NodeId, number: u32) -> bool {
        let page = self
            .inodes
            .get(&node)
            .and_then(|inode| inode.pages.get(&number));
        let clean = page.is_some_and(|page| page.state == State::Full);
        let reaches = |d: &Dropping| (d.at..d.end).contains(&number);
        let passes = |d: &Dropping| d.node == node && d.how == How::Drop;
        let drops = self.drops.values().filter(|d| passes(d) && reaches(d));
        drops
            .filter(|d| !clean || cx.now - d.began < BESIDE)
            .count()
            == 0
    }

    /// As [`Kernel::maps_count`], of one page. Not of one that its own processes see until it is taken in or refused.
    pub(super) fn maps_count_at(&self, cx: &Cx, node: NodeId, page: u32) -> bool {
        let outlived = self.asked.values().any(|asked| match asked.want {
            Want::Page { node: of, number } => {
                (of, number) == (node, page) && asked.since <= self.cut_until
            }
            _ => false,
        });
        !outlived && self.is_shown(cx, node, page) && self.maps_count(cx)
    }

    /// Takes an inode's lock; `false`: it is told when it has it.
    pub(super) fn lock(&mut self, node: NodeId, who: Who, alone: bool) -> bool {
        let lock = self.locks.entry(node).or_default();
        let free = !lock.alone && lock.queue.is_empty() && (!alone || lock.shared == 0);
        if !free {
            lock.queue.push_back((who, alone));
            return false;
        }
        lock.alone = alone;
        lock.shared += u32::from(!alone);
        true
    }

    /// Gives it back; those who wait have it in their order.
    pub(super) fn unlock(&mut self, cx: &mut Cx, node: NodeId, alone: bool) {
        let lock = self.locks.entry(node).or_default();
        match alone {
            true => lock.alone = false,
            false => lock.shared -= 1,
        }
        let mut woken = Vec::new();
        let mut noticed = Vec::new();
        while let Some((who, alone)) = lock.queue.front().copied() {
            if lock.alone || (alone && lock.shared > 0) {
                break;
            }
            lock.queue.pop_front();
            match who {
                Who::Process(process) => {
                    lock.alone = alone;
                    lock.shared += u32::from(!alone);
                    woken.push(process);
                }
                Who::Notice(id) => noticed.push(id),
            }
        }
        for process in woken {
            self.processes[process].has_lock();
            let wait = cx.short(20 * US);
            self.later(cx, wait, KernelEv::Go(process));
        }
        for id in noticed {
            self.notice_done(cx, id);
        }
    }

    /// What is under way, for people.
    pub fn describe(&self) -> String {
        let asked: Vec<String> = self
            .asked
            .iter()
            .map(|(unique, asked)| {
                format!(
                    "  asked {unique:?} at {:.3}: {:?}",
                    asked.since as f64 / 1e6,
                    asked.want
                )
            })
            .collect();
        let drops: Vec<String> = self.drops.values().map(|d| format!("  {d:?}")).collect();
        let processes: Vec<String> = self
            .processes
            .iter()
            .enumerate()
            .map(|(number, p)| format!("  process {number}: {}", p.describe()))
            .collect();
        format!(
            "{}\n{}\n{}",
            asked.join("\n"),
            drops.join("\n"),
            processes.join("\n")
        )
    }
}

/// The pages of a file have to follow its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PagesFollow {
    pub resized: bool,
}
