//! Who may come: enrolled clients, and tickets that enrol more.

use super::error::StateError;
use super::files;
use leasefs_protocol::KeyHash;
use leasefs_protocol::control::HelloRefusal;
use leasefs_protocol::limits::{MAX_CLIENTS, MAX_TICKETS, TICKET_LIFE};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Longest name of a client that is kept.
const MAX_NAME: usize = 256;

/// What a client may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// It may only read.
    pub read_only: bool,
    /// Its user ids are believed, root's too.
    pub trust: bool,
}

/// An enrolled client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// Its key's hash, hexadecimal.
    #[serde(with = "hex")]
    pub key: KeyHash,
    /// Its name, for people.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// When it was enrolled, in seconds since the Unix epoch.
    pub enrolled: u64,
    /// When it was revoked.
    pub revoked: Option<u64>,
    /// Hash of the ticket that enrolled it: it may show that again.
    #[serde(with = "hex")]
    ticket: KeyHash,
}

/// A ticket that has enrolled nobody yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Unused {
    /// Hash of its secret; the secret itself is never kept.
    #[serde(with = "hex")]
    hash: KeyHash,
    role: Role,
    made: u64,
    expires: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    clients: Vec<Enrolled>,
    tickets: Vec<Unused>,
}

/// Clients and tickets, kept in a file.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    content: Content,
}

/// Why a client can't be revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// No client is meant.
    #[error("no client is called {0}, and no key begins so: `fsserver clients` lists them")]
    Unknown(String),
    /// Several are meant.
    #[error("{0} means several clients: name one by its key, as `fsserver clients` lists it")]
    Ambiguous(String),
    /// The disk fails.
    #[error("the list of clients can't be written: {0}")]
    Disk(#[from] io::Error),
}

