//! The kernel of a client's host, as far as FUSE's caches go. It never stands still: what it has
//! been told is believed for as long as it was told, whatever the daemon does.
//!
//! - A page that a READ fills is *locked* until the READ is answered; dropping a range waits for
//!   locked pages in it, in order, and new READs may come behind it meanwhile.
//! - `read` looks at the attributes' timeout first and asks for them when it is over; a mapped read
//!   doesn't.
//! - An attribute reply that was asked for before an invalidation isn't believed.
//! - A name counts while its timeout lasts and no newer epoch has begun since it was asked for; a
//!   rename takes timeout and epoch along.
//! - LOOKUP of an unknown name holds its directory shared; what changes names holds it alone.

use super::client::ClientEv;
use super::clock::HostClock;
use super::cx::{Cx, Ev};
use super::model::{Deed, DeedId, Item, MS, NAMES, Nanos, Obj, PAGES, US};
use super::procs::Proc;
use leasefs_lease::time::BootTime;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Number of a request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub u64);

/// What the kernel asks the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// GETATTR.
    Attr(Obj),
    /// LOOKUP.
    Name(Obj, u8),
    /// READDIR.
    List(Obj),
    /// READ of so many pages from the first, which are locked.
    Pages(Obj, u8, u8),
    /// READ of a direct descriptor.
    Direct(Obj, u8),
    /// FSYNC, of a process.
    Sync(Obj, usize),
    /// Anything that changes something.
    Change(DeedId, Deed),
}

/// Why the daemon can't answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The server's host refused.
    Errno(u16),
    /// It is not known whether it has happened.
    Unknown,
    /// It never happens.
    Never,
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Attributes and how long to believe them.
    Attr(u64, Duration),
    /// A name and how long to believe it.
    Name(Option<Obj>, Duration),
    /// Both halves of a listing.
    List([u64; 2]),
    /// Pages.
    Pages(Vec<u64>),
    /// Done; what was made.
    Done(Option<Obj>),
    /// Not.
    Not(Trouble),
}

/// What happens in the kernel and its processes.
#[derive(Clone, Debug)]
pub enum KernelEv {
    /// A process begins its next operation.
    Next(usize),
    /// A process goes on.
    Go(usize),
    /// The daemon's answer is taken up by whom it is for. The flag: it came from a cache.
    Told(Unique, Told, bool),
    /// A drop that was blocked goes on.
    Drop(Obj),
    /// Memory is short: a file is forgotten.
    Shrink,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Empty,
    Locked,
    Full(u64),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub pages: [Page; PAGES as usize],
    attrs: u64,
    until: BootTime,
    /// Of the last invalidation.
    version: u64,
    /// The drop under way: what is left of it.
    dropping: Option<(u8, u8)>,
    /// Processes that wait for a page.
    pub waiters: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Dentry {
    target: Obj,
    until: BootTime,
    epoch: u64,
}

#[derive(Clone, Debug, Default)]
struct DirLock {
    shared: u32,
    alone: bool,
    queue: VecDeque<(usize, bool)>,
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub process: usize,
    pub want: Want,
    epoch: u64,
    version: u64,
    pub since: Nanos,
}

/// What the processes of a run do.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    /// Chance that a file is the host's own, percent.
    pub own: usize,
    /// How old buffered bytes get before they are sent.
    pub age: Nanos,
    /// How long the kernel keeps everything at most.
    pub memory: Nanos,
}

