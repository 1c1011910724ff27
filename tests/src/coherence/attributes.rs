//! Attributes: size, mode, mtime and link count of a few files.

use super::Config;
use super::judge::{by_object, judge};
use super::report::FamilyReport;
use super::run::Program;
use super::worker::{At, Problem, Worker};
use crate::lin::Entry;
use crate::lin::specs::{AttrChange, Attrs, AttrsOp, AttrsState, Mtime, Seen};
use crate::rng::Rng;
use rustix::fs::{SeekFrom, Timespec, Timestamps};
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const FILES: usize = 24;
/// Sizes are multiples of this, all different.
const SIZE_STEP: u64 = 517;

struct Held {
    path: PathBuf,
    reader: File,
    writer: File,
}

pub(super) struct Attributes {
    /// By mount, then by file.
    held: Vec<Vec<Held>>,
    at_first: Vec<AttrsState>,
    next: AtomicU64,
    atomic: bool,
}

/// The links a worker has added, by file.
pub(super) type OwnLinks = HashMap<usize, OwnLink>;

/// Whether a worker's own link to a file is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnLink {
    /// It is.
    There,
    /// It is not.
    Gone,
    /// No answer told; the worker leaves the file's links alone from then on.
    Unknown,
}

fn nanoseconds(meta: &Metadata) -> i64 {
    meta.mtime()
        .saturating_mul(1_000_000_000)
        .saturating_add(meta.mtime_nsec())
}

fn everything(meta: &Metadata) -> Vec<AttrsOp> {
    vec![AttrsOp::Get(Seen {
        size: Some(meta.len()),
        mode: Some(meta.mode() & 0o7777),
        mtime: Some(nanoseconds(meta)),
        nlink: Some(meta.nlink()),
    })]
}

