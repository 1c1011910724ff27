//! Locks that processes take: they are kept for a few operations, most of them on what is locked.

use super::{Fd, Kind, O_APPEND, O_WRONLY, Proc};
use crate::sim::cx::Cx;
use crate::sim::judge::{Granted, Holder, ZONES, Zones};
use crate::sim::kernel::{Kernel, Unique};
use crate::sim::model::{CELLS, MS, Nanos, Obj, session};
use leasefs_client::call::LockCall;
use leasefs_protocol::{LockKind, LockMode, LockOwner, LockRange, SessionId};

/// Whose `fcntl` locks a process's are.
pub(super) fn owner_of(process: usize) -> LockOwner {
    LockOwner(process as u64 + 1)
}

/// A lock that a process asks for, or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Locking {
    kind: LockKind,
    /// `None` gives it up.
    pub mode: Option<LockMode>,
    first: u32,
    last: u32,
    wait: bool,
}

impl Locking {
    pub fn zones(&self) -> Zones {
        match self.kind {
            LockKind::Posix => Zones::between(self.first, self.last),
            LockKind::Flock => Zones::ALL,
        }
    }

    pub fn holder(&self, (session, process): (SessionId, usize), fd: &Fd) -> Holder {
        let (object, descriptor) = fd.locks();
        let owner = match self.kind {
            LockKind::Posix => owner_of(process),
            LockKind::Flock => descriptor,
        };
        Holder {
            session,
            object,
            kind: self.kind,
            owner,
            process,
        }
    }

    pub fn call(&self, owner: LockOwner, pid: u32) -> LockCall {
        LockCall {
            owner,
            kind: self.kind,
            range: match self.kind {
                LockKind::Posix => Zones::bytes(self.first, self.last),
                LockKind::Flock => LockRange::ALL,
            },
            mode: self.mode,
            pid,
            wait: self.wait,
        }
    }

    fn waits(&self) -> bool {
        self.wait && self.mode.is_some()
    }
}

impl Fd {
    /// Its file, and the owner of `flock`s through it.
    pub(super) fn locks(&self) -> (Obj, LockOwner) {
        (self.object, LockOwner(1 << 32 | self.fh.0))
    }

    /// What may be locked through it, as fcntl(2) has it.
    fn may_lock(&self, kind: LockKind, mode: LockMode) -> bool {
        match (kind, mode) {
            (LockKind::Flock, _) => true,
            (LockKind::Posix, LockMode::Exclusive) => self.writes(),
            (LockKind::Posix, LockMode::Shared) => self.reads(),
        }
    }
}

impl Proc {
    /// Whether a signal that it catches has come.
    pub fn is_interrupted(&self, now: Nanos) -> bool {
        self.op.is_some() && self.signalled_at.is_some_and(|at| at <= now)
    }

    /// Whether it waits for a lock.
    fn waits_for_lock(&self) -> Option<(&Locking, &Fd)> {
        let op = self.op.as_ref()?;
        match &op.kind {
            Kind::Lock(locking) if locking.waits() => Some((locking, self.fds.get(op.fd)?)),
            _ => None,
        }
    }
}

impl Kernel {
    /// When a signal comes to who begins this.
    pub(super) fn signal(&self, cx: &mut Cx, kind: &Kind) -> Option<Nanos> {
        let waits = matches!(kind, Kind::Lock(locking) if locking.waits());
        let signalled = waits && cx.rng.chance(20);
        signalled.then(|| cx.now + cx.rng.below(1_500 * MS as usize) as Nanos)
    }

    /// A process is killed, and its request given up.
    pub fn kill(&mut self, process: usize) {
        self.processes[process].killed = self.habit.locks;
    }

    /// Whether processes are still to close what they have open.
    pub fn is_closing(&self) -> bool {
        let mut processes = self.processes.iter();
        self.habit.locks && self.winding_down && processes.any(|p| !p.fds.is_empty())
    }

    /// Since when each process is at its operation; and for what lock it waits.
    pub fn busy(&self) -> impl Iterator<Item = (Nanos, Option<Holder>)> {
        let processes = self.processes.iter().enumerate();
        processes.filter_map(|(process, proc)| {
            let whose = (session(self.life), process);
            let waits = proc.waits_for_lock();
            let waits = waits.map(|(locking, fd)| locking.holder(whose, fd));
            Some((proc.busy_since()?, waits))
        })
    }

    /// The lock that a request asks for.
    pub fn asked_lock(&self, unique: Unique) -> Option<Granted> {
        let process = self.asked.get(&unique)?.process?;
        let fd = self.fd(process)?;
        match &self.processes[process].op.as_ref()?.kind {
            Kind::Lock(locking) => Some(Granted {
                holder: locking.holder((session(self.life), process), &fd),
                mode: locking.mode?,
                zones: locking.zones(),
            }),
            _ => None,
        }
    }

    /// A process is told that its locks are lost; not by a sync or a close, which tell that of what was written under them,
    /// nor by a truncation, of which the mount doesn't know whose it is.
    pub(super) fn told_lock_loss(&self, cx: &mut Cx, process: usize) {
        let op = self.processes[process].op.as_ref();
        if op.is_none_or(|op| matches!(op.kind, Kind::Sync(_) | Kind::Close | Kind::Truncate(_))) {
            return;
        }
        cx.stats.locks_lost += 1;
        if let Some(fd) = self.fd(process) {
            let session = session(self.life);
            cx.judge.told_lock_loss(session, process, fd.object);
        }
    }

