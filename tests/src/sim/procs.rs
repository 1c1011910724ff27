//! Processes on a client's host: one operation after another, each a few steps, and what they see.

mod listing;
mod locks;

use super::cx::Cx;
use super::host::{DIRS, EEXIST, ENOENT, FILES, ROOT};
use super::judge::{End, Zones};
use super::kernel::{Asked, For, How, Kernel, KernelEv, Page, PagesFollow, State, Unique, Who};
use super::ledger::FdId;
use super::model::{
    ABSENT, CELL, CELLS, DeedId, Item, MS, NAMES, Nanos, OWNER, Obj, PAGE, PAGES, bytes_of,
    cells_of, digest, name_of, rights_of, session, unique_value, value_of,
};
use super::server::DEEDS;
use leasefs_client::call::{At, Caching, Entry, Fh, NewMode, Writing};
use leasefs_client::{Answer, Asker, Call, NodeId};
use leasefs_protocol::{Refusal, SetAttr};
use locks::{Locking, owner_of};
use std::collections::VecDeque;

const O_WRONLY: u32 = 1;
const O_RDWR: u32 = 2;
const O_CREAT: u32 = 0o100;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_SYNC: u32 = 0o4010000;
const EIO: i32 = 5;

/// For so long names are made.
const FIRST: Nanos = 400 * MS;

/// The file that is stored into through maps.
pub(super) const MAPPED: Obj = FILES[1];

/// What the kernel asks the daemon for.
#[derive(Clone, Debug)]
pub(super) enum Want {
    /// LOOKUP; `again` of a name that it has a dentry for, without its directory's lock.
    Look {
        dir: NodeId,
        name: Vec<u8>,
        again: bool,
    },
    /// GETATTR.
    Attr(NodeId),
    /// READ into pages.
    Pages {
        node: NodeId,
        first: u32,
        count: u32,
    },
    /// WRITE of a mapped page.
    Page { node: NodeId, number: u32 },
    /// What its process is at, of this node.
    Op(Option<NodeId>),
    /// Nobody waits for it.
    Nothing,
}

impl Want {
    pub fn is_of(&self, of: NodeId) -> bool {
        match self {
            Self::Look { dir, .. } => *dir == of,
            Self::Attr(node) | Self::Pages { node, .. } | Self::Page { node, .. } => *node == of,
            Self::Op(node) => *node == Some(of),
            Self::Nothing => false,
        }
    }
}

/// A directory of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dir {
    Root,
    Sub(usize),
}

impl Dir {
    fn object(self) -> Obj {
        match self {
            Self::Root => ROOT,
            Self::Sub(number) => DIRS[number],
        }
    }
}

type Path = (Dir, Vec<u8>);

/// An operation.
#[derive(Clone, Debug)]
enum Kind {
    Open(Path, u32),
    Create(Path, u32),
    Close,
    Read(u32),
    Map(u32),
    Write(u32, Vec<u64>),
    Append(Vec<u64>),
    Store(u32, u64),
    Sync(bool),
    Truncate(u32),
    Chmod(Path),
    Stat(Path),
    FStat,
    List(usize),
    Find(Path),
    Unlink(Path),
    Rename(Path, Path),
    Link(Path, Path),
    Lock(Locking),
}

/// An operation on the first file that a process is told to do; descriptors are numbered as they were
/// opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Told {
    /// With the flags of `open(2)`.
    Open(u32),
    /// Of its first page.
    Read(usize),
    /// Through a map.
    Map(usize),
    /// At a cell.
    Write(usize, u32),
    Append(usize),
    /// Into a map, at a cell.
    Store(usize, u32),
    Sync(usize),
    Truncate(usize, u32),
    Stat(usize),
    Close(usize),
}

/// An open file of a process, maybe mapped.
#[derive(Clone, Debug)]
pub(super) struct Fd {
    pub id: FdId,
    pub fh: Fh,
    pub node: NodeId,
    pub object: Obj,
    flags: u32,
    caching: Caching,
    errors: u64,
}

impl Fd {
    /// Whether it may be written through.
    pub fn writes(&self) -> bool {
        self.flags & 3 != 0
    }

    pub(super) fn reads(&self) -> bool {
        self.flags & 3 != O_WRONLY
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lock(Slot, bool),
    Unlock(Slot),
    Look {
        dir: Slot,
        name: Vec<u8>,
        to: Slot,
        locked: bool,
    },
    Attrs(Slot),
    /// What its mode allows.
    Rights(Slot),
    Page(u32),
    /// Writes pages back, or drops them.
    Settle {
        pages: (u32, u32),
        drops: bool,
    },
    Cut,
    Pause(Nanos),
    HoldWrites,
    /// The entries of the directory from this one on.
    List(u64),
    /// An entry that came along with its listing.
    TakeUp(Box<(Asked, Vec<u8>, Entry)>),
    Send,
    End,
}

/// What an operation has found.
type Slot = usize;
const DIR: Slot = 0;
const THE: Slot = 1;
const DIR2: Slot = 2;
const THE2: Slot = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    Lock(NodeId, bool),
    Answer,
    Drop,
    Page,
    Pause,
}

#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    start: Nanos,
    sent: Nanos,
    steps: VecDeque<Step>,
    waits: Waits,
    held: Vec<(NodeId, bool)>,
    found: [Option<NodeId>; 4],
    fd: usize,
    deed: Option<DeedId>,
    listed: Vec<(Vec<u8>, u64)>,
    dir: Option<Fh>,
    end: u64,
    /// It makes the size unstable.
    holds: Option<NodeId>,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Proc {
    op: Option<Op>,
    fds: Vec<Fd>,
    hurried: u32,
    written: u64,
    /// All that it does; otherwise it does as it likes.
    script: Option<VecDeque<Told>>,
    dies_at: Option<Nanos>,
    /// A signal comes then that it catches.
    signalled_at: Option<Nanos>,
    /// It is being killed: all that is left to do is to close its descriptors.
    killed: bool,
    /// Operations until it gives up the locks that it holds.
    keeps: usize,
}

impl Proc {
    /// Since when it is at its operation.
    pub fn busy_since(&self) -> Option<Nanos> {
        self.op.as_ref().map(|op| op.start)
    }

    /// Whether it has done all that it was told.
    pub(crate) fn is_through(&self) -> bool {
        self.op.is_none() && self.script.as_ref().is_none_or(VecDeque::is_empty)
    }

    /// Whether it is about to die.
    pub fn is_dying(&self, now: Nanos) -> bool {
        self.op.is_some() && self.dies_at.is_some_and(|at| at <= now)
    }

