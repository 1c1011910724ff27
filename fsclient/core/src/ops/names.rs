//! Names: lookup, and everything that makes, moves or removes one.

use super::{Ask, Changes, Ops, Told};
use crate::cache::Learned;
use crate::call::{Entry, NewMode, Node, NodeId};
use crate::inode::{Dentry, Place};
use crate::recall::ChangeScope;
use bytes::Bytes;
use leasefs_protocol::answer::Object;
use leasefs_protocol::change::What;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::limits::MAX_SYMLINK;
use leasefs_protocol::{Attr, FileKind, Handle, Name, RawName, Refusal, change, query};
use std::sync::Arc;
use std::time::Duration;

/// Permission bits of a directory that everybody may search.
const SEARCHED_BY_ALL: u16 = 0o111;

/// A name in a directory, as the kernel and the server know that.
#[derive(Clone, Copy)]
pub(super) struct NameIn<'a> {
    pub parent: NodeId,
    pub dir: Handle,
    pub name: &'a [u8],
}

impl<'a> NameIn<'a> {
    pub fn place(self) -> Place<'a> {
        Place {
            parent: self.parent,
            name: self.name,
        }
    }
}

/// Names that the kernel may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToldNames {
    None,
    /// They stay where files come and go, and lead to all that is made below.
    Directories,
    All,
}

impl ToldNames {
    pub fn includes(self, kind: FileKind) -> bool {
        self == Self::All || self == Self::Directories && kind == FileKind::Directory
    }
}

/// Whether the kernel may be told attributes along with a name. Not of a file that it knows already ([`Ops::found`]),
/// and not where GETATTR has another `st_ino` to tell.
pub(super) fn tells_attr(node: Node, attr: &Attr, known: bool) -> bool {
    node.id.0 == attr.ino && !(known && node.kind == FileKind::File)
}

/// Caches the attributes of what the kernel is told under a name, and counts a reference; with how long it may believe
/// the attributes.
fn learn_object(
    learned: &mut Learned<'_>,
    at: NameIn<'_>,
    (object, attr): (Handle, &Attr),
    tells: impl FnOnce(Node) -> bool,
) -> (Node, Duration) {
    let node = learned.refer(object, attr, at.place());
    if tells(node) {
        return (node, learned.attr_with_name(node, attr));
    }
    learned.attr(&object, attr);
    (node, Duration::ZERO)
}

impl Ops {
    /// What a name denotes, if that is cached; `Some(None)` if nothing.
    pub fn lookup_cached(&self, parent: NodeId, name: &[u8]) -> Option<Option<Entry>> {
        let dir = self.inodes().node(parent)?.handle;
        // Of a name that can't be the server says why.
        Name::new(name).ok()?;
        let at = NameIn { parent, dir, name };
        let told = self.told(at);
        let (entry, known) = {
            let mut tier = self.cache().live()?;
            let handle = match tier.name(&dir, name)? {
                Dentry::Object(handle) => handle,
                // Where the kernel doesn't know who may search a directory the server says it.
                Dentry::Absent if self.manner.identity == IdentityPolicy::Squash => {
                    let searched = tier.attr(&dir)?.mode & SEARCHED_BY_ALL == SEARCHED_BY_ALL;
                    return searched.then_some(None);
                }
                Dentry::Absent => return Some(None),
            };
            if tier.made_elsewhere(&handle, parent).is_some() {
                return None;
            }
            let known = tier.node_of(&handle).is_some();
            let attr = match tier.attr(&handle) {
                Some(attr) => attr,
                // The kernel doesn't look at them: see `found`.
                None => tier.written_attr(&handle).filter(|_| known)?,
            };
            let valid = match told.includes(attr.kind) {
                true => tier.name_timeout(&dir, name),
                false => Duration::ZERO,
            };
            let node = tier.refer(handle, &attr, at.place());
            let attr_valid = match tells_attr(node, &attr, known) {
                true => tier.attr_with_name(node),
                false => Duration::ZERO,
            };
            (self.entry(node, attr, (valid, attr_valid)), known)
        };
        Some(Some(self.found(&dir, entry, known)))
    }

