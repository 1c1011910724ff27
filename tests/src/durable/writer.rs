//! A writer: random work of every kind in one mount, with a journal of it.

use super::journal::{Entry, FileId, Journal, LOG, Op, STRIPES};
use super::snapshot::{STRIPE, home, log, name_of, stripes};
use super::stamp::{CELL, Stamp};
use crate::mapping::Mapping;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// A file that has grown to this size is left, and another begun.
const FULL: u64 = 192 * 1024;
/// Size of files that are mapped.
const MAPPED: u64 = 64 * 1024;
/// Most bytes of one write.
const LONGEST: u64 = 12 * 1024;

/// Why a writer can't go on as it did.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A call has failed, and is in the journal.
    #[error("a call has failed")]
    Failed,
    /// The mount has lost its daemon.
    #[error("the mount is gone")]
    Gone,
    /// What is no journalled call has failed.
    #[error("{what}: {source}")]
    Broken {
        /// What.
        what: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Kinds of work; each has a file of its own at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Writes one behind the other.
    Grow,
    /// Writes anywhere, beyond the end too.
    Overwrite,
    /// The same with `O_SYNC` or `O_DSYNC`.
    Synced,
    /// Stores into a shared mapping, with `msync`.
    Mapped,
    /// Writes and truncations.
    Truncate,
    /// New content for a name: write, fsync, rename, and at times fsync of the directory.
    Replace,
    /// Names that come and go.
    Names,
    /// This writer's part of a file that all write.
    Stripes,
    /// The same through a mapping.
    MappedStripes,
    /// Records at the end of a file to which all append.
    Log,
}

const KINDS: [Kind; 10] = [
    Kind::Grow,
    Kind::Overwrite,
    Kind::Synced,
    Kind::Mapped,
    Kind::Truncate,
    Kind::Replace,
    Kind::Names,
    Kind::Stripes,
    Kind::MappedStripes,
    Kind::Log,
];

/// An open file.
#[derive(Debug)]
struct Open {
    file: FileId,
    handle: File,
    map: Option<Mapping>,
    /// As far as this writer knows.
    size: u64,
    /// Writes through it are durable when they return.
    synced: bool,
}

/// Who writes where.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The directory of all writers' work, in a mount.
    pub root: PathBuf,
    /// Which of them this is.
    pub writer: u16,
    /// How many there are.
    pub writers: u16,
    /// The run's seed.
    pub seed: u64,
    /// The journal, outside the mount.
    pub journal: PathBuf,
}

/// A writer at work.
#[derive(Debug)]
pub struct Writer {
    assignment: Assignment,
    home: PathBuf,
    /// Open from the begin: what becomes of names since then is its to report.
    dir: File,
    journal: Journal,
    rng: Rng,
    seq: u64,
    files: u32,
    open: BTreeMap<Kind, Open>,
    /// Names that [`Kind::Names`] has made.
    names: Vec<String>,
}

fn broken(what: impl Into<String>) -> impl FnOnce(io::Error) -> Trouble {
    let what = what.into();
    move |source| match source.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => Trouble::Gone,
        _ => Trouble::Broken { what, source },
    }
}

impl Writer {
    /// A writer with nothing done yet. Its directory and what is common are there.
    ///
    /// # Errors
    /// [`Trouble::Broken`] or [`Trouble::Gone`].
    pub fn new(assignment: Assignment) -> Result<Self, Trouble> {
        let home = home(&assignment.root, assignment.writer);
        let journal = Journal::create(&assignment.journal).map_err(broken("the journal"))?;
        Ok(Self {
            dir: File::open(&home).map_err(broken("its directory"))?,
            home,
            journal,
            rng: Rng::new(assignment.seed).fork(assignment.writer.into()),
            seq: 0,
            files: 0,
            open: BTreeMap::new(),
            names: Vec::new(),
            assignment,
        })
    }

    /// One piece of work. What fails is left alone from then on.
    ///
    /// # Errors
    /// [`Trouble::Broken`] or [`Trouble::Gone`].
    pub fn step(&mut self) -> Result<(), Trouble> {
        let kind = KINDS[self.rng.below(KINDS.len())];
        match self.work(kind) {
            Err(Trouble::Failed) => Ok(()),
            result => result,
        }
    }