    /// What it does, for people.
    pub fn describe(&self) -> String {
        format!("{:?}", self.op)
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = &Fd> {
        self.fds.iter()
    }

    pub(super) fn uses(&self, node: NodeId) -> bool {
        self.op
            .as_ref()
            .is_some_and(|op| op.found.contains(&Some(node)))
    }

    pub(super) fn has_lock(&mut self) {
        if let Some(op) = &mut self.op
            && let Waits::Lock(node, alone) = op.waits
        {
            op.held.push((node, alone));
            op.waits = Waits::No;
        }
    }
}

fn path_steps((dir, name): &Path, to: (Slot, Slot)) -> Vec<Step> {
    let mut steps = dir_steps(*dir, to.0);
    steps.push(Step::Look {
        dir: to.0,
        name: name.clone(),
        to: to.1,
        locked: false,
    });
    steps
}

fn dir_steps(dir: Dir, to: Slot) -> Vec<Step> {
    match dir {
        Dir::Root => Vec::new(),
        Dir::Sub(number) => vec![
            Step::Look {
                dir: ROOT_SLOT,
                name: vec![b'd' + number as u8],
                to,
                locked: false,
            },
            Step::Rights(to),
        ],
    }
}

/// Stands for the root, which needn't be found.
const ROOT_SLOT: Slot = usize::MAX;

impl Kernel {
    pub(super) fn asker(&self, process: usize, deed: Option<DeedId>) -> Asker {
        let uid = match deed {
            Some(deed) => DEEDS + deed.0,
            None => OWNER,
        };
        Asker {
            uid,
            gid: OWNER,
            pid: self.pid(process),
        }
    }

    pub(super) fn begin(&mut self, cx: &mut Cx, process: usize) {
        let over = self.winding_down && !self.habit.locks;
        if over || self.processes[process].op.is_some() {
            return;
        }
        let Some((fd, kind)) = self.next_kind(cx, process) else {
            return;
        };
        let steps = self.steps(process, fd, &kind);
        self.trace(cx, process, fd, &kind);
        let node = self.processes[process].fds.get(fd).map(|fd| fd.node);
        let mut found = [None; 4];
        if uses_fd(&kind) {
            found[THE] = node;
        }
        let dies = cx.rng.chance(3);
        let dies_at = dies.then(|| cx.now + cx.rng.below(800 * MS as usize) as Nanos);
        let signalled_at = self.signal(cx, &kind);
        let proc = &mut self.processes[process];
        (proc.dies_at, proc.signalled_at) = (dies_at, signalled_at);
        proc.op = Some(Op {
            kind,
            start: cx.now,
            sent: cx.now,
            steps: steps.into(),
            waits: Waits::No,
            held: Vec::new(),
            found,
            fd,
            deed: None,
            listed: Vec::new(),
            dir: None,
            end: 0,
            holds: None,
        });
        self.go_on(cx, process);
    }

    /// Tells a process all that it does.
    pub(crate) fn tell_process(&mut self, cx: &mut Cx, process: usize, script: &[Told]) {
        self.processes[process].script = Some(script.iter().copied().collect());
        if !script.is_empty() {
            self.later(cx, 0, KernelEv::Next(process));
        }
    }

    fn next_kind(&mut self, cx: &mut Cx, process: usize) -> Option<(usize, Kind)> {
        if let Some(next) = self.next_of_locks(cx, process) {
            return Some(next);
        }
        if self.winding_down {
            return None;
        }
        let proc = &mut self.processes[process];
        let told = match &mut proc.script {
            Some(script) => script.pop_front()?,
            None => {
                let fd = cx.rng.below(proc.fds.len());
                return Some((fd, self.choose(cx, process, fd)));
            }
        };
        let mut values = |kernel: &mut Self| kernel.values(cx, process);
        Some(match told {
            Told::Open(flags) => (0, Kind::Open((Dir::Root, b"x".to_vec()), flags)),
            Told::Read(fd) => (fd, Kind::Read(0)),
            Told::Map(fd) => (fd, Kind::Map(0)),
            Told::Write(fd, cell) => (fd, Kind::Write(cell, values(self))),
            Told::Append(fd) => (fd, Kind::Append(values(self))),
            Told::Store(fd, cell) => (fd, Kind::Store(cell, values(self)[0])),
            Told::Sync(fd) => (fd, Kind::Sync(false)),
            Told::Truncate(fd, cells) => (fd, Kind::Truncate(cells)),
            Told::Stat(fd) => (fd, Kind::FStat),
            Told::Close(fd) => (fd, Kind::Close),
        })
    }

    fn trace(&self, cx: &mut Cx, process: usize, fd: usize, kind: &Kind) {
        let fd = self.processes[process].fds.get(fd);
        let fd = fd.filter(|_| uses_fd(kind));
        let object = fd.map(|fd| fd.object);
        let client = self.client;
        cx.trace(object, || {
            let fd = fd.map(|fd| (fd.id, fd.fh.0));
            format!("client {client}: process {process} begins {kind:x?} {fd:?}")
        });
    }

    fn any_path(&self, cx: &mut Cx) -> Path {
        let file = match cx.rng.below(10) {
            _ if cx.rng.chance(self.habit.own) => self.client % FILES.len(),
            0..5 => 0,
            5..7 => 1,
            7 => 2,
            _ if self.habit.names == 0 => 0,
            _ => return self.any_name(cx),
        };
        (Dir::Root, vec![b'x' + file as u8])
    }

    fn any_name(&self, cx: &mut Cx) -> Path {
        let name = b'a' + cx.rng.below(usize::from(NAMES)) as u8;
        (Dir::Sub(cx.rng.below(2)), vec![name])
    }

    fn values(&mut self, cx: &mut Cx, process: usize) -> Vec<u64> {
        let count = cx.rng.between(1, self.habit.run);
        let (life, proc) = (self.life, &mut self.processes[process]);
        let values = (0..count).map(|_| {
            proc.written += 1;
            unique_value(life, process, proc.written)
        });
        values.collect()
    }

    fn choose(&mut self, cx: &mut Cx, process: usize, fd: usize) -> Kind {
        let open = |kernel: &Self, cx: &mut Cx| {
            let flags = match cx.rng.below(20) {
                0..9 => 0,
                9..16 => O_RDWR,
                16 | 17 => O_WRONLY,
                18 if cx.rng.chance(30) => O_RDWR | O_APPEND | O_SYNC,
                18 => O_RDWR | O_APPEND,
                _ => O_RDWR | O_SYNC,
            };
            Kind::Open(kernel.any_path(cx), flags)
        };
        let drawn = match self.habit.only_names {
            true => 76 + cx.rng.below(24),
            false => cx.rng.below(100),
        };
        let proc = &self.processes[process];
        if drawn < 12 && proc.fds.len() < 3 {
            return open(self, cx);
        }
        if drawn >= 76 {
            return self.choose_name(cx, drawn);
        }
        let Some(fd) = proc.fds.get(fd).cloned() else {
            return open(self, cx);
        };
        if drawn < 16 {
            return Kind::Close;
        }
        let page = match cx.rng.chance(50) {
            true => 0,
            false => cx.rng.below(PAGES as usize) as u32,
        };
        let cells = self.habit.cells;
        let stores = self.habit.stores > 0 && fd.object == MAPPED;
        let writes = fd.writes() && (!stores || self.habit.mixed);
        match drawn {
            16..38 if fd.reads() => Kind::Read(page),
            38..44 if fd.reads() && cx.now > self.stale_until => Kind::Map(page),
            44..60 if stores && fd.flags & 3 == O_RDWR && cx.rng.chance(self.habit.stores) => {
                let cell = page * CELLS + cx.rng.below(CELLS as usize) as u32;
                self.processes[process].written += 1;
                let number = self.processes[process].written;
                Kind::Store(cell, unique_value(self.life, process, number))
            }
            44..62 if writes => {
                let values = self.values(cx, process);
                match fd.flags & O_APPEND != 0 {
                    true => self.append_or_cut(process, values),
                    false => Kind::Write(cx.rng.below(cells) as u32, values),
                }
            }
            62..65 if writes => Kind::Truncate(cx.rng.below(cells) as u32),
            65..69 => Kind::Sync(cx.rng.chance(30)),
            69..72 => Kind::FStat,
            _ if fd.reads() => Kind::Read(page),
            _ => Kind::FStat,
        }
    }

