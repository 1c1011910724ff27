//! The page gates of all files, and who waits for what at them.

use crate::run::Map;
use futures_channel::oneshot;
use leasefs_lease::client::{Arrival, DropId, DropKind, PageGate, ReadId, Span, Step, WriteId};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Approval, Handle};

/// What follows when pages have been dropped.
#[derive(Debug)]
pub(crate) enum Then {
    /// A recall is approved.
    Approve(Approval),
    /// Somebody goes on.
    Wake(oneshot::Sender<()>),
    /// Nothing.
    Nothing,
}

/// What a change of state has brought about, to be done without the lock.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Recalls that have become approvable: nothing they cover is left. First of all.
    pub approve: Vec<Approval>,
    /// Those who go on.
    pub wake: Vec<oneshot::Sender<()>>,
    /// Files that need a pass.
    pub passes: Vec<Handle>,
}

#[derive(Debug, Default)]
struct File {
    gate: PageGate,
    parked: Map<ReadId, oneshot::Sender<()>>,
    /// Wait until the file is clean.
    clean: Vec<oneshot::Sender<()>>,
    /// A pass is under way or asked for.
    passing: bool,
    /// When the drop under way began.
    since: Option<BootTime>,
    /// As counted in [`Pages::unclean`].
    unclean: bool,
}

#[derive(Debug)]
struct Ticket {
    files: Vec<Handle>,
    pending: usize,
    then: Then,
    kind: DropKind,
}

/// All gates. A file of whose pages nothing must be known has none.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    files: Map<Handle, File>,
    tickets: Map<DropId, Ticket>,
    last: u64,
    /// Files that hold pages without a lease.
    unclean: usize,
}

impl Pages {
    /// A READ arrives. `Some`: it waits until told.
    pub fn read_arrives(
        &mut self,
        object: Handle,
        span: Span,
        out: &mut Outcome,
    ) -> (ReadId, Option<oneshot::Receiver<()>>) {
        let id = ReadId(self.next());
        let file = self.files.entry(object).or_default();
        let told = match file.gate.read_arrives(id, span) {
            Arrival::Go => None,
            Arrival::Wait => {
                let (tell, told) = oneshot::channel();
                file.parked.insert(id, tell);
                Some(told)
            }
        };
        self.settle(object, out);
        (id, told)
    }

    /// A READ was answered with what may not be used yet. `Some`: it waits until told.
    pub fn read_parks(
        &mut self,
        object: Handle,
        id: ReadId,
        out: &mut Outcome,
    ) -> Option<oneshot::Receiver<()>> {
        let file = self.files.get_mut(&object)?;
        let (tell, told) = oneshot::channel();
        let parks = file.gate.read_parks(id);
        if parks {
            file.parked.insert(id, tell);
        }
        self.settle(object, out);
        parks.then_some(told)
    }

    /// Changes the gate of a file, if it has one.
    pub fn with<R>(
        &mut self,
        object: Handle,
        out: &mut Outcome,
        change: impl FnOnce(&mut PageGate) -> R,
    ) -> Option<R> {
        let result = change(&mut self.files.get_mut(&object)?.gate);
        self.settle(object, out);
        Some(result)
    }

    /// A WRITE of mapped pages arrives.
    pub fn write_arrives(&mut self, object: Handle, span: Span) -> WriteId {
        let id = WriteId(self.next());
        let file = self.files.entry(object).or_default();
        file.gate.write_arrives(id, span);
        id
    }

