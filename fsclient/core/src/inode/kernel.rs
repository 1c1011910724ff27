//! The kernel's references to inodes, by node id: the object's inode number on the storage host, the root
//! being 1.
//!
//! A node id stands for an inode exactly as long as the kernel's count of references is above zero. An inode
//! whose number stands for another one then gets an id of its own; `st_ino` is the number nevertheless.
//! What else gets one: see [`super::places`].

use super::cached::ToldName;
use super::habit::Habit;
use super::looks::Looks;
use super::standing::{KnownAs, Place, Stands, id_at};
use super::{ARRIVES_WITHIN, Inode, Inodes};
use crate::call::{Node, NodeId};
use crate::memory::Memory;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Attr, FileKind, Handle};
use smallvec::SmallVec;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Names of a path that is told to people.
const MAX_DEPTH: usize = 1024;

/// Ids that aren't inode numbers begin here.
const OWN_IDS: u64 = 1 << 63;

/// When an answer was given, in milliseconds and modulo 49 days: of what is as old it may say once that it is new.
#[derive(Clone, Copy, Debug, Default)]
struct Recent(u32);

impl Recent {
    fn at(now: BootTime) -> Self {
        Self(now.since(BootTime::ZERO).as_millis() as u32)
    }

    /// Whether the kernel may not have taken it up.
    fn is_on_its_way(self, now: BootTime) -> bool {
        let age = Self::at(now).0.wrapping_sub(self.0);
        Duration::from_millis(age.into()) <= ARRIVES_WITHIN
    }
}

/// What the kernel has heard of a node's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// What makes it ignore answers to what it has asked before.
    news: u8,
    /// That it was set here.
    cuts: u32,
}

/// What the kernel knows an inode by, and what it believes of it.
#[derive(Debug)]
pub(super) struct KernelRefs {
    pub kind: FileKind,
    /// At least one; of what isn't a directory one.
    pub known: SmallVec<[KnownAs; 1]>,
    /// Of directories.
    pub looks: Option<Box<Looks>>,
    /// The kernel believes that it has at least this size, and at most that.
    floor: u64,
    ceiling: u64,
    /// An answer that tells less than one before may still be on its way to the kernel.
    shrinks: bool,
    /// When it was last told what it believes whatever it has heard since that answer was given.
    firmly: Recent,
    /// What it was told may be outdated, its size as well.
    outdated: bool,
    /// Of files.
    habit: Habit,
    /// What it was told of it last.
    pub told: Option<Arc<Attr>>,
}

impl KernelRefs {
    fn new(kind: FileKind, floor: u64) -> Self {
        Self {
            kind,
            known: SmallVec::new(),
            looks: None,
            floor,
            ceiling: 0,
            shrinks: false,
            firmly: Recent::default(),
            outdated: false,
            habit: Habit::default(),
            told: None,
        }
    }

    fn told_size(&mut self, size: u64) {
        self.shrinks |= size < self.floor && self.floor != u64::MAX;
        self.floor = self.floor.min(size);
        self.ceiling = self.ceiling.max(size);
    }
}

impl Inode {
    /// The kernel is shown these attributes. Whether it takes their size is another question.
    fn is_shown(&mut self, attr: &Attr) {
        let told = self.shared_attr(attr);
        if let Some(refs) = &mut self.kernel {
            refs.told = Some(told);
        }
    }
}

impl Inodes {
    /// Those of a mount of this directory, which the kernel never forgets.
    pub fn new(root: Handle, memory: Memory) -> Self {
        let mut inodes = Self::default();
        inodes.memory = memory;
        inodes.becomes_known(NodeId::ROOT, root, FileKind::Directory, 0);
        inodes
    }

    /// The node of `id`, if the kernel knows it.
    pub fn node(&self, id: NodeId) -> Option<Node> {
        let handle = **self.nodes.get(&id)?;
        Some(Node {
            id,
            handle,
            kind: self.refs(id)?.kind,
        })
    }

    /// A node id by which the kernel knows an object.
    pub fn node_of(&self, object: &Handle) -> Option<NodeId> {
        let refs = self.get(object)?.kernel.as_ref()?;
        refs.known.first().map(|known| known.id)
    }

