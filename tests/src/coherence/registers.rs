//! Single-page registers: half pages, each written as one value.
//!
//! The files differ in how they are written, because that decides how a client may
//! cache them: through descriptors that can only write, through read-write ones
//! opened for each write, through long-held read-write ones, and through a shared
//! writable mapping.

use super::Config;
use super::files::{PAGE, map_page, pread, through_sendfile, words};
use super::judge::{by_object, judge};
use super::report::FamilyReport;
use super::run::Program;
use super::worker::{At, Problem, Worker};
use crate::lin::Entry;
use crate::lin::specs::{Register, RegisterOp};
use crate::mapping::Mapping;
use crate::rng::Rng;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const PAGES: usize = 4;
const SLOT: usize = PAGE / 2;
const SLOTS: usize = PAGES * PAGE / SLOT;

/// How the registers of a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A long-held or fresh descriptor that can only write.
    WriteOnly,
    /// A read-write descriptor opened for each write.
    FreshReadWrite,
    /// A read-write descriptor that every mount holds all the time.
    LongHeldReadWrite,
    /// As before, and by stores into a shared mapping; values are single words.
    Mapped,
}

const STYLES: [Style; 8] = [
    Style::WriteOnly,
    Style::WriteOnly,
    Style::WriteOnly,
    Style::WriteOnly,
    Style::FreshReadWrite,
    Style::FreshReadWrite,
    Style::LongHeldReadWrite,
    Style::Mapped,
];

/// What every mount holds of a file for the whole run.
struct Held {
    path: PathBuf,
    reader: File,
    map: Mapping,
    writer: File,
    writable_map: Option<Mapping>,
}

pub(super) struct Registers {
    /// By mount, then by file.
    held: Vec<Vec<Held>>,
    next_value: AtomicU64,
    atomic: bool,
}

#[derive(Clone, Copy)]
struct Place {
    file: usize,
    offset: usize,
}

impl Place {
    fn of(object: usize) -> Self {
        Self {
            file: object / SLOTS,
            offset: object % SLOTS * SLOT,
        }
    }

    fn style(self) -> Style {
        STYLES[self.file]
    }

    fn page(self) -> u64 {
        (self.offset / PAGE) as u64
    }

    fn in_page(self) -> usize {
        self.offset % PAGE
    }

    /// Whether the values of this register fill all of it.
    fn is_whole(self) -> bool {
        self.style() != Style::Mapped
    }
}

impl Held {
    fn open(path: PathBuf, style: Style) -> io::Result<Self> {
        let reader = File::open(&path)?;
        let map = Mapping::new(&reader, 0, PAGES * PAGE, false)?;
        let long = matches!(style, Style::LongHeldReadWrite | Style::Mapped);
        let writer = OpenOptions::new().read(long).write(true).open(&path)?;
        let writable_map = match style {
            Style::Mapped => Some(Mapping::new(&writer, 0, PAGES * PAGE, true)?),
            _ => None,
        };
        Ok(Self {
            path,
            reader,
            map,
            writer,
            writable_map,
        })
    }
}

impl Registers {
    fn held(&self, at: At) -> (&Held, Place) {
        let place = Place::of(at.object);
        (&self.held[at.mount][place.file], place)
    }

    /// The value in the bytes of a register; what is torn is kept as a value nobody
    /// wrote.
    fn value(&self, place: Place, bytes: &[u8]) -> io::Result<u64> {
        let first = words(bytes).next().filter(|_| bytes.len() == SLOT);
        let first = first.ok_or_else(|| io::Error::other("a short read inside the file"))?;
        if self.atomic && place.is_whole() && words(bytes).any(|word| word != first) {
            return Err(io::Error::other(
                "a torn read: one page shows parts of two writes",
            ));
        }
        Ok(first)
    }

    /// The word of a register that a mapped read looks at.
    fn word(&self, place: Place, rng: &mut Rng) -> usize {
        let word = if self.atomic && place.is_whole() {
            rng.below(SLOT / 8)
        } else {
            0
        };
        word * 8
    }
}

fn fresh_reader(path: &Path) -> io::Result<File> {
    File::open(path)
}

fn image(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SLOT / 8)
}

