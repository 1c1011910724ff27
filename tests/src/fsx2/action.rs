//! The random actions and how they are done, to the file and to the model alike.

use super::model::Model;
use crate::mapping::Mapping;
use crate::rng::Rng;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One random operation on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are offsets and lengths in bytes")]
pub enum Action {
    /// Nothing but the comparison that follows every action.
    Read,
    /// `pwrite`.
    Write { offset: usize, len: usize },
    /// `write` through a descriptor opened with `O_APPEND`.
    Append { offset: usize, len: usize },
    /// `ftruncate`, up or down.
    Truncate { size: usize },
    /// `open` with `O_TRUNC`.
    OpenTruncate,
    /// Stores into a shared mapping that is made for it, then `munmap`.
    MapWrite {
        offset: usize,
        len: usize,
        sync: bool,
    },
    /// Stores into a shared mapping that stays.
    HeldMapWrite {
        offset: usize,
        len: usize,
        sync: bool,
    },
    /// `munmap` of that mapping.
    Unmap,
    /// `fallocate`.
    Allocate {
        offset: usize,
        len: usize,
        keep_size: bool,
    },
    /// `fallocate` with `FALLOC_FL_PUNCH_HOLE`.
    PunchHole { offset: usize, len: usize },
    /// `fallocate` with `FALLOC_FL_ZERO_RANGE`.
    ZeroRange {
        offset: usize,
        len: usize,
        keep_size: bool,
    },
    /// `copy_file_range` inside the file.
    Copy { from: usize, to: usize, len: usize },
    /// `fsync`.
    Sync,
    /// `fdatasync`.
    DataSync,
    /// Closes the read-write descriptor and opens it again.
    ReopenWriter,
    /// The same with all read-only ones.
    ReopenReaders,
}

const LONGEST: usize = 24 * 1024;

impl Action {
    /// A random action on a file of `len` bytes that stays within `max_len`.
    pub(super) fn random(rng: &mut Rng, len: usize, max_len: usize) -> Self {
        let offset = rng.below(max_len);
        let span = rng.between(1, LONGEST).min(max_len - offset);
        let inside = rng.below(len);
        let inside_span = rng.between(1, LONGEST).min(len.saturating_sub(inside));
        let flag = rng.chance(50);
        match rng.below(100) {
            0..10 => Self::Read,
            10..32 => Self::Write { offset, len: span },
            32..38 if len + span <= max_len => Self::Append {
                offset: len,
                len: span,
            },
            38..46 => Self::Truncate { size: offset },
            46 => Self::OpenTruncate,
            47..56 if len > 0 => Self::MapWrite {
                offset: inside,
                len: inside_span,
                sync: flag,
            },
            56..66 if len > 0 => Self::HeldMapWrite {
                offset: inside,
                len: inside_span,
                sync: flag,
            },
            66..68 => Self::Unmap,
            68..73 => Self::Allocate {
                offset,
                len: span,
                keep_size: flag,
            },
            73..80 => Self::PunchHole { offset, len: span },
            80..84 => Self::ZeroRange {
                offset,
                len: span,
                keep_size: flag,
            },
            84..88 => copy(rng, len, max_len),
            88..92 => Self::Sync,
            92..94 => Self::DataSync,
            94..97 => Self::ReopenWriter,
            97..100 => Self::ReopenReaders,
            _ => Self::Read,
        }
    }

    /// Offset and length of what it changes, where that is a range.
    pub(super) fn touched(self) -> Option<(usize, usize)> {
        match self {
            Self::Write { offset, len }
            | Self::Append { offset, len }
            | Self::MapWrite { offset, len, .. }
            | Self::HeldMapWrite { offset, len, .. }
            | Self::Allocate { offset, len, .. }
            | Self::PunchHole { offset, len }
            | Self::ZeroRange { offset, len, .. } => Some((offset, len)),
            Self::Copy { to, len, .. } => Some((to, len)),
            Self::Truncate { size } => Some((size.saturating_sub(4096), 8192)),
            _ => None,
        }
    }
}

/// A copy whose two ranges don't overlap (the kernel refuses others).
fn copy(rng: &mut Rng, len: usize, max_len: usize) -> Action {
    let from = rng.below(len);
    let to = rng.below(max_len);
    let room = len
        .saturating_sub(from)
        .min(max_len - to)
        .min(from.abs_diff(to));
    match room {
        0 => Action::Read,
        room => Action::Copy {
            from,
            to,
            len: rng.between(1, room.min(LONGEST)),
        },
    }
}

