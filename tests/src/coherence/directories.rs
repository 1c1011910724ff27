//! The name space with directories in place of files: they are made, removed, and renamed from one
//! directory into another.

use super::Config;
use super::names::{CHANGES_AT_ONCE, KeptOpen, NameSpace, list, open, or_missing, rename};
use super::names::{Name, stat_at, stat_path};
use super::report::FamilyReport;
use super::run::Program;
use super::worker::{At, Problem, Worker};
use crate::lin::Entry;
use crate::lin::specs::{Inode, NameOp, UNKNOWN_INODE};
use crate::rng::Rng;
use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

pub(super) struct Directories {
    space: NameSpace,
    /// The folder as each mount shows it.
    folders: Vec<PathBuf>,
}

/// A directory that has no name yet which others use.
struct Staged {
    path: PathBuf,
    held: File,
    inode: Inode,
}

/// What a worker keeps to itself.
#[derive(Default)]
pub(super) struct Own {
    kept: KeptOpen,
    staged: Option<Staged>,
    made: usize,
}

impl Staged {
    fn make(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        let held = File::open(&path)?;
        let inode = held.metadata()?.ino();
        Ok(Self { path, held, inode })
    }

    /// What `mkdir` would do, but that the inode is known.
    fn put_at(&self, name: &Name<'_>) -> io::Result<NameOp> {
        let (to, relative) = (name.held(), &name.relative);
        match rustix::fs::renameat_with(CWD, &self.path, to, relative, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(NameOp::Create(name.number, Some(self.inode))),
            Err(Errno::EXIST) => Ok(NameOp::Create(name.number, None)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Directories {
    /// A directory of the worker's own, made before it is needed. `None` if that was not answered.
    fn stage(&self, worker: &Worker<NameOp>, own: &mut Own, at: At) -> Option<Staged> {
        if let Some(staged) = own.staged.take() {
            return Some(staged);
        }
        own.made += 1;
        let name = format!("staged-{}-{}", worker.id, own.made);
        Staged::make(self.folders[at.mount].join(name)).ok()
    }

    fn make(
        &self,
        worker: &mut Worker<NameOp>,
        own: &mut Own,
        at: At,
        name: &Name<'_>,
    ) -> Result<(), Problem> {
        let Some(staged) = self.stage(worker, own, at) else {
            return Ok(());
        };
        let lost = NameOp::Create(name.number, Some(UNKNOWN_INODE));
        let mut refused = false;
        let answered = worker.change(at, "rename in", lost, || {
            let op = staged.put_at(name)?;
            refused = matches!(op, NameOp::Create(_, None));
            Ok(op)
        })?;
        match answered && refused {
            true => own.staged = Some(staged),
            // Its number can't be used again as long as it is open.
            false => own.kept.keep(at.object, (staged.held, staged.inode)),
        }
        Ok(())
    }
}

fn remove(name: &Name<'_>) -> io::Result<NameOp> {
    let result = rustix::fs::unlinkat(name.held(), &name.relative, AtFlags::REMOVEDIR);
    or_missing(result).map(|done| NameOp::Unlink(name.number, done))
}

/// A directory's link count says nothing of its names.
fn without_links(seen: io::Result<Vec<NameOp>>) -> io::Result<Vec<NameOp>> {
    let mut seen = seen?;
    seen.retain(|op| !matches!(op, NameOp::Links(..)));
    Ok(seen)
}

impl Program for Directories {
    type Op = NameOp;
    type Local = Own;

    fn prepare(dirs: &[PathBuf], config: &Config) -> io::Result<Self> {
        Ok(Self {
            space: NameSpace::prepare(dirs, config)?,
            folders: dirs.to_vec(),
        })
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        self.space.pick(rng)
    }

    fn change(&self, worker: &mut Worker<NameOp>, own: &mut Own, at: At) -> Result<(), Problem> {
        for _ in 0..CHANGES_AT_ONCE {
            let name = self.space.any_name(at, &mut worker.rng);
            match worker.rng.below(10) {
                0..4 => self.make(worker, own, at, &name)?,
                4..6 => {
                    let lost = NameOp::Unlink(name.number, true);
                    worker.change(at, "rmdir", lost, || remove(&name))?;
                }
                _ => {
                    let (old, new) = self.space.two_names(at, &mut worker.rng);
                    let lost = NameOp::Rename(old.number, new.number, true);
                    worker.change(at, "rename", lost, || rename(&old, &new))?;
                }
            }
        }
        Ok(())
    }

    fn read(&self, worker: &mut Worker<NameOp>, _: &mut Own, at: At) -> Result<(), Problem> {
        let name = self.space.any_name(at, &mut worker.rng);
        let half = worker.rng.below(2);
        match worker.rng.below(10) {
            0..3 => worker.read(at, "stat", || without_links(stat_path(&name))),
            3..6 => worker.read(at, "fstatat", || without_links(stat_at(&name))),
            6..8 => worker.read(at, "open+fstat", || without_links(open(&name))),
            _ => worker.read(at, "readdir", || {
                list(File::open(&self.space.directory(at, half).path)?, half)
            }),
        }
    }

    fn judge(
        &self,
        entries: Vec<(usize, Entry<NameOp>)>,
        report: &mut FamilyReport,
    ) -> Result<(), Problem> {
        self.space.judge(entries, report)
    }
}
