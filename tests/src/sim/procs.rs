//! Processes on a client's host: one operation after another, and what they see.

use super::client::ClientEv;
use super::cx::{Cx, Ev};
use super::judge::End;
use super::kernel::{Asked, Kernel, KernelEv, Page, Told, Trouble, Unique, Want};
use super::ledger::Writer;
use super::model::{Deed, DeedId, Item, MS, Nanos, Obj, PAGES, session};
use super::store::{DIRS, EEXIST, ENOENT, FILES, Store};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read(Obj, u8),
    Mapped(Obj, u8),
    Direct(Obj, u8),
    Stat(Obj),
    Find(Obj, u8),
    List(Obj),
    Sync(Obj),
    Change(Deed),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Looks at the attributes' timeout.
    Attrs,
    /// Looks for the page.
    Page,
    /// Takes the locks, from this one on.
    Lock(usize),
    /// Has them; looks at the names from this one on.
    Look(usize),
    /// Sends what changes.
    Send,
    /// Waits for the daemon.
    Waits,
}

#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    start: Nanos,
    stage: Stage,
    /// Directories locked or to be locked.
    locks: Vec<Obj>,
    alone: bool,
    held: usize,
    deed: Option<DeedId>,
    cached: bool,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Proc {
    op: Option<Op>,
    hurried: u32,
    written: u64,
}

impl Proc {
    /// Since when it is at its operation.
    pub fn busy_since(&self) -> Option<Nanos> {
        self.op.as_ref().map(|op| op.start)
    }

    /// What it does, for people.
    pub fn describe(&self) -> String {
        format!("{:?}", self.op)
    }
}

impl Kernel {
    pub(super) fn begin(&mut self, cx: &mut Cx, process: usize, store: &Store) {
        if self.winding_down || self.processes[process].op.is_some() {
            return;
        }
        let kind = self.choose(cx, process, store);
        let (locks, alone) = self.locks_of(cx, kind);
        let stage = match kind {
            Kind::Read(..) | Kind::Stat(_) => Stage::Attrs,
            Kind::Mapped(..) => Stage::Page,
            _ if !locks.is_empty() => Stage::Lock(0),
            Kind::Find(..) => Stage::Look(0),
            Kind::Direct(..) | Kind::List(_) | Kind::Sync(_) | Kind::Change(_) => Stage::Send,
        };
        self.trace(cx, kind, || format!("process {process} begins {kind:?}"));
        self.processes[process].op = Some(Op {
            kind,
            start: cx.now,
            stage,
            locks,
            alone,
            held: 0,
            deed: None,
            cached: true,
        });
        self.go_on(cx, process);
    }

    fn trace(&self, cx: &mut Cx, kind: Kind, text: impl FnOnce() -> String) {
        let object = match kind {
            Kind::Read(o, _) | Kind::Mapped(o, _) | Kind::Direct(o, _) | Kind::Stat(o) => o,
            Kind::Find(o, _) | Kind::List(o) | Kind::Sync(o) => o,
            Kind::Change(deed) => deed.touches()[0],
        };
        let client = self.client;
        cx.trace(Some(object), || format!("client {client}: {}", text()));
    }

    fn choose(&mut self, cx: &mut Cx, process: usize, store: &Store) -> Kind {
        let file = match cx.rng.below(10) {
            _ if cx.rng.chance(self.habit.own) => FILES[self.client % FILES.len()],
            0..5 => FILES[0],
            5..7 => FILES[1],
            7 => FILES[2],
            _ => store.recent(cx.rng.below(3)),
        };
        let page = cx.rng.below(usize::from(PAGES)) as u8;
        let page = if cx.rng.chance(50) { 0 } else { page };
        let dir = DIRS[cx.rng.below(2)];
        let at = (dir, Self::any_name(cx));
        let to = (DIRS[cx.rng.below(2)], Self::any_name(cx));
        let proc = &mut self.processes[process];
        proc.written += 1;
        let value = ((self.client as u64 + 1) << 56)
            | ((self.life & 0xffff) << 40)
            | ((process as u64) << 32)
            | proc.written;
        match cx.rng.below(100) {
            0..30 => Kind::Read(file, page),
            30..37 if !self.mapped_may_be_stale => Kind::Mapped(file, page),
            30..42 => Kind::Direct(file, page),
            42..54 => Kind::Stat(if cx.rng.chance(20) { dir } else { file }),
            54..63 => Kind::Find(at.0, at.1),
            63..66 => Kind::List(dir),
            66..68 => Kind::Sync(file),
            68..80 => Kind::Change(Deed::Write(file, page, value)),
            80 => Kind::Change(Deed::WriteSync(file, page, value)),
            81..83 => Kind::Change(Deed::Append(file, value)),
            83..85 => Kind::Change(Deed::Truncate(file, value)),
            85..87 => Kind::Change(Deed::Chmod(file)),
            87..91 => Kind::Change(Deed::Create(at.0, at.1)),
            91..94 => Kind::Change(Deed::Unlink(at.0, at.1)),
            94..97 => Kind::Change(Deed::Rename(at, to)),
            _ => Kind::Change(Deed::Link(file, at)),
        }
    }

