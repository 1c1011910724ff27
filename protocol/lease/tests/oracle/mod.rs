//! What clients may believe, kept apart from the core's own books: a second opinion on whether
//! an admission is safe.

use leasefs_lease::server::{Action, Event, LockAnswer, OpId, ReadItem, ReadKind, Touch};
use leasefs_lease::time::BootTime;
use leasefs_protocol::lock::LockOutcome;
use leasefs_protocol::{
    Grant, Handle, LockEpoch, Mode, Parts, RawName, Recall, RecallId, Scope, SessionId, Stamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One thing a client can have cached of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Part(Parts),
    Name(Vec<u8>),
}

const WHOLE: [Parts; 3] = [Parts::ATTRS, Parts::DATA, Parts::LISTING];

fn parts_of(parts: Parts) -> impl Iterator<Item = Parts> {
    WHOLE.into_iter().filter(move |part| parts.contains(*part))
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// When its own clock ends its leases.
    valid_until: BootTime,
    cached: BTreeMap<(Handle, Item), Stamp>,
    /// What it may have changed without anybody knowing.
    stores: BTreeMap<(Handle, Parts), Stamp>,
    recalls: BTreeMap<RecallId, Recall>,
    newest: Stamp,
    /// Files whose locks it decides, or has decided.
    decides: BTreeMap<Handle, Stamp>,
    /// In which it has locks.
    pub epoch: LockEpoch,
}

#[derive(Clone, Debug)]
enum Op {
    Read {
        session: SessionId,
        kind: ReadKind,
        items: Vec<ReadItem>,
    },
    Change {
        session: SessionId,
        touches: Vec<Touch>,
        dropped: Vec<Handle>,
        running: bool,
    },
    Lock {
        session: SessionId,
        object: Handle,
    },
}

/// The clients' side of a walk.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    term: Duration,
    clients: BTreeMap<SessionId, Client>,
    ops: BTreeMap<OpId, Op>,
    /// Sessions that get no leases because of their client's conduct.
    pub denied: BTreeSet<SessionId>,
}

impl Oracle {
    pub fn new(term: Duration) -> Self {
        Self {
            term,
            ..Self::default()
        }
    }

    /// Recalls the session has not approved.
    pub fn recalls(&self, session: SessionId) -> Vec<RecallId> {
        let client = self.clients.get(&session);
        client.map_or(Vec::new(), |c| c.recalls.keys().copied().collect())
    }

    /// Changes that have been admitted and not finished.
    pub fn running(&self) -> Vec<OpId> {
        let running = |op: &Op| matches!(op, Op::Change { running: true, .. });
        let ops = self.ops.iter().filter(|(_, op)| running(op));
        ops.map(|(id, _)| *id).collect()
    }

    /// Operations that have not been admitted.
    pub fn waiting(&self) -> Vec<OpId> {
        let running = |op: &Op| matches!(op, Op::Change { running: true, .. });
        let ops = self.ops.iter().filter(|(_, op)| !running(op));
        ops.map(|(id, _)| *id).collect()
    }

    /// The last right to decide a file's locks that the session was given.
    pub fn delegation(&self, session: SessionId, object: &Handle) -> Stamp {
        let client = self.clients.get(&session);
        let given = client.and_then(|client| client.decides.get(object));
        given.copied().unwrap_or_default()
    }

    /// The tenure of the session's locks, as far as it has heard.
    pub fn epoch(&self, session: SessionId) -> LockEpoch {
        let client = self.clients.get(&session);
        client.map_or(LockEpoch::default(), |client| client.epoch)
    }

    pub fn renewed(&mut self, session: SessionId, now: BootTime) {
        self.clients.entry(session).or_default().valid_until = now + self.term;
    }

    /// Before the core takes in an event.
    pub fn sees(&mut self, event: &Event) {
        match event.clone() {
            Event::AdmitRead {
                op,
                session,
                kind,
                items,
            } => {
                self.ops.insert(
                    op,
                    Op::Read {
                        session,
                        kind,
                        items,
                    },
                );
            }
            Event::AdmitChange {
                op,
                session,
                touches,
                dropped,
                ..
            } => {
                let running = false;
                self.ops.insert(
                    op,
                    Op::Change {
                        session,
                        touches,
                        dropped,
                        running,
                    },
                );
            }
            Event::Requeue {
                op,
                touches: new,
                dropped: drops,
            } => {
                if let Some(Op::Change {
                    touches,
                    dropped,
                    running,
                    ..
                }) = self.ops.get_mut(&op)
                {
                    (*touches, *dropped, *running) = (new, drops, false);
                }
            }
            Event::Lock {
                op,
                session,
                object,
                ..
            } => {
                self.ops.insert(op, Op::Lock { session, object });
            }
            Event::Withdraw { op } => drop(self.ops.remove(&op)),
            Event::SessionEnded { session } => drop(self.clients.remove(&session)),
            Event::Approve { session, recall } => self.approve(session, recall),
            Event::Release {
                session,
                object,
                parts,
                seen,
            } => {
                if let Some(client) = self.clients.get_mut(&session) {
                    client.forget(
                        &Scope::Object {
                            object,
                            parts,
                            names: Vec::new(),
                        },
                        seen.next(),
                    );
                }
            }
            _ => {}
        }
    }

