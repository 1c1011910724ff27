//! Renames that may have succeeded by doing nothing.
//!
//! `rename` looks its two names up one after the other, and the kernel's `vfs_rename`
//! returns 0 without asking the file system if both are the same inode. If another
//! mount renames the file in between, the first name still led to it and the second
//! already does: this rename succeeds, and whatever the old name leads to by then
//! stays. That is so on every network file system.

use super::{Linked, NameOp};
use crate::lin::Entry;

/// Splits each rename that may have been such a one into two operations with its
/// stamps, [`NameOp::RenameLook`] and [`NameOp::RenameAct`]. If the look comes first,
/// the act did nothing and the new name led to the inode that the look had found; if
/// it comes second, the act was a usual rename.
///
/// Only those are split during which something else may both have put an inode at the
/// new name and taken one from the old: without, such a rename is also a usual one.
pub fn renames_in_halves(history: Vec<Entry<NameOp>>) -> Vec<Entry<NameOp>> {
    let splits: Vec<bool> = (0..history.len())
        .map(|index| may_do_nothing(&history, index))
        .collect();
    let mut halves = Vec::with_capacity(history.len());
    for (number, (entry, split)) in history.into_iter().zip(splits).enumerate() {
        match entry.op {
            NameOp::Rename(old, new, true) if split => {
                let look = NameOp::RenameLook { number, old };
                let act = NameOp::RenameAct { number, old, new };
                halves.push(Entry {
                    op: look,
                    ..entry.clone()
                });
                halves.push(Entry { op: act, ..entry });
            }
            _ => halves.push(entry),
        }
    }
    halves
}

fn may_do_nothing(history: &[Entry<NameOp>], index: usize) -> bool {
    let rename = &history[index];
    let NameOp::Rename(old, new, true) = rename.op else {
        return false;
    };
    let meanwhile = |other: &&Entry<NameOp>| {
        !std::ptr::eq(*other, rename) && !other.precedes(rename) && !rename.precedes(other)
    };
    let mut others = history.iter().filter(meanwhile);
    // Without an answer, doing nothing is not having happened.
    rename.end.is_some()
        && others.clone().any(|other| puts_at(&other.op, new))
        && others.any(|other| takes_from(&other.op, old))
}

/// Whether an inode that had another name before may be at `name` afterwards.
fn puts_at(op: &NameOp, name: usize) -> bool {
    match op {
        NameOp::Rename(_, new, true) | NameOp::Link(_, new, Linked::Done) => *new == name,
        _ => false,
    }
}

/// Whether `name` may lead elsewhere or nowhere afterwards.
fn takes_from(op: &NameOp, name: usize) -> bool {
    match op {
        NameOp::Rename(old, new, true) => *old == name || *new == name,
        NameOp::Unlink(taken, true) => *taken == name,
        _ => false,
    }
}
