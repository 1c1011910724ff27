//! Pages that arrive at their gates, and are dropped there.

use super::drops::{Arrived, Outcome, PagesOf, Then, Ticket};
use super::gate::Gate;
use super::{Content, Inodes};
use futures_channel::oneshot;
use leasefs_lease::client::{Arrival, DropId, DropKind, PageGate, ReadId, Span, Step, WriteId};
use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;

/// What is kept back of a file under its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Bytes of these mapped pages, by the kernel.
    Mapped(Span),
    /// Bytes of the buffer.
    Buffered,
}

impl Inodes {
    /// A READ arrives.
    pub fn read_arrives(&mut self, file: Handle, span: Span, out: &mut Outcome) -> Arrived {
        let id = ReadId(self.drops.next());
        let told = self.make_gate(file, out, |gate| match gate.pages.read_arrives(id, span) {
            Arrival::Go => None,
            Arrival::Wait => {
                let (tell, told) = oneshot::channel();
                gate.parked.insert(id, tell);
                Some(told)
            }
        });
        Arrived { id, told }
    }

    /// A READ was answered with what may not be used yet. `Some`: it waits until told.
    pub fn read_parks(
        &mut self,
        file: Handle,
        id: ReadId,
        out: &mut Outcome,
    ) -> Option<oneshot::Receiver<()>> {
        let told = self.at_gate(file, out, |gate| {
            gate.pages.read_parks(id).then(|| {
                let (tell, told) = oneshot::channel();
                gate.parked.insert(id, tell);
                told
            })
        });
        told.flatten()
    }

    /// A READ has ended.
    pub fn read_ended(&mut self, file: Handle, id: ReadId, out: &mut Outcome) {
        self.at_gate(file, out, |gate| {
            gate.parked.remove(&id);
            gate.pages.read_ended(id);
        });
    }

    /// Changes the gate of a file, if it has one.
    pub fn with_pages<R>(
        &mut self,
        file: Handle,
        out: &mut Outcome,
        change: impl FnOnce(&mut PageGate) -> R,
    ) -> Option<R> {
        self.at_gate(file, out, |gate| change(&mut gate.pages))
    }

    /// A WRITE of mapped pages arrives.
    pub fn write_arrives(&mut self, file: Handle, span: Span, out: &mut Outcome) -> WriteId {
        let id = WriteId(self.drops.next());
        self.make_gate(file, out, |gate| gate.pages.write_arrives(id, span));
        id
    }

    /// Pages must be dropped; `then` follows, at once if there are none.
    pub fn drop_pages(
        &mut self,
        pages: &[PagesOf],
        kind: DropKind,
        then: Then,
        out: &mut Outcome,
    ) -> DropId {
        let id = DropId(self.drops.next());
        // A change closes its range also to READs that are still to come; all else concerns
        // only what is there.
        let concerned = |file| kind == DropKind::Change || self.has_gate(file);
        let pages = pages.iter().filter(|pages| concerned(&pages.file));
        let pages: Vec<PagesOf> = pages.copied().collect();
        let ticket = Ticket {
            files: pages.iter().map(|pages| pages.file).collect(),
            // One more than there is, so that nothing follows before all are open.
            pending: pages.len() + 1,
            then,
            kind,
        };
        self.drops.tickets.insert(id, ticket);
        for PagesOf { file, span } in pages {
            self.make_gate(file, out, |gate| match kind {
                DropKind::Sweep => gate.pages.expire(id),
                DropKind::Recall | DropKind::Change => gate.pages.open(id, kind, span),
            });
        }
        self.drop_is_done(id, out);
        id
    }

    /// One of the files that a drop waits for is done.
    fn drop_is_done(&mut self, id: DropId, out: &mut Outcome) {
        let Some(ticket) = self.drops.tickets.get_mut(&id) else {
            return;
        };
        // What isn't waited for (any more) may become clear again.
        ticket.pending = ticket.pending.saturating_sub(1);
        if ticket.pending > 0 {
            return;
        }
        let then = std::mem::replace(&mut ticket.then, Then::Nothing);
        if ticket.kind == DropKind::Sweep {
            self.drops.tickets.remove(&id);
        }
        match then {
            Then::Approve(approvable) => {
                out.approve.push(approvable);
                self.end_drop(id, out);
            }
            Then::Wake(tell) => out.wake.push(tell),
            Then::Nothing => {}
        }
    }

