//! A state directory in memory.

use fsserver::intent::Intent;
use fsserver::records::{Client, Found, Owner, Recorded, RecordedSession, Records, Writes};
use fsserver::seqs::SeqSet;
use leasefs_protocol::control::{HelloRefusal, IdentityPolicy};
use leasefs_protocol::latency::Counts;
use leasefs_protocol::{BootId, Fence, Handle, KeyHash, Refusal, Response, Seq, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ticket {
    Fresh,
    Used(KeyHash),
    Expired,
}

/// Where a call of the state directory can be held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// A client has been admitted.
    Admitted,
    /// A session is put on record.
    Record,
    /// A session is taken off the record.
    Forget,
    /// A change is about to ask the host.
    ChangeBegins,
    /// A Write lease is about to be granted.
    WriteLease,
}

/// Holds up the next call there until it is dropped.
pub struct Held(Arc<Gatekeeper>);

struct Gatekeeper {
    at: At,
    /// Whether somebody stands there, and whether the way is free.
    state: Mutex<(bool, bool)>,
    freed: Condvar,
}

impl Held {
    /// Waits until somebody stands there.
    pub async fn reached(&self) {
        for _ in 0..2000 {
            if self.0.state.lock().expect("the state").0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody has come to {:?}", self.0.at);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner).1 = true;
        self.0.freed.notify_all();
    }
}

#[derive(Default)]
struct State {
    held: Option<Arc<Gatekeeper>>,
    clients: HashMap<KeyHash, Client>,
    revoked: BTreeSet<KeyHash>,
    tickets: HashMap<[u8; 32], Ticket>,
    sessions: BTreeMap<SessionId, (Owner, bool)>,
    changes: BTreeMap<SessionId, BTreeMap<Seq, Recorded>>,
    writes: Vec<(SessionId, Handle)>,
    max_term: Duration,
    clean: bool,
    panics: bool,
    /// How long the disk takes.
    takes: Duration,
}

#[derive(Default)]
pub struct Memory(Mutex<State>);

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("the state")
    }

    /// From now on, journalling fails in the worst way.
    pub fn panic(&self, panics: bool) {
        self.state().panics = panics;
    }

    /// From now on whatever is journalled takes so long, under the lock.
    pub fn slow_down(&self, takes: Duration) {
        self.state().takes = takes;
    }

    fn journals(&self) -> MutexGuard<'_, State> {
        let state = self.state();
        std::thread::sleep(state.takes);
        state
    }

    fn may_panic(&self) {
        let panics = self.state().panics;
        assert!(!panics, "as a test has asked for");
    }

    /// Holds up the next call at this point.
    pub fn hold(&self, at: At) -> Held {
        let gatekeeper = Arc::new(Gatekeeper {
            at,
            state: Mutex::default(),
            freed: Condvar::new(),
        });
        self.state().held = Some(Arc::clone(&gatekeeper));
        Held(gatekeeper)
    }

    fn pass(&self, at: At) {
        let held = self.state().held.take_if(|held| held.at == at);
        let Some(gatekeeper) = held else { return };
        let mut state = gatekeeper.state.lock().expect("the state");
        state.0 = true;
        while !state.1 {
            state = gatekeeper.freed.wait(state).expect("the state");
        }
    }

    pub fn enrol(&self, key: KeyHash, read_only: bool) {
        self.enrol_as(key, read_only, IdentityPolicy::Trust);
    }

    pub fn enrol_as(&self, key: KeyHash, read_only: bool, identity: IdentityPolicy) {
        let client = Client {
            key,
            name: "test".to_owned(),
            read_only,
            identity,
            acts_as: None,
            border: None,
        };
        self.state().clients.insert(key, client);
    }

    /// Confines a client to a directory.
    pub fn confine(&self, key: KeyHash, dir: Handle) {
        if let Some(client) = self.state().clients.get_mut(&key) {
            client.border = Some(dir);
        }
    }

    pub fn revoke(&self, key: KeyHash) {
        self.state().revoked.insert(key);
    }

    /// Whether a session is on record as one that may hold leases.
    pub fn is_leased(&self, session: SessionId) -> bool {
        let state = self.state();
        state
            .sessions
            .get(&session)
            .is_some_and(|(_, leased)| *leased)
    }

    pub fn has_session(&self, session: SessionId) -> bool {
        self.state().sessions.contains_key(&session)
    }

    /// Answers that are on record of a session's changes.
    pub fn answers(&self, session: SessionId) -> usize {
        let state = self.state();
        let changes = state.changes.get(&session).into_iter().flatten();
        let answered = |change: &&Recorded| matches!(change, Recorded::Answered(_));
        changes.map(|(_, change)| change).filter(answered).count()
    }

    pub fn readmit(&self, key: KeyHash) {
        self.state().revoked.remove(&key);
    }

    pub fn ticket(&self, secret: [u8; 32], ticket: Ticket) {
        self.state().tickets.insert(secret, ticket);
    }

    pub fn found(&self) -> Found {
        let state = self.state();
        let session = |(session, (owner, leased)): (&SessionId, &(Owner, bool))| {
            let changes = state.changes.get(session).cloned().unwrap_or_default();
            RecordedSession {
                session: *session,
                owner: *owner,
                leased: *leased,
                host_crashed: false,
                changes: changes.into_iter().collect(),
                lost: SeqSet::default(),
                over: state.revoked.contains(&owner.client),
            }
        };
        Found {
            process: BootId::default(),
            host: BootId([5; 16]),
            max_term: state.max_term,
            first_fence: Fence(1),
            max_drift_ppm: 1000,
            clean: state.clean,
            host_crashed: false,
            sessions: state.sessions.iter().map(session).collect(),
            writes: Writes::Trusted(state.writes.clone()),
        }
    }
}

