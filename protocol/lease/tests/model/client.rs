//! A client of the model: the shipped lease state, one cached value per part, and what it has
//! asked and not been told. Its clock counts half terms.

use super::wire::{Kind, Message, Value};
use leasefs_lease::client::{Asked, ChangeOf, Leases};
use leasefs_protocol::{Grant, Handle, Parts, Recall, Scope, Stamp};

/// Half terms in a term.
pub const TERM: u8 = 2;

/// A mistake the model is expected to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    None,
    /// Recalls are approved and nothing is dropped.
    ApproveWithoutDrop,
    /// What is cached is used for ever.
    IgnoreExpiry,
    /// Whatever a reply grants is cached, whenever it comes.
    IgnoreStamps,
    /// An own change doesn't drop what it makes outdated.
    KeepAcrossOwnChange,
    /// A restarted server knows of no earlier leases.
    NoGrace,
}

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    pub number: u8,
    pub asked: Asked,
    /// Half terms for which leases are valid if the reply renews; counted from the sending.
    pub lasts: u8,
    /// Newest completed change when it began: an older answer is stale.
    pub floor: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub alive: bool,
    pub connected: bool,
    pub reclaiming: bool,
    pub leases: Leases,
    pub attrs: Option<Value>,
    pub data: Option<Value>,
    /// Half terms for which its leases are valid.
    pub valid: u8,
    pub read: Option<(Kind, Pending)>,
    pub change: Option<Pending>,
    pub keep_alive: Option<Pending>,
    pub reads_left: u8,
    pub changes_left: u8,
    pub keep_alives_left: u8,
    pub stale_answer: bool,
    numbers: u8,
}

pub fn object() -> Handle {
    Handle::new(b"f").expect("one byte")
}

pub fn whole() -> Parts {
    Parts::ATTRS | Parts::DATA
}

fn own_change() -> [ChangeOf; 1] {
    [ChangeOf {
        object: object(),
        parts: whole(),
        names: Vec::new(),
    }]
}

impl Client {
    pub fn new(reads: u8, changes: u8, keep_alives: u8) -> Self {
        Self {
            alive: true,
            connected: false,
            reclaiming: false,
            leases: Leases::new(),
            attrs: None,
            data: None,
            valid: 0,
            read: None,
            change: None,
            keep_alive: None,
            reads_left: reads,
            changes_left: changes,
            keep_alives_left: keep_alives,
            stale_answer: false,
            numbers: 0,
        }
    }

    /// What an application would be shown without asking the server.
    pub fn served(&self, fault: Fault) -> impl Iterator<Item = Value> {
        let live = self.alive && (self.valid > 0 || fault == Fault::IgnoreExpiry);
        [self.attrs, self.data]
            .into_iter()
            .flatten()
            .filter(move |_| live)
    }

    fn pending(&mut self, floor: Value) -> Pending {
        self.numbers += 1;
        Pending {
            number: self.numbers,
            asked: self.leases.ask(),
            lasts: TERM,
            floor,
        }
    }

    pub fn begin_read(&mut self, kind: Kind, floor: Value) -> Message {
        self.reads_left -= 1;
        let pending = self.pending(floor);
        let number = pending.number;
        self.read = Some((kind, pending));
        Message::Read { number, kind }
    }

    pub fn begin_change(&mut self, floor: Value, fault: Fault) -> Message {
        self.changes_left -= 1;
        if fault != Fault::KeepAcrossOwnChange {
            (self.attrs, self.data) = (None, None);
        }
        self.leases.begin_change(&own_change());
        let pending = self.pending(floor);
        let number = pending.number;
        self.change = Some(pending);
        Message::Change { number }
    }

    pub fn begin_keep_alive(&mut self) -> Message {
        self.keep_alives_left -= 1;
        let pending = self.pending(0);
        let number = pending.number;
        self.keep_alive = Some(pending);
        Message::KeepAlive { number }
    }

    /// Requests without an answer, to be sent again on a new connection: reads as new ones.
    pub fn send_again(&mut self) -> Vec<Message> {
        self.keep_alive = None;
        let mut messages = Vec::new();
        if let Some((kind, pending)) = self.read.take() {
            self.reads_left += 1;
            messages.push(self.begin_read(kind, pending.floor));
        }
        if let Some(change) = &mut self.change {
            change.lasts = TERM;
            messages.push(Message::Change {
                number: change.number,
            });
        }
        messages
    }

