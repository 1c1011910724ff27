//! The pages of one file in the kernel: READs that fill them, WRITEs that write mapped ones back,
//! and passes that drop them.
//!
//! Dropping a page blocks while a READ or WRITE of it is unanswered, and the kernel sends new READs
//! while a pass goes on. Hence:
//!
//! - A pass leaves out what is in flight ([`PageGate::next_step`]). What the READs bring is dropped
//!   after their answer: their range comes back into the pass *before* the kernel is answered.
//! - A READ that arrives later is *parked*: the kernel asks because its pages there hold nothing,
//!   so the pass has nothing to do with them. It goes on when what the pass is for has ended.
//! - Only the drop under way may still run into such a page. If it is found blocked
//!   ([`PageGate::stuck`]), the READs that wait there are sent; if that doesn't help (folios that
//!   several READs share), every waiting READ of the file. Freedom from deadlock rests on this.
//! - What a blocked drop doesn't get to, since the kernel drops page after page, is dropped beside it: it may be
//!   blocked for as long as the server can't be reached, and the lease ends in time. In smaller and smaller pieces, so that one
//!   page blocks few of all that may be under way.
//! - Write-back of mapped pages is never parked.
//!
//! So after a pass has begun a page is answered only if a drop was stuck on it: a process that
//! reads again and again can't keep a pass from ending.
//!
//! A *cause* to drop ends in one of three ways. [`DropKind::Recall`]: when it is clear
//! ([`PageGate::poll_clear`]) the recall is approved, then [`PageGate::close`].
//! [`DropKind::Change`] (an own change): when it is clear the change is sent, and it stays closed
//! to READs until the change is answered, so that none is answered with the state before. (One that
//! a drop was stuck on is answered nevertheless; then the change's cause isn't clear any more until
//! that is dropped.) Its caller is answered only when it is clear (again). [`DropKind::Sweep`]
//! (leases are gone): ends by itself; READs in flight are left out, they find that they must ask
//! again.
//!
//! The server leases nothing to who owes an approval. A READ that a drop is stuck on and that was sent while
//! the recall was open is answered without a lease, then: nothing changes before the approval.

use super::spans::{Span, Spans};
use crate::planted::{self, Bug};
use std::collections::{BTreeMap, VecDeque};

/// A READ that fills pages; unique in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// A WRITE of a mapped page; unique in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// A cause to drop pages; unique in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DropId(pub u64);

/// Why pages are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropKind {
    /// The server recalls the file's data.
    Recall,
    /// An own change.
    Change,
    /// The lease is gone.
    Sweep,
}

/// What becomes of a READ that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It goes to the server now.
    Go,
    /// It waits until [`PageGate::poll_released`] names it.
    Wait,
}

/// What the server's reply to a READ says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadReply {
    /// A lease covers it, granted since everything was lost for the last time.
    Leased,
    /// No lease covers it.
    Bare,
    /// Nor may a recall: the leases have ended since it was asked for, or stand no more.
    Void,
}

/// What to do with the reply to a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the kernel.
    Deliver,
    /// Ask the server again: nothing would stand behind the page.
    AskAgain,
}

/// What a pass does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Drop these pages, then [`PageGate::dropped`].
    Drop(Span),
    /// A drop is under way that isn't stuck, or all that is left is in flight.
    Wait,
    /// Nothing is left to drop.
    Idle,
}

/// Most bytes dropped in one go: about half a millisecond of work for the kernel.
const CHUNK: u64 = 4 << 20;
/// READs come in whole pages of at least this size.
const PAGE: u64 = 4096;
/// Folios are larger, up to this: a READ blocks the drop of whatever shares one with it.
const FOLIO: u64 = 2 << 20;
/// A drop beside a stuck one goes over this part of its bytes.
const BESIDE: u64 = 4;
/// Drops under way at a time, all but one of them stuck.
const AT_ONCE: usize = 16;
/// A drop that was found stuck this often isn't helped by the READs of its own folios: every other
/// one that no own change holds back is sent.
const HELPLESS: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    span: Span,
    behind: Behind,
}

/// What stands behind the answer to a READ that brings no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Behind {
    Nothing,
    /// A recall of its range that was open when it was sent, and isn't approved before the answer.
    Recall,
    /// Nor could a lease: all have ended since. It brings nothing.
    Void,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cause {
    kind: DropKind,
    span: Span,
    clear: bool,
}

/// A drop under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Active {
    span: Span,
    /// What was answered meanwhile.
    again: Spans,
    /// What of it since all leases ended for the last time.
    leased: Spans,
    /// How often it was found stuck.
    stuck: u32,
}