    /// Directories a process locks, in the order in which everybody does.
    fn locks_of(&self, cx: &Cx, kind: Kind) -> (Vec<Obj>, bool) {
        match kind {
            // Only where the kernel has no dentry to ask again for.
            Kind::Find(dir, name) if !self.name(cx, (dir, name)).1 => (vec![dir], false),
            Kind::List(dir) => (vec![dir], false),
            Kind::Change(Deed::Create(dir, _) | Deed::Unlink(dir, _) | Deed::Link(_, (dir, _))) => {
                (vec![dir], true)
            }
            Kind::Change(deed @ Deed::Rename(..)) => {
                let mut dirs = deed.touches();
                dirs.sort();
                (dirs, true)
            }
            _ => (Vec::new(), false),
        }
    }

    /// Names a process looks at before it changes anything.
    fn looks_at(kind: Kind) -> Vec<(Obj, u8)> {
        match kind {
            Kind::Find(dir, name) => vec![(dir, name)],
            Kind::Change(
                Deed::Create(dir, name) | Deed::Unlink(dir, name) | Deed::Link(_, (dir, name)),
            ) => vec![(dir, name)],
            Kind::Change(Deed::Rename(from, to)) => vec![from, to],
            _ => Vec::new(),
        }
    }

    fn stage(&mut self, process: usize, stage: Stage) {
        if let Some(op) = &mut self.processes[process].op {
            op.stage = stage;
        }
    }

    /// A process goes on as far as it can.
    pub(super) fn go_on(&mut self, cx: &mut Cx, process: usize) {
        while let Some(op) = &self.processes[process].op {
            let kind = op.kind;
            let on = match op.stage {
                Stage::Attrs => self.at_attrs(cx, process, kind),
                Stage::Page => self.at_page(cx, process, kind),
                Stage::Lock(at) => self.at_lock(process, at),
                Stage::Look(at) => self.at_look(cx, process, kind, at),
                Stage::Send => self.at_send(cx, process, kind),
                Stage::Waits => false,
            };
            if !on {
                return;
            }
        }
    }

    fn at_attrs(&mut self, cx: &mut Cx, process: usize, kind: Kind) -> bool {
        let (Kind::Read(object, _) | Kind::Stat(object)) = kind else {
            return false;
        };
        match (self.attrs(cx, object), kind) {
            (Some(attrs), Kind::Stat(_)) => {
                self.saw(cx, process, Item::Attrs(object), attrs);
                self.end(cx, process, true);
            }
            (Some(_), _) => self.stage(process, Stage::Page),
            (None, _) => {
                self.stage(process, Stage::Waits);
                self.ask(cx, process, Want::Attr(object));
                return false;
            }
        }
        true
    }

    fn at_page(&mut self, cx: &mut Cx, process: usize, kind: Kind) -> bool {
        let (Kind::Read(file, page) | Kind::Mapped(file, page)) = kind else {
            return false;
        };
        match self.inode(file).pages[page as usize] {
            Page::Full(value) => {
                // What is just being dropped may have no lease, see `Kernel::believes`.
                let excused = self.mapped_may_be_stale || self.is_dropping(file, page);
                if matches!(kind, Kind::Read(..)) || !excused {
                    self.saw(cx, process, Item::Page(file, page), value);
                }
                self.end(cx, process, true);
                true
            }
            Page::Locked => {
                let waiters = &mut self.inode(file).waiters;
                if !waiters.contains(&process) {
                    waiters.push(process);
                }
                false
            }
            Page::Empty => {
                self.stage(process, Stage::Waits);
                self.read_pages(cx, process, file, page);
                false
            }
        }
    }

    fn at_lock(&mut self, process: usize, at: usize) -> bool {
        let Some(op) = &mut self.processes[process].op else {
            return false;
        };
        // Woken: it has the lock that it waited for.
        if op.held < at {
            op.held = at;
        }
        let Some(dir) = op.locks.get(at).copied() else {
            op.stage = match op.kind {
                Kind::List(_) => Stage::Send,
                _ => Stage::Look(0),
            };
            return true;
        };
        op.stage = Stage::Lock(at + 1);
        let alone = op.alone;
        self.lock(dir, process, alone)
    }