    pub fn renewed(&mut self, lasts: u8) {
        self.valid = self.valid.max(lasts);
    }

    /// A half term passes. The client's leases end before the server's.
    pub fn pass(&mut self, fault: Fault) {
        for pending in self.all_pending() {
            pending.lasts = pending.lasts.saturating_sub(1);
        }
        if self.valid == 1 {
            self.expire(fault);
        }
        self.valid = self.valid.saturating_sub(1);
    }

    fn all_pending(&mut self) -> impl Iterator<Item = &mut Pending> {
        let read = self.read.as_mut().map(|(_, pending)| pending);
        read.into_iter()
            .chain(&mut self.change)
            .chain(&mut self.keep_alive)
    }

    /// Everything leased is dropped; requests under way renew nothing.
    pub fn expire(&mut self, fault: Fault) {
        if fault != Fault::IgnoreExpiry {
            (self.attrs, self.data) = (None, None);
        }
        self.leases.expire();
        self.all_pending().for_each(|pending| pending.lasts = 0);
    }

    pub fn lost(&mut self, object: Handle) {
        self.leases.lost(&object);
        (self.attrs, self.data) = (None, None);
    }

    pub fn told(&mut self, message: Message, fault: Fault) -> Option<Message> {
        match message {
            Message::ReadReply {
                number,
                value,
                grants,
                renews,
            } => {
                self.read_reply(number, value, &grants, renews, fault);
            }
            Message::ChangeReply {
                number,
                result,
                renews,
            } => {
                self.change_reply(number, result, renews, fault);
            }
            Message::KeepAliveReply { number, renews } => {
                let told = self.keep_alive.take_if(|pending| pending.number == number);
                told.filter(|_| renews)
                    .inspect(|told| self.renewed(told.lasts));
            }
            Message::Recall(recall) => return Some(self.recalled(&recall, fault)),
            Message::Read { .. }
            | Message::Change { .. }
            | Message::KeepAlive { .. }
            | Message::Approve(_) => {}
        }
        None
    }

    fn recalled(&mut self, recall: &Recall, fault: Fault) -> Message {
        let Scope::Object { parts, .. } = &recall.scope else {
            panic!("the model never shuts down");
        };
        self.leases.recall(recall);
        if fault != Fault::ApproveWithoutDrop {
            self.attrs.take_if(|_| parts.contains(Parts::ATTRS));
            self.data.take_if(|_| parts.contains(Parts::DATA));
        }
        self.leases.approved(recall.id);
        Message::Approve(recall.id)
    }

    fn read_reply(
        &mut self,
        number: u8,
        value: Value,
        grants: &[Grant],
        renews: bool,
        fault: Fault,
    ) {
        let Some((_, told)) = self.read.take_if(|(_, pending)| pending.number == number) else {
            return;
        };
        self.stale_answer |= value < told.floor;
        self.take_in(&told, renews, value, grants, fault);
    }

    fn take_in(
        &mut self,
        told: &Pending,
        renews: bool,
        value: Value,
        grants: &[Grant],
        fault: Fault,
    ) {
        if renews {
            self.renewed(told.lasts);
        }
        for grant in grants {
            let cacheable = self.leases.granted(told.asked, grant);
            let parts = match fault {
                Fault::IgnoreStamps => grant.parts,
                _ => cacheable,
            };
            if parts.contains(Parts::ATTRS) {
                self.attrs = Some(value);
            }
            if parts.contains(Parts::DATA) {
                self.data = Some(value);
            }
        }
    }

    fn change_reply(
        &mut self,
        number: u8,
        result: Option<(Value, Stamp, Vec<Grant>)>,
        renews: bool,
        fault: Fault,
    ) {
        let Some(told) = self.change.take_if(|pending| pending.number == number) else {
            return;
        };
        let stamp = result.as_ref().map(|(_, stamp, _)| *stamp);
        self.leases.end_change(&own_change(), stamp);
        let (value, _, grants) = result.unwrap_or_default();
        self.take_in(&told, renews, value, &grants, fault);
    }
}
