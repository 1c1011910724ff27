//! The bytes of files, by their opens.

use crate::export::Store;
use crate::identity::Assumed;
use crate::opens::OpenFile;
use crate::{attrs, stat, sys};
use leasefs_protocol::Durability;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::limits::MAX_PAYLOAD;
use leasefs_protocol::{FileKind, Refusal, SetTime, Timestamp, Version};
use rustix::fd::AsFd;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, SeekFrom, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most bytes one [`Store::copy_range`] copies, so that it doesn't keep a thread for long.
const MAX_COPY: u64 = 64 << 20;

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where the bytes begin.
    pub offset: u64,
    /// How many they are; fewer than given only if the host took no more.
    pub len: u64,
}

fn in_range(offset: u64, len: u64) -> Result<(), Refusal> {
    offset
        .checked_add(len)
        .and_then(|end| i64::try_from(end).ok())
        .map(drop)
        .ok_or(Refusal::TooBig)
}

fn readable(open: &OpenFile) -> Result<(), Refusal> {
    if open.kind() == FileKind::Directory {
        return Err(Refusal::from_io(&Errno::ISDIR.into()));
    }
    open.reads().then_some(()).ok_or(Refusal::BadOpen)
}

fn mtime(open: &OpenFile) -> io::Result<Timestamp> {
    stat::of(open.fd().as_fd()).map(|attr| attr.mtime)
}

fn writable(open: &OpenFile) -> Result<(), Refusal> {
    open.writes().then_some(()).ok_or(Refusal::BadOpen)
}

impl Store {
    /// Bytes of a file, at most [`MAX_PAYLOAD`]; fewer than `len` come only at its end.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`] if the open doesn't allow reading, or the host's.
    pub fn read(&self, open: &OpenFile, offset: u64, len: u32) -> Result<Vec<u8>, Refusal> {
        let len = check_read(open, offset, len)?;
        let mut data = Vec::with_capacity(len);
        while data.len() < len {
            let at = offset + data.len() as u64;
            let read = rustix::io::pread(open.fd(), rustix::buffer::spare_capacity(&mut data), at)
                .map_err(|e| self.refuse(e))?;
            if read == 0 {
                break;
            }
        }
        // The allocator may give more room than asked for.
        data.truncate(len);
        Ok(data)
    }

    /// As [`Store::read`], if the host's page cache has all of it; else `None`. Never blocks.
    pub fn try_read_cached(
        &self,
        open: &OpenFile,
        offset: u64,
        len: u32,
    ) -> Option<Result<Vec<u8>, Refusal>> {
        let len = match check_read(open, offset, len) {
            Ok(len) => len,
            Err(refusal) => return Some(Err(refusal)),
        };
        let mut data = Vec::with_capacity(len);
        while data.len() < len {
            let at = offset + data.len() as u64;
            let left = len - data.len();
            // What fails here fails again where it may block, and is reported there.
            if sys::read_nowait(open.fd(), &mut data, left, at).ok()? == 0 {
                break;
            }
        }
        Some(Ok(data))
    }

