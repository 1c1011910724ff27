//! A state directory in memory.

use fsserver::intent::Intent;
use fsserver::records::{Client, Found, Recorded, RecordedSession, Records, Writes};
use leasefs_protocol::control::{HelloRefusal, IdentityPolicy};
use leasefs_protocol::{BootId, Handle, KeyHash, Refusal, Response, Seq, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ticket {
    Fresh,
    Used(KeyHash),
    Expired,
}

#[derive(Default)]
struct State {
    clients: HashMap<KeyHash, Client>,
    revoked: BTreeSet<KeyHash>,
    tickets: HashMap<[u8; 32], Ticket>,
    sessions: BTreeMap<SessionId, (KeyHash, bool)>,
    changes: BTreeMap<SessionId, BTreeMap<Seq, Recorded>>,
    writes: Vec<(SessionId, Handle)>,
    max_term: Duration,
    clean: bool,
    panics: bool,
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

    fn may_panic(&self) {
        let panics = self.state().panics;
        assert!(!panics, "as a test has asked for");
    }

    pub fn enrol(&self, key: KeyHash, read_only: bool) {
        let client = Client {
            key,
            name: "test".to_owned(),
            read_only,
            identity: IdentityPolicy::Trust,
        };
        self.state().clients.insert(key, client);
    }

    pub fn revoke(&self, key: KeyHash) {
        self.state().revoked.insert(key);
    }

    pub fn ticket(&self, secret: [u8; 32], ticket: Ticket) {
        self.state().tickets.insert(secret, ticket);
    }

    pub fn found(&self) -> Found {
        let state = self.state();
        let session = |(session, (client, leased)): (&SessionId, &(KeyHash, bool))| {
            let changes = state.changes.get(session).cloned().unwrap_or_default();
            RecordedSession {
                session: *session,
                client: *client,
                leased: *leased,
                host_crashed: false,
                changes: changes.into_iter().collect(),
            }
        };
        Found {
            process: BootId::default(),
            host: BootId([5; 16]),
            max_term: state.max_term,
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
        client.ok_or(HelloRefusal::UnknownClient(key))
    }

    fn begin_life(&self, term: Duration, _drift_ppm: u32) -> io::Result<()> {
        let mut state = self.state();
        state.clean = false;
        state.max_term = state.max_term.max(term);
        Ok(())
    }

    fn record_session(&self, session: SessionId, client: KeyHash) -> io::Result<()> {
        self.state().sessions.insert(session, (client, true));
        Ok(())
    }

    fn leases_ended(&self, session: SessionId) {
        if let Some((_, leased)) = self.state().sessions.get_mut(&session) {
            *leased = false;
        }
    }

    fn forget_session(&self, session: SessionId) {
        let mut state = self.state();
        state.sessions.remove(&session);
        state.changes.remove(&session);
    }

    fn change_begins(&self, session: SessionId, seq: Seq, intent: &Intent) -> io::Result<()> {
        self.may_panic();
        let mut state = self.state();
        let changes = state.changes.entry(session).or_default();
        changes.insert(seq, Recorded::Intent(intent.clone()));
        Ok(())
    }

    fn change_ends(&self, session: SessionId, seq: Seq, result: &Result<Response, Refusal>) {
        let mut state = self.state();
        let changes = state.changes.entry(session).or_default();
        if let Some(change @ Recorded::Intent(_)) = changes.get_mut(&seq) {
            *change = Recorded::Answered(result.clone());
        }
    }

    fn change_undone(&self, session: SessionId, seq: Seq) {
        let mut state = self.state();
        state.changes.entry(session).or_default().remove(&seq);
    }

    fn low_water(&self, session: SessionId, low: Seq) {
        if let Some(changes) = self.state().changes.get_mut(&session) {
            *changes = changes.split_off(&low);
        }
    }

    fn write_lease(&self, session: SessionId, object: Handle) -> io::Result<()> {
        self.may_panic();
        self.state().writes.push((session, object));
        Ok(())
    }

    fn idle_writes(&self) -> Vec<(SessionId, Handle)> {
        Vec::new()
    }

    fn write_ended(&self, _: SessionId, _: &Handle) {}

    fn grace_ended(&self) {}

    fn end_life(&self) -> io::Result<()> {
        self.state().clean = true;
        Ok(())
    }
}
