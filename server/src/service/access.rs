//! The one table that says what each request reads and changes.
//!
//! It is the lease core's only source: a part that is missing here is a stale cache somewhere.
//! What a name denotes is found, with its caller's rights, before the request is admitted and checked
//! again when it is.

use leasefs_lease::planted::{self, Bug};
use leasefs_lease::server::ReadKind::{FillForStore, FillPages, Metadata, Uncached};
use leasefs_lease::server::{ReadItem, ReadKind, Touch};
use leasefs_protocol::change::{
    Create, Link, Make, OpenTruncated, RemoveXattr, Rename, Rmdir, SetAttr, SetXattr, Unlink,
};
use leasefs_protocol::query::{
    Access, Fill, GetAttr, GetXattr, ListXattr, Lookup, Open, Read, ReadDir, ReadLink,
};
use leasefs_protocol::{Change, Handle, Name, O_TRUNC, Parts, Query, RawName};
use leasefs_store::Found;

/// What names of a request denote and which objects its opens are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The object of the request's open; of `CopyRange`, the one written to.
    pub opened: Option<Handle>,
    /// Of `CopyRange`, the object read from.
    pub copied: Option<Handle>,
    /// What the request's name denotes.
    pub named: Option<Handle>,
    /// Of `Rename`, what the new name denotes.
    pub replaced: Option<Handle>,
    /// Directories of the request's names whose names the caller may not list: it gets no lease on these,
    /// since recalls tell which others change.
    pub unlisted: Vec<Handle>,
    /// The export's root, if it changes because the request removes the name of an open file.
    pub shelter: Option<Handle>,
}

impl Targets {
    /// Of a lookup.
    pub fn looked_up(dir: &Handle, found: &Found) -> Self {
        Self {
            named: found.node.map(|node| node.handle),
            unlisted: if found.lists { Vec::new() } else { vec![*dir] },
            ..Self::default()
        }
    }

    /// Whether the caller may hold a lease on the names of a directory.
    pub fn lists(&self, dir: &Handle) -> bool {
        !self.unlisted.contains(dir)
    }
}

/// What a request reads and changes; each object at most once in `touches`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// What the answer leaves behind at the client.
    pub kind: ReadKind,
    /// Read.
    pub reads: Vec<ReadItem>,
    /// Changed.
    pub touches: Vec<Touch>,
}

/// Names of a request, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// `name`.
    pub name: Option<Name>,
    /// `new_name`.
    pub new_name: Option<Name>,
}

/// What a query reads, given its name and what that and its open denote just now.
pub fn of_query(query: &Query, names: &Names, targets: &Targets) -> Accesses {
    let all = Accesses::of(Uncached);
    let Targets { opened, named, .. } = *targets;
    match query {
        Query::Lookup(Lookup { dir, .. }) => {
            let all = Accesses::of(Metadata).reads(named, Parts::ATTRS);
            match targets.lists(dir) {
                true => all.reads_name(*dir, names.name.clone()),
                false => all,
            }
        }
        Query::GetAttr(GetAttr { object })
        | Query::ReadLink(ReadLink { object })
        | Query::GetXattr(GetXattr { object, .. })
        | Query::ListXattr(ListXattr { object })
        | Query::Open(Open { object, .. }) => Accesses::of(Metadata).reads(*object, Parts::ATTRS),
        Query::Access(Access { object, .. }) => all.reads(*object, Parts::ATTRS),
        Query::Read(Read { fill, .. }) => Accesses::of(kind_of(*fill)).reads(opened, Parts::DATA),
        Query::Seek(_) => all.reads(opened, Parts::DATA),
        Query::ReadDir(ReadDir { cookie, nodes, .. }) => read_dir(opened, *cookie, *nodes),
        Query::Close(_)
        | Query::Commit(_)
        | Query::CommitAll(_)
        | Query::StatFs(_)
        // Says who holds what, and shows nothing that is leased.
        | Query::Explain(_)
        // The lease core decides these itself.
        | Query::Lock(_)
        | Query::Unlock(_)
        | Query::TestLock(_)
        | Query::CancelLock(_)
        | Query::ResetLocks(_) => all,
    }
}

/// What an open reads besides that brings the file's bytes along, once its caller is known to be one who may read them.
pub fn of_opened_data(object: Handle) -> Accesses {
    Accesses::of(Metadata).reads(object, Parts::DATA)
}