    fn at_look(&mut self, cx: &mut Cx, process: usize, kind: Kind, at: usize) -> bool {
        let Some(name) = Self::looks_at(kind).get(at).copied() else {
            self.stage(process, Stage::Send);
            return true;
        };
        match self.name(cx, name) {
            (Some(found), _) => self.looked(cx, process, kind, at, Some(found)),
            (None, _) => {
                self.stage(process, Stage::Waits);
                self.ask(cx, process, Want::Name(name.0, name.1));
                false
            }
        }
    }

    /// A name that a process looks at denotes this.
    fn looked(
        &mut self,
        cx: &mut Cx,
        process: usize,
        kind: Kind,
        at: usize,
        found: Option<Obj>,
    ) -> bool {
        let names = Self::looks_at(kind);
        let (dir, name) = names[at];
        let value = found.map_or(0, |o| o.0.into());
        self.saw(cx, process, Item::Name(dir, name), value);
        let ends = match kind {
            Kind::Find(..) => true,
            Kind::Change(Deed::Create(..) | Deed::Link(..)) => found.is_some(),
            Kind::Change(Deed::Unlink(..)) => found.is_none(),
            Kind::Change(Deed::Rename(..)) => at == 0 && found.is_none(),
            _ => false,
        };
        match ends {
            true => self.end(cx, process, true),
            false => self.stage(process, Stage::Look(at + 1)),
        }
        true
    }

    fn at_send(&mut self, cx: &mut Cx, process: usize, kind: Kind) -> bool {
        let want = match kind {
            Kind::Direct(file, page) => Want::Direct(file, page),
            Kind::List(dir) => Want::List(dir),
            Kind::Sync(file) => Want::Sync(file, process),
            Kind::Change(deed) => {
                let id = cx.judge.deed();
                if let Some(op) = &mut self.processes[process].op {
                    op.deed = Some(id);
                }
                Want::Change(id, deed)
            }
            _ => return false,
        };
        self.stage(process, Stage::Waits);
        let unique = self.ask(cx, process, want);
        if matches!(want, Want::Change(..)) && cx.rng.chance(3) {
            let wait = cx.rng.below(800 * MS as usize) as Nanos;
            cx.after(
                wait,
                Ev::Client(self.client, self.life, ClientEv::Abandon(unique)),
            );
        }
        false
    }

    /// The daemon has answered.
    pub(super) fn told(&mut self, cx: &mut Cx, unique: Unique, told: Told, cached: bool) {
        let Some(asked) = self.asked.remove(&unique) else {
            return;
        };
        let process = asked.process;
        let Some(op) = &mut self.processes[process].op else {
            return;
        };
        op.cached &= cached;
        let (kind, unlocked) = (op.kind, op.locks.is_empty());
        self.trace(cx, kind, || format!("process {process} is told {told:?}"));
        match (asked.want, told) {
            (Want::Attr(object), Told::Attr(attrs, valid)) => {
                self.told_attr(cx, &asked, attrs, valid);
                match kind {
                    Kind::Stat(_) => {
                        self.saw(cx, process, Item::Attrs(object), attrs);
                        self.end(cx, process, true);
                    }
                    _ => self.stage(process, Stage::Page),
                }
            }
            (Want::Name(dir, name), Told::Name(found, _))
                if unlocked && self.is_other((dir, name), found) =>
            {
                self.forget_name((dir, name));
                self.look_again(process, dir);
            }
            (Want::Name(..), Told::Name(found, valid)) => {
                self.told_name(cx, &asked, found, valid);
                let at = Self::looks_at(kind)
                    .iter()
                    .position(|(dir, name)| asked.want == Want::Name(*dir, *name));
                self.looked(cx, process, kind, at.unwrap_or(0), found);
            }
            (Want::Pages(file, first, count), told) => {
                self.told_pages(cx, (file, first, count), &told);
                self.told_own_page(cx, process, kind, first, &told);
            }
            (Want::Direct(file, page), Told::Pages(values)) => {
                self.saw(cx, process, Item::Page(file, page), values[0]);
                self.end(cx, process, true);
            }
            (Want::List(dir), Told::List(halves)) => {
                for half in halves {
                    self.saw(cx, process, Item::Listing(dir), half);
                }
                self.end(cx, process, true);
            }
            (Want::Sync(file, _), told) => self.told_synced(cx, process, file, &told),
            (Want::Change(id, deed), told) => self.told_change(cx, process, &asked, id, deed, told),
            (_, _) => self.end(cx, process, false),
        }
        self.go_on(cx, process);
    }