    /// Names that are seldom changed are made first.
    fn names_now(&self, cx: &Cx) -> usize {
        match self.habit.names {
            0 => 0,
            _ if cx.now < FIRST => 1_000,
            names => names,
        }
    }

    /// Files don't grow for ever.
    fn append_or_cut(&self, process: usize, values: Vec<u64>) -> Kind {
        let fds = &self.processes[process].fds;
        let sizes = fds.iter().filter_map(|fd| self.inodes.get(&fd.node));
        let most = sizes.map(|inode| inode.size).max().unwrap_or_default();
        match most > 2 * self.habit.cells as u64 * CELL {
            true => Kind::Truncate(2),
            false => Kind::Append(values),
        }
    }

    fn choose_name(&self, cx: &mut Cx, drawn: usize) -> Kind {
        let at = self.any_name(cx);
        match drawn {
            76..80 => Kind::Stat(self.any_path(cx)),
            80 => Kind::Chmod(self.any_path(cx)),
            81..85 => Kind::List(cx.rng.below(2)),
            85..88 => Kind::Find(at),
            _ if cx.rng.below(1_000) >= self.names_now(cx) => Kind::Stat(self.any_path(cx)),
            88..92 => {
                let flags = [0, O_EXCL, O_TRUNC, O_APPEND][cx.rng.below(4)];
                Kind::Create(at, O_RDWR | O_CREAT | flags)
            }
            92..95 => Kind::Unlink(at),
            95..98 => Kind::Rename(at, self.any_name(cx)),
            _ => Kind::Link(self.any_path(cx), at),
        }
    }

    /// What an operation begins with.
    fn steps(&self, process: usize, fd: usize, kind: &Kind) -> Vec<Step> {
        let fd = self.processes[process].fds.get(fd);
        match kind {
            Kind::Open(path, _) | Kind::Stat(path) | Kind::Chmod(path) | Kind::Find(path) => {
                path_steps(path, (DIR, THE))
            }
            Kind::Create(path, _) | Kind::Unlink(path) => {
                let mut steps = dir_steps(path.0, DIR);
                steps.push(Step::Lock(DIR, true));
                steps.push(Step::Look {
                    dir: DIR,
                    name: path.1.clone(),
                    to: THE,
                    locked: true,
                });
                steps
            }
            Kind::Close => {
                let writes = fd.is_some_and(Fd::writes);
                let settle = Step::Settle {
                    pages: (0, u32::MAX),
                    drops: false,
                };
                let settle = writes.then_some(settle);
                settle.into_iter().chain([Step::Send]).collect()
            }
            Kind::Read(page) => match fd.map(|fd| fd.caching) {
                Some(Caching::Pages) => vec![Step::Attrs(THE), Step::Page(*page)],
                _ => vec![
                    Step::Settle {
                        pages: (*page, page + 1),
                        drops: false,
                    },
                    Step::Send,
                ],
            },
            Kind::Map(page) => vec![Step::Page(*page)],
            Kind::Store(cell, _) => vec![Step::Page(cell / CELLS)],
            Kind::Write(cell, values) => {
                let end = u64::from(*cell) + values.len() as u64;
                let size = fd.and_then(|fd| self.inodes.get(&fd.node)).map(|i| i.size);
                let extends = size.is_none_or(|size| end * CELL > size);
                let first = cell / CELLS;
                let last = end.div_ceil(u64::from(CELLS)) as u32;
                vec![
                    Step::Lock(THE, extends),
                    Step::Settle {
                        pages: (first, last),
                        drops: true,
                    },
                    Step::Send,
                    Step::Settle {
                        pages: (first, last),
                        drops: true,
                    },
                    Step::End,
                ]
            }
            Kind::Append(_) => vec![Step::Lock(THE, true), Step::Send, Step::End],
            Kind::Sync(_) => vec![
                Step::Lock(THE, true),
                Step::Settle {
                    pages: (0, u32::MAX),
                    drops: false,
                },
                Step::Send,
            ],
            Kind::Truncate(_) => vec![Step::Lock(THE, true), Step::HoldWrites, Step::Send],
            Kind::Lock(_) => vec![Step::Send],
            Kind::FStat => vec![Step::Attrs(THE)],
            Kind::List(number) => {
                let mut steps = dir_steps(Dir::Sub(*number), DIR);
                steps.push(Step::Send);
                steps
            }
            Kind::Rename(from, to) => {
                let mut steps = dir_steps(from.0, DIR);
                steps.extend(dir_steps(to.0, DIR2));
                // In the order in which everybody locks them.
                let mut dirs = vec![(from.0.object(), DIR), (to.0.object(), DIR2)];
                dirs.sort();
                dirs.dedup_by_key(|(object, _)| *object);
                steps.extend(dirs.iter().map(|(_, slot)| Step::Lock(*slot, true)));
                for (dir, name, to) in [(DIR, &from.1, THE), (DIR2, &to.1, THE2)] {
                    steps.push(Step::Look {
                        dir,
                        name: name.clone(),
                        to,
                        locked: true,
                    });
                }
                steps
            }
            Kind::Link(from, to) => {
                let mut steps = path_steps(from, (DIR, THE));
                steps.extend(dir_steps(to.0, DIR2));
                steps.push(Step::Lock(DIR2, true));
                steps.push(Step::Look {
                    dir: DIR2,
                    name: to.1.clone(),
                    to: THE2,
                    locked: true,
                });
                steps
            }
        }
    }

    fn op(&mut self, process: usize) -> Option<&mut Op> {
        self.processes[process].op.as_mut()
    }

    fn slot(&self, process: usize, slot: Slot) -> Option<NodeId> {
        if slot == ROOT_SLOT {
            return Some(NodeId::ROOT);
        }
        let op = self.processes[process].op.as_ref()?;
        // A path in the root has no directory to be found.
        op.found[slot].or((slot == DIR || slot == DIR2).then_some(NodeId::ROOT))
    }

    fn pop(&mut self, process: usize) {
        if let Some(op) = self.op(process) {
            op.steps.pop_front();
        }
    }