impl Program for Registers {
    type Op = RegisterOp;
    type Local = ();

    fn prepare(dirs: &[PathBuf], config: &Config) -> io::Result<Self> {
        let name = |file: usize| format!("registers{file}");
        for file in 0..STYLES.len() {
            std::fs::write(dirs[0].join(name(file)), vec![0; PAGES * PAGE])?;
        }
        let open = |dir: &PathBuf| {
            let files = STYLES.iter().enumerate();
            files
                .map(|(file, style)| Held::open(dir.join(name(file)), *style))
                .collect()
        };
        let held = dirs.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self {
            held,
            next_value: AtomicU64::new(1),
            atomic: config.atomic,
        })
    }

    fn pick(&self, rng: &mut Rng) -> usize {
        rng.below(STYLES.len() * SLOTS)
    }

    fn change(&self, worker: &mut Worker<RegisterOp>, _: &mut (), at: At) -> Result<(), Problem> {
        let (held, place) = self.held(at);
        let value = self.next_value.fetch_add(1, Ordering::Relaxed);
        let written = RegisterOp::Write(value);
        let offset = place.offset as u64;
        let store = held.writable_map.as_ref().filter(|_| worker.rng.chance(50));
        if let Some(map) = store {
            worker.change(at, "store+msync", written, || {
                map.store(place.offset, value);
                map.sync().map(|()| written)
            })?;
            return Ok(());
        }
        let fresh = match place.style() {
            Style::WriteOnly => worker.rng.chance(50),
            Style::FreshReadWrite => true,
            Style::LongHeldReadWrite | Style::Mapped => false,
        };
        if fresh {
            let read = place.style() == Style::FreshReadWrite;
            worker.change(at, "open+pwrite", written, || {
                let file = OpenOptions::new().read(read).write(true).open(&held.path)?;
                file.write_all_at(&image(value), offset).map(|()| written)
            })?;
            return Ok(());
        }
        worker.change(at, "pwrite", written, || {
            held.writer
                .write_all_at(&image(value), offset)
                .map(|()| written)
        })?;
        Ok(())
    }

    fn read(&self, worker: &mut Worker<RegisterOp>, _: &mut (), at: At) -> Result<(), Problem> {
        let (held, place) = self.held(at);
        let offset = place.offset as u64;
        let word = place.in_page() + self.word(place, &mut worker.rng);
        let seen = |bytes: Vec<u8>| self.value(place, &bytes).map(|v| vec![RegisterOp::Read(v)]);
        let loaded = |value: u64| Ok(vec![RegisterOp::Read(value)]);
        let long_read_write = matches!(place.style(), Style::LongHeldReadWrite | Style::Mapped);
        match worker.rng.below(12) {
            0..3 => worker.read(at, "pread", || {
                pread(&held.reader, offset, SLOT).and_then(seen)
            }),
            3..5 => worker.read(at, "open+pread", || {
                pread(&fresh_reader(&held.path)?, offset, SLOT).and_then(seen)
            }),
            5..8 => worker.read(at, "mmap", || {
                loaded(held.map.load(place.page() as usize * PAGE + word))
            }),
            8 => worker.read(at, "open+mmap", || {
                loaded(map_page(&fresh_reader(&held.path)?, place.page())?.load(word))
            }),
            9 => worker.read(at, "sendfile", || {
                through_sendfile(&held.reader, offset, SLOT).and_then(seen)
            }),
            10 if long_read_write => worker.read(at, "pread O_RDWR", || {
                pread(&held.writer, offset, SLOT).and_then(seen)
            }),
            _ => worker.read(at, "open+sendfile", || {
                through_sendfile(&fresh_reader(&held.path)?, offset, SLOT).and_then(seen)
            }),
        }
    }

    fn judge(
        &self,
        entries: Vec<(usize, Entry<RegisterOp>)>,
        report: &mut FamilyReport,
    ) -> Result<(), Problem> {
        let name = |object| {
            let Place { file, offset } = Place::of(object);
            format!(
                "file registers{file} ({:?}), bytes {offset}..{}",
                STYLES[file],
                offset + SLOT
            )
        };
        judge(report, &by_object(entries), |_| Register, name);
        Ok(())
    }
}
