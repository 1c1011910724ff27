//! The name space: pairs of small directories in which all workers create, remove,
//! rename and link the same few names.

use super::Config;
use super::judge::{by_object, judge};
use super::report::FamilyReport;
use super::run::Program;
use super::worker::{At, Problem, Worker};
use crate::lin::Entry;
use crate::lin::specs::{Inode, Linked, NameOp, Names, UNKNOWN_INODE, renames_in_halves};
use crate::rng::Rng;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque, hash_map};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const PAIRS: usize = 10;
const NAMES_PER_DIR: usize = 4;
const SLOTS: usize = 2 * NAMES_PER_DIR;
/// Created files a worker keeps open: their inode numbers can't be used again, and
/// they tell the link count of what may be unlinked.
const KEPT_OPEN: usize = 24;
/// Changes in a row: about every second one is refused.
pub(super) const CHANGES_AT_ONCE: usize = 2;

/// A directory as one mount shows it.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    held: OwnedFd,
}

pub(super) struct NameSpace {
    /// By mount, then two by two for each pair.
    directories: Vec<Vec<Directory>>,
}

/// What a worker keeps open.
#[derive(Default)]
pub(super) struct KeptOpen {
    /// Files it has created, with the pair they live in.
    created: VecDeque<(usize, File, Inode)>,
    /// Directories it lists again and again, by mount and number.
    listed: HashMap<(usize, usize), File>,
}

impl KeptOpen {
    pub(super) fn keep(&mut self, pair: usize, (file, inode): (File, Inode)) {
        self.created.push_back((pair, file, inode));
        if self.created.len() > KEPT_OPEN {
            self.created.pop_front();
        }
    }

    /// The worker's own descriptor of a directory: its position is nobody else's.
    fn listed(&mut self, key: (usize, usize), directory: &Directory) -> io::Result<&File> {
        Ok(match self.listed.entry(key) {
            hash_map::Entry::Occupied(open) => open.into_mut(),
            hash_map::Entry::Vacant(place) => place.insert(File::open(&directory.path)?),
        })
    }
}

/// One name, ready for the `*at` calls.
pub(super) struct Name<'a> {
    pub(super) number: usize,
    directory: &'a Directory,
    pub(super) relative: String,
}

impl Name<'_> {
    pub(super) fn held(&self) -> &OwnedFd {
        &self.directory.held
    }

    fn path(&self) -> PathBuf {
        self.directory.path.join(&self.relative)
    }
}

impl NameSpace {
    pub(super) fn directory(&self, at: At, half: usize) -> &Directory {
        &self.directories[at.mount][2 * at.object + half]
    }

    fn name(&self, at: At, number: usize) -> Name<'_> {
        let directory = self.directory(at, number / NAMES_PER_DIR);
        Name {
            number,
            directory,
            relative: format!("n{number}"),
        }
    }

    pub(super) fn any_name(&self, at: At, rng: &mut Rng) -> Name<'_> {
        self.name(at, rng.below(SLOTS))
    }

    pub(super) fn two_names(&self, at: At, rng: &mut Rng) -> (Name<'_>, Name<'_>) {
        let first = rng.below(SLOTS);
        let second = (first + rng.between(1, SLOTS - 1)) % SLOTS;
        (self.name(at, first), self.name(at, second))
    }

    fn create(
        &self,
        worker: &mut Worker<NameOp>,
        kept: &mut KeptOpen,
        at: At,
        name: &Name<'_>,
    ) -> Result<(), Problem> {
        let lost = NameOp::Create(name.number, Some(UNKNOWN_INODE));
        let mut made = None;
        worker.change(at, "create", lost, || {
            let (op, created) = create(name)?;
            made = created;
            Ok(op)
        })?;
        if let Some(created) = made {
            kept.keep(at.object, created);
        }
        Ok(())
    }

    /// Links the latest file that the worker has created in this pair.
    fn link(
        &self,
        worker: &mut Worker<NameOp>,
        kept: &KeptOpen,
        at: At,
        new: &Name<'_>,
    ) -> Result<(), Problem> {
        let latest = kept
            .created
            .iter()
            .rev()
            .find(|(pair, ..)| *pair == at.object);
        let Some((_, file, inode)) = latest else {
            return Ok(());
        };
        let lost = NameOp::Link(*inode, new.number, Linked::Done);
        worker.change(at, "link", lost, || link(file, *inode, new))?;
        Ok(())
    }
}