impl Registry {
    /// Reads the registry kept in a file, or begins one.
    ///
    /// # Errors
    /// If the file can't be read or is damaged.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Ok(Self {
            path: path.to_owned(),
            content: files::read_json(path)?.unwrap_or_default(),
        })
    }

    /// All clients, revoked ones too.
    pub fn clients(&self) -> &[Enrolled] {
        &self.content.clients
    }

    /// Whether the key is enrolled and not revoked.
    pub fn knows(&self, key: KeyHash) -> bool {
        let mut clients = self.content.clients.iter();
        clients.any(|client| client.key == key && client.revoked.is_none())
    }

    /// Applies a change if it can be written.
    fn change(&mut self, content: Content) -> io::Result<()> {
        files::write_json(&self.path, &content)?;
        self.content = content;
        Ok(())
    }

    /// Makes a ticket and returns its secret. `now` is in seconds since the Unix epoch.
    ///
    /// # Errors
    /// If the disk fails or there is no randomness.
    pub fn issue(&mut self, role: Role, now: u64) -> Result<[u8; 32], StateError> {
        let secret = files::random()?;
        let mut content = self.content.clone();
        content.tickets.push(Unused {
            hash: hash(&secret),
            role,
            made: now,
            expires: now.saturating_add(TICKET_LIFE.as_secs()),
        });
        let too_many = content.tickets.len().saturating_sub(MAX_TICKETS);
        content.tickets.drain(..too_many);
        self.change(content).map_err(StateError::file(&self.path))?;
        Ok(secret)
    }

    /// Lets a client in, enrolling its key with the ticket if it shows one. The same key may show
    /// the ticket that enrolled it again; a fresh ticket changes the client's role.
    ///
    /// # Errors
    /// What the client is told.
    pub fn admit(
        &mut self,
        key: KeyHash,
        ticket: Option<&[u8; 32]>,
        name: &str,
        now: u64,
    ) -> Result<Enrolled, HelloRefusal> {
        let known = self.content.clients.iter().find(|c| c.key == key);
        match (known, ticket.map(hash)) {
            (None, None) => Err(HelloRefusal::UnknownClient(key)),
            (Some(client), None) => allowed(client),
            (Some(client), Some(ticket)) if client.ticket == ticket => allowed(client),
            (known, Some(ticket)) => {
                let revoked = known.and_then(|client| client.revoked);
                self.enrol(key, ticket, revoked, name, now)
            }
        }
    }

    fn enrol(
        &mut self,
        key: KeyHash,
        ticket: KeyHash,
        revoked: Option<u64>,
        name: &str,
        now: u64,
    ) -> Result<Enrolled, HelloRefusal> {
        let mut content = self.content.clone();
        let place = content.tickets.iter().position(|t| t.hash == ticket);
        let unused = match place {
            Some(place) => content.tickets.remove(place),
            None if content.clients.iter().any(|c| c.ticket == ticket) => {
                return Err(HelloRefusal::TicketUsed);
            }
            None => return Err(HelloRefusal::TicketUnknown),
        };
        if now >= unused.expires {
            return Err(HelloRefusal::TicketExpired);
        }
        // Only a ticket made since then says that the server's people want the client back.
        if revoked.is_some_and(|when| unused.made <= when) {
            return Err(HelloRefusal::Revoked(key));
        }
        content.clients.retain(|client| client.key != key);
        if content.clients.len() >= MAX_CLIENTS {
            return Err(HelloRefusal::TooMany("clients".to_owned()));
        }
        let client = Enrolled {
            key,
            name: name
                .chars()
                .filter(|c| !c.is_control())
                .take(MAX_NAME)
                .collect(),
            role: unused.role,
            enrolled: now,
            revoked: None,
            ticket,
        };
        content.clients.push(client.clone());
        self.change(content).map_err(|error| {
            tracing::error!(%error, "a client can't be enrolled");
            HelloRefusal::Internal("it can't write its list of clients".to_owned())
        })?;
        tracing::info!(client = %key, name = %client.name, "client enrolled");
        Ok(client)
    }

    /// Revokes the client of this name, or whose key begins so.
    ///
    /// # Errors
    /// If it isn't exactly one, or the disk fails.
    pub fn revoke(&mut self, which: &str, now: u64) -> Result<Enrolled, RevokeError> {
        let mut content = self.content.clone();
        let meant = |client: &&mut Enrolled| {
            let key = client.key.to_string();
            client.name == which || (which.len() >= 4 && key.starts_with(&which.to_lowercase()))
        };
        let mut found = content.clients.iter_mut().filter(meant);
        let client = found
            .next()
            .ok_or_else(|| RevokeError::Unknown(which.to_owned()))?;
        if found.next().is_some() {
            return Err(RevokeError::Ambiguous(which.to_owned()));
        }
        client.revoked.get_or_insert(now);
        let revoked = client.clone();
        self.change(content)?;
        Ok(revoked)
    }
}

fn allowed(client: &Enrolled) -> Result<Enrolled, HelloRefusal> {
    match client.revoked {
        None => Ok(client.clone()),
        Some(_) => Err(HelloRefusal::Revoked(client.key)),
    }
}

fn hash(secret: &[u8; 32]) -> KeyHash {
    let mut hash = KeyHash::default();
    let digest = digest(&SHA256, secret);
    hash.0
        .iter_mut()
        .zip(digest.as_ref())
        .for_each(|(to, from)| *to = *from);
    hash
}