/// The pages of one file. See the module's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageGate {
    /// What the kernel may hold.
    filled: Spans,
    /// What of it was there when the lease it had come under ended.
    outlived: Spans,
    reads: BTreeMap<ReadId, Read>,
    parked: BTreeMap<ReadId, Span>,
    writes: BTreeMap<WriteId, Span>,
    causes: BTreeMap<DropId, Cause>,
    /// What is still to be dropped, without what is being dropped by a drop that isn't stuck.
    todo: Spans,
    active: Vec<Active>,
    released: VecDeque<ReadId>,
    clear: VecDeque<DropId>,
}

impl PageGate {
    /// A file of which the kernel holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A READ that will leave pages in the kernel arrives.
    pub fn read_arrives(&mut self, id: ReadId, span: Span) -> Arrival {
        let span = span.paged(PAGE);
        // The kernel asks because its pages there hold nothing.
        self.todo.remove(span);
        self.outlived.remove(span);
        let arrival = self.judge(span);
        match arrival {
            Arrival::Go => self.send(id, span),
            Arrival::Wait => {
                self.parked.insert(id, span);
            }
        }
        self.settle();
        arrival
    }

    /// A READ is answered by the server. To be called *before* the kernel is answered: so the range
    /// is to be dropped again before its page is unlocked.
    pub fn read_answered(&mut self, id: ReadId, reply: ReadReply) -> Verdict {
        let Some(read) = self.reads.get(&id) else {
            return Verdict::AskAgain;
        };
        let span = read.span;
        let recalled = self.has_cause(span, |kind| kind == DropKind::Recall);
        let covered = match reply {
            ReadReply::Leased => true,
            ReadReply::Bare => read.behind == Behind::Recall && recalled,
            ReadReply::Void => false,
        };
        if !covered && !planted::is(Bug::BareFill) {
            self.send(id, span);
            return Verdict::AskAgain;
        }
        self.reads.remove(&id);
        self.filled.insert(span);
        for active in &mut self.active {
            active.again.insert(span);
            active.leased.insert(span);
        }
        if self.has_cause(span, |kind| kind != DropKind::Sweep) {
            self.todo.insert(span);
        } else {
            // A sweep concerns what was there before: this is covered by a new lease, and while it
            // was under way its pages held nothing.
            self.todo.remove(span);
        }
        self.settle();
        Verdict::Deliver
    }

    /// A READ was answered, but what it has brought may not be used while the recall is open: its page
    /// could be stored into without the exclusive lease, and two clients that do so wait for each
    /// other's write-back. True: it is parked, like one that arrives now; its page holds nothing, so the
    /// approval doesn't wait for it. False: a drop is stuck on it, or nothing is recalled.
    pub fn read_parks(&mut self, id: ReadId) -> bool {
        let Some(span) = self.reads.get(&id).map(|read| read.span) else {
            return false;
        };
        let recalled = self.has_cause(span, |kind| kind == DropKind::Recall);
        if !recalled || self.judge(span) == Arrival::Go {
            return false;
        }
        self.reads.remove(&id);
        self.todo.remove(span);
        self.parked.insert(id, span);
        self.settle();
        true
    }

    /// A READ ends without leaving pages: refused, or its caller is gone.
    pub fn read_ended(&mut self, id: ReadId) {
        self.reads.remove(&id);
        self.parked.remove(&id);
        self.settle();
    }

    /// A READ is sent a second time for another reason than [`Verdict::AskAgain`].
    pub fn read_sent_again(&mut self, id: ReadId) {
        if let Some(span) = self.reads.get(&id).map(|read| read.span) {
            self.send(id, span);
        }
    }

    /// A WRITE of mapped pages arrives: they are locked until it is answered.
    pub fn write_arrives(&mut self, id: WriteId, span: Span) {
        self.writes.insert(id, span.paged(PAGE));
    }

    /// The WRITE is about to be answered.
    pub fn write_ended(&mut self, id: WriteId) {
        self.writes.remove(&id);
        self.settle();
    }

    /// Pages must go. The cause is clear when [`PageGate::poll_clear`] names it, which may be at
    /// once.
    pub fn open(&mut self, id: DropId, kind: DropKind, span: Span) {
        let span = span.paged(PAGE);
        let cause = Cause {
            kind,
            span,
            clear: false,
        };
        self.causes.insert(id, cause);
        self.todo.insert_all(&self.filled.within(span));
        // What is in flight is dropped when it is answered; what is being dropped is on its way.
        self.settle();
    }

    /// What pages were dropped for has ended; parked READs go on. Unknown causes are ignored.
    pub fn close(&mut self, id: DropId) {
        if self.causes.remove(&id).is_none() {
            return;
        }
        if self.causes.is_empty() {
            self.todo.clear();
        }
        self.settle();
    }

    /// Whether a cause is open and not clear.
    pub fn is_pending(&self, id: DropId) -> bool {
        self.causes.get(&id).is_some_and(|cause| !cause.clear)
    }

