//! The page gates of all files, and what follows when pages are gone. As in the shipped client's
//! cache, around the shipped [`PageGate`].

use crate::sim::kernel::Unique;
use crate::sim::model::{Nanos, Obj};
use crate::sim::net::LinkId;
use leasefs_lease::client::{Arrival, DropId, DropKind, PageGate, ReadId, Span, Step};
use leasefs_protocol::RecallId;
use std::collections::BTreeMap;

/// What follows when pages have been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Approve(RecallId),
    Wake(Wake),
    Nothing,
}

/// Who goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A request of the kernel.
    Task(Unique),
    /// The reclaim: what was lost is dropped.
    Reclaim,
    /// The reclaim: what a crash of the server's host may have undone is dropped.
    Claim(LinkId),
}

/// What a change of state has brought about.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub approve: Vec<RecallId>,
    pub wake: Vec<Wake>,
    pub passes: Vec<Obj>,
}

#[derive(Debug, Default)]
struct File {
    gate: PageGate,
    clean: Vec<Unique>,
    passing: bool,
    since: Option<Nanos>,
}

#[derive(Debug)]
struct Ticket {
    files: Vec<Obj>,
    pending: usize,
    then: Then,
    kind: DropKind,
}

/// All gates.
#[derive(Debug, Default)]
pub(super) struct Pages {
    files: BTreeMap<Obj, File>,
    tickets: BTreeMap<DropId, Ticket>,
    last: u64,
}

impl Pages {
    /// A READ arrives; `false`: it waits until it is woken.
    pub fn read_arrives(&mut self, read: Unique, file: Obj, span: Span, out: &mut Outcome) -> bool {
        let gate = &mut self.files.entry(file).or_default().gate;
        let goes = gate.read_arrives(ReadId(read.0), span) == Arrival::Go;
        self.settle(file, out);
        goes
    }

    /// Changes the gate of a file, if it has one.
    pub fn with<R>(
        &mut self,
        file: Obj,
        out: &mut Outcome,
        change: impl FnOnce(&mut PageGate) -> R,
    ) -> Option<R> {
        let result = change(&mut self.files.get_mut(&file)?.gate);
        self.settle(file, out);
        Some(result)
    }

    /// Pages must be dropped; `then` follows, at once if there are none.
    pub fn drop_pages(
        &mut self,
        files: &[(Obj, Span)],
        kind: DropKind,
        then: Then,
        out: &mut Outcome,
    ) -> DropId {
        self.last += 1;
        let id = DropId(self.last);
        let known = |file| kind == DropKind::Change || self.files.contains_key(file);
        let files: Vec<(Obj, Span)> = files.iter().filter(|(f, _)| known(f)).copied().collect();
        let ticket = Ticket {
            files: files.iter().map(|(file, _)| *file).collect(),
            pending: files.len() + 1,
            then,
            kind,
        };
        self.tickets.insert(id, ticket);
        for (object, span) in files {
            let file = self.files.entry(object).or_default();
            match kind {
                DropKind::Sweep => file.gate.expire(id),
                DropKind::Recall | DropKind::Change => file.gate.open(id, kind, span),
            }
            self.settle(object, out);
        }
        self.done(id, out);
        id
    }

    fn done(&mut self, id: DropId, out: &mut Outcome) {
        let Some(ticket) = self.tickets.get_mut(&id) else {
            return;
        };
        ticket.pending = ticket.pending.saturating_sub(1);
        if ticket.pending > 0 {
            return;
        }
        match std::mem::replace(&mut ticket.then, Then::Nothing) {
            Then::Approve(recall) => {
                out.approve.push(recall);
                self.close(id, out);
            }
            Then::Wake(wake) => out.wake.push(wake),
            Then::Nothing => {}
        }
        if self
            .tickets
            .get(&id)
            .is_some_and(|t| t.kind == DropKind::Sweep)
        {
            self.tickets.remove(&id);
        }
    }