    fn first(&mut self, process: usize, steps: impl IntoIterator<Item = Step>) {
        if let Some(op) = self.op(process) {
            let steps: Vec<Step> = steps.into_iter().collect();
            for step in steps.into_iter().rev() {
                op.steps.push_front(step);
            }
        }
    }

    fn waits(&mut self, process: usize, waits: Waits) {
        if let Some(op) = self.op(process) {
            op.waits = waits;
        }
    }

    /// A process goes on as far as it can.
    pub(super) fn go_on(&mut self, cx: &mut Cx, process: usize) {
        loop {
            let is_dropping = self.is_dropping_for(process);
            let Some(op) = self.op(process) else { return };
            match op.waits {
                Waits::Lock(..) | Waits::Answer => return,
                Waits::Drop if is_dropping => return,
                Waits::No | Waits::Drop | Waits::Page | Waits::Pause => op.waits = Waits::No,
            }
            let Some(step) = op.steps.front().cloned() else {
                return self.end(cx, process, true);
            };
            if !self.take_step(cx, process, step) {
                return;
            }
        }
    }

    /// Takes a step; false if it has to be waited for.
    fn take_step(&mut self, cx: &mut Cx, process: usize, step: Step) -> bool {
        match step {
            Step::Lock(slot, alone) => self.take_lock(cx, process, slot, alone),
            Step::Unlock(slot) => {
                self.pop(process);
                let node = self.slot(process, slot);
                let Some(op) = self.op(process) else {
                    return false;
                };
                let at = op.held.iter().position(|(held, _)| Some(*held) == node);
                if let Some((node, alone)) = at.map(|at| op.held.remove(at)) {
                    self.unlock(cx, node, alone);
                }
                true
            }
            Step::Look {
                dir,
                name,
                to,
                locked,
            } => self.look(cx, process, (dir, name), (to, locked)),
            Step::Attrs(slot) => self.take_attrs(cx, process, slot),
            Step::Rights(slot) => self.take_rights(cx, process, slot),
            Step::Page(page) => self.take_page(cx, process, page),
            Step::Settle { pages, drops } => {
                self.pop(process);
                let Some(node) = self.slot(process, THE) else {
                    return true;
                };
                self.waits(process, Waits::Drop);
                let how = if drops { How::Drop } else { How::WriteBack };
                self.drop_pages(cx, node, pages, how, For::Process(process));
                false
            }
            Step::Cut => {
                self.pop(process);
                if let Some(node) = self.slot(process, THE) {
                    self.cut(cx, node);
                    self.page_event(cx, node);
                }
                true
            }
            Step::List(offset) => self.ask_list(cx, process, offset),
            Step::TakeUp(told) => self.take_up(cx, process, *told),
            Step::Pause(most) => {
                self.pop(process);
                self.waits(process, Waits::Pause);
                let wait = cx.short(most);
                self.later(cx, wait, KernelEv::Go(process));
                false
            }
            Step::HoldWrites => self.take_hold(process),
            Step::Send => {
                self.pop(process);
                self.waits(process, Waits::Answer);
                self.send_op(cx, process);
                false
            }
            Step::End => {
                self.end(cx, process, true);
                false
            }
        }
    }

    fn take_lock(&mut self, cx: &mut Cx, process: usize, slot: Slot, alone: bool) -> bool {
        self.pop(process);
        let _ = cx;
        let Some(node) = self.slot(process, slot) else {
            return true;
        };
        let Some(op) = self.op(process) else {
            return false;
        };
        if op.held.iter().any(|(held, _)| *held == node) {
            return true;
        }
        op.waits = Waits::Lock(node, alone);
        if self.lock(node, Who::Process(process), alone) {
            self.processes[process].has_lock();
            return true;
        }
        false
    }

    fn take_hold(&mut self, process: usize) -> bool {
        let Some(node) = self.slot(process, THE) else {
            return false;
        };
        let free = self.hold_writes(node);
        let Some(inode) = self.inodes.get_mut(&node) else {
            return false;
        };
        if let Some(op) = &mut self.processes[process].op
            && op.holds.is_none()
        {
            op.holds = Some(node);
            inode.unstable += 1;
        }
        if free {
            self.pop(process);
            return true;
        }
        if !inode.waiters.contains(&process) {
            inode.waiters.push(process);
        }
        self.waits(process, Waits::Page);
        false
    }

    fn look(
        &mut self,
        cx: &mut Cx,
        process: usize,
        (dir, name): (Slot, Vec<u8>),
        (to, locked): (Slot, bool),
    ) -> bool {
        let Some(node) = self.slot(process, dir) else {
            return false;
        };
        match self.name(cx, node, &name) {
            (Some(found), _) => {
                self.pop(process);
                self.looked(cx, process, (node, &name), to, Some(found));
                true
            }
            (None, false) if !locked => {
                self.pop(process);
                let look = Step::Look {
                    dir,
                    name,
                    to,
                    locked: true,
                };
                // It may be held already for the sake of another name.
                let steps = [Step::Lock(dir, false), look, Step::Unlock(dir)];
                self.first(process, steps);
                true
            }
            (None, known) => {
                self.waits(process, Waits::Answer);
                let call = Call::Lookup {
                    parent: node,
                    name: name.clone().into(),
                };
                let want = Want::Look {
                    dir: node,
                    name,
                    again: known && !locked,
                };
                let asker = self.asker(process, None);
                self.ask(cx, (Some(process), asker), want, call);
                false
            }
        }
    }

    /// A name that a process looks at denotes this.
    fn looked(
        &mut self,
        cx: &mut Cx,
        process: usize,
        (dir, name): (NodeId, &[u8]),
        to: Slot,
        found: Option<NodeId>,
    ) {
        let dir = self.object(dir).unwrap_or(Obj(0));
        let object = found.and_then(|node| self.object(node));
        if dir != ROOT {
            let value = object.map_or(0, |o| o.0.into());
            self.saw(cx, process, Item::Name(dir, name_of(name)), value);
        }
        let Some(op) = self.op(process) else { return };
        op.found[to] = found;
        if to == DIR || to == DIR2 {
            if found.is_none() {
                self.end(cx, process, false);
            }
            return;
        }
        let (kind, found) = (op.kind.clone(), op.found);
        let some = found[to].is_some();
        let steps = match (kind, to) {
            (Kind::Create(path, flags), THE) if some => {
                if flags & O_EXCL != 0 {
                    return self.end(cx, process, true);
                }
                let flags = flags & !(O_CREAT | O_TRUNC);
                if let Some(op) = self.op(process) {
                    op.kind = Kind::Open(path, flags);
                }
                vec![Step::Unlock(DIR), Step::Rights(THE), Step::Send]
            }
            (Kind::Create(..), _) => vec![Step::Send],
            (Kind::Open(..), _) if some => vec![Step::Rights(THE), Step::Send],
            (Kind::Stat(_), _) if some => vec![Step::Attrs(THE)],
            (Kind::Chmod(_), _) if some => vec![Step::Lock(THE, true), Step::Send],
            (Kind::Unlink(_), _) if some => vec![Step::Lock(THE, true), Step::Send],
            (Kind::Link(..), THE) if some => Vec::new(),
            (Kind::Link(..), THE2) if !some => vec![Step::Lock(THE, true), Step::Send],
            (Kind::Rename(..), THE) if some => Vec::new(),
            (Kind::Rename(..), THE2) => {
                if found[THE] == found[THE2] {
                    return self.end(cx, process, true);
                }
                let mut nodes = vec![(found[THE], THE)];
                nodes.extend(some.then_some((found[THE2], THE2)));
                nodes.sort();
                let locks = nodes.into_iter().map(|(_, slot)| Step::Lock(slot, true));
                locks.chain([Step::Send]).collect()
            }
            _ => return self.end(cx, process, true),
        };
        self.first(process, steps);
    }