/// The read-write side.
pub(super) struct Executor {
    path: PathBuf,
    writer: File,
    map: Option<Mapping>,
    max_len: usize,
}

fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let words = std::iter::repeat_with(|| rng.next_u64() | 0x0101_0101_0101_0101);
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

impl Executor {
    pub(super) fn create(path: &Path, max_len: usize) -> io::Result<Self> {
        let writer = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        Ok(Self {
            path: path.to_owned(),
            writer,
            map: None,
            max_len,
        })
    }

    pub(super) fn writer(&self) -> &File {
        &self.writer
    }

    /// Carries out `action` number `number` on the file and, if that worked, on the
    /// model; false when the file system does not support it.
    pub(super) fn carry_out(
        &mut self,
        number: u64,
        action: Action,
        model: &mut Model,
    ) -> io::Result<bool> {
        match action {
            Action::Read | Action::ReopenReaders => {}
            Action::Write { offset, len } => {
                let data = pattern(number, len);
                self.writer.write_all_at(&data, offset as u64)?;
                model.write(offset, &data);
            }
            Action::Append { len, .. } => {
                let data = pattern(number, len);
                OpenOptions::new()
                    .append(true)
                    .open(&self.path)?
                    .write_all(&data)?;
                model.write(model.len(), &data);
            }
            Action::Truncate { size } => {
                self.writer.set_len(size as u64)?;
                model.truncate(size);
            }
            Action::OpenTruncate => {
                OpenOptions::new()
                    .write(true)
                    .truncate(true)
                    .open(&self.path)?;
                model.truncate(0);
            }
            Action::MapWrite { offset, len, sync } => {
                let map = Mapping::new(&self.writer, 0, self.max_len, true)?;
                store(&map, number, offset, len, sync, model)?;
            }
            Action::HeldMapWrite { offset, len, sync } => {
                store(self.held_map()?, number, offset, len, sync, model)?;
            }
            Action::Unmap => self.map = None,
            Action::Allocate { .. } | Action::PunchHole { .. } | Action::ZeroRange { .. } => {
                return self.allocate(action, model);
            }
            Action::Copy { from, to, len } => return self.copy(from, to, len, model),
            Action::Sync => self.writer.sync_all()?,
            Action::DataSync => self.writer.sync_data()?,
            Action::ReopenWriter => {
                self.writer = OpenOptions::new().read(true).write(true).open(&self.path)?;
            }
        }
        Ok(true)
    }

    fn held_map(&mut self) -> io::Result<&Mapping> {
        let made = match self.map.take() {
            Some(made) => made,
            None => Mapping::new(&self.writer, 0, self.max_len, true)?,
        };
        Ok(self.map.insert(made))
    }

    fn allocate(&self, action: Action, model: &mut Model) -> io::Result<bool> {
        let (offset, len) = action.touched().unwrap_or_default();
        let (flags, extends, zeroes) = match action {
            Action::PunchHole { .. } => (
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                false,
                true,
            ),
            Action::ZeroRange {
                keep_size: true, ..
            } => (
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                false,
                true,
            ),
            Action::ZeroRange { .. } => (FallocateFlags::ZERO_RANGE, true, true),
            Action::Allocate {
                keep_size: true, ..
            } => (FallocateFlags::KEEP_SIZE, false, false),
            _ => (FallocateFlags::empty(), true, false),
        };
        match fallocate(&self.writer, flags, offset as u64, len as u64) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if extends {
            model.extend(offset + len);
        }
        if zeroes {
            model.zero(offset, len);
        }
        Ok(true)
    }

    fn copy(&self, from: usize, to: usize, len: usize, model: &mut Model) -> io::Result<bool> {
        let (mut read_at, mut write_at) = (from as u64, to as u64);
        let (source, target) = (&self.writer, &self.writer);
        let copied = rustix::fs::copy_file_range(
            source,
            Some(&mut read_at),
            target,
            Some(&mut write_at),
            len,
        );
        let copied = match copied {
            Ok(copied) => copied,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let data = model.read(from, copied).to_vec();
        model.write(to, &data);
        Ok(true)
    }
}

fn store(
    map: &Mapping,
    number: u64,
    offset: usize,
    len: usize,
    sync: bool,
    model: &mut Model,
) -> io::Result<()> {
    let data = pattern(number, len);
    map.copy_from(offset, &data);
    model.write(offset, &data);
    if sync { map.sync() } else { Ok(()) }
}