    /// What a process does next for the sake of locks.
    pub(super) fn next_of_locks(&mut self, cx: &mut Cx, process: usize) -> Option<(usize, Kind)> {
        let proc = &mut self.processes[process];
        if !self.habit.locks || proc.fds.is_empty() {
            proc.killed = false;
            return None;
        }
        if proc.killed || self.winding_down {
            return Some((0, Kind::Close));
        }
        let held: Vec<_> = cx
            .judge
            .locks
            .of_process(session(self.life), process)
            .collect();
        match held.is_empty() {
            true => {
                proc.keeps = cx.rng.below(6);
                cx.rng
                    .chance(45)
                    .then(|| self.lock_any(cx, process, &held))?
            }
            false => self.go_on_locked(cx, process, &held),
        }
    }

    fn go_on_locked(
        &mut self,
        cx: &mut Cx,
        process: usize,
        held: &[(Holder, LockMode, Zones)],
    ) -> Option<(usize, Kind)> {
        let (holder, mode, zones) = held[cx.rng.below(held.len())];
        let (first, last) = zones.ends()?;
        let proc = &mut self.processes[process];
        let is = |fd: &Fd| match holder.kind {
            LockKind::Posix => fd.object == holder.object,
            LockKind::Flock => fd.locks() == (holder.object, holder.owner),
        };
        let fd = proc.fds.iter().position(is)?;
        let locking = Locking {
            kind: holder.kind,
            mode: None,
            first,
            last,
            wait: false,
        };
        if proc.keeps == 0 {
            return Some((fd, Kind::Lock(locking)));
        }
        proc.keeps -= 1;
        let converted = match mode {
            LockMode::Shared => LockMode::Exclusive,
            LockMode::Exclusive => LockMode::Shared,
        };
        match cx.rng.below(100) {
            0..52 => Some((fd, self.use_locked(cx, process, fd, (first, last)))),
            52..70 => self.lock_any(cx, process, held),
            70..78 if proc.fds[fd].may_lock(holder.kind, converted) => {
                let wait = holder.kind == LockKind::Posix && only_posix(held) && cx.rng.chance(50);
                let mode = Some(converted);
                Some((
                    fd,
                    Kind::Lock(Locking {
                        mode,
                        wait,
                        ..locking
                    }),
                ))
            }
            78..84 if holder.kind == LockKind::Posix => {
                let last = first + cx.rng.below((last - first + 1) as usize) as u32;
                Some((fd, Kind::Lock(Locking { last, ..locking })))
            }
            _ => None,
        }
    }

    /// Reads or writes what is locked.
    fn use_locked(
        &mut self,
        cx: &mut Cx,
        process: usize,
        at: usize,
        (first, last): (u32, u32),
    ) -> Kind {
        let most = last.min(self.habit.cells as u32).max(first);
        let cell = first + cx.rng.below((most - first + 1) as usize) as u32;
        let fd = &self.processes[process].fds[at];
        let (flags, object, reads) = (fd.flags, fd.object, fd.reads());
        let stores = self.habit.stores > 0 && object == super::MAPPED;
        let writes = fd.writes() && (!stores || self.habit.mixed);
        match writes && (!reads || cx.rng.chance(60)) {
            true => {
                let values = self.values(cx, process);
                match flags & O_APPEND != 0 {
                    true => self.append_or_cut(process, values),
                    false => Kind::Write(cell, values),
                }
            }
            false if reads => Kind::Read(cell / CELLS),
            false => Kind::FStat,
        }
    }

    /// Asks for a lock through some descriptor. Who waits holds no lock by which a circle could close that nobody finds:
    /// of `flock` nobody looks for them.
    fn lock_any(
        &mut self,
        cx: &mut Cx,
        process: usize,
        held: &[(Holder, LockMode, Zones)],
    ) -> Option<(usize, Kind)> {
        let fds = &self.processes[process].fds;
        let at = cx.rng.below(fds.len());
        let fd = &fds[at];
        let circles = !held.is_empty() && only_posix(held);
        let kind = match circles || cx.rng.chance(65) {
            true => LockKind::Posix,
            false => LockKind::Flock,
        };
        let mode = match cx.rng.chance(65) {
            true => LockMode::Exclusive,
            false => LockMode::Shared,
        };
        if !fd.may_lock(kind, mode) || fd.flags & 3 == O_WRONLY && mode == LockMode::Shared {
            return None;
        }
        let (first, last) = match cx.rng.chance(40) {
            true => (0, ZONES - 1),
            false => {
                let first = cx.rng.below(ZONES as usize) as u32;
                (first, (first + cx.rng.below(6) as u32).min(ZONES - 1))
            }
        };
        let sound = held.is_empty() || circles;
        Some((
            at,
            Kind::Lock(Locking {
                kind,
                mode: Some(mode),
                first,
                last,
                wait: sound && cx.rng.chance(70),
            }),
        ))
    }
}

fn only_posix(held: &[(Holder, LockMode, Zones)]) -> bool {
    held.iter()
        .all(|(holder, ..)| holder.kind == LockKind::Posix)
}
