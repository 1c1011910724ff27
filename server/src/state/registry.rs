//! Who may come: enrolled clients, and tickets that enrol more.

mod clients;
mod spent;
#[cfg(test)]
mod tests;

pub use clients::{Directory, Enrolled, Role, User};

use super::error::StateError;
use super::files;
use clients::{Content, Unused};
use leasefs_protocol::control::HelloRefusal;
use leasefs_protocol::limits::{MAX_CLIENTS, MAX_TICKETS, TICKET_LIFE};
use leasefs_protocol::{KeyHash, escaped};
use ring::digest::{SHA256, digest};
use spent::{Event, Spent, What};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest name of a client that is kept.
const MAX_NAME: usize = 256;
/// Fewer digits name no key.
const LEAST_OF_KEY: usize = 4;

/// Clients and tickets, kept in a file, and beside it what can't be taken back.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    content: Content,
    spent: Spent,
    /// What was wrong with the list.
    note: Option<String>,
}

/// Why a client can't be revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// No client is meant.
    #[error(
        "no client is called {0}, and no key begins so (four characters at least): `fsserver clients` lists them"
    )]
    Unknown(String),
    /// Several are meant.
    #[error("{which} means several clients: name one by the beginning of its key")]
    Ambiguous {
        /// As it was named.
        which: String,
        /// Whom it may mean.
        candidates: Vec<Enrolled>,
    },
    /// The disk fails.
    #[error("the list of clients can't be written: {0}")]
    Disk(#[from] io::Error),
}

/// Seconds since the Unix epoch: only tickets and people depend on them.
pub fn wall_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

impl Registry {
    /// Reads the registry kept in a file, or begins one. `spent` is the record beside it. `now` is
    /// in seconds since the Unix epoch.
    ///
    /// # Errors
    /// If a file can't be read or is damaged.
    pub fn open(path: &Path, spent: &Path, now: u64) -> Result<Self, StateError> {
        let content: Content = files::read_json(path)?.unwrap_or_default();
        let mut content = content.numbered();
        let spent = Spent::open(spent)?;
        let note = spent.correct(&mut content, now);
        Ok(Self {
            path: path.to_owned(),
            content,
            spent,
            note,
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

    /// Whether the key has been revoked, and not enrolled since.
    pub fn has_revoked(&self, key: KeyHash) -> bool {
        let client = self.content.clients.iter().find(|c| c.key == key);
        client.is_some_and(|client| client.revoked.is_some())
    }

    /// What people ought to know of the list: it was put back from a copy.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Applies a change if it can be written. What it takes away is gone for good before.
    fn change(&mut self, what: What, mut content: Content) -> io::Result<()> {
        let number = self.next();
        self.spent.note(Event { number, what }, &content)?;
        content.last = number;
        files::write_json(&self.path, &content)?;
        self.content = content;
        Ok(())
    }

    /// Number of what happens next.
    fn next(&self) -> u64 {
        // Where a file claims that they have run out, what is equal counts as older.
        self.content.last.max(self.spent.last()).saturating_add(1)
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
            number: self.next(),
        });
        let too_many = content.tickets.len().saturating_sub(MAX_TICKETS);
        content.tickets.drain(..too_many);
        self.change(What::Issued, content)
            .map_err(StateError::file(&self.path))?;
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
            (_, Some(ticket)) => self.enrol(key, ticket, name, now),
        }
    }

    fn enrol(
        &mut self,
        key: KeyHash,
        ticket: KeyHash,
        name: &str,
        now: u64,
    ) -> Result<Enrolled, HelloRefusal> {
        let mut content = self.content.clone();
        let unused = self.take_ticket(&mut content, key, ticket)?;
        if now >= unused.expires {
            return Err(HelloRefusal::TicketExpired);
        }
        let known = content.clients.iter().find(|c| c.key == key);
        let revocation = known.map_or(0, |client| client.revocation);
        let revocation = revocation.max(self.spent.revocation(key));
        // Only a ticket made since then says that the server's people want the client back.
        if revocation > 0 && unused.number <= revocation {
            return Err(HelloRefusal::Revoked(key));
        }
        // What it holds names what lies within its border: that goes with a revocation only.
        let confined = |client: &&Enrolled| client.revoked.is_none();
        let known = known.filter(confined).map(|client| &client.role);
        if known.is_some_and(|role| role.confined_to() != unused.role.confined_to()) {
            let why = "this client is enrolled for another directory: use another state directory \
                       (--state) for this one, or have it revoked first";
            return Err(HelloRefusal::NoDirectory(why.to_owned()));
        }
        content.clients.retain(|client| client.key != key);
        if content.clients.len() >= MAX_CLIENTS {
            return Err(HelloRefusal::TooMany("clients".to_owned()));
        }
        let client = Enrolled {
            key,
            // Without the mount point: it may have several, one after the other or at a time.
            name: name
                .split(':')
                .next()
                .unwrap_or_default()
                .chars()
                .filter(|c| !c.is_control())
                .take(MAX_NAME)
                .collect(),
            role: unused.role,
            enrolled: now,
            revoked: None,
            ticket,
            number: self.next(),
            revocation,
        };
        content.clients.push(client.clone());
        let what = What::Enrolled { key, ticket };
        self.change(what, content).map_err(|error| {
            tracing::error!(%error, "a client can't be enrolled");
            HelloRefusal::Internal("it can't write its list of clients".to_owned())
        })?;
        tracing::info!(client = %key, name = %client.name, "client enrolled");
        Ok(client)
    }

    /// Takes a ticket out that may enrol the key.
    fn take_ticket(
        &self,
        content: &mut Content,
        key: KeyHash,
        ticket: KeyHash,
    ) -> Result<Unused, HelloRefusal> {
        if self.spent.is_used(ticket, key) {
            return Err(HelloRefusal::TicketUsed);
        }
        match content.tickets.iter().position(|t| t.hash == ticket) {
            Some(place) => Ok(content.tickets.remove(place)),
            None if content.clients.iter().any(|c| c.ticket == ticket) => {
                Err(HelloRefusal::TicketUsed)
            }
            None => Err(HelloRefusal::TicketUnknown),
        }
    }

    /// Revokes the client of this name, or whose key begins so.
    ///
    /// # Errors
    /// If it isn't exactly one, or the disk fails.
    pub fn revoke(&mut self, which: &str, now: u64) -> Result<Enrolled, RevokeError> {
        let mut content = self.content.clone();
        let number = self.next();
        let mut found = content.clients.iter_mut().filter(|c| is_meant(c, which));
        let client = found
            .next()
            .ok_or_else(|| RevokeError::Unknown(which.to_owned()))?;
        let others: Vec<Enrolled> = found.map(|other| other.clone()).collect();
        if !others.is_empty() {
            return Err(RevokeError::Ambiguous {
                which: which.to_owned(),
                candidates: [vec![client.clone()], others].concat(),
            });
        }
        client.revoked.get_or_insert(now);
        client.revocation = number;
        let revoked = client.clone();
        self.change(What::Revoked { key: revoked.key }, content)?;
        Ok(revoked)
    }
}

/// Whether somebody who writes `which` may mean the client. A client chooses its name, and can choose
/// how its key begins: so neither goes before the other. But a whole key is nobody's name.
fn is_meant(client: &Enrolled, which: &str) -> bool {
    let hex = which.to_lowercase();
    if let Ok(key) = hex.parse::<KeyHash>() {
        return client.key == key;
    }
    let begins = which.len() >= LEAST_OF_KEY && client.key.to_string().starts_with(&hex);
    // As it was sent, or as it is shown.
    begins || client.name == which || escaped(&client.name).to_string() == which
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
