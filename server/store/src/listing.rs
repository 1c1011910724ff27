//! Listings of directories, a bounded page at a time.

use crate::export::Node;
use crate::export::Store;
use crate::opens::OpenFile;
use crate::resolve::open_entry;
use crate::stat;
use leasefs_protocol::limits::{LISTING_PAGE, MAX_LISTING_ENTRIES};
use leasefs_protocol::{DirEntry, FileKind, Handle, Name, Refusal};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, RawDir, RawDirEntry, SeekFrom};
use std::mem::MaybeUninit;

/// Upper bound of what an entry takes on the wire besides its name and node.
const ENTRY: usize = 32;
/// Upper bound of what a node takes on the wire.
const NODE: usize = 192;
/// Buffer for the host's entries.
const BUFFER: usize = 32 * 1024;

/// A page of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its entries, without `.` and `..`.
    pub entries: Vec<DirEntry>,
    /// Whether the directory ends with this page.
    pub end: bool,
}

/// An entry as the host lists it; `None` for a kind the host's file system doesn't list.
struct Found {
    name: Name,
    ino: u64,
    kind: Option<FileKind>,
    cookie: u64,
}

impl Store {
    /// Entries behind `cookie` (0: from the start), in the host's order. With `nodes`, each has
    /// its handle and attributes if the open's caller may look names up and the name still leads
    /// to what is listed.
    ///
    /// # Errors
    /// `ENOTDIR`, or the host's.
    pub fn readdir(&self, open: &OpenFile, cookie: u64, nodes: bool) -> Result<Listing, Refusal> {
        let (found, end) = self.list(open, cookie, nodes)?;
        let _assumed = self.assume(open.identity())?;
        let entries = found
            .into_iter()
            .map(|found| self.complete(open, found, nodes))
            .collect();
        Ok(Listing { entries, end })
    }

    /// Whether a directory is sure to have no entries.
    pub fn is_empty(&self, dir: &Handle) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME | OFlags::CLOEXEC;
        let opened = self.target(dir).map(|dir| {
            let dir = dir.as_fd();
            rustix::fs::openat(dir, c".", flags, Mode::empty())
        });
        let Ok(Ok(dir)) = opened else {
            return false;
        };
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut dir = RawDir::new(dir, &mut buffer);
        while let Some(entry) = dir.next() {
            let dots = entry.map(|e| matches!(e.file_name().to_bytes(), b"." | b".."));
            if !dots.unwrap_or(false) {
                return false;
            }
        }
        true
    }

    fn list(
        &self,
        open: &OpenFile,
        cookie: u64,
        nodes: bool,
    ) -> Result<(Vec<Found>, bool), Refusal> {
        let _position = open.lock_position();
        rustix::fs::seek(open.fd(), SeekFrom::Start(cookie)).map_err(|e| self.refuse(e))?;
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut dir = RawDir::new(open.fd(), &mut buffer);
        let (mut found, mut size) = (Vec::new(), 0);
        while found.len() < MAX_LISTING_ENTRIES && size < LISTING_PAGE {
            let Some(entry) = dir.next() else {
                return Ok((found, true));
            };
            let entry = entry.map_err(|e| self.refuse(e))?;
            let entry = listed(&entry).filter(|e| !self.is_hidden(open.handle(), &e.name));
            if let Some(entry) = entry {
                size += ENTRY + entry.name.as_bytes().len() + if nodes { NODE } else { 0 };
                found.push(entry);
            }
        }
        Ok((found, false))
    }

    fn complete(&self, open: &OpenFile, found: Found, nodes: bool) -> DirEntry {
        // The name is looked at a second time and may lead elsewhere by now: what the listing
        // shows must have been so all at once.
        let node = (nodes || found.kind.is_none())
            .then(|| self.node_of(open, &found.name))
            .flatten()
            .filter(|node| node.attr.ino == found.ino);
        DirEntry {
            name: found.name.to_raw(),
            ino: found.ino,
            kind: node
                .map(|node| node.attr.kind)
                .or(found.kind)
                .unwrap_or(FileKind::File),
            cookie: found.cookie,
            node: node.filter(|_| nodes).map(|node| (node.handle, node.attr)),
        }
    }

    fn node_of(&self, open: &OpenFile, name: &Name) -> Option<Node> {
        let fd = open_entry(open.fd(), name).ok()?;
        let met = Some((open.handle(), name));
        let node = self.plain_node(fd.as_fd(), met).ok()?;
        Some(self.with_xattrs_of_named((open.fd(), name), fd.as_fd(), node))
    }
}

fn listed(entry: &RawDirEntry<'_>) -> Option<Found> {
    Some(Found {
        // Refuses `.` and `..`, and what couldn't be named in a request anyway.
        name: Name::new(entry.file_name().to_bytes()).ok()?,
        ino: entry.ino(),
        kind: stat::file_kind(entry.file_type()),
        cookie: entry.next_entry_cookie(),
    })
}