    fn take_attrs(&mut self, cx: &mut Cx, process: usize, slot: Slot) -> bool {
        let Some(node) = self.slot(process, slot) else {
            return false;
        };
        match self.attrs(cx, node) {
            Some(attr) => {
                self.pop(process);
                if self.is_stat(process)
                    && let Some(object) = self.object(node)
                {
                    self.saw(cx, process, Item::Attrs(object), value_of(&attr));
                }
                true
            }
            None => self.ask_attrs(cx, process, node),
        }
    }

    fn take_rights(&mut self, cx: &mut Cx, process: usize, slot: Slot) -> bool {
        let Some(node) = self.slot(process, slot) else {
            return false;
        };
        let Some(attr) = self.rights(cx, node) else {
            return self.ask_attrs(cx, process, node);
        };
        self.pop(process);
        if let Some(object) = self.object(node) {
            self.saw(cx, process, Item::Rights(object), rights_of(&attr));
        }
        true
    }

    fn ask_attrs(&mut self, cx: &mut Cx, process: usize, node: NodeId) -> bool {
        self.waits(process, Waits::Answer);
        let asker = self.asker(process, None);
        let (want, call) = (Want::Attr(node), Call::GetAttr { node });
        self.ask(cx, (Some(process), asker), want, call);
        false
    }

    fn is_stat(&self, process: usize) -> bool {
        let op = self.processes[process].op.as_ref();
        op.is_some_and(|op| matches!(op.kind, Kind::Stat(_) | Kind::FStat))
    }

    fn fd(&self, process: usize) -> Option<Fd> {
        let proc = &self.processes[process];
        let op = proc.op.as_ref()?;
        proc.fds.get(op.fd).cloned()
    }

    fn take_page(&mut self, cx: &mut Cx, process: usize, number: u32) -> bool {
        let Some(fd) = self.fd(process) else {
            return false;
        };
        let Some(op) = self.processes[process].op.as_ref() else {
            return false;
        };
        let kind = op.kind.clone();
        let Some(inode) = self.inodes.get(&fd.node) else {
            self.end(cx, process, false);
            return false;
        };
        let size = inode.size;
        if u64::from(number) * PAGE >= size {
            // `read` finds the end of the file there; a mapping has none there (SIGBUS).
            if let Kind::Read(_) = kind {
                let nothing = [ABSENT; CELLS as usize];
                self.saw_cells(cx, process, fd.object, number * CELLS, &nothing);
            }
            self.end(cx, process, true);
            return false;
        }
        match inode.pages.get(&number).copied() {
            Some(page) if matches!(page.state, State::Full | State::Dirty) => {
                self.has_page(cx, process, &fd, number, &page, &kind)
            }
            Some(page) if page.state == State::Writeback && !matches!(kind, Kind::Store(..)) => {
                self.has_page(cx, process, &fd, number, &page, &kind)
            }
            Some(_) => {
                if let Some(inode) = self.inodes.get_mut(&fd.node)
                    && !inode.waiters.contains(&process)
                {
                    inode.waiters.push(process);
                }
                self.waits(process, Waits::Page);
                false
            }
            None => {
                self.waits(process, Waits::Answer);
                self.read_pages(cx, process, (fd.node, fd.fh), number);
                false
            }
        }
    }

    /// A page is there; always ends the operation.
    fn has_page(
        &mut self,
        cx: &mut Cx,
        process: usize,
        fd: &Fd,
        number: u32,
        page: &Page,
        kind: &Kind,
    ) -> bool {
        let size = self.inodes.get(&fd.node).map_or(0, |inode| inode.size);
        if let Kind::Store(cell, value) = kind {
            // Where the file has been cut off elsewhere, and only the kernel doesn't know, nothing is
            // promised of a store: it is left out.
            let exists = cx.judge.current(Item::Cell(fd.object, *cell)) != ABSENT;
            let within = u64::from(*cell) * CELL < size && exists;
            let at = (cell % CELLS) as usize;
            if let Some(inode) = self.inodes.get_mut(&fd.node)
                && let Some(page) = inode.pages.get_mut(&number)
                && within
            {
                page.state = State::Dirty;
                page.cells[at] = *value;
                page.stored[at] = true;
                cx.stats.stores += 1;
                cx.trace(Some(fd.object), || {
                    format!("stored {value:x} into cell {cell}")
                });
                cx.judge.writes(*value, fd.id, fd.object);
                cx.judge.mapped(cx.now, fd.object, *cell, *value);
                cx.judge.acknowledged(*value);
            }
            self.end(cx, process, true);
            return false;
        }
        let cells: Vec<u64> = (0..CELLS)
            .map(|cell| {
                let begins = u64::from(number) * PAGE + u64::from(cell) * CELL;
                match begins < size {
                    true => page.cells[cell as usize],
                    false => ABSENT,
                }
            })
            .collect();
        let mapped = matches!(kind, Kind::Map(_));
        if !mapped || self.maps_count_at(cx, fd.node, number) {
            // Where the mapping ends isn't told by it.
            let whole = cells.iter().take_while(|cell| !mapped || **cell != ABSENT);
            let cells: Vec<u64> = whole.copied().collect();
            self.saw_cells(cx, process, fd.object, number * CELLS, &cells);
        }
        self.end(cx, process, true);
        false
    }

    fn saw_cells(&self, cx: &mut Cx, process: usize, object: Obj, first: u32, cells: &[u64]) {
        let op = self.processes[process].op.as_ref();
        let waited = op.is_some_and(|op| op.start < cx.now || matches!(op.kind, Kind::Map(_)));
        for (cell, value) in (first..).zip(cells) {
            // While a size changes, the kernel fills what it misses of a page with zeros.
            match *value == 0 && waited {
                true => self.saw_zero(cx, process, Item::Cell(object, cell)),
                false => self.saw(cx, process, Item::Cell(object, cell), *value),
            }
        }
    }

