//! A small kernel, a server, and processes that read a file all the time, against the gate.
//!
//! Pages are as large as folios may be. Steps are chosen by proptest; what must hold is checked
//! after each.

use super::*;
use proptest::prelude::*;

const PAGES: usize = 6;

fn pages_of(first: usize, count: usize) -> Span {
    Span::new(first as u64 * FOLIO, count as u64 * FOLIO)
}

/// A page in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Absent,
    /// Locked by a READ.
    Reading,
    /// With the version of its content.
    Present(u64),
    /// Stored into through a mapping.
    Dirty(u64),
    /// Locked by a WRITE.
    Writing(u64),
}

#[derive(Clone, Debug)]
struct Reading {
    first: usize,
    count: usize,
    at: At,
    /// Everything was lost this often when it was sent.
    generation: u64,
}

/// Where a READ is.
#[derive(Clone, Debug)]
enum At {
    Parked,
    /// May be sent.
    Ready,
    Server,
    Answered {
        leased: bool,
        content: Vec<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    None,
    Dropping,
    Sent,
    Applied,
    /// Answered; pages that came in meanwhile are dropped.
    Ending,
}

/// How far the kernel is with a drop.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    span: Span,
    at: usize,
    end: usize,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Read { first: usize, count: usize },
    Store(usize),
    Send(u64),
    Serve(u64),
    Take(u64),
    BeginPass,
    Drop(usize),
    Stuck(usize),
    AnswerWrite(usize),
    OthersChange,
    TakeRecall,
    Approve,
    BeginOwn { first: usize, count: usize },
    ApplyOwn,
    AnswerOwn,
    EndOwn,
    Expire,
    ExpireHere,
}

#[derive(Clone, Debug)]
struct World {
    gate: PageGate,
    pages: Vec<Page>,
    /// Versions at the server.
    content: Vec<u64>,
    reads: BTreeMap<u64, Reading>,
    /// Drops under way.
    drops: Vec<Cursor>,
    generation: u64,
    ids: u64,
    /// The server's view of this client.
    held: bool,
    exclusive: bool,
    /// A recall the server has sent and not been approved of.
    owed: Option<u64>,
    recall_under_way: bool,
    approval_under_way: bool,
    /// A change of another client waits.
    waiting: bool,
    done: u32,
    own: Own,
    own_span: (usize, usize),
    last_own: u64,
}

impl World {
    fn new(exclusive: bool) -> Self {
        Self {
            gate: PageGate::new(),
            pages: vec![Page::Absent; PAGES],
            content: vec![0; PAGES],
            reads: BTreeMap::new(),
            drops: Vec::new(),
            generation: 0,
            ids: 0,
            held: false,
            exclusive,
            owed: None,
            recall_under_way: false,
            approval_under_way: false,
            waiting: false,
            done: 0,
            own: Own::None,
            own_span: (0, 0),
            last_own: 0,
        }
    }

    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Whether a drop waits for a locked page.
    fn is_blocked(&self, drop: Cursor) -> bool {
        let page = self.pages.get(drop.at);
        drop.at < drop.end && matches!(page, Some(Page::Reading | Page::Writing(_)))
    }

    /// What the kernel and the client do though the server doesn't answer.
    fn drops_go_on(&self) -> Vec<Event> {
        let goes_on = |(index, drop): (usize, &Cursor)| match self.is_blocked(*drop) {
            true => Event::Stuck(index),
            false => Event::Drop(index),
        };
        let mut events: Vec<Event> = self.drops.iter().enumerate().map(goes_on).collect();
        if self.gate.has_work() {
            events.push(Event::BeginPass);
        }
        events
    }