    /// The rights of the open's caller, and as a rule not those of the server, decide about
    /// quotas, reserved space and the clearing of setuid bits.
    fn assume_writer(&self, open: &OpenFile, kill_priv: bool) -> Result<Assumed<'_>, Refusal> {
        if kill_priv {
            self.rights.assume_killing_priv(open.identity())
        } else {
            self.assume(open.identity())
        }
    }

    /// Writes to a file; [`Store::commit`] makes it durable. `kill_priv` clears setuid, setgid and
    /// file capabilities, whoever writes.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`] if the open doesn't allow writing, [`Refusal::NotPermitted`] at an
    /// offset of an append-only file where other bytes are, or none before, [`Refusal::TooBig`], or the host's.
    pub fn write(
        &self,
        open: &OpenFile,
        at: &WriteAt,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<Written, Refusal> {
        writable(open)?;
        if data.len() > MAX_PAYLOAD {
            return Err(Refusal::Invalid);
        }
        if at.first().is_some() && open.only_appends() {
            return in_places(at, data, |offset, part| {
                self.append_at(open, offset, part, kill_priv)
            });
        }
        let _assumed = self.assume_writer(open, kill_priv)?;
        match at {
            WriteAt::Append => self.append(open, data),
            at => in_places(at, data, |offset, part| self.write_at(open, offset, part)),
        }
    }

    /// As [`Store::write`], of bytes that were written at `when` and have come only now: that becomes
    /// the file's mtime, unless it would go back or be to come.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn write_late(
        &self,
        open: &OpenFile,
        at: &WriteAt,
        data: &[u8],
        kill_priv: bool,
        when: Timestamp,
    ) -> Result<Written, Refusal> {
        attrs::to_host(Some(SetTime::At(when)))?;
        let before = mtime(open).map_err(|e| self.refuse(e))?;
        let written = self.write(open, at, data, kill_priv)?;
        let now = mtime(open).map_err(|e| self.refuse(e))?;
        // A time to come that was set before doesn't outlive a write.
        let earliest = if before <= now { before } else { when };
        let date = when.max(earliest).min(now);
        let times = Timestamps {
            last_access: attrs::to_host(None)?,
            last_modification: attrs::to_host(Some(SetTime::At(date)))?,
        };
        // A server that isn't root may not set the times of a file that isn't its own: they are
        // those of the flush then.
        let _ = rustix::fs::futimens(open.fd(), &times);
        Ok(written)
    }

    fn write_at(&self, open: &OpenFile, offset: u64, data: &[u8]) -> Result<Written, Refusal> {
        in_range(offset, data.len() as u64)?;
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(open.fd(), rest, offset + done as u64) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(e) if done == 0 => return Err(self.refuse(e)),
                // The next write meets the error; what is written is written.
                Err(_) => break,
            }
        }
        Ok(Written {
            offset,
            len: done as u64,
        })
    }

    /// Whether the file is known to hold these bytes there. Nothing is known of what the open's caller
    /// may not read: it would be told byte by byte.
    pub fn holds(&self, open: &OpenFile, at: &WriteAt, data: &[u8]) -> bool {
        if !data.is_empty() && !self.may_read(open) {
            return false;
        }
        let (path, flags) = (sys::proc_path(open.fd()), OFlags::RDONLY | OFlags::CLOEXEC);
        let Ok(file) = rustix::fs::openat(CWD, &path, flags, Mode::empty()) else {
            return data.is_empty();
        };
        let file = File::from(file);
        at.parts(data).all(|(offset, part)| {
            let mut found = vec![0; part.len()];
            file.read_exact_at(&mut found, offset).is_ok() && found == part
        })
    }

    /// What can only be appended to takes bytes at its end, and those it has there: so a client's
    /// buffered appends come, perhaps twice. The host's kernel would append whatever the offset.
    fn append_at(
        &self,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<Written, Refusal> {
        in_range(offset, data.len() as u64)?;
        let _position = open.lock_position();
        let size = rustix::fs::fstat(open.fd()).map_err(|e| self.refuse(e))?;
        let there = (size.st_size as u64).checked_sub(offset);
        let there = there.ok_or(Refusal::NotPermitted)?.min(data.len() as u64);
        let (old, new) = data.split_at(there as usize);
        if !self.holds(open, &WriteAt::Offset(offset), old) {
            return Err(Refusal::NotPermitted);
        }
        if new.is_empty() {
            return Ok(Written { offset, len: there });
        }
        let _assumed = self.assume_writer(open, kill_priv)?;
        let (_, len) = sys::append(open.fd(), new).map_err(|e| self.refuse(e))?;
        let len = there + len;
        Ok(Written { offset, len })
    }

    fn append(&self, open: &OpenFile, data: &[u8]) -> Result<Written, Refusal> {
        let _position = open.lock_position();
        let (offset, len) = sys::append(open.fd(), data).map_err(|e| self.refuse(e))?;
        Ok(Written { offset, len })
    }

    /// What an open file's content is, if the host tells.
    pub fn version(&self, open: &OpenFile) -> Option<Version> {
        let attr = self.plain_attr(open.fd(), open.handle());
        attr.ok().map(|attr| attr.version())
    }

    /// Makes durable what was written to the object, by whomever (`fsync`); directories too.
    ///
    /// # Errors
    /// The host's.
    pub fn commit(&self, open: &OpenFile, durability: Durability) -> Result<(), Refusal> {
        let done = match durability {
            Durability::None => Ok(()),
            Durability::Data => rustix::fs::fdatasync(open.fd()),
            Durability::All => rustix::fs::fsync(open.fd()),
        };
        done.map_err(|e| self.refuse(e))
    }

    /// Makes durable whatever was written to the export's file system (`syncfs`).
    ///
    /// # Errors
    /// The host's; also of writes that have failed since this was asked last.
    pub fn commit_all(&self) -> Result<(), Refusal> {
        let synced = self.synced().and_then(rustix::fs::syncfs);
        synced.map_err(|e| self.refuse(e))
    }

    /// Allocates, punches, zeroes, collapses or inserts a range; `mode` is `FALLOC_FL_*`. `kill_priv` as [`Store::write`] has it.
    ///
    /// # Errors
    /// [`Refusal::Unsupported`] for unknown modes, or the host's.
    pub fn fallocate(
        &self,
        open: &OpenFile,
        mode: u32,
        (offset, len): (u64, u64),
        kill_priv: bool,
    ) -> Result<(), Refusal> {
        writable(open)?;
        in_range(offset, len)?;
        let mode = FallocateFlags::from_bits_retain(mode);
        if !(FallocateFlags::KEEP_SIZE
            | FallocateFlags::PUNCH_HOLE
            | FallocateFlags::COLLAPSE_RANGE
            | FallocateFlags::ZERO_RANGE
            | FallocateFlags::INSERT_RANGE
            | FallocateFlags::UNSHARE_RANGE)
            .contains(mode)
        {
            return Err(Refusal::Unsupported);
        }
        let _assumed = self.assume_writer(open, kill_priv)?;
        rustix::fs::fallocate(open.fd(), mode, offset, len).map_err(|e| self.refuse(e))
    }

    /// Where data or a hole begins; `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    /// `ENXIO` behind the end, [`Refusal::Invalid`] for another `whence`, or the host's.
    pub fn seek(&self, open: &OpenFile, offset: u64, whence: u32) -> Result<u64, Refusal> {
        in_range(offset, 0)?;
        let to = match i32::try_from(whence) {
            Ok(libc::SEEK_DATA) => SeekFrom::Data(offset),
            Ok(libc::SEEK_HOLE) => SeekFrom::Hole(offset),
            _ => return Err(Refusal::Invalid),
        };
        let _position = open.lock_position();
        rustix::fs::seek(open.fd(), to).map_err(|e| self.refuse(e))
    }

    /// Copies within the host; may copy less than `len`, as `copy_file_range(2)`. `kill_priv` as [`Store::write`] has it.
    ///
    /// # Errors
    /// [`Refusal::BadOpen`], [`Refusal::TooBig`], or the host's.
    pub fn copy_range(
        &self,
        (from, from_offset): (&OpenFile, u64),
        (to, to_offset): (&OpenFile, u64),
        len: u64,
        kill_priv: bool,
    ) -> Result<u64, Refusal> {
        readable(from)?;
        writable(to)?;
        in_range(from_offset, len)?;
        in_range(to_offset, len)?;
        let len = usize::try_from(len.min(MAX_COPY)).map_err(|_| Refusal::Invalid)?;
        let (mut from_offset, mut to_offset) = (from_offset, to_offset);
        let _assumed = self.assume_writer(to, kill_priv)?;
        let copied = rustix::fs::copy_file_range(
            from.fd(),
            Some(&mut from_offset),
            to.fd(),
            Some(&mut to_offset),
            len,
        );
        Ok(copied.map_err(|e| self.refuse(e))? as u64)
    }
}

/// Writes part after part, up to the first that isn't taken as a whole.
fn in_places(
    at: &WriteAt,
    data: &[u8],
    mut write: impl FnMut(u64, &[u8]) -> Result<Written, Refusal>,
) -> Result<Written, Refusal> {
    let mut done = Written {
        offset: at.first().unwrap_or_default(),
        len: 0,
    };
    for (offset, part) in at.parts(data) {
        let written = match write(offset, part) {
            Err(refusal) if done.len == 0 => return Err(refusal),
            // As of a single part: the next write meets the error.
            Err(_) => break,
            Ok(written) => written.len,
        };
        done.len += written;
        if written < part.len() as u64 {
            break;
        }
    }
    Ok(done)
}

fn check_read(open: &OpenFile, offset: u64, len: u32) -> Result<usize, Refusal> {
    readable(open)?;
    in_range(offset, len.into())?;
    let len = usize::try_from(len).map_err(|_| Refusal::Invalid)?;
    (len <= MAX_PAYLOAD).then_some(len).ok_or(Refusal::Invalid)
}