impl Records for Memory {
    fn knows(&self, key: KeyHash) -> bool {
        let state = self.state();
        state.clients.contains_key(&key) && !state.revoked.contains(&key)
    }

    fn admit(
        &self,
        key: KeyHash,
        ticket: Option<&[u8; 32]>,
        _session: SessionId,
        _name: &str,
    ) -> Result<Client, HelloRefusal> {
        if self.state().revoked.contains(&key) {
            return Err(HelloRefusal::Revoked(key));
        }
        if let Some(secret) = ticket {
            match self.state().tickets.get_mut(secret) {
                None => return Err(HelloRefusal::TicketUnknown),
                Some(Ticket::Expired) => return Err(HelloRefusal::TicketExpired),
                Some(Ticket::Used(by)) if *by != key => return Err(HelloRefusal::TicketUsed),
                Some(ticket) => *ticket = Ticket::Used(key),
            }
            self.enrol(key, false);
        }
        let client = self.state().clients.get(&key).cloned();
        self.pass(At::Admitted);
        client.ok_or(HelloRefusal::UnknownClient(key))
    }

    fn begin_life(&self, term: Duration, _drift_ppm: u32) -> io::Result<()> {
        let mut state = self.state();
        state.clean = false;
        state.max_term = state.max_term.max(term);
        Ok(())
    }

    fn record_session(&self, session: SessionId, owner: Owner) -> io::Result<()> {
        self.pass(At::Record);
        self.state().sessions.insert(session, (owner, true));
        Ok(())
    }

    fn leases_ended(&self, session: SessionId) {
        if let Some((_, leased)) = self.state().sessions.get_mut(&session) {
            *leased = false;
        }
    }

    fn forget_session(&self, session: SessionId) {
        self.pass(At::Forget);
        let mut state = self.state();
        state.sessions.remove(&session);
        state.changes.remove(&session);
    }

    fn change_begins(
        &self,
        session: SessionId,
        seq: Seq,
        low: Seq,
        intent: &Intent,
    ) -> io::Result<()> {
        self.may_panic();
        self.pass(At::ChangeBegins);
        let mut state = self.journals();
        let changes = state.changes.entry(session).or_default();
        *changes = changes.split_off(&low);
        changes.insert(seq, Recorded::Intent(intent.clone()));
        Ok(())
    }

    fn change_ends(
        &self,
        session: SessionId,
        seq: Seq,
        result: &Result<Response, Refusal>,
        _: Option<Handle>,
    ) {
        let mut state = self.journals();
        let changes = state.changes.entry(session).or_default();
        if let Some(change @ Recorded::Intent(_)) = changes.get_mut(&seq) {
            *change = Recorded::Answered(result.clone());
        }
    }

    fn change_undone(&self, session: SessionId, seq: Seq) {
        let mut state = self.state();
        state.changes.entry(session).or_default().remove(&seq);
    }

    fn write_lease(&self, session: SessionId, object: Handle) -> io::Result<()> {
        self.may_panic();
        self.pass(At::WriteLease);
        self.journals().writes.push((session, object));
        Ok(())
    }

    fn idle_writes(&self) -> Vec<(SessionId, Handle)> {
        Vec::new()
    }

    fn write_ended(&self, _: SessionId, _: &Handle) {}

    fn grace_ended(&self) {}

    fn trouble(&self) -> Option<String> {
        None
    }

    fn journal_writes(&self) -> Counts {
        Counts::default()
    }

    fn end_life(&self) -> io::Result<()> {
        self.state().clean = true;
        Ok(())
    }
}