    /// Waits for a change's pages to be gone (again); `false` if they are.
    pub fn rearm(&mut self, id: DropId, task: Unique) -> bool {
        let Some(ticket) = self.tickets.get_mut(&id) else {
            return false;
        };
        let pending = |file: &&Obj| self.files.get(file).is_some_and(|f| f.gate.is_pending(id));
        let pending = ticket.files.iter().filter(pending).count();
        if pending == 0 {
            return false;
        }
        ticket.pending = pending;
        ticket.then = Then::Wake(Wake::Task(task));
        true
    }

    /// What pages were dropped for has ended.
    pub fn close(&mut self, id: DropId, out: &mut Outcome) {
        let Some(ticket) = self.tickets.remove(&id) else {
            return;
        };
        for file in ticket.files {
            self.with(file, out, |gate| gate.close(id));
        }
    }

    /// Recalls are void: what they asked for is still to be dropped, but not to be approved.
    pub fn void_recalls(&mut self, out: &mut Outcome) {
        let recalls = self.tickets.iter();
        let recalls = recalls.filter(|(_, t)| matches!(t.then, Then::Approve(_)));
        let recalls: Vec<DropId> = recalls.map(|(id, _)| *id).collect();
        for id in recalls {
            let files = self
                .tickets
                .remove(&id)
                .map(|t| t.files)
                .unwrap_or_default();
            let files: Vec<(Obj, Span)> = files.into_iter().map(|f| (f, Span::ALL)).collect();
            self.drop_pages(&files, DropKind::Sweep, Then::Nothing, out);
        }
    }

    /// Files of which the kernel may hold pages.
    pub fn filled(&self) -> Vec<(Obj, Span)> {
        let files = self.files.iter().filter(|(_, f)| f.gate.may_hold_pages());
        files.map(|(file, _)| (*file, Span::ALL)).collect()
    }

    /// Whether the kernel may hold pages of a file.
    pub fn may_hold(&self, file: Obj) -> bool {
        self.files
            .get(&file)
            .is_some_and(|f| f.gate.may_hold_pages())
    }

    /// Whether pages without a lease are still to be dropped.
    pub fn is_unclean(&self, file: Obj) -> bool {
        self.files.get(&file).is_some_and(|f| f.gate.is_unclean())
    }

    /// Waits until a file is clean; `false` if it is.
    pub fn wait_clean(&mut self, file: Obj, task: Unique) -> bool {
        let Some(file) = self.files.get_mut(&file).filter(|f| f.gate.is_unclean()) else {
            return false;
        };
        file.clean.push(task);
        true
    }

    /// What a pass of the file does next.
    pub fn next_step(&mut self, file: Obj, now: Nanos, out: &mut Outcome) -> Step {
        let Some(known) = self.files.get_mut(&file) else {
            return Step::Idle;
        };
        let step = known.gate.next_step();
        match step {
            Step::Drop(_) => known.since = Some(now),
            Step::Wait | Step::Idle => known.passing = false,
        }
        self.settle(file, out);
        step
    }

    /// A drop is done.
    pub fn dropped(&mut self, file: Obj, out: &mut Outcome) {
        if let Some(known) = self.files.get_mut(&file) {
            known.since = None;
            known.gate.dropped();
        }
        self.settle(file, out);
    }

    /// Since when a drop is under way.
    pub fn dropping_since(&self, file: Obj) -> Option<Nanos> {
        self.files.get(&file)?.since
    }

    fn settle(&mut self, object: Obj, out: &mut Outcome) {
        let Some(file) = self.files.get_mut(&object) else {
            return;
        };
        while let Some(read) = file.gate.poll_released() {
            out.wake.push(Wake::Task(Unique(read.0)));
        }
        let clear: Vec<DropId> = std::iter::from_fn(|| file.gate.poll_clear()).collect();
        if !file.gate.is_unclean() {
            out.wake.extend(file.clean.drain(..).map(Wake::Task));
        }
        if !file.passing && file.gate.has_work() {
            file.passing = true;
            out.passes.push(object);
        }
        if file.gate.is_idle() && !file.passing {
            self.files.remove(&object);
        }
        clear.into_iter().for_each(|id| self.done(id, out));
    }
}