    /// Sends what the operation is about.
    fn send_op(&mut self, cx: &mut Cx, process: usize) {
        let (the, dir, dir2) = (
            self.slot(process, THE),
            self.slot(process, DIR),
            self.slot(process, DIR2),
        );
        let fd = self.fd(process);
        let Some(op) = self.processes[process].op.as_mut() else {
            return;
        };
        op.sent = cx.now;
        let root = NodeId::ROOT;
        let (the, dir, dir2) = (
            the.unwrap_or(root),
            dir.unwrap_or(root),
            dir2.unwrap_or(root),
        );
        let deeds = matches!(
            op.kind,
            Kind::Create(..)
                | Kind::Truncate(_)
                | Kind::Chmod(_)
                | Kind::Unlink(_)
                | Kind::Rename(..)
                | Kind::Link(..)
        );
        // What its owner sets of a file may be kept with what is written to it.
        let kept = matches!(op.kind, Kind::Chmod(_)) && op.sent % 2 == 0;
        if deeds && !kept {
            op.deed = Some(cx.judge.deed());
        }
        let deed = op.deed;
        let zones = match (&op.kind, &fd) {
            (Kind::Write(cell, values), _) => Zones::of_cells(*cell, values.len()),
            _ => Zones::ALL,
        };
        let session = session(self.life);
        let guards = match &fd {
            Some(fd) => cx.judge.locks.guards(session, process, fd.locks(), zones),
            None => Vec::new(),
        };
        let name = |path: &Path| path.1.clone().into();
        let call = match (&op.kind, &fd) {
            (Kind::Open(_, flags), _) => Call::Open {
                node: the,
                flags: *flags,
            },
            (Kind::Create(path, flags), _) => Call::Create {
                parent: dir,
                name: name(path),
                mode: NewMode {
                    mode: 0o100_666,
                    umask: 0,
                },
                flags: *flags,
            },
            (Kind::Close, Some(fd)) => {
                cx.judge.closes_locks(cx.now, session, process, fd.locks());
                Call::Flush {
                    fh: fd.fh,
                    owner: owner_of(process),
                }
            }
            (Kind::Lock(locking), Some(fd)) => {
                let holder = locking.holder((session, process), fd);
                let zones = locking.zones();
                cx.judge.begins_lock(cx.now, holder, locking.mode, zones);
                let pid = (self.client * 100 + process + 1) as u32;
                Call::Lock {
                    fh: fd.fh,
                    lock: locking.call(holder.owner, pid),
                }
            }
            (Kind::Read(page), Some(fd)) => Call::Read {
                at: At {
                    fh: fd.fh,
                    offset: u64::from(*page) * PAGE,
                },
                len: PAGE as u32,
                owner: owner_of(process),
            },
            (Kind::Write(cell, values), Some(fd)) => {
                let offset = u64::from(*cell) * CELL;
                op.end = offset;
                values
                    .iter()
                    .for_each(|value| cx.judge.writes(*value, fd.id, fd.object));
                cx.judge.writes_under(values, &guards);
                let writing = Writing {
                    offset,
                    data: bytes_of(values).into(),
                    flags: fd.flags,
                    writeback: false,
                    kill_priv: false,
                    owner: Some(owner_of(process)),
                };
                Call::Write { fh: fd.fh, writing }
            }
            (Kind::Append(values), Some(fd)) => {
                let offset = self.inodes.get(&fd.node).map_or(0, |inode| inode.size);
                op.end = offset;
                values
                    .iter()
                    .for_each(|value| cx.judge.writes(*value, fd.id, fd.object));
                cx.judge.writes_under(values, &guards);
                let writing = Writing {
                    offset,
                    data: bytes_of(values).into(),
                    flags: fd.flags,
                    writeback: false,
                    kill_priv: false,
                    owner: Some(owner_of(process)),
                };
                Call::Write { fh: fd.fh, writing }
            }
            (Kind::Sync(data_only), Some(fd)) => Call::Sync {
                fh: fd.fh,
                data_only: *data_only,
            },
            (Kind::Truncate(cells), Some(fd)) => {
                if let Some(deed) = deed {
                    cx.judge.acts_under(deed, guards);
                }
                Call::SetAttr {
                    node: fd.node,
                    fh: Some(fd.fh),
                    set: SetAttr {
                        size: Some(u64::from(*cells) * CELL),
                        ..SetAttr::default()
                    },
                    owner: Some(owner_of(process)),
                }
            }
            (Kind::Chmod(_), _) => Call::SetAttr {
                node: the,
                fh: None,
                set: SetAttr {
                    mode: Some(0o600 | (cx.rng.below(8) as u16)),
                    ..SetAttr::default()
                },
                owner: None,
            },
            (Kind::List(_), _) => Call::OpenDir { node: dir },
            (Kind::Unlink(path), _) => Call::Unlink {
                parent: dir,
                name: name(path),
            },
            (Kind::Rename(from, to), _) => Call::Rename {
                parent: dir,
                name: name(from),
                new_parent: dir2,
                new_name: name(to),
                flags: 0,
            },
            (Kind::Link(_, to), _) => Call::Link {
                node: the,
                parent: dir2,
                name: name(to),
            },
            _ => return self.end(cx, process, false),
        };
        let asker = self.asker(process, deed);
        let want = Want::Op(Some(the));
        self.ask(cx, (Some(process), asker), want, call);
    }

    /// The values that a request writes, where, and into what; of a WRITE that isn't of mapped pages.
    pub(super) fn writing(&self, unique: Unique) -> Option<(Obj, Option<u32>, Vec<u64>)> {
        let asked = self.asked.get(&unique)?;
        let process = asked.process?;
        let Want::Op(_) = asked.want else { return None };
        let fd = self.fd(process)?;
        match &self.processes[process].op.as_ref()?.kind {
            Kind::Write(cell, values) => Some((fd.object, Some(*cell), values.clone())),
            Kind::Append(values) => Some((fd.object, None, values.clone())),
            _ => None,
        }
    }

    /// The daemon has answered.
    pub(super) fn told(&mut self, cx: &mut Cx, unique: Unique, told: Result<Answer, Refusal>) {
        let Some(asked) = self.asked.remove(&unique) else {
            return;
        };
        if let Want::Page { node, number } = asked.want {
            if let Err(refusal) = &told {
                cx.trace(self.object(node), || {
                    format!("page {number} is not written back: {refusal}")
                });
            }
            return self.told_page(cx, node, number, told.is_ok());
        }
        let Some(process) = asked.process else { return };
        let client = self.client;
        let object = self.slot(process, THE).and_then(|node| self.object(node));
        cx.trace(object, || {
            let told = format!("{told:?}");
            let told = told.get(..200).unwrap_or(&told);
            format!("client {client}: process {process} is told {told}")
        });
        if self.processes[process].op.is_none() {
            return;
        }
        self.waits(process, Waits::No);
        if let Err(Refusal::LockLost) = &told {
            self.told_lock_loss(cx, process);
        }
        match asked.want.clone() {
            Want::Look { dir, name, again } => {
                self.told_look(cx, process, &asked, (dir, &name, again), told);
            }
            Want::Attr(node) => self.told_getattr(cx, process, &asked, node, told),
            Want::Pages { node, first, count } => {
                let cells = match &told {
                    Ok(Answer::Bytes(bytes)) => Some(cells_of(bytes)),
                    _ => None,
                };
                self.told_pages(cx, &asked, (node, first, count), cells.as_deref());
                if cells.is_none() {
                    self.end(cx, process, false);
                }
            }
            Want::Op(_) => self.told_op(cx, process, &asked, told),
            Want::Page { .. } | Want::Nothing => {}
        }
        self.go_on(cx, process);
    }

