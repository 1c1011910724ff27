//! Memory-mapped parts of files.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mlock, mmap, msync, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

/// A shared mapping of part of a file. Touching what lies beyond the file's end, or
/// what the file system can't deliver, kills the process with SIGBUS.
#[derive(Debug)]
pub struct Mapping {
    base: *mut c_void,
    len: usize,
}

// SAFETY: all access goes through volatile loads and stores of whole words, and
// the mapping lives until drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent access to the memory is what the mapping is for.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` at `offset` (a multiple of the page size).
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn new(file: impl AsFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let access = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, file, offset)? };
        Ok(Self { base, len })
    }

    /// The 8 bytes at `offset` (a multiple of 8) in one load.
    pub fn load(&self, offset: usize) -> u64 {
        self.check(offset);
        // SAFETY: checked to lie in the mapping and aligned.
        unsafe { self.base.byte_add(offset).cast::<u64>().read_volatile() }
    }

    /// Puts 8 bytes at `offset` (a multiple of 8) in one store.
    pub fn store(&self, offset: usize, value: u64) {
        self.check(offset);
        // SAFETY: as in `load`; the caller mapped it writable.
        unsafe {
            self.base
                .byte_add(offset)
                .cast::<u64>()
                .write_volatile(value)
        }
    }

    /// Copies out the bytes from `offset` on by the kernel's hand: a fault is an error, not a signal.
    ///
    /// # Errors
    /// EIO where a load would be SIGBUS.
    pub fn try_copy_to(&self, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        assert!(offset + buffer.len() <= self.len, "beyond the mapping");
        let memory = File::open("/proc/self/mem")?;
        memory.read_exact_at(buffer, (self.base as usize + offset) as u64)
    }

    /// Copies out the bytes from `offset` on.
    pub fn copy_to(&self, offset: usize, buffer: &mut [u8]) {
        assert!(offset + buffer.len() <= self.len, "beyond the mapping");
        for (index, byte) in buffer.iter_mut().enumerate() {
            // SAFETY: checked to lie in the mapping.
            *byte = unsafe {
                self.base
                    .byte_add(offset + index)
                    .cast::<u8>()
                    .read_volatile()
            };
        }
    }

    /// Copies bytes in from `offset` on; the mapping must be writable.
    pub fn copy_from(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "beyond the mapping");
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: checked to lie in the mapping; the caller mapped it writable.
            unsafe {
                self.base
                    .byte_add(offset + index)
                    .cast::<u8>()
                    .write_volatile(*byte)
            }
        }
    }

    /// Reads its pages in and keeps them in memory (`mlock`).
    ///
    /// # Errors
    /// What `mlock` says.
    pub fn pin(&self) -> io::Result<()> {
        // SAFETY: exactly our own mapping.
        unsafe { mlock(self.base, self.len) }.map_err(io::Error::from)
    }

    /// Waits until what was stored is written (`MS_SYNC`).
    ///
    /// # Errors
    /// What `msync` says.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly our own mapping.
        unsafe { msync(self.base, self.len, MsyncFlags::SYNC) }.map_err(io::Error::from)
    }

    fn check(&self, offset: usize) {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "beyond the mapping"
        );
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, used by nobody after drop.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}