/// Once in a great while the kernel tells what it had before, or some of it: it has ignored an answer, or is taking it
/// in just now (docs/semantics.md). Not twice in a row.
fn settled<T: PartialEq>(ask: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut last = ask()?;
    loop {
        let now = ask()?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
}

fn state_of(meta: &Metadata) -> AttrsState {
    let mtime = Mtime::Is(nanoseconds(meta));
    AttrsState {
        size: meta.len(),
        mode: meta.mode() & 0o7777,
        mtime,
        nlink: meta.nlink(),
    }
}

fn set_mtime(file: &File, time: i64) -> io::Result<()> {
    let moment = |time: i64| Timespec {
        tv_sec: time / 1_000_000_000,
        tv_nsec: time % 1_000_000_000,
    };
    let times = Timestamps {
        last_access: moment(0),
        last_modification: moment(time),
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

impl Attributes {
    fn held(&self, at: At) -> &Held {
        &self.held[at.mount][at.object]
    }

    /// A change other than of links, and how it is called.
    fn some_change(&self, rng: &mut Rng) -> (AttrChange, &'static str) {
        let fresh = self.next.fetch_add(1, Ordering::Relaxed);
        match rng.below(8) {
            0 => (AttrChange::Truncate(fresh * SIZE_STEP), "truncate"),
            1 => (AttrChange::Truncate(fresh * SIZE_STEP), "ftruncate"),
            2..4 => (AttrChange::WriteUpTo(fresh * SIZE_STEP), "pwrite"),
            4 => (AttrChange::Mode(0o600 | (fresh as u32 & 0o77)), "chmod"),
            5 => (AttrChange::Mode(0o600 | (fresh as u32 & 0o77)), "fchmod"),
            _ => (
                AttrChange::Mtime(1_000_000_000_000_000 + fresh as i64 * 1_000_003),
                "utimensat",
            ),
        }
    }

    fn change_link(
        &self,
        worker: &mut Worker<AttrsOp>,
        own: &mut OwnLinks,
        at: At,
    ) -> Result<(), Problem> {
        let path = &self.held(at).path;
        let link = path.with_extension(format!("link{}", worker.id));
        let own = own.entry(at.object).or_insert(OwnLink::Gone);
        let (answered, then) = match own {
            OwnLink::Unknown => return Ok(()),
            OwnLink::There => {
                let op = AttrsOp::Set(AttrChange::Unlink);
                let remove = || std::fs::remove_file(&link).map(|()| op);
                (worker.change(at, "unlink", op, remove)?, OwnLink::Gone)
            }
            OwnLink::Gone => {
                let op = AttrsOp::Set(AttrChange::Link);
                let add = || std::fs::hard_link(path, &link).map(|()| op);
                (worker.change(at, "link", op, add)?, OwnLink::There)
            }
        };
        *own = if answered { then } else { OwnLink::Unknown };
        Ok(())
    }
}

/// `truncate(2)` by path, without a descriptor.
fn truncate(path: &Path, size: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let size = libc::off_t::try_from(size).map_err(io::Error::other)?;
    // SAFETY: a terminated string that outlives the call.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn carry_out(held: &Held, change: AttrChange, how: &str) -> io::Result<()> {
    match change {
        AttrChange::Truncate(size) if how == "truncate" => truncate(&held.path, size),
        AttrChange::Truncate(size) => held.writer.set_len(size),
        AttrChange::WriteUpTo(end) => held.writer.write_all_at(b"x", end.saturating_sub(1)),
        AttrChange::Mode(mode) if how == "chmod" => {
            std::fs::set_permissions(&held.path, Permissions::from_mode(mode))
        }
        AttrChange::Mode(mode) => held.writer.set_permissions(Permissions::from_mode(mode)),
        AttrChange::Mtime(time) => set_mtime(&held.writer, time),
        AttrChange::Link | AttrChange::Unlink => Ok(()),
    }
}

impl Program for Attributes {
    type Op = AttrsOp;
    type Local = OwnLinks;

    fn prepare(dirs: &[PathBuf], config: &Config) -> io::Result<Self> {
        let name = |file: usize| format!("file{file}");
        for file in 0..FILES {
            std::fs::write(dirs[0].join(name(file)), b"")?;
        }
        let open = |path: PathBuf| -> io::Result<Held> {
            let reader = File::open(&path)?;
            let writer = OpenOptions::new().write(true).open(&path)?;
            Ok(Held {
                path,
                reader,
                writer,
            })
        };
        let of_mount = |dir: &PathBuf| (0..FILES).map(|file| open(dir.join(name(file)))).collect();
        let held: Vec<Vec<Held>> = dirs.iter().map(of_mount).collect::<io::Result<_>>()?;
        let first = held.iter().take(1).flatten();
        let at_first = first.map(|held| held.reader.metadata().map(|meta| state_of(&meta)));
        let at_first = at_first.collect::<io::Result<_>>()?;
        Ok(Self {
            held,
            at_first,
            next: AtomicU64::new(1),
            atomic: config.atomic,
        })
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        rng.below(FILES)
    }

    fn change(
        &self,
        worker: &mut Worker<AttrsOp>,
        own: &mut OwnLinks,
        at: At,
    ) -> Result<(), Problem> {
        if worker.rng.chance(20) {
            return self.change_link(worker, own, at);
        }
        let held = self.held(at);
        let (change, how) = self.some_change(&mut worker.rng);
        let op = AttrsOp::Set(change);
        worker.change(at, how, op, || carry_out(held, change, how).map(|()| op))?;
        Ok(())
    }

    fn read(&self, worker: &mut Worker<AttrsOp>, _: &mut OwnLinks, at: At) -> Result<(), Problem> {
        let held = self.held(at);
        let stat = |ask: &dyn Fn() -> io::Result<Metadata>| settled(|| Ok(everything(&ask()?)));
        match worker.rng.below(10) {
            0..4 => worker.read(at, "stat", || stat(&|| std::fs::metadata(&held.path))),
            4..7 => worker.read(at, "fstat", || stat(&|| held.reader.metadata())),
            7 => worker.read(at, "fstat O_WRONLY", || stat(&|| held.writer.metadata())),
            8 => worker.read(at, "open+fstat", || {
                stat(&|| File::open(&held.path)?.metadata())
            }),
            _ => worker.read(at, "lseek end", || {
                let size = settled(|| Ok(rustix::fs::seek(&held.reader, SeekFrom::End(0))?))?;
                Ok(vec![AttrsOp::Get(Seen {
                    size: Some(size),
                    ..Seen::default()
                })])
            }),
        }
    }

    fn judge(
        &self,
        entries: Vec<(usize, Entry<AttrsOp>)>,
        report: &mut FamilyReport,
    ) -> Result<(), Problem> {
        let histories = by_object(entries);
        let spec = |file: usize| Attrs {
            at_first: self.at_first[file],
            settled_times: self.atomic,
        };
        let name = |file: usize| format!("attributes of file{file}");
        if self.atomic {
            judge(report, &histories, spec, name);
            return Ok(());
        }
        for (attribute, keep) in ATTRIBUTES {
            let name = |file: usize| format!("{attribute} of file{file}");
            let mut one = FamilyReport {
                fault: report.fault.take(),
                ..FamilyReport::empty(report.family)
            };
            judge(&mut one, &only(&histories, keep), spec, name);
            *report = FamilyReport {
                operations: one.operations,
                reads: one.reads,
                changes: one.changes,
                remote_reads: one.remote_reads,
                fault: one.fault,
                ..report.clone()
            };
        }
        Ok(())
    }
}

type Keep = fn(Seen) -> Seen;

/// Each attribute by itself, for file systems whose `stat` is not atomic.
const ATTRIBUTES: [(&str, Keep); 4] = [
    ("size", |seen| Seen {
        size: seen.size,
        ..Seen::default()
    }),
    ("mode", |seen| Seen {
        mode: seen.mode,
        ..Seen::default()
    }),
    ("mtime", |seen| Seen {
        mtime: seen.mtime,
        ..Seen::default()
    }),
    ("link count", |seen| Seen {
        nlink: seen.nlink,
        ..Seen::default()
    }),
];

fn only(
    histories: &BTreeMap<usize, Vec<Entry<AttrsOp>>>,
    keep: Keep,
) -> BTreeMap<usize, Vec<Entry<AttrsOp>>> {
    let of_one = |entry: &Entry<AttrsOp>| match entry.op {
        AttrsOp::Get(seen) => Entry {
            op: AttrsOp::Get(keep(seen)),
            ..entry.clone()
        },
        AttrsOp::Set(_) => entry.clone(),
    };
    let kept = histories
        .iter()
        .map(|(object, history)| (*object, history.iter().map(of_one).collect()));
    kept.collect()
}
