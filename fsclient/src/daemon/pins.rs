//! The keys of servers this client is enrolled with, by address.

use leasefs_host::files::replace;
use leasefs_protocol::KeyHash;
use leasefs_protocol::ticket::ServerAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// A file of pinned keys.
#[derive(Clone, Debug)]
pub struct Pins {
    path: PathBuf,
}

impl Pins {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The key pinned for a server; without one it may have any key that is pinned for another address.
    ///
    /// # Errors
    /// A message for people, if there is none or the file is damaged.
    pub fn get(&self, server: &ServerAddr) -> Result<Pinned, String> {
        let pins = self.read()?;
        let key = |pin: &String| pin.parse().map_err(|_| self.damaged("a key is malformed"));
        if let Some(pin) = pins.get(&server.to_string()) {
            return Ok(Pinned::Key(key(pin)?));
        }
        let known: Result<BTreeSet<KeyHash>, String> = pins.values().map(key).collect();
        match known? {
            none if none.is_empty() => Err(not_enrolled(server)),
            some => Ok(Pinned::AnyOf(some)),
        }
    }

    /// All servers whose keys are pinned.
    ///
    /// # Errors
    /// A message for people, if the file is damaged.
    pub fn all(&self) -> Result<Vec<(ServerAddr, KeyHash)>, String> {
        let pin = |(server, key): (String, String)| {
            let server = server
                .parse()
                .map_err(|_| self.damaged("an address is malformed"))?;
            let key = key
                .parse()
                .map_err(|_| self.damaged("a key is malformed"))?;
            Ok((server, key))
        };
        self.read()?.into_iter().map(pin).collect()
    }

    /// Pins a key, in place of an earlier one.
    ///
    /// # Errors
    /// A message for people.
    pub fn set(&self, server: &ServerAddr, key: KeyHash) -> Result<(), String> {
        let (server, key) = (server.to_string(), key.to_string());
        self.change(|pins| pins.insert(server, key.clone()) != Some(key))?;
        Ok(())
    }

    /// Forgets a server, by all the addresses that it has. Returns them.
    ///
    /// # Errors
    /// A message for people, if it isn't known.
    pub fn forget(&self, server: &ServerAddr) -> Result<Vec<String>, String> {
        let mut forgotten = Vec::new();
        self.change(|pins| {
            let key = pins.get(&server.to_string()).cloned();
            let is_it = |pin: &String| Some(pin) == key.as_ref();
            let names = pins.iter().filter(|(_, pin)| is_it(pin));
            forgotten.extend(names.map(|(server, _)| server.clone()));
            pins.retain(|_, pin| !is_it(pin));
            !forgotten.is_empty()
        })?;
        match forgotten.is_empty() {
            true => Err(format!("this client is not enrolled with {server}")),
            false => Ok(forgotten),
        }
    }

    /// `change` says whether it has changed anything.
    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, String>) -> bool,
    ) -> Result<(), String> {
        let failed = |e: io::Error| format!("can't write {}: {e}", self.path.display());
        // Mounts that start at the same time must not undo each other's pins.
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path.with_extension("lock"))
            .map_err(failed)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|e| failed(e.into()))?;
        let mut pins = self.read()?;
        if !change(&mut pins) {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&pins).map_err(|e| failed(e.into()))?;
        replace(&self.path, &text).map_err(failed)
    }

    fn read(&self) -> Result<BTreeMap<String, String>, String> {
        match fs::read(&self.path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| self.damaged(&e.to_string())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(e) => Err(format!("can't read {}: {e}", self.path.display())),
        }
    }

    fn damaged(&self, why: &str) -> String {
        format!(
            "{} is damaged ({why}): remove it and mount with a ticket",
            self.path.display()
        )
    }
}

/// What key a server has to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// This one.
    Key(KeyHash),
    /// One of those that this client is enrolled with, by other addresses: a server is its key.
    AnyOf(BTreeSet<KeyHash>),
}

pub(super) fn not_enrolled(server: &ServerAddr) -> String {
    format!(
        "this client is not enrolled with {server}: mount once with a ticket \
         (`fsserver ticket` on the server prints one)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_read_back_and_an_unknown_server_says_what_to_do() -> Result<(), String> {
        let path = std::env::temp_dir().join(format!("leasefs-pins-{}.json", std::process::id()));
        let pins = Pins::new(path.clone());
        let server: ServerAddr = "nas:99".parse().map_err(|e| format!("{e}"))?;
        let unknown = pins.get(&server).expect_err("nothing is pinned");
        assert!(unknown.contains("ticket"), "{unknown}");
        pins.set(&server, KeyHash([7; 32]))?;
        pins.set(&server, KeyHash([8; 32]))?;
        assert_eq!(pins.get(&server)?, Pinned::Key(KeyHash([8; 32])));
        let other: ServerAddr = "[::1]:99".parse().map_err(|e| format!("{e}"))?;
        let known = BTreeSet::from([KeyHash([8; 32])]);
        assert_eq!(pins.get(&other)?, Pinned::AnyOf(known));
        pins.set(&other, KeyHash([8; 32]))?;
        let third: ServerAddr = "third:1".parse().map_err(|e| format!("{e}"))?;
        pins.set(&third, KeyHash([9; 32]))?;
        assert_eq!(
            pins.forget(&server)?,
            ["[::1]:99", "nas:99"],
            "a server is its key"
        );
        assert_eq!(pins.all()?, [(third, KeyHash([9; 32]))]);
        assert!(pins.forget(&server).is_err());
        for file in [path.clone(), path.with_extension("lock")] {
            fs::remove_file(file).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}