    /// What a name denotes, from the server; `None` if nothing.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn lookup(
        self: &Arc<Self>,
        ask: &Ask,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Option<Entry>, Refusal> {
        let dir = self.node(parent)?.handle;
        let raw = Name::new(name)?.to_raw();
        // Perhaps only the attributes aren't known.
        let denoted = || self.cache().live()?.denoted(&dir, name);
        if let Some(object) = denoted()
            && self.open_along(ask, &object).await?
            && let Some(found) = self.lookup_cached(parent, name)
        {
            return Ok(found);
        }
        if let Some(looked) = self.is_looked_for(NameIn { parent, dir, name }) {
            ask.unless_left(looked).await?;
            if let Some(found) = self.lookup_cached(parent, name) {
                return Ok(found);
            }
        }
        let request = query::Lookup { dir, name: raw };
        let caller = self.caller(ask);
        self.walk(&caller, NameIn { parent, dir, name });
        self.searches(&caller, NameIn { parent, dir, name });
        let told = self.call_as(ask, caller, request).await?;
        let Some(Object { handle, attr }) = told.answer else {
            let mut learned = told.learn(self.cache());
            learned.name(&dir, name, Dentry::Absent);
            return Ok(None);
        };
        let attr = self.settled_attr(ask, &handle, attr).await?;
        let made = self.inodes().made_elsewhere(&handle, parent);
        if let Some(node) = made {
            // It would be known by this answer before it is told what it was then.
            self.engine.comes_to_know(node).await;
        }
        self.inodes().search(parent, name);
        let (entry, known) = self.learn_name(&told, NameIn { parent, dir, name }, (handle, attr));
        Ok(Some(self.found(&dir, entry, known)))
    }

    /// Caches what a LOOKUP was answered. Returns what the kernel is told, counted as a reference, and whether it knew
    /// the object.
    fn learn_name<A>(
        &self,
        told: &Told<A>,
        at: NameIn<'_>,
        (handle, attr): (Handle, Attr),
    ) -> (Entry, bool) {
        let tells = self.told(at).includes(attr.kind);
        let mut learned = told.learn(self.cache());
        let known = learned.is_known(&handle);
        let tells_attr = |node| tells_attr(node, &attr, known);
        let (node, attr_valid) = learn_object(&mut learned, at, (handle, &attr), tells_attr);
        let dentry = Dentry::Object(handle);
        let valid = match tells {
            true => learned.name_for_kernel(&at.dir, at.name, dentry),
            false => {
                learned.name(&at.dir, at.name, dentry);
                Duration::ZERO
            }
        };
        (self.entry(node, attr, (valid, attr_valid)), known)
    }

    /// An entry for an answer to LOOKUP. Of a file that the kernel knows already it is made to ignore
    /// the attributes: with a size that isn't the newest any more when the kernel's thread gets to it,
    /// it would cut off what its pages hold beyond. It asks for them before it uses them.
    fn found(&self, dir: &Handle, entry: Entry, known: bool) -> Entry {
        if known {
            self.engine.is_told_by_name(dir, entry.node.id);
        }
        if known && entry.node.kind == FileKind::File {
            self.engine.ignore_attrs(&entry.node.handle);
        }
        entry
    }

    /// Of what the kernel may be told a name with a timeout.
    ///
    /// To take one back it must be made to look up all names again; until a directory has been
    /// looked up, whoever works in it can't find out where (`getcwd` fails). So it isn't told what comes and
    /// goes.
    fn told(&self, at: NameIn<'_>) -> ToldNames {
        match self.engine.is_restless(&at.dir, at.name) {
            true => ToldNames::None,
            false => self.told_in(at.parent),
        }
    }

    /// As [`Ops::told`], of names that don't have to be taken back again and again.
    pub(super) fn told_in(&self, dir: NodeId) -> ToldNames {
        if !self.engine.is_calm() {
            return ToldNames::None;
        }
        match self.inodes().is_calm(dir, self.cx.monotonic()) {
            true => ToldNames::All,
            false if self.engine.is_steady() => ToldNames::Directories,
            false => ToldNames::None,
        }
    }

