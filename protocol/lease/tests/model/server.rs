//! The model's server: the shipped lease core and just enough of a service around it.

use super::client::{Fault, object, whole};
use super::wire::{Kind, Message, Value};
use leasefs_lease::server::{
    Action, Bouncing, Config, Core, Event, Grace, LoggedWrites, OpId, ReadItem, ReadKind,
    Reclaimed, Standing, Touch, Wanted,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Fence, Grant, KeyHash, Parts, SessionId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const HALF: Duration = Duration::from_secs(1);
const NOW: BootTime = BootTime::ZERO;

/// What outlives the server's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Disk {
    pub value: Value,
    /// Sessions on record.
    pub sessions: BTreeSet<u8>,
    /// Changes that have begun.
    pub journal: BTreeSet<(u8, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    core: Core,
    /// All changes asked for in this life.
    changes: BTreeSet<OpId>,
    /// Those that have been admitted and not run.
    pub running: BTreeSet<OpId>,
    answers: BTreeMap<(u8, u8), (Value, Stamp, Vec<Grant>)>,
}

pub fn session(client: u8) -> SessionId {
    SessionId([client; 16])
}

fn client(session: SessionId) -> u8 {
    let [client, ..] = session.0;
    client
}

fn op(client: u8, number: u8) -> OpId {
    OpId(u64::from(client) << 8 | u64::from(number))
}

fn parts_of(op: OpId) -> (u8, u8) {
    let [.., client, number] = op.0.to_be_bytes();
    (client, number)
}

/// Messages to clients, and how a change ended.
#[derive(Default)]
pub struct Out {
    pub messages: Vec<(u8, Message)>,
    pub completed: Option<Value>,
}

impl Server {
    pub fn start(disk: &Disk, fault: Fault) -> Self {
        let config = Config {
            term: 2 * HALF,
            drift_ppm: 0,
            overdue: HALF,
            // The walks and the simulation know conduct.
            probation: Duration::ZERO,
            first_fence: Fence(1),
            max_probation: Duration::ZERO,
            max_leases_per_client: 10,
            max_recalls_per_client: 10,
            // The walks and the simulation know what bounces.
            bouncing: Bouncing {
                waits: 0,
                ..Bouncing::default()
            },
        };
        let grace = Grace {
            max_term: 2 * HALF,
            drift_ppm: 0,
            sessions: disk.sessions.iter().copied().map(session).collect(),
            writes: LoggedWrites::Trusted(Vec::new()),
        };
        let grace = (fault != Fault::NoGrace).then_some(grace);
        Self {
            core: Core::new(config, NOW, grace),
            changes: BTreeSet::new(),
            running: BTreeSet::new(),
            answers: BTreeMap::new(),
        }
    }

    pub fn waits(&self) -> bool {
        !self.core.waiting().is_empty()
    }

    pub fn check(&self) -> Result<(), String> {
        self.core.check_invariants()
    }

    /// A `Hello`. Recalls are sent again before anything else.
    pub fn open(&mut self, who: u8, disk: &mut Disk, out: &mut Out) -> (Standing, bool) {
        disk.sessions.insert(who);
        let session = session(who);
        self.core.handle(
            NOW,
            Event::SessionOpened {
                session,
                client: KeyHash([who; 32]),
                drift_ppm: 0,
            },
        );
        let Some(Action::Opened {
            standing, renewed, ..
        }) = self.core.poll_action()
        else {
            panic!("a Hello is answered first");
        };
        let recalls = self.core.open_recalls(session).into_iter();
        out.messages
            .extend(recalls.map(|recall| (who, Message::Recall(recall))));
        self.act(disk, out);
        (standing, renewed)
    }

    /// Whether the lease stands.
    pub fn reclaim(&mut self, who: u8, lease: Reclaimed, disk: &mut Disk, out: &mut Out) -> bool {
        let stands = self.core.reclaim(NOW, session(who), lease).is_ok();
        self.act(disk, out);
        stands
    }

    pub fn reclaim_done(&mut self, who: u8, disk: &mut Disk, out: &mut Out) -> bool {
        self.core.handle(
            NOW,
            Event::ReclaimDone {
                session: session(who),
            },
        );
        let renews = self.core.renew(NOW, session(who));
        self.act(disk, out);
        renews
    }

    pub fn told(&mut self, who: u8, message: Message, disk: &mut Disk, out: &mut Out) {
        let session = session(who);
        match message {
            Message::Read { number, kind } => {
                let (kind, parts) = match kind {
                    Kind::Attrs => (ReadKind::Metadata, Parts::ATTRS),
                    Kind::Pages => (ReadKind::FillPages, Parts::DATA),
                };
                let items = vec![ReadItem {
                    object: object(),
                    parts,
                    name: None,
                }];
                let op = op(who, number);
                self.core.handle(
                    NOW,
                    Event::AdmitRead {
                        op,
                        session,
                        kind,
                        items,
                    },
                );
            }
            Message::Change { number } => self.change(who, number, disk, out),
            Message::KeepAlive { number } => {
                let renews = self.core.renew(NOW, session);
                out.messages
                    .push((who, Message::KeepAliveReply { number, renews }));
            }
            Message::Approve(recall) => self.core.handle(NOW, Event::Approve { session, recall }),
            other => panic!("{other:?} is not for a server"),
        }
        self.act(disk, out);
    }

    /// A change that was sent before attaches to its first copy or gets its first answer.
    fn change(&mut self, who: u8, number: u8, disk: &Disk, out: &mut Out) {
        let op = op(who, number);
        if let Some(answer) = self.answers.get(&(who, number)).cloned() {
            self.answer(who, number, Some(answer), out);
        } else if disk.journal.contains(&(who, number)) {
            self.answer(who, number, None, out);
        } else if self.core.op_state(op).is_none() {
            self.changes.insert(op);
            let touches = vec![Touch {
                object: object(),
                parts: whole(),
                names: Vec::new(),
            }];
            self.core.handle(
                NOW,
                Event::AdmitChange {
                    op,
                    session: session(who),
                    touches,
                    dropped: vec![object()],
                    writeback: false,
                    locked: None,
                },
            );
        }
    }

    fn answer(
        &mut self,
        who: u8,
        number: u8,
        result: Option<(Value, Stamp, Vec<Grant>)>,
        out: &mut Out,
    ) {
        let renews = self.core.renew(NOW, session(who));
        out.messages.push((
            who,
            Message::ChangeReply {
                number,
                result,
                renews,
            },
        ));
    }

    /// Runs an admitted change.
    pub fn run(&mut self, op: OpId, disk: &mut Disk, out: &mut Out) {
        self.running.remove(&op);
        disk.value += 1;
        disk.journal.insert(parts_of(op));
        let wants = vec![Wanted::read(object(), whole())];
        self.core.handle(NOW, Event::FinishChange { op, wants });
        self.act(disk, out);
    }

    /// The connection is gone: reads that wait are forgotten, changes are not.
    pub fn disconnected(&mut self, who: u8, disk: &mut Disk, out: &mut Out) {
        let reads = self.core.waiting().into_iter().map(|w| w.op);
        let of_client = reads.filter(|op| parts_of(*op).0 == who && !self.is_change(*op));
        for op in of_client.collect::<Vec<_>>() {
            self.core.handle(NOW, Event::Withdraw { op });
        }
        self.act(disk, out);
    }

    fn is_change(&self, op: OpId) -> bool {
        self.changes.contains(&op)
    }

    /// A half term passes.
    pub fn pass(&mut self, disk: &mut Disk, out: &mut Out) {
        let then = NOW + HALF;
        self.core.handle(then, Event::Tick);
        self.act_at(then, disk, out);
        self.core.rebase(then);
    }

    fn act(&mut self, disk: &mut Disk, out: &mut Out) {
        self.act_at(NOW, disk, out);
    }

    fn act_at(&mut self, now: BootTime, disk: &mut Disk, out: &mut Out) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Admitted { op, .. } if self.is_change(op) => {
                    self.running.insert(op);
                }
                Action::Admitted { op, grants } => {
                    let (who, number) = parts_of(op);
                    let renews = self.core.renew(now, session(who));
                    let value = disk.value;
                    out.messages.push((
                        who,
                        Message::ReadReply {
                            number,
                            value,
                            grants,
                            renews,
                        },
                    ));
                }
                Action::Finished { op, stamp, grants } => {
                    let (who, number) = parts_of(op);
                    let answer = (disk.value, stamp, grants);
                    self.answers.insert((who, number), answer.clone());
                    out.completed = Some(disk.value);
                    self.answer(who, number, Some(answer), out);
                }
                Action::Recall { session, recall } => {
                    out.messages
                        .push((client(session), Message::Recall(recall)));
                }
                Action::Expired { session } => {
                    disk.sessions.remove(&client(session));
                }
                Action::Opened { .. } | Action::GraceEnded => {}
                // The walks and the simulation know locks.
                Action::LockLost { .. } | Action::Locked { .. } | Action::LockGranted { .. } => {}
            }
        }
    }
}
