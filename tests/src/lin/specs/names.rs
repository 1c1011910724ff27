//! The name space of a few names in small directories, with hard links among
//! them.

use crate::lin::Spec;
use std::fmt;

/// An inode number as `stat` reports it.
pub type Inode = u64;

/// `slots` names, numbered through all directories of the object; none exists at
/// first.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// How many names there are.
    pub slots: usize,
}

/// What a [`Names`] object holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamesState {
    /// What each name leads to.
    names: Vec<Option<Inode>>,
    /// Renames of which one half has happened, by their number, lowest first.
    halves: Vec<(usize, Half)>,
}

/// Which half of a rename has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Half {
    /// [`NameOp::RenameLook`], which found this.
    Found(Inode),
    /// [`NameOp::RenameAct`], before the look: as one, it was a usual rename.
    Done,
}

/// An operation on [`Names`]. Names are given by number. Results that are
/// refusals (`EEXIST`, `ENOENT`) are answers like any other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameOp {
    /// `open(O_CREAT | O_EXCL)`: the new inode, or `None` for `EEXIST`. Without an
    /// answer it is `Some(UNKNOWN_INODE)`.
    Create(usize, Option<Inode>),
    /// `unlink`: done, or `ENOENT`.
    Unlink(usize, bool),
    /// `rename` of the first to the second, replacing it: done, or `ENOENT`.
    Rename(usize, usize, bool),
    /// First half of a `rename` that was done, perhaps by doing nothing: see
    /// [`renames_in_halves`](super::renames_in_halves).
    RenameLook {
        /// Names the rename in this history.
        number: usize,
        /// The name to be moved.
        old: usize,
    },
    /// Its second half.
    RenameAct {
        /// The same as its first half's.
        number: usize,
        /// The name to be moved.
        old: usize,
        /// Where to.
        new: usize,
    },
    /// `link` of an inode held open as this name: done or refused as [`Linked`] says.
    /// (A `link` of a name first finds the inode and then links it: two moments.)
    Link(Inode, usize, Linked),
    /// `stat`, `open`: the inode; `None` for `ENOENT`.
    Lookup(usize, Option<Inode>),
    /// `stat`, `fstat`: the link count of an inode, found by name or held open. (A
    /// `stat` first finds the inode and then asks it: two operations.)
    Links(Inode, u64),
    /// `readdir`: the names `from..to` as listed; `None` inside for an entry whose
    /// inode number is not told.
    List {
        /// First name of the directory.
        from: usize,
        /// What each of its names was listed as.
        found: Vec<Option<Inode>>,
    },
}

/// How a `link` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    /// The new name exists.
    Done,
    /// `ENOENT`: the inode has no name left. The kernel says so from its own count,
    /// which after a local `unlink` is one too low if another mount has added a link;
    /// so this answer is held against nobody.
    NoSource,
    /// `EEXIST`: the new name did already.
    TargetExists,
}

/// Stands for the inode of a create that was not answered.
pub const UNKNOWN_INODE: Inode = u64::MAX;

fn same(known: Inode, seen: Inode) -> bool {
    known == seen || known == UNKNOWN_INODE
}

impl NamesState {
    fn leads_to(&self, name: usize, inode: Inode) -> bool {
        self.names[name].is_some_and(|held| same(held, inode))
    }

    fn has_links(&self, inode: Inode, count: u64) -> bool {
        let named = |wanted| self.names.iter().filter(move |held| **held == Some(wanted));
        named(inode).count() as u64 == count || named(UNKNOWN_INODE).count() > 0
    }

    fn looked_up(&self, name: usize, found: Option<Inode>) -> bool {
        match found {
            Some(inode) => self.leads_to(name, inode),
            None => self.names[name].is_none(),
        }
    }

    fn listed(&self, from: usize, found: &[Option<Inode>]) -> bool {
        found
            .iter()
            .zip(&self.names[from..])
            .all(|(listed, held)| match (listed, held) {
                (None, None) => true,
                (Some(listed), Some(held)) => same(*held, *listed) || *listed == UNKNOWN_INODE,
                _ => false,
            })
    }

    fn with(&self, name: usize, inode: Option<Inode>) -> Self {
        let mut next = self.clone();
        next.names[name] = inode;
        next
    }

    fn linked(&self, inode: Inode, new: usize, how: Linked) -> Option<Self> {
        let named = || (0..self.names.len()).any(|name| self.leads_to(name, inode));
        match how {
            Linked::Done => {
                (named() && self.names[new].is_none()).then(|| self.with(new, Some(inode)))
            }
            Linked::NoSource => Some(self.clone()),
            Linked::TargetExists => self.names[new].is_some().then(|| self.clone()),
        }
    }

    fn renamed(&self, old: usize, new: usize) -> Option<Self> {
        let moved = self.names[old]?;
        // Two names of one inode: POSIX asks rename to do nothing, successfully.
        if self.names[new] == Some(moved) {
            return Some(self.clone());
        }
        Some(self.with(new, Some(moved)).with(old, None))
    }