    fn follow(&mut self, process: usize, follow: Option<PagesFollow>) {
        let Some(PagesFollow { resized }) = follow else {
            return;
        };
        let settle = Step::Settle {
            pages: (0, u32::MAX),
            drops: true,
        };
        let cut = resized.then_some([Step::Pause(2 * MS), Step::Cut]);
        let steps = cut.into_iter().flatten().chain([settle]);
        self.first(process, steps);
    }

    fn told_look(
        &mut self,
        cx: &mut Cx,
        process: usize,
        asked: &Asked,
        (dir, name, again): (NodeId, &[u8], bool),
        told: Result<Answer, Refusal>,
    ) {
        let found = match told {
            Ok(Answer::Found(found)) => found,
            _ => return self.end(cx, process, false),
        };
        let node = found.as_ref().map(|entry| entry.node.id);
        if again && self.is_other(dir, name, node) {
            self.forget_name(dir, name);
            if let Some(node) = node {
                self.give_back(cx, node);
            }
            // Looked up anew, with the directory's lock.
            return;
        }
        let Some(op) = self.op(process) else { return };
        let Some(Step::Look { to, .. }) = op.steps.pop_front() else {
            return;
        };
        let mut follow = None;
        match &found {
            Some(entry) => follow = self.told_entry(cx, asked, Some((dir, name)), entry),
            None => self.forget_name(dir, name),
        }
        self.looked(cx, process, (dir, name), to, node);
        let is_the = node.is_some() && self.slot(process, THE) == node;
        if is_the {
            self.follow(process, follow);
        }
    }

    fn told_getattr(
        &mut self,
        cx: &mut Cx,
        process: usize,
        asked: &Asked,
        node: NodeId,
        told: Result<Answer, Refusal>,
    ) {
        let Ok(Answer::Attr(shown)) = told else {
            return self.end(cx, process, false);
        };
        let follow = self.told_attr(cx, asked, node, &shown);
        if let Some(object) = self.object(node)
            && self.is_stat(process)
        {
            let attr = shown.shown.attr;
            self.saw(cx, process, Item::Attrs(object), value_of(&attr));
            cx.judge.saw_attr(object, &attr);
        }
        self.pop(process);
        self.follow(process, follow);
    }

    fn told_op(
        &mut self,
        cx: &mut Cx,
        process: usize,
        asked: &Asked,
        told: Result<Answer, Refusal>,
    ) {
        let Some(op) = self.processes[process].op.clone() else {
            return;
        };
        let fd = self.fd(process);
        if let Some(deed) = op.deed {
            self.ended(cx, process, deed, &op, &told);
        }
        let the = op.found[THE];
        match (op.kind, told) {
            (Kind::Open(_, flags), Ok(Answer::Opened(opened))) => {
                self.add_fd(process, (opened.fh, opened.caching), the, flags);
                self.end(cx, process, true);
            }
            (Kind::Create(path, flags), Ok(Answer::Created(entry, opened))) => {
                let dir = self.slot(process, DIR).unwrap_or(NodeId::ROOT);
                let at = Some((dir, path.1.as_slice()));
                self.told_entry(cx, &self.as_made(asked), at, &entry);
                let caching = (opened.fh, opened.caching);
                self.add_fd(process, caching, Some(entry.node.id), flags);
                self.dir_changed(dir);
                self.end(cx, process, true);
            }
            (Kind::Close, told) => self.told_close(cx, process, fd, told.is_ok()),
            (Kind::Read(page), Ok(Answer::Bytes(bytes))) => {
                let mut cells = cells_of(&bytes);
                cells.resize(CELLS as usize, ABSENT);
                if let Some(fd) = fd {
                    self.saw_cells(cx, process, fd.object, page * CELLS, &cells);
                }
                self.end(cx, process, true);
            }
            (Kind::Write(cell, values), Ok(Answer::Written(len))) => {
                let count = (u64::from(len) / CELL) as usize;
                let written = values.iter().take(count);
                written.for_each(|value| cx.judge.acknowledged(*value));
                if let Some(fd) = fd {
                    if fd.flags & O_SYNC == O_SYNC {
                        for at in cell..cell + count as u32 {
                            let item = Item::Cell(fd.object, at);
                            cx.judge.synced_cell(item, op.start);
                        }
                    }
                    self.wrote(fd.node, op.end + u64::from(len));
                }
            }
            (Kind::Append(values), Ok(Answer::Written(len))) => {
                let count = (u64::from(len) / CELL) as usize;
                let written = values.iter().take(count);
                written.for_each(|value| cx.judge.acknowledged(*value));
                if let Some(fd) = fd {
                    self.wrote(fd.node, op.end + u64::from(len));
                    let pages = ((op.end / PAGE) as u32, u32::MAX);
                    self.first(process, [Step::Settle { pages, drops: true }]);
                }
            }
            (Kind::Write(_, values) | Kind::Append(values), Err(_)) => {
                values.iter().for_each(|value| cx.judge.refused(*value));
                self.end(cx, process, true);
            }
            (Kind::Sync(_), told) => self.told_synced(cx, process, fd, told.is_ok()),
            (Kind::Truncate(_), told) => {
                let Some(node) = the else { return };
                self.stop_holding(process);
                if let Ok(Answer::Attr(shown)) = told {
                    let follow = self.told_set(node, &shown.shown.attr);
                    self.release_writes(cx, node);
                    let resized = follow.filter(|follow| follow.resized);
                    if resized.is_some() {
                        self.cut(cx, node);
                    }
                    self.follow(process, resized);
                    self.first(process, []);
                } else {
                    self.release_writes(cx, node);
                    self.end(cx, process, false);
                }
            }
            (Kind::Chmod(_), Ok(Answer::Attr(shown))) => {
                if let Some(node) = the {
                    let follow = self.told_set(node, &shown.shown.attr);
                    self.follow(process, follow);
                }
            }
            (Kind::List(_), told) => self.told_list(cx, process, asked, told),
            (Kind::Unlink(path), Ok(Answer::Done)) => {
                let dir = self.slot(process, DIR).unwrap_or(NodeId::ROOT);
                self.forget_name(dir, &path.1);
                self.dir_changed(dir);
                the.into_iter().for_each(|node| self.forget_attrs(node));
                self.end(cx, process, true);
            }
            (Kind::Rename(from, to), Ok(Answer::Done)) => {
                let root = NodeId::ROOT;
                let dir = self.slot(process, DIR).unwrap_or(root);
                let dir2 = self.slot(process, DIR2).unwrap_or(root);
                self.move_name((dir, &from.1), (dir2, &to.1));
                self.dir_changed(dir);
                self.dir_changed(dir2);
                the.into_iter().for_each(|node| self.forget_attrs(node));
                self.end(cx, process, true);
            }
            (Kind::Link(_, to), Ok(Answer::Made(entry))) => {
                let dir = self.slot(process, DIR2).unwrap_or(NodeId::ROOT);
                let at = Some((dir, to.1.as_slice()));
                let follow = self.told_entry(cx, &self.as_made(asked), at, &entry);
                self.dir_changed(dir);
                self.follow(process, follow);
            }
            (Kind::Lock(_), Ok(Answer::Done)) => self.end(cx, process, true),
            (_, Err(_)) => self.end(cx, process, true),
            (kind, Ok(other)) => {
                let what = format!("{kind:?} is answered {other:?}");
                cx.judge.accuse(None, || what);
                self.end(cx, process, false);
            }
        }
    }

