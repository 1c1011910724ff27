//! All sessions.

use super::opens::OpenNumbers;
use super::per_client::PerClient;
use super::{Gate, Session};
use crate::account::{Account, Files, may_have_more};
use crate::records::Owner;
use crate::sync;
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::{MAX_SESSIONS, MAX_SESSIONS_PER_CLIENT, SESSION_COURTESY};
use leasefs_protocol::{KeyHash, SessionId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock};

/// Why a client can't have a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It belongs to another client.
    Foreign,
    /// There are too many, of the client or in all.
    TooMany,
    /// Its client is shut out.
    ShutOut,
    /// An earlier session of this number is over and not off the record.
    Ending,
}

/// The sessions of a server.
#[derive(Debug)]
pub struct Sessions {
    table: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// A client has the one it had for as long as anything is counted in it, whether it has a session or not.
    accounts: Mutex<PerClient<Account>>,
    numbers: Arc<OpenNumbers>,
    files: Arc<Files>,
}

impl Sessions {
    /// None yet. `life` differs between lives of the server; `files` are for all that they open.
    pub fn new(life: u32, files: Arc<Files>) -> Self {
        Self {
            table: RwLock::default(),
            accounts: Mutex::default(),
            numbers: OpenNumbers::of_life(life),
            files,
        }
    }

    fn account(&self, client: KeyHash) -> Arc<Account> {
        sync::lock(&self.accounts).of(client, || Account::new(&self.files))
    }

    /// Puts in a session of the server's earlier life.
    pub fn restore(
        &self,
        id: SessionId,
        client: (Owner, Arc<Gate>),
        now: BootTime,
    ) -> Arc<Session> {
        let mut table = sync::write(&self.table);
        let account = self.account(client.0.client);
        let session = Arc::new(Session::new(id, client, &self.numbers, account));
        session.idle_from(now);
        session.reclaims.store(true, Ordering::Relaxed);
        session.syncs.goes_on();
        table.insert(id, Arc::clone(&session));
        session
    }

    /// The client's session with this id, made if there is none. One that is never connected is over
    /// after the courtesy period like any other. `gate` is the client's from before it was admitted.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(
        &self,
        id: SessionId,
        (owner, gate): (Owner, &Arc<Gate>),
        now: BootTime,
    ) -> Result<Arc<Session>, Refused> {
        let mut table = sync::write(&self.table);
        // Under the lock: whoever shuts the gate takes all sessions of the client out afterwards.
        if gate.is_shut() {
            return Err(Refused::ShutOut);
        }
        if let Some(session) = table.get(&id) {
            return match session.key == owner.client {
                true if session.is_over() => Err(Refused::Ending),
                true if session.gate.is_shut() => Err(Refused::ShutOut),
                true => Ok(Arc::clone(session)),
                false => Err(Refused::Foreign),
            };
        }
        let lives = |s: &&Arc<Session>| s.key == owner.client && !s.is_over();
        let own = table.values().filter(lives).count();
        if own >= MAX_SESSIONS_PER_CLIENT || !may_have_more(own, table.len(), MAX_SESSIONS) {
            return Err(Refused::TooMany);
        }
        let account = self.account(owner.client);
        let owner = (owner, Arc::clone(gate));
        let session = Arc::new(Session::new(id, owner, &self.numbers, account));
        session.idle_from(now);
        table.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// The session with this id.
    pub fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.any(id).filter(|session| !session.is_over())
    }

    /// The session with this id, that may be over.
    pub fn any(&self, id: SessionId) -> Option<Arc<Session>> {
        sync::read(&self.table).get(&id).cloned()
    }

    /// Takes this session out, which is over and off the record.
    pub fn remove(&self, session: &Session) {
        let mut table = sync::write(&self.table);
        let own = |found: &Arc<Session>| std::ptr::eq(&raw const **found, session);
        if table.get(&session.id).is_some_and(own) {
            table.remove(&session.id);
        }
    }

    /// Whether this session is in.
    pub fn has(&self, session: &Arc<Session>) -> bool {
        let found = self.get(session.id);
        found.is_some_and(|found| Arc::ptr_eq(&found, session))
    }

    /// Those that were opened through this gate.
    pub fn through(&self, gate: &Arc<Gate>) -> Vec<Arc<Session>> {
        let mut all = self.all();
        all.retain(|session| Arc::ptr_eq(&session.gate, gate));
        all
    }

    /// All that are not over.
    pub fn all(&self) -> Vec<Arc<Session>> {
        let table = sync::read(&self.table);
        let live = table.values().filter(|session| !session.is_over());
        live.cloned().collect()
    }

    /// Those that are over and not off the record.
    pub fn over(&self) -> Vec<Arc<Session>> {
        let table = sync::read(&self.table);
        let over = table.values().filter(|session| session.is_over());
        over.cloned().collect()
    }

    /// Those of a client that are not over.
    pub fn of(&self, client: KeyHash) -> Vec<Arc<Session>> {
        let table = sync::read(&self.table);
        let own = table.values().filter(|session| session.key == client);
        own.filter(|session| !session.is_over()).cloned().collect()
    }

    /// How many there are, those included that wait to be off the record.
    pub fn count(&self) -> usize {
        sync::read(&self.table).len()
    }

    /// Whether none may still reclaim what it had open in the server's earlier life.
    pub fn have_reclaimed(&self) -> bool {
        let reclaims =
            |session: &Arc<Session>| !session.is_over() && session.reclaims.load(Ordering::Relaxed);
        !sync::read(&self.table).values().any(reclaims)
    }

    /// Those whose courtesy period is over.
    pub fn overdue(&self, now: BootTime) -> Vec<Arc<Session>> {
        let over = |s: &Session| {
            s.idle_since()
                .is_some_and(|since| now.since(since) > SESSION_COURTESY)
        };
        let mut all = self.all();
        all.retain(|session| over(session));
        all
    }
}