mod hex {
    use leasefs_protocol::KeyHash;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(hash: &KeyHash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(hash)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KeyHash, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    const A: KeyHash = KeyHash([1; 32]);
    const B: KeyHash = KeyHash([2; 32]);
    const NOW: u64 = 1_000_000;

    fn registry() -> (Scratch, Registry) {
        let scratch = Scratch::new();
        let registry = Registry::open(&scratch.path("clients.json")).expect("open");
        (scratch, registry)
    }

    #[test]
    fn a_ticket_enrols_one_key_which_may_repeat_it() {
        let (_scratch, mut registry) = registry();
        let secret = registry.issue(Role::default(), NOW).expect("ticket");
        let enrol = |registry: &mut Registry, key| {
            let admitted = registry.admit(key, Some(&secret), "host", NOW);
            admitted.map(|client| client.key)
        };
        assert_eq!(enrol(&mut registry, A), Ok(A));
        assert_eq!(enrol(&mut registry, A), Ok(A));
        assert_eq!(enrol(&mut registry, B), Err(HelloRefusal::TicketUsed));
        let mut again = Registry::open(&registry.path).expect("open");
        assert_eq!(again.content, registry.content);
        assert!(again.admit(A, None, "host", NOW).is_ok());
        let unknown = again.admit(B, None, "host", NOW);
        assert_eq!(unknown, Err(HelloRefusal::UnknownClient(B)));
    }

    #[test]
    fn expired_and_foreign_tickets_are_refused_with_their_reason() {
        let (_scratch, mut registry) = registry();
        let secret = registry.issue(Role::default(), NOW).expect("ticket");
        let late = NOW + TICKET_LIFE.as_secs();
        let expired = registry.admit(A, Some(&secret), "host", late);
        assert_eq!(expired, Err(HelloRefusal::TicketExpired));
        let foreign = registry.admit(A, Some(&[9; 32]), "host", NOW);
        assert_eq!(foreign, Err(HelloRefusal::TicketUnknown));
    }

    #[test]
    fn a_revoked_client_needs_a_ticket_made_since() {
        let (_scratch, mut registry) = registry();
        let first = registry.issue(Role::default(), NOW).expect("ticket");
        let old = registry.issue(Role::default(), NOW).expect("ticket");
        registry
            .admit(A, Some(&first), "host:/mnt", NOW)
            .expect("enrolled");
        registry.revoke("host:/mnt", NOW + 1).expect("revoked");
        let revoked = Err(HelloRefusal::Revoked(A));
        assert_eq!(registry.admit(A, None, "host", NOW + 2), revoked);
        assert_eq!(registry.admit(A, Some(&first), "host", NOW + 2), revoked);
        assert_eq!(registry.admit(A, Some(&old), "host", NOW + 2), revoked);
        let fresh = registry.issue(Role::default(), NOW + 3).expect("ticket");
        assert!(registry.admit(A, Some(&fresh), "host", NOW + 4).is_ok());
    }

    #[test]
    fn a_client_is_revoked_by_name_or_key_if_only_one_is_meant() {
        let (_scratch, mut registry) = registry();
        for key in [A, B] {
            let secret = registry.issue(Role::default(), NOW).expect("ticket");
            registry
                .admit(key, Some(&secret), "same", NOW)
                .expect("enrolled");
        }
        let ambiguous = registry.revoke("same", NOW);
        assert!(matches!(ambiguous, Err(RevokeError::Ambiguous(_))));
        assert_eq!(registry.revoke("0202", NOW).expect("revoked").key, B);
        let unknown = registry.revoke("02", NOW);
        assert!(matches!(unknown, Err(RevokeError::Unknown(_))));
    }

    #[test]
    fn a_fresh_ticket_changes_the_role_and_unused_ones_are_bounded() {
        let (_scratch, mut registry) = registry();
        let plain = registry.issue(Role::default(), NOW).expect("ticket");
        registry
            .admit(A, Some(&plain), "host", NOW)
            .expect("enrolled");
        let role = Role {
            read_only: true,
            trust: false,
        };
        let secret = registry.issue(role, NOW).expect("ticket");
        let client = registry.admit(A, Some(&secret), "host", NOW);
        assert_eq!(client.expect("admitted").role, role);
        registry.content.tickets = vec![
            Unused {
                hash: B,
                role,
                made: NOW,
                expires: NOW
            };
            MAX_TICKETS
        ];
        registry.issue(role, NOW).expect("ticket");
        assert_eq!(registry.content.tickets.len(), MAX_TICKETS);
    }
}