    /// A name that was only revalidated denotes something else: it is looked up anew, which takes the
    /// directory's lock.
    fn look_again(&mut self, process: usize, dir: Obj) {
        if let Some(op) = &mut self.processes[process].op {
            op.locks = vec![dir];
            op.stage = Stage::Lock(0);
        }
    }

    /// Whoever asked has the page in his hand, even if it is dropped again at once.
    fn told_own_page(&mut self, cx: &mut Cx, process: usize, kind: Kind, first: u8, told: &Told) {
        match (kind, told) {
            (Kind::Read(file, page) | Kind::Mapped(file, page), Told::Pages(values)) => {
                let value = values[(page - first) as usize];
                self.saw(cx, process, Item::Page(file, page), value);
                self.end(cx, process, true);
            }
            _ => self.end(cx, process, false),
        }
    }

    fn told_synced(&mut self, cx: &mut Cx, process: usize, file: Obj, told: &Told) {
        let Some(op) = &self.processes[process].op else {
            return;
        };
        let writer = Writer {
            session: session(self.life as u32),
            process,
            file,
        };
        match told {
            Told::Done(_) => {
                cx.stats.syncs += 1;
                cx.judge.synced(writer, op.start);
            }
            _ => {
                cx.stats.sync_failures += 1;
                cx.judge.sync_failed(writer);
            }
        }
        self.end(cx, process, true);
    }

    /// What the caller of a change may rely on from now on.
    fn acknowledged(&self, cx: &mut Cx, deed: Deed, start: Nanos) {
        match deed {
            Deed::WriteSync(file, page, value) => {
                cx.judge.acknowledged(value);
                cx.judge.synced_page(Item::Page(file, page), start);
            }
            Deed::Write(_, _, value) | Deed::Append(_, value) | Deed::Truncate(_, value) => {
                cx.judge.acknowledged(value);
            }
            _ => {}
        }
    }

    fn told_change(
        &mut self,
        cx: &mut Cx,
        process: usize,
        asked: &Asked,
        id: DeedId,
        deed: Deed,
        told: Told,
    ) {
        let item = Some(Item::Attrs(deed.touches()[0]));
        let start = asked.since;
        match told {
            Told::Done(made) => {
                cx.judge.ended(id, End::Done, item);
                self.acknowledged(cx, deed, start);
                self.told_done(deed, made);
                self.end(cx, process, true);
            }
            Told::Not(Trouble::Errno(errno)) => {
                cx.judge.ended(id, End::Not, item);
                let exists = errno == EEXIST.0;
                let name = match deed {
                    Deed::Create(dir, name) | Deed::Unlink(dir, name) => Some((dir, name)),
                    Deed::Link(_, (dir, name)) if exists => Some((dir, name)),
                    Deed::Rename(from, _) if errno == ENOENT.0 => Some(from),
                    _ => None,
                };
                if let Some((dir, name)) = name {
                    let item = Item::Name(dir, name);
                    let fits = |value: u64| (value != 0) == exists;
                    let shown = || format!("errno {errno}");
                    cx.judge.saw_any(item, start, cx.now, fits, shown);
                }
                self.end(cx, process, true);
            }
            Told::Not(Trouble::Never) => {
                cx.judge.ended(id, End::Not, item);
                self.end(cx, process, false);
            }
            _ => {
                cx.judge.ended(id, End::Unknown, item);
                self.end(cx, process, false);
            }
        }
    }

    fn saw(&self, cx: &mut Cx, process: usize, item: Item, value: u64) {
        if let Some(op) = &self.processes[process].op {
            let client = self.client;
            cx.trace(Some(item.object()), || {
                format!("client {client}: process {process} saw {item:?} as {value}")
            });
            cx.judge.saw(item, value, op.start, cx.now);
        }
    }

    fn end(&mut self, cx: &mut Cx, process: usize, answered: bool) {
        let Some(op) = self.processes[process].op.take() else {
            return;
        };
        match answered {
            true => cx.stats.ops += 1,
            false => cx.stats.unanswered += 1,
        }
        cx.stats.cached += u64::from(answered && op.cached);
        for dir in op.locks.iter().take(op.held) {
            self.unlock(cx, *dir, op.alone);
        }
        let proc = &mut self.processes[process];
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