    /// Every lease is gone: everything in the kernel must go, and what is in flight can't be answered with
    /// what was asked for before. Recalls stay open until they are closed: by the server's clock the leases may
    /// stand still, and it waits for the approvals.
    pub fn expire(&mut self, sweep: DropId) {
        for read in self.reads.values_mut() {
            read.behind = Behind::Void;
        }
        self.active.iter_mut().for_each(|drop| drop.leased.clear());
        self.open(sweep, DropKind::Sweep, Span::ALL);
    }

    /// The lease under which the kernel's pages were stored has ended, though the session may get another one before
    /// they are gone.
    pub fn outlive(&mut self) {
        let filled = self.filled.clone();
        self.outlived.insert_all(&filled);
        for asked in self.asked() {
            self.outlived.remove(asked);
        }
    }

    /// Whether these pages, which the kernel writes back, have outlived their lease.
    pub fn have_outlived(&self, pages: Span) -> bool {
        self.outlived.intersects(pages.paged(PAGE)) && !planted::is(Bug::LatePages)
    }

    /// The kernel has forgotten the file, and so its pages.
    pub fn forgotten(&mut self) {
        if self.reads.is_empty() && self.active.is_empty() {
            self.filled.clear();
            self.outlived.clear();
            self.todo.clear();
            self.settle();
        }
    }

    /// What to drop next. To be asked again after each [`PageGate::dropped`], and, after
    /// [`Step::Wait`], when something in flight has been answered.
    pub fn next_step(&mut self) -> Step {
        if !self.may_begin() {
            return Step::Wait;
        }
        match self.droppable() {
            Some(span) => {
                self.todo.remove(span);
                self.active.push(Active {
                    span,
                    again: Spans::default(),
                    leased: Spans::default(),
                    stuck: 0,
                });
                Step::Drop(span)
            }
            None if self.todo.is_empty() => Step::Idle,
            None => Step::Wait,
        }
    }

    /// Whether [`PageGate::next_step`] has something to drop.
    pub fn has_work(&self) -> bool {
        self.may_begin() && !self.todo.is_empty() && self.droppable().is_some()
    }

    /// A drop that [`PageGate::next_step`] asked for is done.
    pub fn dropped(&mut self, span: Span) {
        let at = self.active.iter().position(|active| active.span == span);
        if let Some(done) = at.map(|at| self.active.remove(at)) {
            self.filled.remove(span);
            self.outlived.remove(span);
            self.filled.insert_all(&done.again);
            let mut todo = Spans::default();
            for met in done.again.iter() {
                todo.insert_all(&self.todo.within(met));
            }
            self.todo.remove(span);
            self.todo.insert_all(&todo);
        }
        self.settle();
    }

    /// A drop under way has lasted longer than dropping takes: it waits for something in flight.
    /// READs that wait are sent. To be called again while it lasts.
    pub fn stuck(&mut self, span: Span) {
        let same = self.active.iter_mut().filter(|active| active.span == span);
        let Some(stuck) = same.min_by_key(|active| active.stuck) else {
            return;
        };
        stuck.stuck += 1;
        let first = stuck.stuck == 1;
        self.settle();
        if first && !self.causes.is_empty() {
            self.todo.insert_all(&self.filled.within(span));
            for asked in self.asked() {
                self.todo.remove(asked);
            }
        }
    }

    /// A parked READ that goes to the server now.
    pub fn poll_released(&mut self) -> Option<ReadId> {
        self.released.pop_front()
    }

    /// A cause that has become clear: nothing of its range is in the kernel, nothing in flight can
    /// bring it back. (A change's cause may become clear more than once.)
    pub fn poll_clear(&mut self) -> Option<DropId> {
        self.clear.pop_front()
    }

    /// Whether the leases' loss has left pages that are not dropped yet: what is told of the file
    /// must wait for that.
    pub fn is_unclean(&self) -> bool {
        !planted::is(Bug::AnswerUnclean) && self.causes.values().any(|c| c.kind == DropKind::Sweep)
    }

    /// Whether the kernel may hold pages of the file, or is about to.
    pub fn may_hold_pages(&self) -> bool {
        !self.filled.is_empty() || !self.reads.is_empty() || !self.parked.is_empty()
    }

    /// Whether nothing is known of the file that must be kept.
    pub fn is_idle(&self) -> bool {
        !self.may_hold_pages()
            && self.writes.is_empty()
            && self.causes.is_empty()
            && self.active.is_empty()
    }

