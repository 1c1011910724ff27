//! Where directories stand in the kernel.
//!
//! To Linux a directory has one place. If a LOOKUP leads to one that it has in another directory it moves it over
//! (`d_splice_alias`), for which it needs the lock of renames and that of the other directory at once; within a
//! rename, or beside one, it can't have them and tells the caller ESTALE, after one more try. So a directory
//! that is found in another directory than before, which another mount has moved, is shown as a further
//! node, with the same `st_ino`: the kernel has nothing to move, and whoever is in the old one goes
//! on there. Within one directory the kernel moves it without a lock.
//!
//! So it must be known in which directory the kernel has it, which changes by this mount's renames alone. These don't
//! say what the kernel moves, and what it was told last under the old name may not be it: it looks names
//! up again without a lock, several at a time, and ignores what surprises it. Where that leaves a doubt, all that it may
//! have moved are lost: they are shown as further nodes from then on.

use super::Inodes;
use super::standing::{Found, Place, Stands, There};
use crate::call::NodeId;
use leasefs_protocol::{FileKind, Handle};

/// Places of one directory that are remembered: more than the kernel asks about at once while another mount
/// moves it about.
const MOST: usize = 8;

impl Inodes {
    /// The kernel is about to find a node at a place.
    pub(super) fn stands(&mut self, id: NodeId, kind: FileKind, at: Place<'_>) {
        if id == NodeId::ROOT {
            return;
        }
        if kind == FileKind::Directory {
            self.stands_in(id, at);
            return;
        }
        if let Some(known) = self.known_mut(id) {
            match &known.stands {
                Stands::Named(found) if found.is_at(at) => {}
                _ => known.stands = Stands::Named(at.into()),
            }
        }
        if let Some(there) = self.standing.get_mut(&Found::from(at)) {
            there.others = true;
        }
    }

    /// The file that the kernel has found at a place, of those that were written here.
    pub fn written_at(&self, at: Place<'_>) -> Option<Handle> {
        let stands = |file: &Handle| {
            let known = self.node_of(file).and_then(|id| self.known(id));
            known.is_some_and(
                |known| matches!(&known.stands, Stands::Named(found) if found.is_at(at)),
            )
        };
        let mut written = self.dirty.iter().chain(&self.commits.untold);
        written.find(|file| stands(file)).copied()
    }

    fn stands_in(&mut self, id: NodeId, at: Place<'_>) {
        let Some(known) = self.known_mut(id) else {
            return;
        };
        let left = match &mut known.stands {
            Stands::In(places) => {
                places.retain(|found| !found.is_at(at));
                places.push(at.into());
                (places.len() > MOST).then(|| places.remove(0))
            }
            stands => {
                *stands = Stands::In(vec![at.into()]);
                None
            }
        };
        let there = self.standing.entry(at.into()).or_default();
        if !there.directories.contains(&id) {
            there.directories.push(id);
        }
        left.iter().for_each(|left| self.leaves(id, left));
    }

    /// The kernel has a node at none of its places any more.
    pub(super) fn leaves_all(&mut self, id: NodeId, then: Stands) {
        let known = self.known_mut(id);
        let stood = known.map(|known| std::mem::replace(&mut known.stands, then));
        if let Some(Stands::In(places)) = stood {
            places.iter().for_each(|place| self.leaves(id, place));
        }
    }

    /// A rename of this mount has succeeded: the kernel moves what it has there when it is told.
    pub fn moved(&mut self, from: Place<'_>, to: Place<'_>, exchanged: bool) {
        let mut at = |place: Place<'_>| self.standing.remove(&Found::from(place));
        let (moves, back) = (at(from), at(to));
        self.moves(moves, from, to);
        if exchanged {
            self.moves(back, to, from);
        }
    }

    fn moves(&mut self, there: Option<There>, from: Place<'_>, to: Place<'_>) {
        let Some(There {
            directories,
            others,
        }) = there
        else {
            return;
        };
        let certain = directories.len() == 1 && !others;
        for id in directories {
            if certain {
                self.leaves_all(id, Stands::Nowhere);
                self.stands_in(id, to);
            } else if from.parent == to.parent {
                self.stands_in(id, to);
            } else {
                self.leaves_all(id, Stands::Lost);
            }
        }
    }

    /// This mount has removed a directory there: the kernel has none there any more.
    pub fn removed(&mut self, at: Place<'_>) {
        self.standing.remove(&Found::from(at));
    }

