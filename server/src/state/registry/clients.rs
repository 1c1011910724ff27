//! What the list of clients holds.

use leasefs_protocol::{Handle, KeyHash};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A user of the host, and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl FromStr for User {
    type Err = String;

    /// `UID:GID`. Root isn't taken: everybody on the client's machine would be root here.
    fn from_str(text: &str) -> Result<Self, String> {
        let id = |id: &str| id.parse().ok().filter(|id| *id != u32::MAX);
        let parsed = text.split_once(':').and_then(|(uid, gid)| {
            let (uid, gid) = (id(uid)?, id(gid)?);
            Some(Self { uid, gid })
        });
        match parsed {
            Some(Self { uid: 0, .. }) => Err(
                "every user of the client's machine would be root here: --trust leaves root's rights \
                 to its root"
                    .to_owned(),
            ),
            Some(user) => Ok(user),
            None => Err("expected UID:GID, two numbers as 1000:1000".to_owned()),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// What a client may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// It may only read.
    pub read_only: bool,
    /// Its user ids are believed, root's too.
    pub trust: bool,
    /// The one user that all its requests act as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acts_as: Option<User>,
    /// Where it is confined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub border: Option<Directory>,
}

/// A directory of the export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Where it was when the ticket was made, for people.
    pub path: String,
    /// What it is known by.
    #[serde(with = "hex")]
    pub handle: Handle,
}

impl Role {
    /// The directory that the client is confined to.
    pub fn confined_to(&self) -> Option<Handle> {
        self.border.as_ref().map(|border| border.handle)
    }
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
    pub(super) ticket: KeyHash,
    /// The enrolment's number in the order of all that has happened to the list.
    #[serde(default)]
    pub(super) number: u64,
    /// The last revocation's, 0 if there was none.
    #[serde(default)]
    pub(super) revocation: u64,
}

impl Enrolled {
    /// Number of the last that has happened to it.
    pub(super) fn newest(&self) -> u64 {
        self.number.max(self.revocation)
    }
}

/// A ticket that has enrolled nobody yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unused {
    /// Hash of its secret; the secret itself is never kept.
    #[serde(with = "hex")]
    pub hash: KeyHash,
    pub role: Role,
    pub made: u64,
    pub expires: u64,
    #[serde(default)]
    pub number: u64,
}

/// The list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    /// Number of the last that has happened to it.
    #[serde(default)]
    pub last: u64,
    pub clients: Vec<Enrolled>,
    pub tickets: Vec<Unused>,
}

impl Content {
    /// Numbers a list of a version that numbered nothing: what is revoked stays so, whatever
    /// ticket there is.
    pub fn numbered(mut self) -> Self {
        let bare = self.last == 0 && !(self.clients.is_empty() && self.tickets.is_empty());
        if bare {
            self.last = 1;
            for client in &mut self.clients {
                client.revocation = u64::from(client.revoked.is_some());
            }
        }
        self
    }
}

pub(super) mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(id: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}