    /// A directory in which a name is about to be changed.
    pub(super) fn changing(&self, dir: NodeId) -> Result<Handle, Refusal> {
        let mut inodes = self.inodes();
        inodes.stir(dir, self.cx.monotonic());
        inodes.listings_are_taken_up(dir);
        drop(inodes);
        Ok(self.node(dir)?.handle)
    }

    /// Caches a name that a change has made, and shows what it denotes. Names come and go here, so the kernel isn't told
    /// this one for any time. Nor attributes of what it knows: it takes them up whatever was taken back meanwhile.
    pub(super) fn made<A>(
        &self,
        told: &Told<A>,
        at: NameIn<'_>,
        handle: Handle,
        attr: Attr,
    ) -> Entry {
        let mut learned = told.learn(self.cache());
        let known = learned.is_known(&handle);
        let tells_attr = |node| !known && tells_attr(node, &attr, false);
        let (node, attr_valid) = learn_object(&mut learned, at, (handle, &attr), tells_attr);
        learned.made(node, &attr, known);
        learned.name(&at.dir, at.name, Dentry::Object(handle));
        if attr.kind == FileKind::Directory {
            learned.empty_directory(&handle);
        }
        self.entry(node, attr, (Duration::ZERO, attr_valid))
    }

    /// A node as the kernel is told it under a name; it has been counted as a reference.
    pub(super) fn entry(
        &self,
        node: Node,
        attr: Attr,
        (valid, attr_valid): (Duration, Duration),
    ) -> Entry {
        Entry {
            node,
            shown: self.shown(attr),
            valid,
            attr_valid,
        }
    }

