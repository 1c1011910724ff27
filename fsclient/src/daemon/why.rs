//! `fsclient why`, as people and programs get it.
//!
//! `--json` prints a [`Why`]. Field names don't change; fields may be added. Durations are in milliseconds.

use super::status::Lock;
use crate::session::Waiting;
use leasefs_client::HeldHere;
use leasefs_protocol::explain::{Explained, Holding};
use leasefs_protocol::latency::millis;
use leasefs_protocol::{FileKind, Parts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What an access to a path waits for, or would.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// What is mounted: `HOST:PORT:/SUBDIR`.
    pub source: String,
    /// The object's handle, in hexadecimal, as `status` names it.
    pub object: String,
    /// `connected`, `silent` or `disconnected`.
    pub state: String,
    /// What this mount has of it.
    pub here: Here,
    /// Who waits here for the server, for this object's sake.
    pub waiting: Vec<Waiting>,
    /// Its locks that this mount's processes hold or wait for.
    pub locks: Vec<Lock>,
    /// What the server says.
    pub server: Option<There>,
    /// Why it says nothing.
    pub trouble: Option<String>,
}

/// What this mount has of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Here {
    /// What its leases cover: `attrs`, `data`, `listing`, `names`.
    pub leased: Vec<String>,
    /// What of that nobody else may even read.
    pub exclusive: Vec<String>,
    /// The newest was granted so long ago, as the server knows it.
    pub granted_ms: Option<u64>,
    /// What is left of them by this client's clock, unless they are renewed.
    pub lease_ms_left: u64,
    /// It is asked to give something back, and hasn't yet.
    pub recalled: bool,
    /// Bytes cached in the daemon.
    pub clean_bytes: u64,
    /// Bytes written that the server doesn't have.
    pub dirty_bytes: u64,
    /// Whether the kernel may have pages of it.
    pub kernel_pages: bool,
}

/// What the server says of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct There {
    /// Its inode on the storage host.
    pub inode: u64,
    /// `file`, `directory` or `other`.
    pub kind: String,
    /// Other mounts that have leases or locks of it.
    pub others: Vec<Other>,
    /// How many more.
    pub more: u32,
    /// Operations of all mounts that wait at it.
    pub waiting: u32,
    /// It bounces between mounts, so that writes of it aren't buffered; looked at again in so long.
    pub bounces_ms: Option<u64>,
    /// Changes wait for the end of the server's grace.
    pub grace_ms: Option<u64>,
    /// What a read from here would come to.
    pub read: Cost,
    /// What a write from here would come to; of a directory, a change of its entries.
    pub write: Cost,
}

/// What another mount has of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// Host and mount point; absent if that isn't told.
    pub mount: Option<String>,
    /// What its leases cover.
    pub leased: Vec<String>,
    /// What of that nobody else may even read.
    pub exclusive: Vec<String>,
    /// The newest was granted so long ago; absent if it has none.
    pub granted_ms: Option<u64>,
    /// Its leases end then, should it never be heard of again.
    pub ends_ms: u64,
    /// It hasn't been heard of lately.
    pub silent: bool,
    /// It was asked so long ago to give something of it back, and hasn't yet.
    pub recalled_since_ms: Option<u64>,
    /// That is over in so long at the latest, unless it flushes.
    pub recalled_until_ms: Option<u64>,
    /// Locks it holds.
    pub locks: u32,
    /// Locks it waits for.
    pub lock_waits: u32,
}

/// What an access would come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Mounts that would have to give something back first.
    pub recalls: u32,
    /// How many of them don't answer.
    pub silent: u32,
    /// How long it would wait for these at most.
    pub at_most_ms: u64,
}

fn names_of(parts: Parts) -> Vec<String> {
    let all = [
        (Parts::ATTRS, "attrs"),
        (Parts::DATA, "data"),
        (Parts::LISTING, "listing"),
        (Parts::NAMES, "names"),
        (Parts::LOCKS, "locks"),
    ];
    let some = all.into_iter().filter(|(part, _)| parts.contains(*part));
    some.map(|(_, name)| name.to_owned()).collect()
}

impl From<&HeldHere> for Here {
    fn from(held: &HeldHere) -> Self {
        Self {
            leased: names_of(held.parts),
            exclusive: names_of(held.write),
            granted_ms: None,
            lease_ms_left: millis(held.remaining),
            recalled: held.recalled,
            clean_bytes: held.clean as u64,
            dirty_bytes: held.dirty as u64,
            kernel_pages: held.pages,
        }
    }
}