    /// Whether the kernel has what a name denotes as a directory.
    pub fn denotes_directory(&self, told: &ToldName) -> bool {
        let Some(object) = &told.denotes else {
            return false;
        };
        let refs = self.get(object).and_then(|inode| inode.kernel.as_ref());
        refs.is_some_and(|refs| refs.kind == FileKind::Directory)
    }

    /// All node ids by which the kernel knows an object.
    pub fn nodes_of(&self, object: &Handle) -> Vec<NodeId> {
        let refs = self.get(object).and_then(|inode| inode.kernel.as_ref());
        let known = refs.into_iter().flat_map(|refs| &refs.known);
        known.map(|known| known.id).collect()
    }

    /// Counts a reference that the kernel is about to be given under a name, along with these attributes.
    pub fn refer(&mut self, object: Handle, attr: &Attr, at: Place<'_>) -> Node {
        let refs = self.get(&object).and_then(|inode| inode.kernel.as_ref());
        let known = match refs {
            Some(refs) => id_at(&refs.known, at),
            None => Some(NodeId(attr.ino))
                .filter(|id| NodeId::may_be(id.0) && !self.nodes.contains_key(id)),
        };
        let was_known = refs.is_some();
        let id = known.unwrap_or_else(|| self.own_id());
        if !self.nodes.contains_key(&id) {
            self.becomes_known(id, object, attr.kind, u64::MAX);
        }
        if let Some(inode) = self.inode_mut(id) {
            inode.is_shown(attr);
        }
        // What it knows it makes nothing of them, or is told the size otherwise: see `Ops::found`.
        if !was_known {
            self.told_size(id, attr.size);
        }
        if let Some(known) = self.known_mut(id) {
            known.lookups += u64::from(id != NodeId::ROOT);
            // Where it makes something it looks up nothing before it has taken that up.
            let near = known.stands.last();
            known.made &= near.is_some_and(|found| found.parent != at.parent);
        }
        let kind = self.refs(id).map_or(attr.kind, |refs| refs.kind);
        self.stands(id, kind, at);
        Node {
            id,
            handle: object,
            kind,
        }
    }