    /// Makes a file, fifo, socket or device.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn mknod(
        &self,
        ask: &Ask,
        parent: NodeId,
        name: &[u8],
        mode: NewMode,
        rdev: (u32, u32),
    ) -> Result<Entry, Refusal> {
        let mode = NewMode {
            mode: self.mode_of_new(mode.mode),
            ..mode
        };
        self.make(ask, parent, name, mode, What::Node { rdev })
            .await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn mkdir(
        &self,
        ask: &Ask,
        parent: NodeId,
        name: &[u8],
        mode: NewMode,
    ) -> Result<Entry, Refusal> {
        self.make(ask, parent, name, mode, What::Directory).await
    }

    /// Makes a symlink.
    ///
    /// # Errors
    /// The server's refusal, or the name's; `NameTooLong` for the target.
    pub async fn symlink(
        &self,
        ask: &Ask,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Refusal> {
        if target.len() > MAX_SYMLINK {
            return Err(Refusal::NameTooLong);
        }
        let mode = NewMode {
            mode: libc::S_IFLNK | 0o777,
            umask: 0,
        };
        let target = RawName(target.to_vec());
        self.make(ask, parent, name, mode, What::Symlink { target })
            .await
    }

    async fn make(
        &self,
        ask: &Ask,
        parent: NodeId,
        name: &[u8],
        NewMode { mode, umask }: NewMode,
        make: What,
    ) -> Result<Entry, Refusal> {
        let dir = self.changing(parent)?;
        let name = Name::new(name)?;
        let request = change::Make {
            dir,
            name: name.to_raw(),
            mode,
            umask,
            make,
        };
        let scope = ChangeScope::default().name(dir, name.to_raw());
        let told = self.change(ask, scope, request, Bytes::new()).await?;
        let Object { handle, attr } = told.answer;
        let name = name.as_bytes();
        Ok(self.made(&told, NameIn { parent, dir, name }, handle, attr))
    }

    /// A further name of an object.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn link(
        &self,
        ask: &Ask,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry, Refusal> {
        let object = self.node(node)?.handle;
        self.inodes().is_asked_for(node);
        self.settle(ask, &object).await?;
        let dir = self.changing(parent)?;
        let name = Name::new(name)?;
        let request = change::Link {
            object,
            dir,
            name: name.to_raw(),
        };
        let scope = ChangeScope::default()
            .name(dir, name.to_raw())
            .moved(object);
        let told = self.change(ask, scope, request, Bytes::new()).await?;
        let Object { handle, attr } = told.answer;
        let attr = self.newest(ask, &handle, attr, None).await;
        let name = name.as_bytes();
        Ok(self.made(&told, NameIn { parent, dir, name }, handle, attr))
    }

    /// Removes a name that isn't a directory.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn unlink(&self, ask: &Ask, parent: NodeId, name: &[u8]) -> Result<(), Refusal> {
        let dir = self.changing(parent)?;
        let name = Name::new(name)?;
        let raw = name.to_raw();
        let request = change::Unlink { dir, name: raw };
        self.remove(ask, dir, &name, request).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn rmdir(&self, ask: &Ask, parent: NodeId, name: &[u8]) -> Result<(), Refusal> {
        let dir = self.changing(parent)?;
        let name = Name::new(name)?;
        let raw = name.to_raw();
        let request = change::Rmdir { dir, name: raw };
        self.remove(ask, dir, &name, request).await?;
        let name = name.as_bytes();
        self.inodes().removed(Place { parent, name });
        Ok(())
    }

    async fn remove<C: Changes<Answer = ()>>(
        &self,
        ask: &Ask,
        dir: Handle,
        name: &Name,
        request: C,
    ) -> Result<(), Refusal> {
        let scope = ChangeScope::default().name(dir, name.to_raw());
        let scope = self.with_victim(scope, dir, name);
        let told = self.change(ask, scope, request, Bytes::new()).await?;
        let mut learned = told.learn(self.cache());
        learned.name(&dir, name.as_bytes(), Dentry::Absent);
        Ok(())
    }

    /// Renames; `flags` as `renameat2` has them.
    ///
    /// # Errors
    /// The server's refusal, or a name's.
    pub(super) async fn rename(
        &self,
        ask: &Ask,
        from: Place<'_>,
        to: Place<'_>,
        flags: u32,
    ) -> Result<(), Refusal> {
        let (dir, name) = (self.changing(from.parent)?, Name::new(from.name)?);
        let (new_dir, new_name) = (self.changing(to.parent)?, Name::new(to.name)?);
        let request = change::Rename {
            dir,
            name: name.to_raw(),
            new_dir,
            new_name: new_name.to_raw(),
            flags,
        };
        let scope = ChangeScope::default()
            .name(dir, name.to_raw())
            .name(new_dir, new_name.to_raw());
        let exchanged = flags & libc::RENAME_EXCHANGE != 0;
        let scope = self.with_moved(scope, from, (dir, &name));
        let scope = match exchanged {
            true => self.with_moved(scope, to, (new_dir, &new_name)),
            false => self.with_victim(scope, new_dir, &new_name),
        };
        let is_dir = self.denotes_directory(&dir, name.as_bytes());
        // The kernel moves its entry with the timeout it has. It has none: if the kernel was
        // told the old name with a timeout, this change makes it look up all names again.
        let told = self.change(ask, scope, request, Bytes::new()).await?;
        // From one name of an object to another of it nothing moves, and nothing is touched.
        if flags & !libc::RENAME_NOREPLACE == 0 && !told.touched.is_empty() {
            let mut learned = told.learn(self.cache());
            learned.name(&dir, name.as_bytes(), Dentry::Absent);
        }
        self.inodes().moved(from, to, exchanged);
        // What was saved by a rename once will be again. (Below a directory too much is looked for.)
        if !is_dir {
            self.engine.is_replaced_often(new_dir, new_name.as_bytes());
        }
        Ok(())
    }

    /// Whether the kernel has a name's object as a directory, as far as that is cached.
    fn denotes_directory(&self, dir: &Handle, name: &[u8]) -> bool {
        let found = self.cache().live().and_then(|mut t| t.denoted(dir, name));
        let inodes = self.inodes();
        let node = found.and_then(|object| inodes.node(inodes.node_of(&object)?));
        node.is_some_and(|node| node.kind == FileKind::Directory)
    }
}