fn create(name: &Name<'_>) -> io::Result<(NameOp, Option<(File, Inode)>)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(
        &name.directory.held,
        &name.relative,
        flags,
        Mode::from(0o644),
    ) {
        Ok(created) => {
            let file = File::from(created);
            let inode = file.metadata()?.ino();
            Ok((
                NameOp::Create(name.number, Some(inode)),
                Some((file, inode)),
            ))
        }
        Err(Errno::EXIST) => Ok((NameOp::Create(name.number, None), None)),
        Err(error) => Err(error.into()),
    }
}

/// `done` unless the file was not there.
pub(super) fn or_missing(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn unlink(name: &Name<'_>) -> io::Result<NameOp> {
    let result = rustix::fs::unlinkat(&name.directory.held, &name.relative, AtFlags::empty());
    or_missing(result).map(|done| NameOp::Unlink(name.number, done))
}

pub(super) fn rename(old: &Name<'_>, new: &Name<'_>) -> io::Result<NameOp> {
    let (from, to) = (&old.directory.held, &new.directory.held);
    let result = rustix::fs::renameat(from, &old.relative, to, &new.relative);
    or_missing(result).map(|done| NameOp::Rename(old.number, new.number, done))
}

/// Links an open file by its entry in /proc, which any user may.
fn link(file: &File, inode: Inode, new: &Name<'_>) -> io::Result<NameOp> {
    let old = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = AtFlags::SYMLINK_FOLLOW;
    let result = rustix::fs::linkat(CWD, old, &new.directory.held, &new.relative, follow);
    let how = match result {
        Ok(()) => Linked::Done,
        Err(Errno::NOENT) => Linked::NoSource,
        Err(Errno::EXIST) => Linked::TargetExists,
        Err(error) => return Err(error.into()),
    };
    Ok(NameOp::Link(inode, new.number, how))
}

fn seen(number: usize, found: io::Result<(Inode, Option<u64>)>) -> io::Result<Vec<NameOp>> {
    match found {
        Ok((inode, links)) => {
            let links = links.map(|count| NameOp::Links(inode, count));
            Ok([NameOp::Lookup(number, Some(inode))]
                .into_iter()
                .chain(links)
                .collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(vec![NameOp::Lookup(number, None)])
        }
        Err(error) => Err(error),
    }
}

pub(super) fn stat_path(name: &Name<'_>) -> io::Result<Vec<NameOp>> {
    let found = std::fs::symlink_metadata(name.path()).map(|meta| (meta.ino(), Some(meta.nlink())));
    seen(name.number, found)
}

pub(super) fn stat_at(name: &Name<'_>) -> io::Result<Vec<NameOp>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statat(&name.directory.held, &name.relative, flags);
    let found = found
        .map(|stat| (stat.st_ino, Some(stat.st_nlink)))
        .map_err(io::Error::from);
    seen(name.number, found)
}

pub(super) fn open(name: &Name<'_>) -> io::Result<Vec<NameOp>> {
    let found = File::open(name.path()).and_then(|file| file.metadata());
    seen(
        name.number,
        found.map(|meta| (meta.ino(), Some(meta.nlink()))),
    )
}

/// Lists the directory from its start in one `getdents` call: a second call would be
/// a second moment.
pub(super) fn list(directory: impl AsFd, half: usize) -> io::Result<Vec<NameOp>> {
    let from = half * NAMES_PER_DIR;
    let mut found = vec![None; NAMES_PER_DIR];
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.strip_prefix('n'));
        if let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) {
            let place = number
                .checked_sub(from)
                .and_then(|index| found.get_mut(index));
            let place = place.ok_or_else(|| io::Error::other(format!("lists n{number}")))?;
            if place.replace(listed_inode(entry.ino())).is_some() {
                return Err(io::Error::other(format!("n{number} is listed twice")));
            }
        }
        if entries.is_buffer_empty() {
            break;
        }
    }
    Ok(vec![NameOp::List { from, found }])
}