    fn leaves(&mut self, id: NodeId, place: &Found) {
        if let Some(there) = self.standing.get_mut(place) {
            there.directories.retain(|other| *other != id);
            if there.directories.is_empty() {
                self.standing.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Node;
    use leasefs_protocol::{Attr, Handle, Timestamp};

    fn handle(number: u8) -> Handle {
        Handle::new(&[number]).expect("short")
    }

    fn directory(inodes: &mut Inodes, number: u8, at: Place<'_>) -> Node {
        found(inodes, number, FileKind::Directory, at)
    }

    fn found(inodes: &mut Inodes, number: u8, kind: FileKind, at: Place<'_>) -> Node {
        let attr = Attr {
            ino: u64::from(number),
            kind,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            xattrs: true,
        };
        inodes.refer(handle(number), &attr, at)
    }

    fn at(parent: u64, name: &[u8]) -> Place<'_> {
        let parent = NodeId(parent);
        Place { parent, name }
    }

    #[test]
    fn a_directory_that_another_mount_has_moved_to_another_one_is_a_further_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let old = directory(&mut inodes, 9, at(2, b"a"));
        let new = directory(&mut inodes, 9, at(3, b"a"));
        assert_ne!(old.id, new.id);
        assert_eq!(inodes.nodes_of(&handle(9)), [old.id, new.id]);
        // Both are it, each where it was found.
        assert_eq!(directory(&mut inodes, 9, at(2, b"a")), old);
        assert_eq!(directory(&mut inodes, 9, at(3, b"a")), new);
        assert_eq!(inodes.forget(old.id, 2), None);
        assert_eq!(inodes.node_of(&handle(9)), Some(new.id));
        inodes.check();
        assert_eq!(inodes.forget(new.id, 2), Some(new));
        inodes.check();
    }

    #[test]
    fn a_directory_that_moves_within_its_directory_stays_the_same_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let node = directory(&mut inodes, 9, at(2, b"a"));
        assert_eq!(directory(&mut inodes, 9, at(2, b"b")), node);
        inodes.check();
    }

    #[test]
    fn a_directory_that_this_mount_moves_stays_the_same_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let node = directory(&mut inodes, 9, at(2, b"a"));
        inodes.moved(at(2, b"a"), at(3, b"b"), false);
        assert_eq!(directory(&mut inodes, 9, at(3, b"b")), node);
        let other = directory(&mut inodes, 8, at(4, b"c"));
        inodes.moved(at(4, b"c"), at(3, b"b"), true);
        assert_eq!(directory(&mut inodes, 9, at(4, b"c")), node);
        assert_eq!(directory(&mut inodes, 8, at(3, b"b")), other);
        inodes.check();
    }

    fn further(inodes: &mut Inodes, number: u8, of: Node, at: Place<'_>) {
        assert_ne!(directory(inodes, number, at).id, of.id);
        inodes.check();
    }

    #[test]
    fn what_a_rename_may_have_moved_is_lost_if_the_kernel_was_told_of_two_directories_there() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let one = directory(&mut inodes, 9, at(2, b"a"));
        let two = directory(&mut inodes, 8, at(2, b"a"));
        inodes.moved(at(2, b"a"), at(3, b"b"), false);
        inodes.check();
        further(&mut inodes, 9, one, at(3, b"b"));
        further(&mut inodes, 8, two, at(2, b"c"));
        for node in [one, two] {
            assert_eq!(inodes.forget(node.id, 1), None);
        }
        inodes.check();
    }

    #[test]
    fn what_a_rename_may_have_moved_is_lost_if_the_kernel_was_told_of_a_file_there_since() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let node = directory(&mut inodes, 9, at(2, b"a"));
        found(&mut inodes, 8, FileKind::File, at(2, b"a"));
        inodes.moved(at(2, b"a"), at(3, b"b"), false);
        further(&mut inodes, 9, node, at(2, b"c"));
    }

    #[test]
    fn the_kernel_may_move_a_directory_from_where_it_was_found_before() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let node = directory(&mut inodes, 9, at(2, b"a"));
        assert_eq!(directory(&mut inodes, 9, at(2, b"b")), node);
        inodes.moved(at(2, b"a"), at(3, b"c"), false);
        inodes.check();
        assert_eq!(directory(&mut inodes, 9, at(3, b"d")), node);
        further(&mut inodes, 9, node, at(2, b"b"));
    }

    #[test]
    fn a_directory_made_where_another_one_was_removed_or_replaced_stays_the_same_node() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        directory(&mut inodes, 9, at(2, b"a"));
        inodes.removed(at(2, b"a"));
        let second = directory(&mut inodes, 8, at(2, b"a"));
        inodes.moved(at(2, b"a"), at(3, b"b"), false);
        assert_eq!(directory(&mut inodes, 8, at(3, b"b")), second);
        let third = directory(&mut inodes, 7, at(2, b"a"));
        inodes.moved(at(2, b"a"), at(3, b"b"), false);
        inodes.moved(at(3, b"b"), at(4, b"c"), false);
        assert_eq!(directory(&mut inodes, 7, at(4, b"c")), third);
        inodes.check();
    }

    #[test]
    fn few_places_of_a_directory_that_is_moved_about_are_remembered() {
        let mut inodes = Inodes::new(handle(0), crate::memory::Memory::default());
        let names: Vec<_> = (0..3 * MOST as u8).collect();
        for name in names.chunks(1) {
            directory(&mut inodes, 9, at(2, name));
        }
        assert_eq!(inodes.standing.len(), MOST);
        inodes.check();
    }
}