    /// The next bytes to drop that nothing in flight holds; nor what was answered beside a stuck drop, unless
    /// its lease has ended: it could be read in again for as long as that drop lasts. First what no drop has begun with, then pieces of what is
    /// being dropped, the largest first.
    fn droppable(&self) -> Option<Span> {
        let answered = self.active.iter().flat_map(|drop| drop.leased.iter());
        let reads = self.reads.values().map(|read| read.span);
        let in_flight = reads.chain(self.writes.values().copied());
        let mut left = self.todo.clone();
        in_flight.chain(answered).for_each(|hole| left.remove(hole));
        let lengths = self.active.iter().map(|drop| drop.span.len());
        let mut lengths: Vec<u64> = lengths.filter(|length| *length > PAGE).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let begins_with = [(u64::MAX, CHUNK)].into_iter();
        let pieces = lengths.into_iter().rev();
        let pieces = pieces.map(|length| (length, (length / BESIDE).next_multiple_of(PAGE)));
        let shorter = |than| {
            let dropping = self.active.iter().map(|drop| drop.span);
            dropping.filter(move |span| span.len() < than)
        };
        let mut steps = begins_with.chain(pieces);
        steps.find_map(|(length, most)| left.first_outside(shorter(length), most))
    }

    /// Where the kernel asks, since it has nothing there.
    fn asked(&self) -> Vec<Span> {
        let sent = self.reads.values().map(|read| read.span);
        sent.chain(self.parked.values().copied()).collect()
    }

    fn may_begin(&self) -> bool {
        self.active.len() < AT_ONCE && self.active.iter().all(|drop| drop.stuck > 0)
    }

    fn is_dropping(&self, span: Span) -> bool {
        self.active.iter().any(|drop| drop.span.intersects(span))
    }

    fn judge(&self, span: Span) -> Arrival {
        let blocks = |drop: &Active| drop.stuck > 0 && drop.span.paged(FOLIO).intersects(span);
        if self.active.iter().any(blocks) {
            return Arrival::Go;
        }
        // Not under an own change, which may have been sent: the page would show the state before
        // for as long as the drop is stuck, while others see the state behind.
        let helpless = self.active.iter().any(|drop| drop.stuck >= HELPLESS);
        if helpless && !self.has_cause(span, |kind| kind == DropKind::Change) {
            return Arrival::Go;
        }
        if self.is_dropping(span) {
            return Arrival::Wait;
        }
        match self.has_cause(span, |kind| kind != DropKind::Sweep) {
            true => Arrival::Wait,
            false => Arrival::Go,
        }
    }

    /// Counts a READ as sent. What it brings is dropped again under every open cause, so none of
    /// them is clear before.
    fn send(&mut self, id: ReadId, span: Span) {
        let behind = match self.has_cause(span, |kind| kind == DropKind::Recall) {
            true => Behind::Recall,
            false => Behind::Nothing,
        };
        self.reads.insert(id, Read { span, behind });
        for cause in self.causes.values_mut() {
            if cause.kind != DropKind::Sweep && cause.span.intersects(span) {
                cause.clear = false;
            }
        }
    }

    fn has_cause(&self, span: Span, kind: impl Fn(DropKind) -> bool) -> bool {
        self.causes
            .values()
            .any(|cause| kind(cause.kind) && cause.span.intersects(span))
    }

    /// Lets go what need not wait any more and finds out which causes are clear.
    fn settle(&mut self) {
        let parked = std::mem::take(&mut self.parked);
        for (id, span) in parked {
            match self.judge(span) {
                Arrival::Go => {
                    self.send(id, span);
                    self.released.push_back(id);
                }
                Arrival::Wait => {
                    self.parked.insert(id, span);
                }
            }
        }
        let ids: Vec<DropId> = self.causes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.settle_cause(id));
    }

    fn settle_cause(&mut self, id: DropId) {
        let Some(cause) = self.causes.get(&id) else {
            return;
        };
        if cause.clear || !self.is_clear(cause) {
            return;
        }
        if cause.kind == DropKind::Sweep {
            self.causes.remove(&id);
            if self.causes.is_empty() {
                self.todo.clear();
            }
        } else if let Some(cause) = self.causes.get_mut(&id) {
            cause.clear = true;
        }
        self.clear.push_back(id);
    }

    fn is_clear(&self, cause: &Cause) -> bool {
        let span = cause.span;
        let mut writes = self.writes.values();
        let held = writes.any(|write| write.intersects(span)) || self.is_dropping(span);
        let mut reads = self.reads.values();
        match cause.kind {
            _ if held => false,
            // A READ in flight holds empty pages.
            DropKind::Sweep => {
                let asked = reads.map(|read| read.span);
                self.todo.first_outside(asked, u64::MAX).is_none()
            }
            kind => {
                let in_vain = |read: &Read| kind == DropKind::Recall && read.behind == Behind::Void;
                let brings = |read: &Read| read.span.intersects(span) && !in_vain(read);
                !self.todo.intersects(span) && !reads.any(brings)
            }
        }
    }
}

#[cfg(test)]
mod tests;