/// FUSE lists inodes it was not told the number of as all ones (of 32 bits).
fn listed_inode(inode: u64) -> Inode {
    if inode == u64::from(u32::MAX) {
        UNKNOWN_INODE
    } else {
        inode
    }
}

impl Program for NameSpace {
    type Op = NameOp;
    type Local = KeptOpen;

    fn prepare(dirs: &[PathBuf], _: &Config) -> io::Result<Self> {
        let name = |index: usize| format!("pair{}-{}", index / 2, index % 2);
        for index in 0..2 * PAIRS {
            std::fs::create_dir(dirs[0].join(name(index)))?;
        }
        let open = |path: PathBuf| -> io::Result<Directory> {
            let held = OwnedFd::from(File::open(&path)?);
            Ok(Directory { path, held })
        };
        let of_mount = |dir: &PathBuf| {
            (0..2 * PAIRS)
                .map(|index| open(dir.join(name(index))))
                .collect()
        };
        Ok(Self {
            directories: dirs.iter().map(of_mount).collect::<io::Result<_>>()?,
        })
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        rng.below(PAIRS)
    }

    fn change(
        &self,
        worker: &mut Worker<NameOp>,
        kept: &mut KeptOpen,
        at: At,
    ) -> Result<(), Problem> {
        for _ in 0..CHANGES_AT_ONCE {
            let name = self.any_name(at, &mut worker.rng);
            match worker.rng.below(10) {
                0..3 => self.create(worker, kept, at, &name)?,
                3..5 => self.link(worker, kept, at, &name)?,
                5..7 => {
                    let lost = NameOp::Unlink(name.number, true);
                    worker.change(at, "unlink", lost, || unlink(&name))?;
                }
                _ => {
                    let (old, new) = self.two_names(at, &mut worker.rng);
                    let lost = NameOp::Rename(old.number, new.number, true);
                    worker.change(at, "rename", lost, || rename(&old, &new))?;
                }
            }
        }
        Ok(())
    }

    fn read(
        &self,
        worker: &mut Worker<NameOp>,
        kept: &mut KeptOpen,
        at: At,
    ) -> Result<(), Problem> {
        let name = self.any_name(at, &mut worker.rng);
        let half = worker.rng.below(2);
        let directory = self.directory(at, half);
        match worker.rng.below(12) {
            0..3 => worker.read(at, "stat", || stat_path(&name)),
            3..6 => worker.read(at, "fstatat", || stat_at(&name)),
            6..8 => worker.read(at, "open+fstat", || open(&name)),
            8 => worker.read(at, "readdir", || list(File::open(&directory.path)?, half)),
            9 => {
                let index = worker.rng.below(kept.created.len());
                let Some((object, file, inode)) = kept.created.get(index) else {
                    return Ok(());
                };
                // It was created through the worker's own mount.
                let at = At {
                    mount: worker.home,
                    object: *object,
                };
                worker.read(at, "fstat created", || {
                    Ok(vec![NameOp::Links(*inode, file.metadata()?.nlink())])
                })
            }
            _ => worker.read(at, "rewind+readdir", || {
                let file = kept.listed((at.mount, 2 * at.object + half), directory)?;
                rustix::fs::seek(file, SeekFrom::Start(0))?;
                list(file, half)
            }),
        }
    }

    fn judge(
        &self,
        entries: Vec<(usize, Entry<NameOp>)>,
        report: &mut FamilyReport,
    ) -> Result<(), Problem> {
        let name = |pair| {
            format!("directories pair{pair}-0 (n0..n3) and pair{pair}-1 (n4..n7), names to inodes")
        };
        let histories = by_object(entries)
            .into_iter()
            .map(|(pair, history)| (pair, renames_in_halves(history)))
            .collect();
        judge(report, &histories, |_| Names { slots: SLOTS }, name);
        Ok(())
    }
}
