//! Which Write leases were granted, as far as a restart must know.

use leasefs_protocol::{Handle, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The Write leases on record. Some may have ended.
#[derive(Debug, Default)]
pub(super) struct Writes(BTreeMap<SessionId, OfSession>);

#[derive(Debug, Default)]
struct OfSession {
    granted: BTreeSet<Handle>,
    /// Those asked for since [`Writes::idle`] was called last: they may be about to be granted.
    asked: BTreeSet<Handle>,
}

impl Writes {
    /// One is asked for; whether it is on record.
    pub fn ask(&mut self, session: SessionId, object: Handle) -> bool {
        let of_session = self.0.entry(session).or_default();
        of_session.asked.insert(object);
        of_session.granted.contains(&object)
    }

    pub fn grant(&mut self, session: SessionId, object: Handle) {
        self.0.entry(session).or_default().granted.insert(object);
    }

    /// One has ended, unless it was asked for since it was found idle.
    pub fn end(&mut self, session: SessionId, object: &Handle) {
        if let Some(of_session) = self.0.get_mut(&session)
            && !of_session.asked.contains(object)
        {
            of_session.granted.remove(object);
        }
    }

    /// Those that nobody has asked for since the last call.
    pub fn idle(&mut self) -> Vec<(SessionId, Handle)> {
        let mut idle = Vec::new();
        for (session, of_session) in &mut self.0 {
            let asked = std::mem::take(&mut of_session.asked);
            let granted = of_session.granted.difference(&asked);
            idle.extend(granted.map(|object| (*session, *object)));
        }
        idle
    }

    /// All of the session have ended.
    pub fn forget(&mut self, session: SessionId) {
        self.0.remove(&session);
    }

    /// Keeps those of these sessions.
    pub fn retain(&mut self, keep: impl Fn(&SessionId) -> bool) {
        self.0.retain(|session, _| keep(session));
    }

    /// Whether anything is known of the session.
    pub fn know(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }

    /// Whether any of the session is on record.
    pub fn has(&self, session: SessionId) -> bool {
        let of_session = self.0.get(&session);
        of_session.is_some_and(|of_session| !of_session.granted.is_empty())
    }

    pub fn all(&self) -> impl Iterator<Item = (SessionId, Handle)> {
        self.0.iter().flat_map(|(session, of_session)| {
            let granted = of_session.granted.iter();
            granted.map(|object| (*session, *object))
        })
    }
}