    /// Waits for a change's pages to be gone (again); `None` if they are.
    pub fn rearm(&mut self, id: DropId) -> Option<oneshot::Receiver<()>> {
        let files = &self.drops.tickets.get(&id)?.files;
        let pending = files.iter().filter(|file| {
            self.gate(file)
                .is_some_and(|gate| gate.pages.is_pending(id))
        });
        let pending = pending.count();
        if pending == 0 {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let ticket = self.drops.tickets.get_mut(&id)?;
        ticket.pending = pending;
        ticket.then = Then::Wake(tell);
        Some(told)
    }

    /// What pages were dropped for has ended: parked READs go on.
    pub fn end_drop(&mut self, id: DropId, out: &mut Outcome) {
        let Some(ticket) = self.drops.tickets.remove(&id) else {
            return;
        };
        for file in ticket.files {
            self.with_pages(file, out, |gate| gate.close(id));
        }
    }

    /// The kernel may have pages of a file as clean that the server doesn't have, or older ones: they go as
    /// soon as they can.
    pub fn sweep_pages(&mut self, file: Handle, out: &mut Outcome) {
        let pages = [PagesOf::all(file)];
        self.drop_pages(&pages, DropKind::Sweep, Then::Nothing, out);
    }

    /// If nobody here can see pages of a file: they go as soon as they can, and nobody has to wait for that but who opens
    /// it then.
    pub fn sweep_unseen(&mut self, file: Handle, out: &mut Outcome) -> bool {
        let unseen = !self.may_see_pages(&file);
        if unseen && self.may_hold_pages(&file) {
            self.sweep_pages(file, out);
        }
        unseen
    }

    /// Recalls are void: what they asked for is still to be dropped, but not to be approved.
    pub fn void_recalls(&mut self, out: &mut Outcome) {
        let void = |(id, ticket): (&DropId, &mut Ticket)| {
            ticket.then = Then::Nothing;
            let pages = ticket.files.iter().copied().map(PagesOf::all);
            (*id, pages.collect::<Vec<_>>())
        };
        let tickets = self.drops.tickets.iter_mut();
        let recalls = tickets.filter(|(_, ticket)| matches!(ticket.then, Then::Approve(_)));
        let recalls: Vec<_> = recalls.map(void).collect();
        for (id, pages) in recalls {
            // First, so that the file isn't taken for clean in between.
            self.drop_pages(&pages, DropKind::Sweep, Then::Nothing, out);
            self.end_drop(id, out);
        }
    }

    /// What is kept back of these files outlives the lease under which it was stored.
    pub fn outlives_lease(&mut self, of: impl Fn(&Handle) -> bool) {
        for PagesOf { file, .. } in self.filled() {
            if of(&file) {
                self.change_content(&file, |content| {
                    content.gate.as_mut().map(|gate| gate.pages.outlive())
                });
            }
        }
        for file in self.dirty_files().iter().filter(|file| of(file)) {
            self.with_dirty(file, |dirty| dirty.late = true);
        }
    }

    /// Whether what was kept back of a file has outlived its lease.
    pub fn is_late(&self, file: &Handle, kept: Kept) -> bool {
        match kept {
            Kept::Mapped(pages) => {
                let gate = self.gate(file);
                gate.is_some_and(|gate| gate.pages.have_outlived(pages))
            }
            Kept::Buffered => self.dirty(file).is_some_and(|dirty| dirty.late),
        }
    }

    /// Pages that the kernel may hold.
    pub fn filled(&self) -> Vec<PagesOf> {
        let holds = |content: &Content| {
            let gate = content.gate.as_deref();
            gate.is_some_and(|gate| gate.pages.may_hold_pages())
        };
        let filled = self.contents().filter(|(_, content)| holds(content));
        filled.map(|(file, _)| PagesOf::all(**file)).collect()
    }

    /// Whether the kernel may hold pages of a file.
    pub fn may_hold_pages(&self, file: &Handle) -> bool {
        self.gate(file)
            .is_some_and(|gate| gate.pages.may_hold_pages())
    }

    /// Whether pages without a lease are still to be dropped.
    pub fn is_unclean(&self, file: &Handle) -> bool {
        self.weight.unclean > 0 && self.gate(file).is_some_and(Gate::is_unclean)
    }

    /// Waits until a file is clean; `None` if it is.
    pub fn wait_clean(&mut self, file: &Handle) -> Option<oneshot::Receiver<()>> {
        let gate = self.content_mut(file)?.gate.as_mut()?;
        if !gate.is_unclean() {
            return None;
        }
        let (tell, told) = oneshot::channel();
        gate.clean.push(tell);
        Some(told)
    }

    /// What a pass of the file does next. [`Step::Drop`] must be followed by
    /// [`Inodes::pages_dropped`]; anything else ends the pass.
    pub fn next_step(&mut self, file: Handle, now: BootTime, out: &mut Outcome) -> Step {
        let step = self.at_gate(file, out, |gate| {
            gate.passing = false;
            gate.pages.next_step()
        });
        if let Some(Step::Drop(span)) = step {
            self.drops.under_way.push((PagesOf { file, span }, now));
        }
        step.unwrap_or(Step::Idle)
    }

    /// A drop is done. Its pass goes on.
    pub fn pages_dropped(&mut self, pages: PagesOf, out: &mut Outcome) {
        let mut under_way = self.drops.under_way.iter();
        if let Some(at) = under_way.position(|(other, _)| *other == pages) {
            self.drops.under_way.swap_remove(at);
        }
        self.at_gate(pages.file, out, |gate| {
            gate.passing = true;
            gate.pages.dropped(pages.span);
        });
    }

    /// Sends what waits at files whose drop has been going on since before `limit`. Returns whether
    /// any drop is under way, or about to begin.
    pub fn unblock(&mut self, limit: BootTime, out: &mut Outcome) -> bool {
        let under_way = self.drops.under_way.iter();
        let late = under_way.filter(|(_, since)| *since <= limit);
        let late: Vec<PagesOf> = late.map(|(pages, _)| *pages).collect();
        for PagesOf { file, span } in late {
            self.with_pages(file, out, |gate| gate.stuck(span));
        }
        self.weight.passing > 0 || !self.drops.under_way.is_empty()
    }

    /// When the longest drop under way began.
    pub fn longest_drop(&self) -> Option<BootTime> {
        let since = self.drops.under_way.iter().map(|(_, since)| *since);
        since.min()
    }

    fn gate(&self, file: &Handle) -> Option<&Gate> {
        self.content(file)?.gate.as_deref()
    }

    fn has_gate(&self, file: &Handle) -> bool {
        self.gate(file).is_some()
    }

    fn at_gate<R>(
        &mut self,
        file: Handle,
        out: &mut Outcome,
        change: impl FnOnce(&mut Gate) -> R,
    ) -> Option<R> {
        let (result, clear) = self.change_content(&file, |content| {
            let result = change(content.gate.as_mut()?);
            Some((result, content.settle_gate(file, out)))
        })??;
        clear.into_iter().for_each(|id| self.drop_is_done(id, out));
        Some(result)
    }

    fn make_gate<R>(
        &mut self,
        file: Handle,
        out: &mut Outcome,
        change: impl FnOnce(&mut Gate) -> R,
    ) -> R {
        let (result, clear) = self.make_content(file, |content| {
            let result = change(content.gate.get_or_insert_default());
            (result, content.settle_gate(file, out))
        });
        clear.into_iter().for_each(|id| self.drop_is_done(id, out));
        result
    }
}

impl Content {
    /// Takes up what a change of the gate has brought about. Returns the drops that are done here.
    fn settle_gate(&mut self, me: Handle, out: &mut Outcome) -> Vec<DropId> {
        let Some(gate) = &mut self.gate else {
            return Vec::new();
        };
        let clear = gate.settle(me, out);
        if gate.is_idle() {
            self.gate = None;
        }
        clear
    }
}