    /// What goes on whoever does nothing new.
    fn progress(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (&id, reading) in &self.reads {
            match reading.at {
                At::Parked => {}
                At::Ready => events.push(Event::Send(id)),
                At::Server => events.push(Event::Serve(id)),
                At::Answered { .. } => events.push(Event::Take(id)),
            }
        }
        events.extend(self.drops_go_on());
        let writing = |page: &usize| matches!(self.pages[*page], Page::Writing(_));
        events.extend((0..PAGES).filter(writing).map(Event::AnswerWrite));
        if self.recall_under_way {
            events.push(Event::TakeRecall);
        }
        if self.approval_under_way {
            events.push(Event::Approve);
        }
        match self.own {
            Own::Sent => events.push(Event::ApplyOwn),
            Own::Applied => events.push(Event::AnswerOwn),
            Own::Ending if !self.gate.is_pending(cause(self.last_own)) => {
                events.push(Event::EndOwn);
            }
            Own::None | Own::Dropping | Own::Ending => {}
        }
        events
    }

    /// What processes and other clients may begin.
    fn beginnings(&self, choice: u16) -> Vec<Event> {
        let first = usize::from(choice) % PAGES;
        let count = 1 + usize::from(choice / 7) % 3;
        let count = count.min(PAGES - first);
        let mut events = Vec::new();
        if self.pages[first] == Page::Absent {
            let absent = |page: &usize| self.pages[*page] == Page::Absent;
            let count = (first..first + count).take_while(absent).count();
            events.push(Event::Read { first, count });
        }
        if self.exclusive && matches!(self.pages[first], Page::Present(_)) {
            events.push(Event::Store(first));
        }
        if !self.waiting {
            events.push(Event::OthersChange);
        }
        if self.own == Own::None {
            events.push(Event::BeginOwn { first, count });
        }
        if choice.is_multiple_of(31) {
            events.push(Event::Expire);
        }
        if choice.is_multiple_of(29) {
            events.push(Event::ExpireHere);
        }
        events
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read { first, count } => self.begin_read(first, count),
            Event::Store(page) => {
                if let Page::Present(version) = self.pages[page] {
                    self.pages[page] = Page::Dirty(version);
                }
            }
            Event::Send(id) => self.send(id),
            Event::Serve(id) => self.serve(id),
            Event::Take(id) => self.take(id),
            Event::BeginPass => self.begin_pass(),
            Event::Drop(index) => self.drop_page(index),
            Event::Stuck(index) => self.gate.stuck(self.drops[index].span),
            Event::AnswerWrite(page) => self.answer_write(page),
            Event::OthersChange => self.others_change(),
            Event::TakeRecall => self.take_recall(),
            Event::Approve => self.approve(),
            Event::BeginOwn { first, count } => self.begin_own(first, count),
            Event::ApplyOwn => {
                self.own = Own::Applied;
                let (first, count) = self.own_span;
                self.content[first..first + count]
                    .iter_mut()
                    .for_each(|v| *v += 1);
            }
            Event::AnswerOwn => self.own = Own::Ending,
            Event::EndOwn => {
                self.check_own_pages();
                self.gate.close(cause(self.last_own));
                self.own = Own::None;
            }
            Event::Expire => self.expire(),
            Event::ExpireHere => self.expire_here(),
        }
        self.settle();
        self.check();
    }

    fn begin_read(&mut self, first: usize, count: usize) {
        let id = self.id();
        self.pages[first..first + count].fill(Page::Reading);
        let at = match self.gate.read_arrives(read(id), pages_of(first, count)) {
            Arrival::Go => At::Ready,
            Arrival::Wait => At::Parked,
        };
        let generation = self.generation;
        let reading = Reading {
            first,
            count,
            at,
            generation,
        };
        self.reads.insert(id, reading);
    }

    fn send(&mut self, id: u64) {
        self.gate.read_sent_again(read(id));
        let generation = self.generation;
        if let Some(reading) = self.reads.get_mut(&id) {
            reading.at = At::Server;
            reading.generation = generation;
        }
    }

    /// The server grants nothing to a client that owes an approval, and knows nothing of one
    /// that is under way.
    fn serve(&mut self, id: u64) {
        let leased = self.owed.is_none();
        self.held |= leased;
        if let Some(reading) = self.reads.get_mut(&id) {
            let range = reading.first..reading.first + reading.count;
            let content = self.content[range].to_vec();
            reading.at = At::Answered { leased, content };
        }
    }

    fn take(&mut self, id: u64) {
        let Some(reading) = self.reads.remove(&id) else {
            return;
        };
        let At::Answered {
            leased,
            ref content,
        } = reading.at
        else {
            return;
        };
        let reply = match (reading.generation == self.generation, leased) {
            (true, true) => ReadReply::Leased,
            (true, false) => ReadReply::Bare,
            (false, _) => ReadReply::Void,
        };
        match self.gate.read_answered(read(id), reply) {
            Verdict::Deliver => {
                for (page, version) in (reading.first..).zip(content) {
                    self.pages[page] = Page::Present(*version);
                }
            }
            Verdict::AskAgain => {
                let at = At::Ready;
                self.reads.insert(id, Reading { at, ..reading });
            }
        }
    }

    fn begin_pass(&mut self) {
        if let Step::Drop(span) = self.gate.next_step() {
            let page = |at: u64| (at.div_ceil(FOLIO) as usize).min(PAGES);
            self.drops.push(Cursor {
                span,
                at: (span.start() / FOLIO) as usize,
                end: page(span.end()),
            });
        }
    }

    fn drop_page(&mut self, index: usize) {
        let Cursor { span, at, end } = self.drops[index];
        if at >= end {
            self.drops.remove(index);
            self.gate.dropped(span);
            return;
        }
        match self.pages[at] {
            Page::Dirty(version) => {
                self.pages[at] = Page::Writing(version);
                self.gate.write_arrives(WriteId(at as u64), pages_of(at, 1));
            }
            Page::Absent | Page::Present(_) => {
                self.pages[at] = Page::Absent;
                self.drops[index].at += 1;
            }
            Page::Reading | Page::Writing(_) => panic!("blocked"),
        }
    }

    /// Write-back goes first at the server, whatever waits there.
    fn answer_write(&mut self, page: usize) {
        self.gate.write_ended(WriteId(page as u64));
        self.content[page] += 1;
        self.pages[page] = Page::Present(self.content[page]);
    }

    fn others_change(&mut self) {
        self.waiting = true;
        if self.held {
            let id = self.id();
            self.owed = Some(id);
            self.recall_under_way = true;
        } else {
            self.apply_others_change();
        }
    }

    fn apply_others_change(&mut self) {
        assert!(
            self.gate.is_unclean()
                || self
                    .pages
                    .iter()
                    .all(|p| !matches!(p, Page::Present(_) | Page::Dirty(_))),
            "pages left behind: {self:?}"
        );
        self.content.iter_mut().for_each(|version| *version += 1);
        self.waiting = false;
        self.done += 1;
    }

    fn take_recall(&mut self) {
        self.recall_under_way = false;
        if let Some(id) = self.owed {
            self.gate.open(cause(id), DropKind::Recall, Span::ALL);
        }
    }

    fn approve(&mut self) {
        self.approval_under_way = false;
        self.owed = None;
        self.held = false;
        self.apply_others_change();
    }

    fn begin_own(&mut self, first: usize, count: usize) {
        let id = self.id();
        (self.own_span, self.last_own) = ((first, count), id);
        self.own = Own::Dropping;
        let span = pages_of(first, count);
        self.gate.open(cause(id), DropKind::Change, span);
    }

    /// The leases end by the client's clock alone.
    fn expire_here(&mut self) {
        let sweep = self.id();
        self.generation += 1;
        self.gate.expire(cause(sweep));
    }

    /// The client's leases end, then the server's.
    fn expire(&mut self) {
        self.expire_here();
        if let Some(id) = self.owed {
            self.gate.close(cause(id));
        }
        (self.owed, self.held) = (None, false);
        (self.recall_under_way, self.approval_under_way) = (false, false);
        if std::mem::take(&mut self.waiting) {
            self.content.iter_mut().for_each(|version| *version += 1);
            self.done += 1;
        }
    }

    fn settle(&mut self) {
        while let Some(id) = self.gate.poll_released() {
            if let Some(reading) = self.reads.get_mut(&id.0) {
                reading.at = At::Ready;
            }
        }
        while let Some(id) = self.gate.poll_clear() {
            if Some(id.0) == self.owed {
                self.gate.close(id);
                self.approval_under_way = true;
                self.settle();
            } else if id.0 == self.last_own && self.own == Own::Dropping {
                self.check_own_pages();
                self.own = Own::Sent;
            }
        }
    }

    fn check_own_pages(&self) {
        let (first, count) = self.own_span;
        for (page, state) in self.pages.iter().enumerate().skip(first).take(count) {
            if let Page::Present(version) | Page::Dirty(version) = state {
                assert_eq!(
                    *version, self.content[page],
                    "older than an own change: {self:?}"
                );
            }
        }
    }

    /// What the kernel shows is what the server has. Excused is, while an own change is unanswered, what
    /// a READ brought that had to be answered because a drop was stuck on it (the change is answered
    /// after it is dropped, see [`World::check_own_pages`]).
    fn check(&self) {
        let (first, count) = self.own_span;
        let applied = matches!(self.own, Own::Applied | Own::Ending);
        for (page, state) in self.pages.iter().enumerate() {
            let excused = applied
                && self.gate.is_pending(cause(self.last_own))
                && (first..first + count).contains(&page);
            if let Page::Present(version) = state
                && !excused
                && !self.gate.is_unclean()
            {
                assert_eq!(
                    *version, self.content[page],
                    "page {page} is stale: {self:?}"
                );
            }
        }
    }

    /// Everything that is under way must end although a process reads on and on.
    fn drain(&mut self) {
        let mut page = 0;
        for step in 0..20_000_usize {
            let events = self.progress();
            let quiet = self.own == Own::None && !self.waiting && !self.gate.is_unclean();
            if quiet && events.is_empty() {
                return;
            }
            page = (page + 1) % PAGES;
            let rereads = step.is_multiple_of(3) && self.pages[page] == Page::Absent && !quiet;
            match events.get(step % events.len().max(1)) {
                _ if rereads => self.happen(Event::Read {
                    first: page,
                    count: 1,
                }),
                Some(event) => self.happen(*event),
                None => panic!("deadlock: {self:?}"),
            }
        }
        panic!("no end: {self:?}");
    }
}

fn run(exclusive: bool, choices: &[(bool, u16)]) -> World {
    let mut world = World::new(exclusive);
    for &(begin, choice) in choices {
        let mut events = world.progress();
        if begin || events.is_empty() {
            events = world.beginnings(choice);
        }
        if let Some(event) = events.get(usize::from(choice / 3) % events.len().max(1)) {
            world.happen(*event);
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_page_survives_and_everything_ends(
        exclusive: bool,
        choices in prop::collection::vec(any::<(bool, u16)>(), 0..300),
    ) {
        run(exclusive, &choices).drain();
    }

    #[test]
    fn what_has_expired_goes_though_the_server_answers_nothing(
        exclusive: bool,
        choices in prop::collection::vec(any::<(bool, u16)>(), 0..300),
    ) {
        let mut world = run(exclusive, &choices);
        world.happen(Event::Expire);
        let is_there = |page: &Page| matches!(page, Page::Present(_) | Page::Dirty(_));
        for step in 0..2_000_usize {
            let events = world.drops_go_on();
            match events.get(step % events.len().max(1)) {
                Some(event) => world.happen(*event),
                None => break,
            }
        }
        assert!(!world.pages.iter().any(is_there), "{world:?}");
    }
}
