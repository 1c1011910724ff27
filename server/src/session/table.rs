//! All sessions.

use super::answers::Answers;
use super::{Job, Session, Sink};
use crate::sync;
use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::{MAX_SESSIONS, MAX_SESSIONS_PER_CLIENT, SESSION_COURTESY};
use leasefs_protocol::{KeyHash, SessionId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

/// Why a client can't have a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It belongs to another client.
    Foreign,
    /// There are too many, of the client or in all.
    TooMany,
}

/// The sessions of a server.
#[derive(Debug, Default)]
pub struct Sessions {
    table: RwLock<HashMap<SessionId, Arc<Session>>>,
    life: u32,
}

impl Sessions {
    /// None yet. `life` differs between lives of the server.
    pub fn new(life: u32) -> Self {
        Self {
            table: RwLock::default(),
            life,
        }
    }

    /// Puts in a session of the server's earlier life.
    pub fn restore(
        &self,
        id: SessionId,
        key: KeyHash,
        changes: Answers<Job, Sink>,
        now: BootTime,
    ) -> Arc<Session> {
        let session = Arc::new(Session::new(id, key, self.life, changes));
        session.idle_from(now);
        session.reclaims.store(true, Ordering::Relaxed);
        sync::write(&self.table).insert(id, Arc::clone(&session));
        session
    }

    /// The client's session with this id, made if there is none. One that is never connected is over
    /// after the courtesy period like any other.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(
        &self,
        id: SessionId,
        key: KeyHash,
        now: BootTime,
    ) -> Result<Arc<Session>, Refused> {
        let mut table = sync::write(&self.table);
        if let Some(session) = table.get(&id) {
            return match session.key == key {
                true => Ok(Arc::clone(session)),
                false => Err(Refused::Foreign),
            };
        }
        let own = table.values().filter(|s| s.key == key).count();
        if table.len() >= MAX_SESSIONS || own >= MAX_SESSIONS_PER_CLIENT {
            return Err(Refused::TooMany);
        }
        let session = Arc::new(Session::new(id, key, self.life, Answers::default()));
        session.idle_from(now);
        table.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// The session with this id.
    pub fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        sync::read(&self.table).get(&id).cloned()
    }

    /// Takes a session out.
    pub fn remove(&self, id: SessionId) -> Option<Arc<Session>> {
        sync::write(&self.table).remove(&id)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Session>> {
        sync::read(&self.table).values().cloned().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        sync::read(&self.table).len()
    }

    /// Whether none may still reclaim what it had open in the server's earlier life.
    pub fn have_reclaimed(&self) -> bool {
        let reclaims = |session: &Arc<Session>| session.reclaims.load(Ordering::Relaxed);
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
