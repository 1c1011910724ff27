//! The names of a directory in their order, packed: there are as many of them as the directory has.

use leasefs_protocol::limits::MAX_LISTED;
use leasefs_protocol::{DirEntry, FileKind};
use std::fmt::Debug;
use std::sync::OnceLock;

/// An entry of a directory, as a listing keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedName<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Where the listing goes on behind it.
    pub cookie: u64,
}

/// Entries of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// One behind the other.
    names: Vec<u8>,
    entries: Vec<Entry>,
    counted: Counted,
}

/// What it is counted by, for as long as anybody has it. A copy isn't counted.
#[derive(Debug, Default)]
struct Counted(OnceLock<Box<dyn Debug + Send + Sync>>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Counted {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Counted {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    ino: u64,
    cookie: u64,
    /// Where its name ends.
    end: u32,
    kind: FileKind,
}

const _: () = assert!(MAX_LISTED <= u32::MAX as usize, "names end behind any u32");

impl Names {
    /// Approximate size of an entry.
    pub fn cost_of(entry: &DirEntry) -> usize {
        size_of::<Entry>() + entry.name.0.len()
    }

    /// Approximate size.
    pub fn cost(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.names.len()
    }

    /// Counts it, unless it is: however many read it.
    ///
    /// # Errors
    /// Why it can't be.
    pub fn count_by<C: Debug + Send + Sync + 'static, E>(
        &self,
        count: impl FnOnce() -> Result<C, E>,
    ) -> Result<(), E> {
        if self.counted.0.get().is_none() {
            // Nobody else has since.
            let _ = self.counted.0.set(Box::new(count()?));
        }
        Ok(())
    }

    /// Takes in an entry. There is room for it: what all listings take has been reserved before.
    pub fn push(&mut self, entry: &DirEntry) {
        self.names.extend_from_slice(&entry.name.0);
        self.entries.push(Entry {
            ino: entry.ino,
            cookie: entry.cookie,
            end: self.names.len() as u32,
            kind: entry.kind,
        });
    }

    /// No more come.
    pub fn shrink(&mut self) {
        self.names.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry at this place.
    pub fn get(&self, at: usize) -> Option<ListedName<'_>> {
        let entry = self.entries.get(at)?;
        let before = at.checked_sub(1).and_then(|at| self.entries.get(at));
        Some(self.listed(before.map_or(0, |before| before.end), entry))
    }

    /// From this place on.
    pub fn from(&self, at: usize) -> impl Iterator<Item = ListedName<'_>> {
        (at..self.len()).filter_map(|at| self.get(at))
    }

    pub fn iter(&self) -> impl Iterator<Item = ListedName<'_>> {
        self.from(0)
    }

    fn listed(&self, start: u32, entry: &Entry) -> ListedName<'_> {
        let name = self.names.get(start as usize..entry.end as usize);
        ListedName {
            name: name.unwrap_or_default(),
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::RawName;

    #[test]
    fn entries_are_told_as_they_came() {
        let mut names = Names::default();
        let entries = ["a", "", "long"].map(|name| DirEntry {
            name: RawName(name.into()),
            ino: 7,
            kind: FileKind::File,
            cookie: name.len() as u64,
            node: None,
        });
        entries.iter().for_each(|entry| names.push(entry));
        let told: Vec<_> = names
            .iter()
            .map(|entry| (entry.name, entry.cookie))
            .collect();
        assert_eq!(told, [(&b"a"[..], 1), (b"", 0), (b"long", 4)]);
        assert!((0..3).all(|at| names.get(at) == names.iter().nth(at)));
        assert_eq!((names.len(), names.get(3)), (3, None));
        let cost: usize = entries.iter().map(Names::cost_of).sum();
        assert_eq!(names.cost(), cost);
    }
}