    fn work(&mut self, kind: Kind) -> Result<(), Trouble> {
        match kind {
            Kind::Replace => return self.replace(),
            Kind::Names => return self.change_names(),
            _ => {}
        }
        let mut open = match self.open.remove(&kind) {
            Some(open) => open,
            None => self.begin(kind)?,
        };
        let result = self.use_open(kind, &mut open);
        let is_common = matches!(open.file, STRIPES | LOG);
        // What is common is kept after a failure: through this very open its losses are told.
        if is_common || (result.is_ok() && open.size < FULL) {
            self.open.insert(kind, open);
        }
        result
    }

    fn use_open(&mut self, kind: Kind, open: &mut Open) -> Result<(), Trouble> {
        match kind {
            Kind::Log => self.append(open)?,
            Kind::Truncate if self.rng.chance(40) => self.truncate(open)?,
            _ => self.write_somewhere(kind, open)?,
        }
        match !open.synced && open.map.is_none() && self.rng.chance(30) {
            true => self.sync(open, kind != Kind::Truncate),
            false => Ok(()),
        }
    }

    // ---- opening ------------------------------------------------------------

    fn begin(&mut self, kind: Kind) -> Result<Open, Trouble> {
        match kind {
            Kind::Stripes => self.common(STRIPES, 0),
            Kind::MappedStripes => {
                let open = self.common(STRIPES, 0)?;
                self.map(open)
            }
            Kind::Log => self.common(LOG, libc::O_APPEND),
            Kind::Synced => {
                let flags = [libc::O_SYNC, libc::O_DSYNC][self.rng.below(2)];
                self.create(flags)
            }
            Kind::Mapped => {
                let mut open = self.create(0)?;
                self.resize(&mut open, MAPPED)?;
                self.sync(&open, false)?;
                self.map(open)
            }
            _ => self.create(0),
        }
    }