    fn approve(&mut self, session: SessionId, recall: RecallId) {
        if let Some(client) = self.clients.get_mut(&session)
            && let Some(recall) = client.recalls.remove(&recall)
        {
            client.forget(&recall.scope, recall.stamp);
        }
    }

    /// After the core said what is to be done. `Err`: it was not safe.
    pub fn check(&mut self, now: BootTime, action: &Action) -> Result<(), String> {
        match action {
            Action::Opened {
                session, renewed, ..
            } => {
                if *renewed {
                    self.renewed(*session, now);
                }
                Ok(())
            }
            Action::Admitted { op, grants } => self.admitted(now, *op, grants),
            Action::Finished { op, stamp, grants } => {
                let Some(Op::Change { session, .. }) = self.ops.remove(op) else {
                    return Err(format!("{op:?} was not running"));
                };
                if *stamp != Stamp(0) {
                    self.stamped(session, *stamp)?;
                }
                grants
                    .iter()
                    .try_for_each(|g| self.granted(now, session, g, None))
            }
            Action::Recall { session, recall } => {
                self.stamped(*session, recall.stamp)?;
                let client = self.clients.entry(*session).or_default();
                client.recalls.insert(recall.id, recall.clone());
                Ok(())
            }
            Action::Expired { session } => {
                let client = self.clients.entry(*session).or_default();
                if now < client.valid_until {
                    return Err(format!("{session} expired before its own clock says so"));
                }
                client.recalls.clear();
                client.cached.clear();
                client.stores.clear();
                Ok(())
            }
            Action::LockLost { op } => match self.ops.remove(op) {
                Some(Op::Change { running: false, .. }) => Ok(()),
                other => Err(format!("{other:?} is refused for want of locks")),
            },
            Action::Locked { op, answer } => self.locked(*op, answer),
            Action::LockGranted { session, granted } => {
                self.stamped(*session, granted.stamp)?;
                self.clients.entry(*session).or_default().epoch = granted.epoch;
                Ok(())
            }
            Action::GraceEnded => Ok(()),
        }
    }

    fn locked(&mut self, op: OpId, answer: &LockAnswer) -> Result<(), String> {
        let Some(Op::Lock { session, object }) = self.ops.remove(&op) else {
            return Err(format!("{op:?} asked for no lock"));
        };
        let (stamp, epoch, outcome) = match answer {
            LockAnswer::Locked(locked) => (locked.stamp, locked.epoch, Some(&locked.outcome)),
            LockAnswer::Unlocked(unlocked) => (unlocked.stamp, unlocked.epoch, None),
            LockAnswer::Found(_) | LockAnswer::TooMany | LockAnswer::Ended => return Ok(()),
        };
        self.stamped(session, stamp)?;
        self.clients.entry(session).or_default().epoch = epoch;
        if let Some(LockOutcome::Granted {
            delegation: Some(delegation),
            ..
        }) = outcome
        {
            self.stamped(session, delegation.stamp)?;
            let client = self.clients.entry(session).or_default();
            client.decides.insert(object, delegation.stamp);
        }
        Ok(())
    }

    fn stamped(&mut self, session: SessionId, stamp: Stamp) -> Result<(), String> {
        let newest = &mut self.clients.entry(session).or_default().newest;
        if stamp <= *newest {
            return Err(format!("stamp {stamp} after {newest}"));
        }
        *newest = stamp;
        Ok(())
    }

    fn admitted(&mut self, now: BootTime, id: OpId, grants: &[Grant]) -> Result<(), String> {
        match self.ops.get_mut(&id) {
            Some(Op::Change {
                running,
                session,
                touches,
                dropped,
            }) => {
                if std::mem::replace(running, true) {
                    return Err(format!("{id:?} admitted twice"));
                }
                let (session, touches, dropped) = (*session, touches.clone(), dropped.clone());
                self.may_run(now, session, &touches, &dropped)
            }
            Some(Op::Read {
                session,
                kind,
                items,
            }) => {
                let (session, kind, items) = (*session, *kind, items.clone());
                self.ops.remove(&id);
                self.shows_the_newest(now, session, kind, &items)?;
                let granted = |g: &Grant| self.granted(now, session, g, Some(&items));
                grants.iter().try_for_each(granted)
            }
            Some(Op::Lock { .. }) | None => Err(format!("{id:?} is unknown")),
        }
    }