/// What a change reads and changes, given its names and what they and its opens denote just now.
pub fn of_change(change: &Change, names: &Names, targets: &Targets) -> Accesses {
    let all = Accesses::of(Uncached);
    let Targets {
        opened,
        copied,
        named,
        replaced,
        shelter,
        ..
    } = *targets;
    let name = || names.name.clone();
    match change {
        Change::OpenTruncated(OpenTruncated { object, .. }) => all.changes(*object, content()),
        Change::SetAttr(SetAttr { object, set, .. }) => match set.size {
            Some(_) => all.changes(*object, content()),
            None if !set.rights().is_empty() => all.changes(*object, rights()),
            None => all.changes(*object, Parts::ATTRS),
        },
        Change::SetXattr(SetXattr { object, name, .. })
        | Change::RemoveXattr(RemoveXattr { object, name }) => match is_acl(name) {
            true => all.changes(*object, rights()),
            false => all.changes(*object, Parts::ATTRS),
        },
        Change::Write(_) | Change::Fallocate(_) => all.changes(opened, content()),
        Change::CopyRange(_) => all.reads(copied, Parts::DATA).changes(opened, content()),
        Change::Create(Create { dir, flags, .. }) => create(*dir, name(), *flags, named),
        Change::Make(Make { dir, .. }) => all.renames(*dir, name()),
        Change::Link(Link { object, dir, .. }) => {
            all.renames(*dir, name()).changes(*object, Parts::ATTRS)
        }
        Change::Rmdir(Rmdir { dir, .. }) => {
            let named = named.filter(|_| !planted::is(Bug::ForgetVictim));
            all.renames(*dir, name()).changes(named, all_of_directory())
        }
        Change::Unlink(Unlink { dir, .. }) => {
            let named = named.filter(|_| !planted::is(Bug::ForgetVictim));
            let all = all.renames(*dir, name()).changes(named, Parts::ATTRS);
            all.changes(shelter, Parts::ATTRS)
        }
        // Two names of one object: nothing is done, whoever asks.
        Change::Rename(_) if named.is_some() && named == replaced => all,
        Change::Rename(Rename { dir, new_dir, .. }) => all
            .renames(*dir, name())
            .renames(*new_dir, names.new_name.clone())
            .changes(named, Parts::ATTRS)
            .changes(replaced, Parts::ATTRS)
            .changes(shelter, Parts::ATTRS),
    }
}

/// What changes of a directory along with a name in it.
fn directory() -> Parts {
    Parts::ATTRS | Parts::LISTING
}

/// What ends with a directory: no lease of it is to be left.
fn all_of_directory() -> Parts {
    directory() | Parts::NAMES
}

/// What changes along with who may do what. Names are leased to who may search the directory, and a client that leaves it to
/// the server to say who may goes by them.
fn rights() -> Parts {
    Parts::ATTRS | Parts::NAMES
}

fn is_acl(name: &RawName) -> bool {
    name.0 == b"system.posix_acl_access"
}

/// What changes of a file along with its bytes.
fn content() -> Parts {
    match planted::is(Bug::SizeUnrecalled) {
        true => Parts::DATA,
        false => Parts::DATA | Parts::ATTRS,
    }
}

fn kind_of(fill: Fill) -> ReadKind {
    match fill {
        Fill::Nothing => Uncached,
        Fill::Pages => FillPages,
        Fill::PagesForStore => FillForStore,
        Fill::Cache => Metadata,
    }
}

/// An existing name is opened, not created: it changes nothing unless it is truncated.
fn create(dir: Handle, name: Option<Name>, flags: u32, named: Option<Handle>) -> Accesses {
    let all = Accesses::of(Uncached);
    match named {
        None => all.renames(dir, name),
        Some(_) if flags & O_EXCL != 0 => all.reads_name(dir, name),
        Some(named) if flags & O_TRUNC != 0 => all.changes(named, content()),
        Some(named) => Accesses::of(Metadata).reads(named, Parts::ATTRS),
    }
}

/// The first page of a listing begins a new one; later pages belong to the first's lease.
fn read_dir(dir: Option<Handle>, cookie: u64, nodes: bool) -> Accesses {
    let names = match nodes {
        true => Parts::NAMES,
        false => Parts::NONE,
    };
    match (cookie, nodes) {
        (0, _) => Accesses::of(Metadata).reads(dir, Parts::LISTING | names),
        (_, true) => Accesses::of(Metadata).reads(dir, names),
        (_, false) => Accesses::of(Uncached).reads(dir, Parts::LISTING),
    }
}

/// `O_EXCL` (asm-generic/fcntl.h).
pub const O_EXCL: u32 = 0o200;

impl Accesses {
    fn of(kind: ReadKind) -> Self {
        Self {
            kind,
            reads: Vec::new(),
            touches: Vec::new(),
        }
    }

    fn reads(mut self, object: impl Into<Option<Handle>>, parts: Parts) -> Self {
        self.reads.extend(object.into().map(|object| ReadItem {
            object,
            parts,
            name: None,
        }));
        self
    }

    fn reads_name(mut self, dir: Handle, name: Option<Name>) -> Self {
        self.reads.push(ReadItem {
            object: dir,
            parts: Parts::NAMES,
            name: name.map(|name| name.to_raw()),
        });
        self
    }

    fn changes(self, object: impl Into<Option<Handle>>, parts: Parts) -> Self {
        match object.into() {
            Some(object) => self.touch(object, parts, None),
            None => self,
        }
    }

    fn renames(self, dir: Handle, name: Option<Name>) -> Self {
        self.touch(dir, directory(), name)
    }

    fn touch(mut self, object: Handle, parts: Parts, name: Option<Name>) -> Self {
        let names = name.map(|name| name.to_raw());
        let Some(known) = self.touches.iter_mut().find(|t| t.object == object) else {
            self.touches.push(Touch {
                object,
                parts,
                names: names.into_iter().collect(),
            });
            return self;
        };
        known.parts |= parts;
        known.names.extend(names);
        known.names.dedup();
        self
    }
}

#[cfg(test)]
mod tests;