impl Habit {
    /// The habit of a run.
    pub fn any(cx: &mut Cx) -> Self {
        Self {
            own: [0, 50, 90][cx.rng.below(3)],
            age: [50, 300, 1_000][cx.rng.below(3)] * MS,
            memory: [100, 1_000][cx.rng.below(2)] * MS,
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
    pub(super) inodes: BTreeMap<Obj, Inode>,
    dentries: BTreeMap<(Obj, u8), Dentry>,
    dirs: BTreeMap<Obj, DirLock>,
    pub(super) asked: BTreeMap<Unique, Asked>,
    next: u64,
    pub(super) processes: Vec<Proc>,
    /// The daemon stands or stood still, and has not cleaned up since: mapped pages may be stale.
    pub mapped_may_be_stale: bool,
    /// No further operations begin.
    pub winding_down: bool,
    /// How long processes pause at most.
    pub pace: Nanos,
    /// What they do.
    pub habit: Habit,
}

impl Kernel {
    /// A kernel that knows nothing.
    pub fn new(
        (client, life): (usize, u64),
        clock: HostClock,
        processes: usize,
        (pace, habit): (Nanos, Habit),
    ) -> Self {
        Self {
            client,
            life,
            clock,
            epoch: 1,
            version: 1,
            inodes: BTreeMap::new(),
            dentries: BTreeMap::new(),
            dirs: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            processes: (0..processes).map(|_| Proc::default()).collect(),
            mapped_may_be_stale: false,
            winding_down: false,
            pace,
            habit,
        }
    }

    pub(super) fn later(&self, cx: &mut Cx, wait: Nanos, ev: KernelEv) {
        cx.after(wait, Ev::Kernel(self.client, self.life, ev));
    }

    fn tell_daemon(&self, cx: &mut Cx, wait: Nanos, ev: ClientEv) {
        cx.after(wait, Ev::Client(self.client, self.life, ev));
    }

    pub(super) fn inode(&mut self, object: Obj) -> &mut Inode {
        self.inodes.entry(object).or_default()
    }

    /// Sends a request to the daemon.
    pub(super) fn ask(&mut self, cx: &mut Cx, process: usize, want: Want) -> Unique {
        self.next += 1;
        let unique = Unique(self.next);
        let asked = Asked {
            process,
            want,
            epoch: self.epoch,
            version: self.version,
            since: cx.now,
        };
        self.asked.insert(unique, asked);
        let wait = US + cx.short(300 * US);
        self.tell_daemon(cx, wait, ClientEv::Ask(unique, want));
        unique
    }

    /// Attributes that are still believed.
    pub(super) fn attrs(&self, cx: &Cx, object: Obj) -> Option<u64> {
        let inode = self.inodes.get(&object)?;
        (self.clock.at(cx.now) < inode.until).then_some(inode.attrs)
    }

    /// A name that is still believed; the flag: the kernel has a dentry for it at all.
    pub(super) fn name(&self, cx: &Cx, at: (Obj, u8)) -> (Option<Obj>, bool) {
        let Some(dentry) = self.dentries.get(&at) else {
            return (None, false);
        };
        let valid = dentry.epoch == self.epoch && self.clock.at(cx.now) < dentry.until;
        (valid.then_some(dentry.target), true)
    }

    /// Whether a name denotes something else than the kernel's dentry says.
    pub(super) fn is_other(&self, at: (Obj, u8), found: Option<Obj>) -> bool {
        let dentry = self.dentries.get(&at);
        dentry.is_some_and(|dentry| Some(dentry.target) != found)
    }

    /// Drops a dentry.
    pub(super) fn forget_name(&mut self, at: (Obj, u8)) {
        self.dentries.remove(&at);
    }

    /// Until when something is believed that is told for `valid` now.
    fn until(&self, cx: &mut Cx, valid: Duration) -> BootTime {
        if valid.is_zero() {
            return BootTime::ZERO;
        }
        let jiffies = cx.rng.below(8 * MS as usize) as u64;
        self.clock.at(cx.now) + valid + Duration::from_nanos(jiffies)
    }

    /// Takes up attributes.
    pub(super) fn told_attr(&mut self, cx: &mut Cx, asked: &Asked, attrs: u64, valid: Duration) {
        let Want::Attr(object) = asked.want else {
            return;
        };
        let until = self.until(cx, valid);
        let inode = self.inode(object);
        if inode.version <= asked.version {
            inode.attrs = attrs;
            inode.until = until;
        }
    }

    /// Takes up a name.
    pub(super) fn told_name(
        &mut self,
        cx: &mut Cx,
        asked: &Asked,
        found: Option<Obj>,
        valid: Duration,
    ) {
        let Want::Name(dir, name) = asked.want else {
            return;
        };
        let until = self.until(cx, valid);
        match found {
            Some(target) => {
                let dentry = Dentry {
                    target,
                    until,
                    epoch: asked.epoch,
                };
                self.dentries.insert((dir, name), dentry);
            }
            None => drop(self.dentries.remove(&(dir, name))),
        }
    }

    /// What a change of names that was answered does to the dentries, and one of the size to the pages.
    pub(super) fn told_done(&mut self, deed: Deed, made: Option<Obj>) {
        match (deed, made) {
            (Deed::Truncate(file, _), _) => {
                let pages = self.inode(file).pages.iter_mut();
                let full = pages.filter(|page| matches!(page, Page::Full(_)));
                full.for_each(|page| *page = Page::Empty);
            }
            (Deed::Create(dir, name) | Deed::Link(_, (dir, name)), Some(target)) => {
                let dentry = Dentry {
                    target,
                    until: BootTime::ZERO,
                    epoch: self.epoch,
                };
                self.dentries.insert((dir, name), dentry);
            }
            (Deed::Unlink(dir, name), _) => drop(self.dentries.remove(&(dir, name))),
            (Deed::Rename(from, to), _) if from != to => {
                let both = (self.dentries.get(&from), self.dentries.get(&to));
                if let (Some(a), Some(b)) = both
                    && a.target == b.target
                {
                    // Two names of one inode: nothing has happened.
                    return;
                }
                if let Some(dentry) = self.dentries.remove(&from) {
                    self.dentries.insert(to, dentry);
                }
            }
            _ => {}
        }
    }

    /// Locks the empty pages from `first` on and reads them, a few at a time.
    pub(super) fn read_pages(&mut self, cx: &mut Cx, process: usize, file: Obj, first: u8) {
        let ahead = cx.rng.between(1, 3) as u8;
        let inode = self.inode(file);
        let empty = |page: &u8| inode.pages[*page as usize] == Page::Empty;
        let count = (first..PAGES.min(first + ahead)).take_while(empty).count() as u8;
        for page in first..first + count {
            inode.pages[page as usize] = Page::Locked;
        }
        self.ask(cx, process, Want::Pages(file, first, count));
    }

    /// Pages come, or don't: they are unlocked.
    pub(super) fn told_pages(
        &mut self,
        cx: &mut Cx,
        (file, first, count): (Obj, u8, u8),
        told: &Told,
    ) {
        let inode = self.inode(file);
        for at in 0..count {
            let page = match told {
                Told::Pages(values) => Page::Full(values[at as usize]),
                _ => Page::Empty,
            };
            inode.pages[(first + at) as usize] = page;
        }
        let waiters = std::mem::take(&mut inode.waiters);
        let blocked = inode.dropping.is_some();
        for process in waiters {
            let wait = cx.short(50 * US);
            self.later(cx, wait, KernelEv::Go(process));
        }
        if blocked {
            let wait = cx.short(50 * US);
            self.later(cx, wait, KernelEv::Drop(file));
        }
    }

    /// Forgets attributes, also those of replies under way. Never blocks.
    pub fn drop_attrs(&mut self, object: Obj) {
        self.version += 1;
        let version = self.version;
        // Whoever asks for attributes has looked the object up: the kernel knows the inode.
        let inode = self.inode(object);
        inode.version = version;
        inode.until = BootTime::ZERO;
    }

    /// Looks all names up again, also those of replies under way. Never blocks.
    pub fn inc_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Drops attributes and pages; the daemon is told when that is done.
    pub fn drop_pages(&mut self, cx: &mut Cx, object: Obj, pages: (u8, u8)) {
        self.drop_attrs(object);
        self.inode(object).dropping = Some(pages);
        self.go_on_dropping(cx, object, false);
    }

    fn go_on_dropping(&mut self, cx: &mut Cx, object: Obj, again: bool) {
        let inode = self.inode(object);
        let Some((mut at, end)) = inode.dropping else {
            return;
        };
        while at < end && inode.pages[at as usize] != Page::Locked {
            inode.pages[at as usize] = Page::Empty;
            at += 1;
        }
        if at < end {
            inode.dropping = Some((at, end));
            cx.stats.blocked_drops += u64::from(!again);
            return;
        }
        inode.dropping = None;
        let wait = US + cx.short(200 * US);
        self.tell_daemon(cx, wait, ClientEv::Dropped(object));
    }

    /// Something happens.
    pub fn happens(&mut self, cx: &mut Cx, ev: KernelEv, store: &super::store::Store) {
        match ev {
            KernelEv::Next(process) => self.begin(cx, process, store),
            KernelEv::Go(process) => self.go_on(cx, process),
            KernelEv::Told(unique, told, cached) => self.told(cx, unique, told, cached),
            KernelEv::Drop(object) => self.go_on_dropping(cx, object, true),
            KernelEv::Shrink => self.shrink(cx),
        }
    }

    fn shrink(&mut self, cx: &mut Cx) {
        let wait = self.habit.memory / 10 + cx.rng.below(self.habit.memory as usize) as u64;
        self.later(cx, wait, KernelEv::Shrink);
        let count = self.inodes.len();
        let victim = self.inodes.keys().copied().nth(cx.rng.below(count.max(1)));
        let Some((object, inode)) = victim.and_then(|o| Some((o, self.inodes.get_mut(&o)?))) else {
            return;
        };
        let busy = inode.dropping.is_some() || inode.pages.contains(&Page::Locked);
        let asked = self.asked.values().any(|a| a.want == Want::Attr(object));
        if busy || asked {
            return;
        }
        inode.pages = Default::default();
        inode.until = BootTime::ZERO;
        self.tell_daemon(cx, US, ClientEv::Forget(object));
    }

    /// Whether the kernel has, or asks for, anything of a file.
    pub fn knows(&self, object: Obj) -> bool {
        let inode = self.inodes.get(&object);
        let pages = inode.is_some_and(|i| i.pages.iter().any(|page| *page != Page::Empty));
        let of_it = |asked: &Asked| match asked.want {
            Want::Attr(o) | Want::Pages(o, ..) => o == object,
            _ => false,
        };
        pages || self.asked.values().any(of_it)
    }

    /// Until when anything is believed at the longest.
    pub fn believes_until(&self) -> Nanos {
        let attrs = self.inodes.values().map(|inode| inode.until);
        let dentries = self.dentries.values().filter(|d| d.epoch == self.epoch);
        let all = attrs.chain(dentries.map(|dentry| dentry.until));
        all.max().map_or(0, |until| self.clock.when(until))
    }

    /// Whether a drop under way has yet to reach a page.
    pub(super) fn is_dropping(&self, file: Obj, page: u8) -> bool {
        let dropping = self.inodes.get(&file).and_then(|inode| inode.dropping);
        dropping.is_some_and(|(at, end)| (at..end).contains(&page))
    }

    /// What a process would be told of an item now without the daemon being asked, if anything.
    ///
    /// Without leases (`live`) a mapped page in the range of a blocked drop is passed over: the drop
    /// waits for a READ that may have no answer while the server can't be reached. (Only mapped
    /// reads see it: `read` asks for attributes first, which are not told before the file is clean.)
    pub fn believes(&self, cx: &Cx, item: Item, live: bool) -> Option<u64> {
        match item {
            Item::Attrs(object) => self.attrs(cx, object),
            Item::Name(dir, name) => Some(self.name(cx, (dir, name)).0?.0.into()),
            Item::Listing(_) => None,
            Item::Page(file, page) => {
                let inode = self.inodes.get(&file)?;
                let blocked = !live && self.is_dropping(file, page);
                let mapped = !self.mapped_may_be_stale && !blocked;
                if !mapped && self.attrs(cx, file).is_none() {
                    return None;
                }
                match inode.pages[page as usize] {
                    Page::Full(value) => Some(value),
                    Page::Empty | Page::Locked => None,
                }
            }
        }
    }

    /// Takes a directory's lock for a process; `false`: it is told when it has it.
    pub(super) fn lock(&mut self, dir: Obj, process: usize, alone: bool) -> bool {
        let lock = self.dirs.entry(dir).or_default();
        let free = !lock.alone && lock.queue.is_empty() && (!alone || lock.shared == 0);
        if !free {
            lock.queue.push_back((process, alone));
            return false;
        }
        lock.alone = alone;
        lock.shared += u32::from(!alone);
        true
    }

    /// Gives it back; those who wait have it in their order.
    pub(super) fn unlock(&mut self, cx: &mut Cx, dir: Obj, alone: bool) {
        let lock = self.dirs.entry(dir).or_default();
        match alone {
            true => lock.alone = false,
            false => lock.shared -= 1,
        }
        let mut woken = Vec::new();
        while let Some((process, alone)) = lock.queue.front().copied() {
            if lock.alone || (alone && lock.shared > 0) {
                break;
            }
            lock.queue.pop_front();
            lock.alone = alone;
            lock.shared += u32::from(!alone);
            woken.push(process);
        }
        for process in woken {
            let wait = cx.short(20 * US);
            self.later(cx, wait, KernelEv::Go(process));
        }
    }

    /// Names of a directory, for choosing one.
    pub(super) fn any_name(cx: &mut Cx) -> u8 {
        cx.rng.below(usize::from(NAMES)) as u8
    }
}
