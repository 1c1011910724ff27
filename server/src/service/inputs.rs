//! What can be told of a request without asking the host: names, opens, bounds.

use super::access::{Names, Targets};
use leasefs_protocol::limits::{MAX_SYMLINK, MAX_XATTR_NAME};
use leasefs_protocol::{FileKind, RawName, Refusal};
use leasefs_store::OpenFile;
use std::sync::Arc;

/// A request's arguments, checked.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Its names.
    pub names: Names,
    /// Its open; of `CopyRange`, the one written to.
    pub open: Option<Arc<OpenFile>>,
    /// Of `CopyRange`, the one read from.
    pub from: Option<Arc<OpenFile>>,
}

/// What an open may do with the bytes; 0 is reading only.
pub(super) const O_ACCMODE: u32 = 3;
/// Largest file offset.
pub(super) const MAX_OFFSET: u64 = i64::MAX as u64;

/// Errno values the host's kernel gives for the same arguments.
mod errno {
    pub const ENOENT: u16 = libc::ENOENT as u16;
    pub const ERANGE: u16 = libc::ERANGE as u16;
    pub const EISDIR: u16 = libc::EISDIR as u16;
    pub const ENOTDIR: u16 = libc::ENOTDIR as u16;
}

impl Inputs {
    /// What its opens are of.
    pub fn targets(&self) -> Targets {
        let handle = |open: &Option<Arc<OpenFile>>| open.as_ref().map(|open| *open.handle());
        Targets {
            opened: handle(&self.open),
            copied: handle(&self.from),
            ..Targets::default()
        }
    }
}

pub(super) fn readable(open: Arc<OpenFile>) -> Result<Arc<OpenFile>, Refusal> {
    match (open.kind(), open.reads()) {
        (FileKind::Directory, _) => Err(Refusal::Host(errno::EISDIR)),
        (_, true) => Ok(open),
        (_, false) => Err(Refusal::BadOpen),
    }
}

pub(super) fn writable(open: Arc<OpenFile>) -> Result<Arc<OpenFile>, Refusal> {
    open.writes().then_some(open).ok_or(Refusal::BadOpen)
}

pub(super) fn listable(open: Arc<OpenFile>) -> Result<Arc<OpenFile>, Refusal> {
    match open.kind() {
        FileKind::Directory => Ok(open),
        _ => Err(Refusal::Host(errno::ENOTDIR)),
    }
}

pub(super) fn range(offset: u64, len: u64) -> Result<(), Refusal> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_OFFSET => Ok(()),
        _ => Err(Refusal::TooBig),
    }
}

pub(super) fn at_most(found: usize, limit: usize, refusal: Refusal) -> Result<(), Refusal> {
    match found > limit {
        true => Err(refusal),
        false => Ok(()),
    }
}

pub(super) fn symlink(target: &RawName) -> Result<(), Refusal> {
    if target.0.is_empty() {
        return Err(Refusal::Host(errno::ENOENT));
    }
    at_most(target.0.len(), MAX_SYMLINK, Refusal::NameTooLong)?;
    no_nul(target)
}

pub(super) fn xattr_name(name: &RawName) -> Result<(), Refusal> {
    if name.0.is_empty() || name.0.len() > MAX_XATTR_NAME {
        return Err(Refusal::Host(errno::ERANGE));
    }
    no_nul(name)
}

fn no_nul(text: &RawName) -> Result<(), Refusal> {
    match text.0.contains(&0) {
        true => Err(Refusal::Invalid),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_beyond_the_largest_offset_are_too_big() {
        assert_eq!(range(MAX_OFFSET - 1, 1), Ok(()));
        assert_eq!(range(MAX_OFFSET, 1), Err(Refusal::TooBig));
        assert_eq!(range(u64::MAX, 1), Err(Refusal::TooBig));
    }

    #[test]
    fn a_symlink_target_is_neither_empty_nor_over_path_max_nor_cut_by_nul() {
        let make = |target: &[u8]| symlink(&RawName(target.to_vec()));
        assert_eq!(make(b""), Err(Refusal::Host(2)));
        assert_eq!(make(&[b'x'; MAX_SYMLINK]), Ok(()));
        assert_eq!(make(&[b'x'; MAX_SYMLINK + 1]), Err(Refusal::NameTooLong));
        assert_eq!(make(b"a\0b"), Err(Refusal::Invalid));
    }
}