    fn half(&self, number: usize) -> Option<Half> {
        let mut halves = self.halves.iter();
        halves.find(|half| half.0 == number).map(|half| half.1)
    }

    fn with_half(&self, number: usize, half: Option<Half>) -> Self {
        let mut next = self.clone();
        next.halves.retain(|known| known.0 != number);
        next.halves.extend(half.map(|half| (number, half)));
        next.halves.sort_unstable_by_key(|known| known.0);
        next
    }

    fn rename_looked(&self, number: usize, old: usize) -> Option<Self> {
        match self.half(number) {
            None => Some(self.with_half(number, Some(Half::Found(self.names[old]?)))),
            Some(_) => Some(self.with_half(number, None)),
        }
    }

    fn rename_acted(&self, number: usize, old: usize, new: usize) -> Option<Self> {
        match self.half(number) {
            Some(Half::Found(inode)) => self
                .leads_to(new, inode)
                .then(|| self.with_half(number, None)),
            _ => Some(self.renamed(old, new)?.with_half(number, Some(Half::Done))),
        }
    }
}

impl Spec for Names {
    type State = NamesState;
    type Op = NameOp;

    fn initial(&self) -> NamesState {
        NamesState {
            names: vec![None; self.slots],
            halves: Vec::new(),
        }
    }

    fn step(&self, state: &NamesState, op: &NameOp) -> Option<NamesState> {
        let there = |name: &usize| state.names[*name].is_some();
        let unchanged = |fits: bool| fits.then(|| state.clone());
        match op {
            NameOp::Create(name, Some(inode)) => {
                (!there(name)).then(|| state.with(*name, Some(*inode)))
            }
            NameOp::Create(name, None) => unchanged(there(name)),
            NameOp::Unlink(name, true) => there(name).then(|| state.with(*name, None)),
            NameOp::Unlink(name, false) => unchanged(!there(name)),
            NameOp::Rename(old, new, true) => state.renamed(*old, *new),
            NameOp::Rename(old, _, false) => unchanged(!there(old)),
            NameOp::RenameLook { number, old } => state.rename_looked(*number, *old),
            NameOp::RenameAct { number, old, new } => state.rename_acted(*number, *old, *new),
            NameOp::Link(inode, new, how) => state.linked(*inode, *new, *how),
            NameOp::Lookup(name, found) => unchanged(state.looked_up(*name, *found)),
            NameOp::Links(inode, count) => unchanged(state.has_links(*inode, *count)),
            NameOp::List { from, found } => unchanged(state.listed(*from, found)),
        }
    }

    fn is_read(&self, op: &NameOp) -> bool {
        match op {
            NameOp::Create(_, created) => created.is_none(),
            NameOp::Unlink(_, done) | NameOp::Rename(_, _, done) => !done,
            NameOp::Link(_, _, how) => *how != Linked::Done,
            NameOp::RenameLook { .. } | NameOp::RenameAct { .. } => false,
            NameOp::Lookup(..) | NameOp::Links(..) | NameOp::List { .. } => true,
        }
    }

    fn is_whole(&self, op: &NameOp) -> bool {
        !matches!(op, NameOp::RenameLook { .. })
    }
}

impl fmt::Display for NameOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = |done: &bool| if *done { "done" } else { "ENOENT" };
        match self {
            Self::Create(name, Some(inode)) => write!(f, "create n{name} -> inode {inode}"),
            Self::Create(name, None) => write!(f, "create n{name} -> EEXIST"),
            Self::Unlink(name, done) => write!(f, "unlink n{name} -> {}", refused(done)),
            Self::Rename(old, new, done) => write!(f, "rename n{old} n{new} -> {}", refused(done)),
            Self::RenameLook { number, old } => write!(f, "rename #{number} looks at n{old}"),
            Self::RenameAct { number, old, new } => {
                write!(f, "rename #{number} n{old} n{new} -> done")
            }
            Self::Link(inode, new, how) => write!(f, "link inode {inode} as n{new} -> {how:?}"),
            Self::Lookup(name, None) => write!(f, "lookup n{name} -> ENOENT"),
            Self::Lookup(name, Some(inode)) => write!(f, "lookup n{name} -> inode {inode}"),
            Self::Links(inode, count) => write!(f, "links of inode {inode} -> {count}"),
            Self::List { from, found } => write_listing(f, *from, found),
        }
    }
}

fn write_listing(f: &mut fmt::Formatter<'_>, from: usize, found: &[Option<Inode>]) -> fmt::Result {
    write!(f, "readdir ->")?;
    for (index, inode) in found.iter().enumerate() {
        if let Some(inode) = inode {
            write!(f, " n{}={inode}", from + index)?;
        }
    }
    Ok(())
}