    /// Pages must be dropped; `then` follows, at once if there are none.
    pub fn drop_pages(
        &mut self,
        files: &[(Handle, Span)],
        kind: DropKind,
        then: Then,
        out: &mut Outcome,
    ) -> DropId {
        let id = DropId(self.next());
        // A change closes its range also to READs that are still to come; all else concerns
        // only what is there.
        let known = |object| kind == DropKind::Change || self.files.contains_key(object);
        let files: Vec<(Handle, Span)> = files.iter().filter(|(o, _)| known(o)).copied().collect();
        let ticket = Ticket {
            files: files.iter().map(|(object, _)| *object).collect(),
            // One more than there is, so that nothing follows before all are open.
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

    /// An own change of a file that is held exclusively begins: see [`PageGate::open_later`].
    pub fn open_later(&mut self, object: Handle, span: Span, out: &mut Outcome) -> DropId {
        let id = DropId(self.next());
        let ticket = Ticket {
            files: vec![object],
            pending: 0,
            then: Then::Nothing,
            kind: DropKind::Change,
        };
        self.tickets.insert(id, ticket);
        let file = self.files.entry(object).or_default();
        file.gate.open_later(id, span);
        self.settle(object, out);
        id
    }

    /// Drops the pages of a change (again), see [`PageGate::drop_now`]; then [`Pages::rearm`].
    pub fn drop_now(&mut self, id: DropId, out: &mut Outcome) {
        let files = self.tickets.get(&id).map(|ticket| ticket.files.clone());
        for object in files.unwrap_or_default() {
            self.with(object, out, |gate| gate.drop_now(id));
        }
    }

    /// One of the files that a drop waits for is done.
    fn done(&mut self, id: DropId, out: &mut Outcome) {
        let Some(ticket) = self.tickets.get_mut(&id) else {
            return;
        };
        ticket.pending = ticket.pending.saturating_sub(1);
        if ticket.pending > 0 {
            return;
        }
        match std::mem::replace(&mut ticket.then, Then::Nothing) {
            Then::Approve(approval) => {
                out.approve.push(approval);
                self.close(id, out);
            }
            Then::Wake(tell) => out.wake.push(tell),
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

    /// Waits for a change's pages to be gone (again); `None` if they are.
    pub fn rearm(&mut self, id: DropId) -> Option<oneshot::Receiver<()>> {
        let ticket = self.tickets.get_mut(&id)?;
        let pending = ticket
            .files
            .iter()
            .filter(|object| {
                self.files
                    .get(object)
                    .is_some_and(|f| f.gate.is_pending(id))
            })
            .count();
        if pending == 0 {
            return None;
        }
        let (tell, told) = oneshot::channel();
        ticket.pending = pending;
        ticket.then = Then::Wake(tell);
        Some(told)
    }

    /// What pages were dropped for has ended: parked READs go on.
    pub fn close(&mut self, id: DropId, out: &mut Outcome) {
        let Some(ticket) = self.tickets.remove(&id) else {
            return;
        };
        for object in ticket.files {
            self.with(object, out, |gate| gate.close(id));
        }
    }

    /// Recalls are void: what they asked for is still to be dropped, but not to be approved.
    pub fn void_recalls(&mut self, out: &mut Outcome) {
        let recalls = self
            .tickets
            .iter()
            .filter_map(|(id, ticket)| matches!(ticket.then, Then::Approve(_)).then_some(*id));
        let recalls: Vec<DropId> = recalls.collect();
        for id in recalls {
            let files: Vec<(Handle, Span)> = self
                .tickets
                .remove(&id)
                .map(|ticket| ticket.files)
                .unwrap_or_default()
                .into_iter()
                .map(|object| (object, Span::ALL))
                .collect();
            // Ends every recall of the file's gate as well.
            self.drop_pages(&files, DropKind::Sweep, Then::Nothing, out);
        }
    }

    /// Files of which the kernel may hold pages.
    pub fn filled(&self) -> Vec<(Handle, Span)> {
        let files = self.files.iter().filter(|(_, f)| f.gate.may_hold_pages());
        files.map(|(object, _)| (*object, Span::ALL)).collect()
    }

    /// Whether the kernel may hold pages of a file.
    pub fn may_hold(&self, object: &Handle) -> bool {
        self.files
            .get(object)
            .is_some_and(|file| file.gate.may_hold_pages())
    }

    /// Whether pages without a lease are still to be dropped.
    pub fn is_unclean(&self, object: &Handle) -> bool {
        self.unclean > 0
            && self
                .files
                .get(object)
                .is_some_and(|file| file.gate.is_unclean())
    }

    /// Waits until a file is clean; `None` if it is.
    pub fn wait_clean(&mut self, object: &Handle) -> Option<oneshot::Receiver<()>> {
        let file = self.files.get_mut(object)?;
        if !file.gate.is_unclean() {
            return None;
        }
        let (tell, told) = oneshot::channel();
        file.clean.push(tell);
        Some(told)
    }

    /// What a pass of the file does next. [`Step::Drop`] must be followed by
    /// [`Pages::dropped`]; anything else ends the pass.
    pub fn next_step(&mut self, object: &Handle, now: BootTime, out: &mut Outcome) -> Step {
        let Some(file) = self.files.get_mut(object) else {
            return Step::Idle;
        };
        let step = file.gate.next_step();
        match step {
            Step::Drop(_) => file.since = Some(now),
            Step::Wait | Step::Idle => file.passing = false,
        }
        self.settle(*object, out);
        step
    }

    /// A drop is done.
    pub fn dropped(&mut self, object: &Handle, out: &mut Outcome) {
        if let Some(file) = self.files.get_mut(object) {
            file.since = None;
            file.gate.dropped();
        }
        self.settle(*object, out);
    }

    /// Sends what waits at files whose drop has been going on since before `limit`. Returns whether
    /// any drop is under way, or about to begin.
    pub fn unblock(&mut self, limit: BootTime, out: &mut Outcome) -> bool {
        let under_way = self.files.iter().filter_map(|(h, f)| Some((*h, f.since?)));
        let under_way: Vec<(Handle, BootTime)> = under_way.collect();
        for (object, _) in under_way.iter().filter(|(_, since)| *since <= limit) {
            self.with(*object, out, PageGate::stuck);
        }
        self.files.values().any(|file| file.passing)
    }

    /// When the longest drop under way began.
    pub fn longest_since(&self) -> Option<BootTime> {
        self.files.values().filter_map(|file| file.since).min()
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn settle(&mut self, object: Handle, out: &mut Outcome) {
        let Some(file) = self.files.get_mut(&object) else {
            return;
        };
        while let Some(read) = file.gate.poll_released() {
            out.wake.extend(file.parked.remove(&read));
        }
        let clear: Vec<DropId> = std::iter::from_fn(|| file.gate.poll_clear()).collect();
        let unclean = file.gate.is_unclean();
        if !unclean {
            out.wake.append(&mut file.clean);
        }
        self.unclean += usize::from(unclean);
        self.unclean -= usize::from(std::mem::replace(&mut file.unclean, unclean));
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