    fn stop_holding(&mut self, process: usize) {
        let Some(op) = self.op(process) else { return };
        if let Some(node) = op.holds.take()
            && let Some(inode) = self.inodes.get_mut(&node)
        {
            inode.unstable -= 1;
        }
    }

    fn add_fd(
        &mut self,
        process: usize,
        (fh, caching): (Fh, Caching),
        node: Option<NodeId>,
        flags: u32,
    ) {
        let Some(node) = node else { return };
        let Some(object) = self.object(node) else {
            return;
        };
        let errors = self.inodes.get(&node).map_or(0, |inode| inode.errors);
        let fd = Fd {
            id: self.new_fd(),
            fh,
            node,
            object,
            flags: flags & !(O_CREAT | O_EXCL | O_TRUNC),
            caching,
            errors,
        };
        self.processes[process].fds.push(fd);
    }

    fn told_close(&mut self, cx: &mut Cx, process: usize, fd: Option<Fd>, done: bool) {
        let Some(fd) = fd else { return };
        let failed = self
            .inodes
            .get(&fd.node)
            .is_some_and(|inode| inode.errors != fd.errors);
        if !done || failed {
            cx.judge.told_loss(fd.id);
        }
        cx.judge.closed(fd.id);
        let proc = &mut self.processes[process];
        proc.fds.retain(|known| known.id != fd.id);
        let nobody = (None, Asker::default());
        self.ask(cx, nobody, Want::Nothing, Call::Release { fh: fd.fh });
        self.end(cx, process, true);
    }

    fn told_synced(&mut self, cx: &mut Cx, process: usize, fd: Option<Fd>, done: bool) {
        let (Some(fd), Some(op)) = (fd, self.processes[process].op.as_ref()) else {
            return;
        };
        let start = op.start;
        let errors = self.inodes.get(&fd.node).map_or(0, |inode| inode.errors);
        if done && errors == fd.errors {
            cx.stats.syncs += 1;
            let writer = (session(self.life), fd.id, fd.object);
            cx.judge.synced(writer, start);
        } else {
            cx.stats.sync_failures += 1;
            cx.judge.told_loss(fd.id);
        }
        let fds = &mut self.processes[process].fds;
        for known in fds.iter_mut().filter(|known| known.id == fd.id) {
            known.errors = errors;
        }
        self.end(cx, process, true);
    }

    /// What the caller of a change may rely on from now on.
    fn ended(
        &mut self,
        cx: &mut Cx,
        process: usize,
        deed: DeedId,
        op: &Op,
        told: &Result<Answer, Refusal>,
    ) {
        let item = op.found[THE].and_then(|node| self.object(node));
        let item = item.map(Item::Attrs);
        match told {
            Ok(_) => cx.judge.ended(deed, End::Done, item),
            Err(Refusal::Host(errno)) if i32::from(*errno) != EIO => {
                cx.judge.ended(deed, End::Not, item);
                let exists = *errno == EEXIST.0;
                let name = match &op.kind {
                    Kind::Create(at, _) | Kind::Unlink(at) => Some(at),
                    Kind::Link(_, to) if exists => Some(to),
                    Kind::Rename(from, _) if *errno == ENOENT.0 => Some(from),
                    _ => None,
                };
                if let Some((dir, name)) = name
                    && (exists || *errno == ENOENT.0)
                {
                    let item = Item::Name(dir.object(), name_of(name));
                    let fits = |value: u64| (value != 0) == exists;
                    let shown = || format!("errno {errno}");
                    let within = (op.start, cx.now);
                    let who = session(self.life);
                    cx.judge.saw_any(who, item, within, fits, shown);
                }
            }
            Err(_) => cx.judge.ended(deed, End::Unknown, item),
        }
        let _ = process;
    }

    fn saw_zero(&self, cx: &mut Cx, process: usize, item: Item) {
        if let Some(op) = &self.processes[process].op {
            let fits = |value| value == 0 || value == ABSENT;
            let (who, within) = (session(self.life), (op.start, cx.now));
            cx.judge.saw_any(who, item, within, fits, || "0".into());
        }
    }

    fn saw(&self, cx: &mut Cx, process: usize, item: Item, value: u64) {
        if let Some(op) = &self.processes[process].op {
            let client = self.client;
            cx.trace(Some(item.object()), || {
                format!("client {client}: process {process} saw {item:?} as {value:x}")
            });
            // A listing is as of its rewind at the earliest.
            let who = session(self.life);
            cx.judge.saw(who, item, value, (op.start, cx.now));
        }
    }

    /// Whether a process is changing bytes of a file.
    fn is_changing(&self, node: NodeId) -> bool {
        let mut ops = self.processes.iter().filter_map(|p| p.op.as_ref());
        ops.any(|op| {
            let changes = matches!(
                op.kind,
                Kind::Write(..) | Kind::Append(_) | Kind::Truncate(_) | Kind::Create(..)
            );
            changes && op.found[THE] == Some(node)
        })
    }

    fn end(&mut self, cx: &mut Cx, process: usize, answered: bool) {
        self.stop_holding(process);
        let Some(op) = self.processes[process].op.take() else {
            return;
        };
        match answered {
            true => cx.stats.ops += 1,
            false => cx.stats.unanswered += 1,
        }
        for (node, alone) in op.held {
            self.unlock(cx, node, alone);
        }
        if let Some(node) = op.found[THE]
            && let Some(object) = self.object(node)
            && !self.is_changing(node)
        {
            cx.judge.answered(cx.now, session(self.life), object);
        }
        let proc = &mut self.processes[process];
        if proc.script.as_ref().is_some_and(VecDeque::is_empty) {
            return;
        }
        let pause = match proc.hurried {
            0 => {
                proc.hurried = cx.rng.below(24) as u32;
                cx.rng.below(self.pace as usize) as Nanos
            }
            _ => {
                proc.hurried -= 1;
                cx.short(20 * MS)
            }
        };
        self.later(cx, pause, KernelEv::Next(process));
    }
}

fn uses_fd(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Close
            | Kind::Read(_)
            | Kind::Map(_)
            | Kind::Write(..)
            | Kind::Append(_)
            | Kind::Store(..)
            | Kind::Sync(_)
            | Kind::Truncate(_)
            | Kind::FStat
            | Kind::Lock(_)
    )
}