    /// The kernel gives back `count` references. Returns the node if those were the last of its object.
    pub fn forget(&mut self, id: NodeId, count: u64) -> Option<Node> {
        if id == NodeId::ROOT {
            return None;
        }
        let node = self.node(id)?;
        let known = self.known_mut(id)?;
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return None;
        }
        self.leaves_all(id, Stands::Nowhere);
        self.nodes.remove(&id);
        let last = self.change(&node.handle, |inode| {
            let refs = inode.kernel.as_mut()?;
            refs.known.retain(|known| known.id != id);
            refs.known.is_empty().then(|| inode.kernel = None)
        });
        last.flatten().map(|()| node)
    }

    fn becomes_known(&mut self, id: NodeId, object: Handle, kind: FileKind, floor: u64) {
        self.make(object, |inode| {
            let new = || Box::new(KernelRefs::new(kind, floor));
            inode.kernel.get_or_insert_with(new).known.push(KnownAs {
                id,
                lookups: 0,
                unseen: false,
                made: false,
                heard: 0,
                cuts: 0,
                stands: Stands::default(),
            });
        });
        let before = self.nodes.insert(id, self.shared(&object));
        assert!(before.is_none(), "two inodes have one node id");
    }

    /// An id that is no inode number, as far as those go that are known.
    fn own_id(&mut self) -> NodeId {
        loop {
            let id = NodeId(OWN_IDS | self.own_ids);
            // It takes centuries to come around.
            self.own_ids = (self.own_ids + 1) % (OWN_IDS / 2);
            if !self.nodes.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn refs(&self, id: NodeId) -> Option<&KernelRefs> {
        self.get(self.nodes.get(&id)?)?.kernel.as_deref()
    }

    fn inode_mut(&mut self, id: NodeId) -> Option<&mut Inode> {
        let object = Arc::clone(self.nodes.get(&id)?);
        self.get_mut(&object)
    }

    pub(super) fn refs_mut(&mut self, id: NodeId) -> Option<&mut KernelRefs> {
        self.inode_mut(id)?.kernel.as_deref_mut()
    }

    pub(super) fn known(&self, id: NodeId) -> Option<&KnownAs> {
        let mut known = self.refs(id)?.known.iter();
        known.find(|known| known.id == id)
    }

    pub(super) fn known_mut(&mut self, id: NodeId) -> Option<&mut KnownAs> {
        let mut known = self.refs_mut(id)?.known.iter_mut();
        known.find(|known| known.id == id)
    }
}

/// What the kernel does and believes.
impl Inodes {
    /// Whether the kernel may believe that a file is shorter than this.
    pub fn may_be_short(&self, id: NodeId, size: u64) -> bool {
        let short = |refs: &KernelRefs| refs.floor < size;
        id != NodeId::ROOT && self.refs(id).is_some_and(short)
    }

    /// The kernel is told these attributes in an answer.
    pub fn told(&mut self, id: NodeId, attr: &Attr) {
        if let Some(inode) = self.inode_mut(id) {
            inode.is_shown(attr);
        }
        if let Some(refs) = self.refs_mut(id) {
            refs.told_size(attr.size);
            refs.outdated = false;
        }
    }

    /// The kernel is told these attributes in the answer to SETATTR.
    pub fn told_set(&mut self, id: NodeId, attr: &Attr, now: BootTime) {
        self.told(id, attr);
        self.reaches(id, attr.size);
        self.believes_firmly(id, now);
    }

    /// What the kernel is told now it is told in the answer to a change: `fuse_do_setattr`, and `fuse_iget` without a
    /// version (what makes and links), take the size up whatever has come since the answer was given.
    pub fn believes_firmly(&mut self, id: NodeId, now: BootTime) {
        if let Some(refs) = self.refs_mut(id) {
            refs.firmly = Recent::at(now);
        }
    }

    /// The kernel is told attributes with this timeout along with a name, by which it may come to know the id.
    pub fn told_with_name(&mut self, id: NodeId, valid: Duration) {
        if let Some(known) = self.known_mut(id) {
            known.unseen |= !valid.is_zero();
        }
    }

    /// Ids of an object that the kernel may not know before it takes up an answer with attributes.
    pub fn unseen(&self, object: &Handle) -> impl Iterator<Item = NodeId> {
        let refs = self.get(object).and_then(|inode| inode.kernel.as_ref());
        let known = refs.into_iter().flat_map(|refs| &refs.known);
        let unseen = known.filter(|known| known.unseen);
        unseen.map(|known| known.id)
    }

    /// Whether there are such ids.
    pub fn is_unseen(&self, object: &Handle) -> bool {
        self.unseen(object).next().is_some()
    }

    /// Attributes were dropped that the kernel may yet take up. Whether nobody sees to that of any object.
    pub fn owes_attrs(&mut self, object: Handle) -> bool {
        let first = self.owed_attrs.is_empty();
        self.owed_attrs.insert(object);
        first
    }

    /// The ids by which it may take them up still.
    pub fn owed_attrs(&mut self) -> Vec<NodeId> {
        let mut owed = std::mem::take(&mut self.owed_attrs);
        owed.retain(|object| self.is_unseen(object));
        self.owed_attrs = owed;
        let owed = self.owed_attrs.iter();
        owed.flat_map(|object| self.unseen(object)).collect()
    }

    /// The kernel is told something that was made.
    pub fn is_made(&mut self, id: NodeId, now: BootTime) {
        self.believes_firmly(id, now);
        if let Some(known) = self.known_mut(id) {
            known.made = true;
        }
    }

    /// The kernel asks for something by its id: it knows of it.
    pub fn is_asked_for(&mut self, id: NodeId) {
        if let Some(known) = self.known_mut(id) {
            known.made = false;
        }
    }

    /// The node of what was made, of which the kernel may not have taken that up although it looks for it in this directory.
    pub fn made_elsewhere(&self, object: &Handle, dir: NodeId) -> Option<NodeId> {
        let refs = self.get(object)?.kernel.as_deref()?;
        let known = refs.known.first().filter(|known| known.made)?;
        let elsewhere = known.stands.last().is_some_and(|found| found.parent != dir);
        elsewhere.then_some(known.id)
    }

    /// The kernel knows an id, or never will.
    pub fn is_seen(&mut self, id: NodeId) {
        if let Some(known) = self.known_mut(id) {
            known.unseen = false;
        }
    }

    /// The kernel knows an object by all ids that it was told.
    pub fn is_seen_as_all(&mut self, object: &Handle) {
        let refs = self.get_mut(object).and_then(|inode| inode.kernel.as_mut());
        let known = refs.into_iter().flat_map(|refs| &mut refs.known);
        known.for_each(|known| known.unseen = false);
    }

    /// What the kernel was told of an object is taken back.
    pub fn outdates(&mut self, object: &Handle) {
        let refs = self.get_mut(object).and_then(|inode| inode.kernel.as_mut());
        if let Some(refs) = refs {
            refs.outdated = true;
            refs.known.iter_mut().for_each(KnownAs::hears);
        }
    }

    /// Whether it was, and nothing has been told since.
    pub fn is_outdated(&self, id: NodeId) -> bool {
        self.refs(id).is_some_and(|refs| refs.outdated)
    }

    /// What is to be said of an object that has gone while the kernel has it still: that it has no name any
    /// more, and else what was said last. Of the root nothing.
    pub fn of_gone(&self, id: NodeId) -> Option<Attr> {
        let refs = self.refs(id).filter(|_| id != NodeId::ROOT)?;
        let told = *refs.told.as_deref()?;
        Some(Attr { nlink: 0, ..told })
    }

    /// The kernel is told this size, or finds the end of the file there.
    pub fn told_size(&mut self, id: NodeId, size: u64) {
        if let Some(refs) = self.refs_mut(id) {
            refs.told_size(size);
        }
    }

    /// The server is about to be asked for attributes that the kernel wants: whether it is to be asked for an open as well.
    pub fn is_opened_next(&mut self, object: &Handle) -> bool {
        self.habit(object).is_some_and(Habit::begins)
    }

    /// Somebody opens it for reading.
    pub fn is_opened_to_read(&mut self, object: &Handle) {
        if let Some(habit) = self.habit(object) {
            habit.follows();
        }
    }

    /// What was done with it once says nothing any more.
    pub(super) fn forget_habit(&mut self, object: &Handle) {
        if let Some(habit) = self.habit(object) {
            *habit = Habit::default();
        }
    }

    /// Of a file that the kernel knows.
    fn habit(&mut self, object: &Handle) -> Option<&mut Habit> {
        let refs = self.get_mut(object)?.kernel.as_deref_mut()?;
        (refs.kind == FileKind::File).then_some(&mut refs.habit)
    }

    /// Whether an answer on its way to the kernel may make it believe in less than it does, since this was asked last.
    pub fn take_shrinks(&mut self, id: NodeId) -> bool {
        self.refs_mut(id)
            .is_some_and(|refs| std::mem::take(&mut refs.shrinks))
    }

    /// Whether the kernel may believe that a file is longer than this.
    pub fn may_be_long(&self, id: NodeId, size: u64) -> bool {
        self.believed_size(id) > size
    }

    /// What the kernel believes to be a file's size, at most.
    pub fn believed_size(&self, id: NodeId) -> u64 {
        self.refs(id).map_or(0, |refs| refs.ceiling)
    }

    /// A change here up to this byte is answered, or the kernel is about to be made to believe that the file reaches so far.
    pub fn reaches(&mut self, id: NodeId, end: u64) {
        if let Some(refs) = self.refs_mut(id) {
            refs.ceiling = refs.ceiling.max(end);
            refs.known.iter_mut().for_each(KnownAs::hears);
        }
    }

    /// To be shown to [`Inodes::takes_answer`]: asked for when the kernel's request has come. And to [`Inodes::was_cut`].
    pub fn heard(&self, id: NodeId) -> Heard {
        let heard = |known: &KnownAs| Heard {
            news: known.heard,
            cuts: known.cuts,
        };
        self.known(id).map_or_else(Heard::default, heard)
    }

    /// The kernel is about to hear what makes it ignore answers to what it has asked before.
    pub fn hears(&mut self, id: NodeId) {
        if let Some(known) = self.known_mut(id) {
            known.hears();
        }
    }

    /// A file's size was set here, as the kernel is told now.
    pub fn is_cut(&mut self, id: NodeId) {
        if let Some(known) = self.known_mut(id) {
            known.cuts = known.cuts.wrapping_add(1);
        }
    }

    /// Whether a size that was known then may be from before it was set here.
    pub fn was_cut(&self, id: NodeId, since: Heard) -> bool {
        self.heard(id).cuts != since.cuts
    }

    /// Whether the kernel takes the size that it has asked for: not if it has heard of the file meanwhile, nor while it changes
    /// the size itself.
    pub fn takes_answer(&self, (id, object): (NodeId, &Handle), heard: Heard) -> bool {
        self.heard(id) == heard && !self.is_changing(object)
    }

    /// It takes this one.
    pub fn takes_size(&mut self, id: NodeId, size: u64) {
        if let Some(refs) = self.refs_mut(id) {
            refs.ceiling = size;
        }
    }

    /// The kernel has been made to believe that the file has at least this size. That may not last.
    pub fn grown(&mut self, id: NodeId, size: u64, now: BootTime) {
        let lasts = |refs: &&mut KernelRefs| !refs.shrinks && !refs.firmly.is_on_its_way(now);
        if let Some(refs) = self.refs_mut(id).filter(lasts) {
            refs.floor = refs.floor.max(size);
        }
    }

    /// Where a node was found last, below the mount's root; for people.
    pub fn path(&self, id: NodeId) -> Option<PathBuf> {
        let (mut parts, mut at) = (Vec::new(), id);
        while at != NodeId::ROOT {
            let found = self.known(at)?.stands.last()?;
            parts.push(OsStr::from_bytes(&found.name));
            // Names found at different times may form a circle.
            if parts.len() > MAX_DEPTH {
                return None;
            }
            at = found.parent;
        }
        Some(parts.iter().rev().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::Timestamp;

    fn handle(byte: u8) -> Handle {
        Handle::new(&[byte]).expect("one byte")
    }

    fn attr(ino: u64, kind: FileKind) -> Attr {
        Attr {
            ino,
            kind,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: 5,
            blocks: 8,
            blksize: 4096,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            xattrs: true,
        }
    }

    fn inodes() -> Inodes {
        Inodes::new(handle(0), Memory::default())
    }

    fn at(parent: u64, name: &[u8]) -> Place<'_> {
        let parent = NodeId(parent);
        Place { parent, name }
    }

    fn refer(inodes: &mut Inodes, object: Handle, attr: &Attr) -> Node {
        inodes.refer(object, attr, at(1, b"name"))
    }

    #[test]
    fn a_node_lives_until_its_last_reference_is_given_back() {
        let mut inodes = inodes();
        refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        let node = refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        assert_eq!(node.id, NodeId(12));
        assert_eq!(inodes.forget(NodeId(12), 1), None);
        assert_eq!(inodes.node(NodeId(12)), Some(node));
        assert_eq!(inodes.forget(NodeId(12), 1), Some(node));
        assert_eq!(inodes.node(NodeId(12)), None);
        assert_eq!(inodes.node_of(&handle(1)), None);
    }

    #[test]
    fn a_node_id_stays_its_objects_though_the_host_has_given_its_number_away() {
        let mut inodes = inodes();
        let old = refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        let new = refer(&mut inodes, handle(2), &attr(12, FileKind::File));
        assert!(old.id == NodeId(12) && new.id != old.id);
        assert_eq!(
            (inodes.node(old.id), inodes.node(new.id)),
            (Some(old), Some(new))
        );
        assert_eq!(inodes.forget(old.id, 1), Some(old));
        assert_eq!(
            refer(&mut inodes, handle(2), &attr(12, FileKind::File)),
            new
        );
        let newest = refer(&mut inodes, handle(3), &attr(12, FileKind::File));
        assert_eq!(newest.id, old.id);
        assert_ne!(newest.generation(), old.generation(), "a file handle tells");
        inodes.check();
    }

    #[test]
    fn the_root_is_node_one_and_is_never_forgotten() {
        let mut inodes = inodes();
        assert_eq!(inodes.node_of(&handle(0)), Some(NodeId::ROOT));
        assert_eq!(inodes.forget(NodeId::ROOT, 9), None);
        assert!(inodes.node(NodeId::ROOT).is_some());
    }

    #[test]
    fn a_file_may_be_short_to_the_kernel_once_it_was_told_less() {
        let (mut inodes, now) = (inodes(), BootTime::ZERO + ARRIVES_WITHIN * 2);
        let id = refer(&mut inodes, handle(1), &attr(12, FileKind::File)).id;
        assert!(!inodes.may_be_short(id, 5) && inodes.may_be_short(id, 6));
        inodes.grown(id, 6, now);
        assert!(!inodes.may_be_short(id, 6));
        inodes.told_size(id, 2);
        assert!(inodes.may_be_short(id, 6));
    }

    #[test]
    fn a_file_may_be_long_until_the_kernel_has_taken_a_size_that_it_asked_for() {
        let mut inodes = inodes();
        let id = refer(&mut inodes, handle(1), &attr(12, FileKind::File)).id;
        assert!(!inodes.may_be_long(id, 5));
        inodes.reaches(id, 9);
        assert!(inodes.may_be_long(id, 8) && !inodes.may_be_long(id, 9));
        let (heard, object) = (inodes.heard(id), handle(1));
        assert!(inodes.takes_answer((id, &object), heard));
        inodes.outdates(&object);
        assert!(!inodes.takes_answer((id, &object), heard));
        inodes.takes_size(id, 5);
        assert!(!inodes.may_be_long(id, 5));
    }

    #[test]
    fn a_lookup_of_what_the_kernel_knows_tells_it_no_size() {
        let (mut inodes, now) = (inodes(), BootTime::ZERO + ARRIVES_WITHIN * 2);
        let id = refer(&mut inodes, handle(1), &attr(12, FileKind::File)).id;
        inodes.grown(id, 9, now);
        refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        assert!(!inodes.may_be_short(id, 9) && !inodes.take_shrinks(id));
    }

    #[test]
    fn a_file_may_be_short_as_long_as_an_answer_that_tells_less_may_be_on_its_way() {
        let (mut inodes, now) = (inodes(), BootTime::ZERO + ARRIVES_WITHIN * 2);
        let id = refer(&mut inodes, handle(1), &attr(12, FileKind::File)).id;
        assert!(!inodes.take_shrinks(id), "it knew nothing before");
        inodes.grown(id, 9, now);
        inodes.told_size(id, 2);
        inodes.grown(id, 6, now);
        assert!(inodes.may_be_short(id, 6));
        assert!(inodes.take_shrinks(id) && !inodes.take_shrinks(id));
        inodes.grown(id, 6, now);
        assert!(!inodes.may_be_short(id, 6));
    }

    #[test]
    fn a_file_may_be_short_as_long_as_the_answer_to_a_change_may_be_on_its_way() {
        let (mut inodes, now) = (inodes(), BootTime::ZERO + ARRIVES_WITHIN * 2);
        let id = refer(&mut inodes, handle(1), &attr(12, FileKind::File)).id;
        inodes.believes_firmly(id, now);
        inodes.grown(id, 6, now + ARRIVES_WITHIN);
        assert!(inodes.may_be_short(id, 6));
        inodes.grown(id, 6, now + ARRIVES_WITHIN + Duration::from_millis(1));
        assert!(!inodes.may_be_short(id, 6));
    }

    #[test]
    fn what_was_made_is_made_elsewhere_until_the_kernel_looks_where_it_was_or_asks_for_it() {
        let mut inodes = inodes();
        let new = attr(12, FileKind::File);
        let id = refer(&mut inodes, handle(1), &new).id;
        let made = |inodes: &Inodes, dir| inodes.made_elsewhere(&handle(1), NodeId(dir));
        inodes.is_made(id, BootTime::ZERO);
        assert_eq!((made(&inodes, 1), made(&inodes, 5)), (None, Some(id)));
        refer(&mut inodes, handle(1), &new);
        assert_eq!(made(&inodes, 5), None);
        inodes.is_made(id, BootTime::ZERO);
        inodes.is_asked_for(id);
        assert_eq!(made(&inodes, 5), None);
    }

    #[test]
    fn an_object_keeps_its_node_id_whatever_inode_number_it_is_said_to_have() {
        let mut inodes = inodes();
        let node = refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        refer(&mut inodes, handle(2), &attr(13, FileKind::File));
        assert_eq!(
            refer(&mut inodes, handle(1), &attr(13, FileKind::File)),
            node
        );
        assert_eq!(inodes.node_of(&handle(2)), Some(NodeId(13)));
        assert_eq!(inodes.forget(NodeId(12), 2), Some(node));
        inodes.check();
    }

    #[test]
    fn inode_numbers_that_fuse_reserves_get_ids_of_their_own() {
        let mut inodes = inodes();
        let one = refer(&mut inodes, handle(1), &attr(1, FileKind::File)).id;
        let zero = refer(&mut inodes, handle(2), &attr(0, FileKind::File)).id;
        assert!(one != NodeId::ROOT && zero != NodeId(0) && one != zero);
    }
}
