//! A running server's state, for people.

use crate::runtime::{Busy, Snapshot};
use crate::server::Server;
use crate::session::Session;
use crate::status::{BusyFile, Lock, SessionStatus, Status, TermZero, Waiting};
use leasefs_lease::time::BootTime;
use leasefs_protocol::latency::millis;
use leasefs_protocol::limits::SESSION_COURTESY;
use leasefs_protocol::{FileKind, LockKind, LockMode, LockRange};
use std::sync::atomic::Ordering;

impl Server {
    /// What it looks like now.
    pub fn status(&self) -> Status {
        let snapshot = self.leases.snapshot();
        let left = |at: BootTime| millis(at.left_at(snapshot.now));
        let sessions = self.sessions.all();
        let sessions = sessions.iter().map(|session| one(session, &snapshot));
        let mut sessions: Vec<SessionStatus> = sessions.collect();
        sessions.sort_by(|a, b| (&a.mount, &a.session).cmp(&(&b.mount, &b.session)));
        Status {
            term_ms: millis(self.settings.term),
            grace_ms: snapshot.grace_until.map(left),
            state_trouble: self.records.trouble(),
            sessions,
            waiting: waiting(&snapshot),
            term_zero: self.term_zero(&snapshot),
            busiest: self.busiest(&snapshot),
            locks: self.locks(&snapshot),
            requests: self
                .meters
                .requests
                .counts()
                .map(|(kind, counts)| (kind.to_owned(), counts.count()))
                .collect(),
            renewals: self.meters.renewals.load(Ordering::Relaxed),
            violations: self.meters.violations.load(Ordering::Relaxed),
        }
    }

    fn locks(&self, snapshot: &Snapshot) -> Vec<Lock> {
        let one = |held: &leasefs_lease::server::LockStatus| {
            let (lock, last) = (&held.lock, held.lock.range.last());
            let session = self.sessions.get(held.session);
            Lock {
                object: held.object.to_string(),
                inode: self.store.getattr(&held.object).ok().map(|attr| attr.ino),
                path: self.store.path(&held.object),
                session: held.session.to_string(),
                mount: session.map_or_else(String::new, |session| session.mount()),
                pid: lock.pid,
                kind: match lock.kind {
                    LockKind::Posix => "fcntl".to_owned(),
                    LockKind::Flock => "flock".to_owned(),
                },
                shared: lock.mode == LockMode::Shared,
                first: lock.range.first(),
                last: (last != LockRange::END).then_some(last),
                token: held.fence.map(|fence| fence.0),
                since_ms: millis(snapshot.now.since(held.since)),
                decided_there: held.decided_there,
            }
        };
        snapshot.locks.iter().map(one).collect()
    }

    fn busiest(&self, snapshot: &Snapshot) -> Vec<BusyFile> {
        let one = |busy: &Busy| BusyFile {
            object: busy.object.to_string(),
            inode: self.store.getattr(&busy.object).ok().map(|attr| attr.ino),
            path: self.store.path(&busy.object),
            per_second: busy.per_second,
        };
        snapshot.busiest.iter().map(one).collect()
    }

    fn term_zero(&self, snapshot: &Snapshot) -> Vec<TermZero> {
        let one = |zero: &leasefs_lease::server::TermZero| {
            let attr = self.store.getattr(&zero.object).ok();
            TermZero {
                object: zero.object.to_string(),
                inode: attr.map(|attr| attr.ino),
                path: self.store.path(&zero.object),
                directory: attr.is_some_and(|attr| attr.kind == FileKind::Directory),
                since_ms: millis(snapshot.now.since(zero.since)),
                until_ms: millis(zero.until.left_at(snapshot.now)),
                hits: zero.hits,
                recalls: zero.recalls,
            }
        };
        snapshot.term_zero.iter().map(one).collect()
    }
}

fn one(session: &Session, snapshot: &Snapshot) -> SessionStatus {
    let link = session.link();
    let core = snapshot.sessions.iter().find(|s| s.session == session.id);
    let expires = core.and_then(|core| core.expires);
    SessionStatus {
        session: session.id.to_string(),
        client: link
            .as_ref()
            .map(|link| link.client.name.clone())
            .unwrap_or_default(),
        key: session.key.to_string(),
        mount: session.mount(),
        address: link.map(|link| link.connection().remote_address().to_string()),
        kept_ms: session.idle_since().map(|since| {
            let away = snapshot.now.since(since);
            millis(SESSION_COURTESY.saturating_sub(away))
        }),
        expires_ms: expires.map(|at| millis(at.left_at(snapshot.now))),
        denied_ms: core
            .and_then(|core| core.denied_until)
            .map(|at| millis(at.left_at(snapshot.now))),
        reclaiming: core.is_some_and(|core| core.reclaiming),
        leases: core.map_or(0, |core| core.leases),
        opens: session.opens.len(),
        recalls: core.map_or(0, |core| core.recalls),
        requests: session.counters.by_kind(),
        renewals: session.counters.renewals(),
    }
}

fn waiting(snapshot: &Snapshot) -> Vec<Waiting> {
    let one = |(label, waiting): &(&str, leasefs_lease::server::Waiting)| Waiting {
        session: waiting.session.to_string(),
        request: (*label).to_owned(),
        since_ms: millis(snapshot.now.since(waiting.since)),
        holders: waiting
            .holders
            .iter()
            .map(|(session, _)| session.to_string())
            .collect(),
        grace: waiting.grace,
        until_ms: waiting.until.map(|at| millis(at.left_at(snapshot.now))),
    };
    snapshot.waiting.iter().map(one).collect()
}