impl From<&Holding> for Other {
    fn from(holding: &Holding) -> Self {
        Self {
            mount: holding.mount.clone(),
            leased: names_of(holding.parts),
            exclusive: names_of(holding.write),
            granted_ms: holding.granted_ms,
            ends_ms: holding.ends_ms,
            silent: holding.silent,
            recalled_since_ms: holding.recall.map(|recall| recall.since_ms),
            recalled_until_ms: holding.recall.map(|recall| recall.until_ms),
            locks: holding.locks,
            lock_waits: holding.lock_waits,
        }
    }
}

impl From<Explained> for There {
    fn from(told: Explained) -> Self {
        let others = || told.holders.iter().filter(|holding| !holding.own);
        let content = match told.kind {
            FileKind::File => Parts::ATTRS | Parts::DATA,
            FileKind::Directory => Parts::ATTRS | Parts::LISTING | Parts::NAMES,
            _ => Parts::ATTRS,
        };
        let grace = Duration::from_millis(told.grace_ms.unwrap_or_default());
        let mut by_name: Vec<Other> = others().map(Into::into).collect();
        by_name.sort_by(|one, other| one.mount.cmp(&other.mount));
        Self {
            inode: told.ino,
            kind: match told.kind {
                FileKind::File => "file",
                FileKind::Directory => "directory",
                _ => "other",
            }
            .to_owned(),
            read: cost(others().filter(|other| other.write.intersects(content))),
            write: cost(others().filter(|other| other.parts.intersects(content))).after(grace),
            others: by_name,
            more: told.more,
            waiting: told.waiting,
            bounces_ms: told.bounces_ms,
            grace_ms: told.grace_ms,
        }
    }
}

/// What it costs to have these give back what they have. Who answers does so at once.
fn cost<'a>(holders: impl Iterator<Item = &'a Holding>) -> Cost {
    holders.fold(Cost::default(), |cost, holder| Cost {
        recalls: cost.recalls + 1,
        silent: cost.silent + u32::from(holder.silent),
        at_most_ms: match holder.silent {
            true => cost.at_most_ms.max(holder.ends_ms),
            false => cost.at_most_ms,
        },
    })
}

impl Cost {
    fn after(self, grace: Duration) -> Self {
        Self {
            at_most_ms: self.at_most_ms.max(millis(grace)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::Handle;

    fn holding(parts: Parts, write: Parts) -> Holding {
        Holding {
            own: false,
            mount: None,
            parts,
            write,
            granted_ms: Some(1_000),
            ends_ms: 9_000,
            silent: false,
            recall: None,
            locks: 0,
            lock_waits: 0,
        }
    }

    fn told(kind: FileKind, holders: Vec<Holding>) -> There {
        Explained {
            object: Handle::NONE,
            ino: 7,
            kind,
            holders,
            more: 0,
            waiting: 0,
            bounces_ms: None,
            grace_ms: None,
        }
        .into()
    }

    #[test]
    fn a_write_recalls_readers_and_a_read_only_who_has_it_alone() {
        let content = Parts::ATTRS | Parts::DATA;
        let reader = holding(content, Parts::NONE);
        let writer = holding(content, content);
        let own = Holding {
            own: true,
            ..writer.clone()
        };
        let told = told(FileKind::File, vec![own, reader, writer]);
        assert_eq!((told.read.recalls, told.write.recalls), (1, 2));
        assert_eq!(
            told.others.len(),
            2,
            "what this mount has stands under `here`"
        );
        assert_eq!(told.write.at_most_ms, 0, "who answers does so at once");
    }

    #[test]
    fn only_who_does_not_answer_is_waited_for_until_its_leases_end() {
        let silent = |ends_ms| Holding {
            silent: true,
            ends_ms,
            ..holding(Parts::DATA, Parts::NONE)
        };
        let told = told(FileKind::File, vec![silent(3_000), silent(8_000)]);
        let cost = Cost {
            recalls: 2,
            silent: 2,
            at_most_ms: 8_000,
        };
        assert_eq!((told.read, told.write), (Cost::default(), cost));
    }

    #[test]
    fn names_of_a_directory_count_where_entries_change() {
        let names = || holding(Parts::NAMES, Parts::NONE);
        assert_eq!(told(FileKind::Directory, vec![names()]).write.recalls, 1);
        assert_eq!(told(FileKind::File, vec![names()]).write.recalls, 0);
    }
}