    fn common(&mut self, file: FileId, flags: i32) -> Result<Open, Trouble> {
        let path = match file {
            STRIPES => stripes(&self.assignment.root),
            _ => log(&self.assignment.root),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        let (handle, size) = self.call(Op::Open { file }, || {
            let handle = options.open(&path)?;
            let size = handle.metadata()?.len();
            Ok((handle, size))
        })?;
        Ok(Open {
            file,
            handle,
            map: None,
            size,
            synced: false,
        })
    }

    fn create(&mut self, flags: i32) -> Result<Open, Trouble> {
        self.files += 1;
        let file = FileId(((u32::from(self.assignment.writer) + 1) << 16) | self.files);
        let name = name_of(file);
        let path = self.home.join(&name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(flags);
        options.read(self.rng.chance(60));
        // Mapping needs reading too; what is mapped is opened again for it.
        let handle = self.call(Op::Create { name, file }, || options.open(path))?;
        Ok(Open {
            file,
            handle,
            map: None,
            size: 0,
            synced: flags & libc::O_DSYNC != 0,
        })
    }

    fn map(&mut self, mut open: Open) -> Result<Open, Trouble> {
        if open.file != STRIPES {
            let path = self.home.join(name_of(open.file));
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            open.handle = self.call(Op::Open { file: open.file }, || options.open(&path))?;
        }
        let len = open.size as usize;
        let map = Mapping::new(&open.handle, 0, len, true).map_err(broken("mapping"))?;
        open.map = Some(map);
        Ok(open)
    }

    // ---- calls --------------------------------------------------------------

    /// Makes a call, with its begin and end in the journal.
    fn call<T>(&mut self, op: Op, act: impl FnOnce() -> io::Result<T>) -> Result<T, Trouble> {
        self.seq += 1;
        let seq = self.seq;
        self.note(&Entry::Begin { seq, op })?;
        match act() {
            Ok(result) => {
                self.note(&Entry::Done { seq })?;
                Ok(result)
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or_default();
                self.note(&Entry::Failed { seq, errno })?;
                match errno {
                    libc::ENOTCONN | libc::ECONNABORTED => Err(Trouble::Gone),
                    _ => Err(Trouble::Failed),
                }
            }
        }
    }

    fn note(&mut self, entry: &Entry) -> Result<(), Trouble> {
        self.journal.note(entry).map_err(broken("the journal"))
    }

    /// What its next call writes to `file`, from `place` on.
    fn next_bytes(&self, file: FileId, place: u64, len: u64) -> Vec<u8> {
        let stamp = Stamp {
            seed: self.assignment.seed,
            file,
            writer: self.assignment.writer,
            seq: self.seq + 1,
        };
        stamp.bytes(place, len)
    }

    fn write(&mut self, open: &mut Open, offset: u64, len: u64) -> Result<(), Trouble> {
        let bytes = self.next_bytes(open.file, offset, len);
        let op = Op::Write {
            file: open.file,
            offset,
            len,
            synced: open.synced || open.map.is_some(),
        };
        self.call(op, || match &open.map {
            Some(map) => {
                map.copy_from(offset as usize, &bytes);
                map.sync()
            }
            None => open.handle.write_all_at(&bytes, offset),
        })?;
        open.size = open.size.max(offset + len);
        Ok(())
    }

    fn sync(&mut self, open: &Open, may_be_data: bool) -> Result<(), Trouble> {
        let data_only = may_be_data && self.rng.chance(50);
        self.call(Op::Sync { file: open.file }, || match data_only {
            true => open.handle.sync_data(),
            false => open.handle.sync_all(),
        })
    }

    fn resize(&mut self, open: &mut Open, size: u64) -> Result<(), Trouble> {
        let file = open.file;
        self.call(Op::Truncate { file, size }, || open.handle.set_len(size))?;
        open.size = size;
        Ok(())
    }

    fn sync_dir(&mut self) -> Result<(), Trouble> {
        let again = self.rng.chance(50);
        let (dir, home) = (self.dir.try_clone(), self.home.clone());
        self.call(Op::SyncDir, || match again {
            true => File::open(home)?.sync_all(),
            false => dir?.sync_all(),
        })
    }

    // ---- kinds of work ------------------------------------------------------

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below((bound / CELL as u64) as usize) as u64 * CELL as u64
    }

    fn some_len(&mut self) -> u64 {
        let longest = [4 * CELL as u64, 4096, LONGEST][self.rng.below(3)];
        CELL as u64 + self.below(longest)
    }

    fn write_somewhere(&mut self, kind: Kind, open: &mut Open) -> Result<(), Trouble> {
        let len = self.some_len();
        let offset = match kind {
            Kind::Grow => open.size,
            Kind::Stripes | Kind::MappedStripes => return self.write_stripe(open),
            Kind::Mapped => {
                let len = len.min(MAPPED);
                let offset = self.below(MAPPED - len + CELL as u64);
                return self.write(open, offset, len);
            }
            _ => self.below(open.size + 16 * 1024),
        };
        self.write(open, offset, len)
    }

    fn write_stripe(&mut self, open: &mut Open) -> Result<(), Trouble> {
        let (turn, writers) = (
            u64::from(self.assignment.writer),
            u64::from(self.assignment.writers),
        );
        let rounds = open.size / (STRIPE * writers);
        let round = self.rng.below(rounds as usize) as u64;
        let within = self.below(STRIPE);
        let len = CELL as u64 + self.below(STRIPE - within);
        self.write(open, (round * writers + turn) * STRIPE + within, len)
    }

    fn append(&mut self, open: &mut Open) -> Result<(), Trouble> {
        let len = self.some_len();
        let bytes = self.next_bytes(LOG, 0, len);
        self.call(Op::Append { len }, || match open.handle.write(&bytes)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        })
    }

    fn truncate(&mut self, open: &mut Open) -> Result<(), Trouble> {
        let size = self.below(open.size + 8 * 1024);
        self.resize(open, size)
    }

    fn replace(&mut self) -> Result<(), Trouble> {
        let mut open = self.create(0)?;
        let len = self.some_len();
        self.write(&mut open, 0, len)?;
        self.sync(&open, false)?;
        let (from, to) = (name_of(open.file), "replaced".to_owned());
        let paths = (self.home.join(&from), self.home.join(&to));
        self.call(Op::Rename { from, to }, || fs::rename(paths.0, paths.1))?;
        match self.rng.chance(60) {
            true => self.sync_dir(),
            false => Ok(()),
        }
    }

    fn change_names(&mut self) -> Result<(), Trouble> {
        if !self.names.is_empty() && self.rng.chance(40) {
            let index = self.rng.below(self.names.len());
            let name = self.names.swap_remove(index);
            let path = self.home.join(&name);
            self.call(Op::Unlink { name }, || fs::remove_file(path))?;
        } else {
            let mut open = self.create(0)?;
            let len = self.some_len();
            self.write(&mut open, 0, len)?;
            self.sync(&open, false)?;
            self.names.push(name_of(open.file));
        }
        match self.rng.chance(50) {
            true => self.sync_dir(),
            false => Ok(()),
        }
    }
}
