//! Changes that no commit covers yet: a crash of the server's host may have undone them. As in the
//! shipped client.

use crate::sim::model::Obj;
use leasefs_protocol::BootId;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
struct Changed {
    /// The host's life in which the first change since the last commit was answered.
    since: Option<BootId>,
    count: u64,
    losses: u64,
}

/// All files that have been changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Uncommitted {
    files: BTreeMap<Obj, Changed>,
    /// Losses that a process's descriptor was told of.
    told: BTreeMap<(usize, Obj), u64>,
}

impl Uncommitted {
    /// A change of the file was answered in this life of the host.
    pub fn changed(&mut self, file: Obj, host: BootId) {
        let changed = self.files.entry(file).or_default();
        changed.since.get_or_insert(host);
        changed.count += 1;
    }

    /// What a commit that is sent now covers.
    pub fn commits(&self, file: Obj) -> u64 {
        self.files.get(&file).map_or(0, |changed| changed.count)
    }

    /// A commit has succeeded in this life of the host. `false`, once for each descriptor, if
    /// something may be gone.
    pub fn committed(&mut self, (process, file): (usize, Obj), covered: u64, host: BootId) -> bool {
        let Some(changed) = self.files.get_mut(&file) else {
            return true;
        };
        if changed.since.is_some_and(|since| since != host) {
            changed.losses += 1;
        }
        changed.since = (changed.count != covered).then_some(host);
        let losses = changed.losses;
        self.told.insert((process, file), losses).unwrap_or(0) == losses
    }
}
