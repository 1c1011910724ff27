//! What can't be taken back: keys that were revoked, tickets that were used.
//!
//! It is written before the list of clients is, in a file of its own. Where that list is put back
//! from a copy, this record is the newer, and the stricter of the two counts.

use super::clients::{Content, Enrolled};
use crate::state::error::StateError;
use crate::state::log::{Log, Outlives, State};
use leasefs_protocol::KeyHash;
use leasefs_protocol::limits::MAX_CLIENTS;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::Path;

pub(super) const RECORD_IS_OLD: &str = "the record of revoked keys and used tickets (spent) is older than the \
                             list of clients (clients.json), as if put back from a copy, or gone. \
                             The list counts";

/// Something that has happened to the list, with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    pub number: u64,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    /// A ticket was made.
    Issued,
    /// A ticket has enrolled a key.
    Enrolled { key: KeyHash, ticket: KeyHash },
    /// A key was revoked.
    Revoked { key: KeyHash },
}

/// What is on record of a key.
#[derive(Clone, Copy, Debug, Default)]
struct OfKey {
    /// Number of its last enrolment, and the ticket's hash.
    enrolled: Option<(u64, KeyHash)>,
    /// Number of its last revocation.
    revoked: Option<u64>,
}

impl OfKey {
    fn newest(&self) -> u64 {
        let enrolled = self.enrolled.map(|(number, _)| number);
        enrolled.max(self.revoked).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(super) struct Known {
    last: u64,
    keys: HashMap<KeyHash, OfKey>,
    /// Who has used a ticket, and the number of that enrolment.
    used: HashMap<KeyHash, (KeyHash, u64)>,
}

/// The record.
#[derive(Debug)]
pub(super) struct Spent(pub(super) Log<Known>);

impl State for Known {
    type Record = Event;

    fn apply(&mut self, event: Event) {
        self.last = self.last.max(event.number);
        match event.what {
            What::Issued => {}
            What::Enrolled { key, ticket } => {
                self.keys.entry(key).or_default().enrolled = Some((event.number, ticket));
                self.used.insert(ticket, (key, event.number));
            }
            What::Revoked { key } => {
                self.keys.entry(key).or_default().revoked = Some(event.number);
            }
        }
    }

    /// What counts still. Of used tickets the newest are kept, as many as a list of clients has room for:
    /// the others have expired.
    fn snapshot(&self) -> Vec<Event> {
        let used = self.used.iter().map(|(ticket, (key, number))| {
            let (ticket, key) = (*ticket, *key);
            let what = What::Enrolled { key, ticket };
            (*number, what)
        });
        let mut events: Vec<(u64, What)> = used.collect();
        events.sort_by_key(|(number, _)| *number);
        events.drain(..events.len().saturating_sub(MAX_CLIENTS));
        let revoked = self.keys.iter().filter_map(|(key, known)| {
            let what = What::Revoked { key: *key };
            known.revoked.map(|number| (number, what))
        });
        events.extend(revoked);
        events.push((self.last, What::Issued));
        let event = |(number, what)| Event { number, what };
        events.into_iter().map(event).collect()
    }
}

impl Spent {
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Log::open(path, Outlives::Host, Known::default()).map(Self)
    }

    fn known(&self) -> &Known {
        self.0.state()
    }

    /// Makes durable that something has happened; before that, what the list knows and the record
    /// doesn't.
    pub fn note(&mut self, event: Event, list: &Content) -> io::Result<()> {
        for client in &list.clients {
            let earlier = self.unknown(client).into_iter();
            for earlier in earlier.filter(|e| e.number < event.number) {
                self.0.append(earlier)?;
            }
        }
        self.0.append_durably(event)
    }

    /// What the list says of a client and the record doesn't.
    fn unknown(&self, client: &Enrolled) -> Vec<Event> {
        let (key, ticket) = (client.key, client.ticket);
        let known = self.known().keys.get(&key).copied().unwrap_or_default();
        let mut events = Vec::new();
        if known
            .enrolled
            .is_none_or(|(number, _)| number < client.number)
        {
            let what = What::Enrolled { key, ticket };
            events.push((client.number, what));
        }
        if known.revoked.unwrap_or_default() < client.revocation {
            events.push((client.revocation, What::Revoked { key }));
        }
        let event = |(number, what)| Event { number, what };
        events.into_iter().map(event).collect()
    }

    /// Number of the last that is on record.
    pub fn last(&self) -> u64 {
        self.known().last
    }

    /// Number of the key's last revocation, 0 if there was none.
    pub fn revocation(&self, key: KeyHash) -> u64 {
        let of_key = self.known().keys.get(&key);
        of_key.and_then(|known| known.revoked).unwrap_or_default()
    }

    /// Whether a ticket that the list has as unused may not enrol the key: it has been used. Only
    /// whom it has enrolled last may show it again.
    pub fn is_used(&self, ticket: KeyHash, key: KeyHash) -> bool {
        let last = |known: &OfKey| known.enrolled.map(|(_, ticket)| ticket);
        match self.known().used.get(&ticket) {
            None => false,
            Some((by, _)) => *by != key || self.known().keys.get(by).and_then(last) != Some(ticket),
        }
    }

    /// Corrects a list that is older than the record; says what was wrong with it.
    pub fn correct(&self, list: &mut Content, now: u64) -> Option<String> {
        if self.known().last <= list.last {
            // A list of a version that had no record is numbered 1 at most.
            return (self.known().last < list.last && list.last > 1)
                .then(|| RECORD_IS_OLD.to_owned());
        }
        let mut found = Findings::default();
        list.clients.retain_mut(|client| {
            let Some(known) = self.known().keys.get(&client.key) else {
                return true;
            };
            if known.newest() <= client.newest() {
                return true;
            }
            match known.revoked {
                Some(number) if number == known.newest() => {
                    client.revocation = number;
                    client.revoked.get_or_insert(now);
                    found.revoked.push(client.key);
                    true
                }
                // What it may do since then isn't known.
                _ => {
                    found.forgotten.push(client.key);
                    false
                }
            }
        });
        let listed = |key: &KeyHash| list.clients.iter().any(|client| client.key == *key);
        let missing = self.known().keys.iter().filter(|(key, _)| !listed(key));
        for (key, known) in missing {
            let enrolled = known.revoked.is_none_or(|number| number < known.newest());
            if enrolled && !found.forgotten.contains(key) {
                found.forgotten.push(*key);
            }
        }
        let used = |ticket: &&super::clients::Unused| self.known().used.contains_key(&ticket.hash);
        found.used = list.tickets.iter().filter(used).count();
        list.last = self.known().last;
        Some(found.told())
    }
}

/// What was wrong with a list.
#[derive(Default)]
struct Findings {
    revoked: Vec<KeyHash>,
    forgotten: Vec<KeyHash>,
    used: usize,
}

impl Findings {
    fn told(mut self) -> String {
        self.forgotten.sort();
        let keys = |keys: &[KeyHash]| {
            let short = |key: &KeyHash| key.to_string().chars().take(16).collect();
            let shown: Vec<String> = keys.iter().take(8).map(short).collect();
            match keys.len() {
                0 => "none".to_owned(),
                len if len > shown.len() => format!("{}, … ({len})", shown.join(", ")),
                _ => shown.join(", "),
            }
        };
        format!(
            "the list of clients (clients.json) is older than the record of revoked keys and used \
             tickets (spent), as if put back from a copy. The record counts. Revoked although the \
             list lets them in: {}. To be enrolled anew, with a fresh ticket: {}. Tickets used \
             although the list has them as unused: {}",
            keys(&self.revoked),
            keys(&self.forgotten),
            self.used
        )
    }
}