    /// Nobody may go on using what the change is about to make wrong.
    fn may_run(
        &self,
        now: BootTime,
        session: SessionId,
        touches: &[Touch],
        dropped: &[Handle],
    ) -> Result<(), String> {
        for touch in touches {
            for (id, client) in self.live(now) {
                let own = *id == session && dropped.contains(&touch.object);
                if let Some(item) = client.knows(touch).filter(|_| !own) {
                    return Err(format!("{session} changes {item:?}, which {id} still uses"));
                }
            }
        }
        Ok(())
    }

    fn live(&self, now: BootTime) -> impl Iterator<Item = (&SessionId, &Client)> {
        self.clients
            .iter()
            .filter(move |(_, c)| now < c.valid_until)
    }

    fn shows_the_newest(
        &self,
        now: BootTime,
        session: SessionId,
        kind: ReadKind,
        items: &[ReadItem],
    ) -> Result<(), String> {
        let fill = matches!(kind, ReadKind::FillPages | ReadKind::FillForStore);
        for item in items {
            let parts = if fill { Parts::DATA } else { item.parts };
            let mut others = self.live(now).filter(|(id, _)| **id != session);
            if let Some((writer, _)) = others.find(|(_, c)| c.may_store(&item.object, parts)) {
                return Err(format!("{session} reads what {writer} may have changed"));
            }
        }
        Ok(())
    }

    fn granted(
        &mut self,
        now: BootTime,
        session: SessionId,
        grant: &Grant,
        items: Option<&[ReadItem]>,
    ) -> Result<(), String> {
        self.stamped(session, grant.stamp)?;
        if self.denied.contains(&session) {
            return Err(format!("{grant:?} to a client that is denied leases"));
        }
        for op in self.ops.values() {
            if let Op::Change {
                touches,
                running: true,
                ..
            } = op
                && touches
                    .iter()
                    .any(|t| t.object == grant.object && t.parts.intersects(grant.parts))
            {
                return Err(format!("{grant:?} while it changes"));
            }
        }
        let others = self.live(now).filter(|(id, _)| **id != session);
        for (other, client) in others {
            let conflict = match grant.mode {
                Mode::Write => parts_of(grant.parts).any(|part| {
                    client
                        .cached
                        .contains_key(&(grant.object, Item::Part(part)))
                }),
                Mode::Read => client.may_store(&grant.object, grant.parts),
            };
            if conflict {
                return Err(format!("{grant:?} against {other}"));
            }
        }
        let client = self.clients.entry(session).or_default();
        client.cache(grant, items.unwrap_or_default());
        Ok(())
    }
}

impl Client {
    fn cache(&mut self, grant: &Grant, items: &[ReadItem]) {
        for part in parts_of(grant.parts) {
            self.cached
                .insert((grant.object, Item::Part(part)), grant.stamp);
            if grant.mode == Mode::Write {
                self.stores.insert((grant.object, part), grant.stamp);
            }
        }
        if grant.parts.contains(Parts::NAMES) {
            let names = items.iter().filter(|i| i.object == grant.object);
            for RawName(name) in names.filter_map(|i| i.name.clone()) {
                self.cached
                    .insert((grant.object, Item::Name(name)), grant.stamp);
            }
        }
    }

    /// Drops what is covered and was granted before `stamp`.
    fn forget(&mut self, scope: &Scope, stamp: Stamp) {
        let covered = |object: &Handle, item: &Item| match scope {
            Scope::Everything => true,
            Scope::Object { object: of, .. } if of != object => false,
            Scope::Object { parts, names, .. } => match item {
                Item::Part(part) => parts.contains(*part),
                Item::Name(name) => {
                    parts.contains(Parts::NAMES) || names.iter().any(|n| n.0 == *name)
                }
            },
        };
        self.cached
            .retain(|(object, item), at| *at >= stamp || !covered(object, item));
        self.stores
            .retain(|(object, part), at| *at >= stamp || !covered(object, &Item::Part(*part)));
    }

    fn may_store(&self, object: &Handle, parts: Parts) -> bool {
        parts_of(parts).any(|part| self.stores.contains_key(&(*object, part)))
    }

    fn knows(&self, touch: &Touch) -> Option<&Item> {
        let of_object = self
            .cached
            .keys()
            .filter(|(object, _)| *object == touch.object);
        let mut touched = of_object.map(|(_, item)| item).filter(|item| match item {
            Item::Part(part) => touch.parts.contains(*part),
            Item::Name(name) => {
                touch.parts.contains(Parts::NAMES) || touch.names.iter().any(|n| n.0 == *name)
            }
        });
        touched.next()
    }
}
