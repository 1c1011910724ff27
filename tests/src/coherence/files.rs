//! Ways to read a file that the families share.

use crate::mapping::Mapping;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// The page size the layouts assume.
pub(super) const PAGE: usize = 4096;

/// Up to `len` bytes at `offset`, less at the end of the file.
pub(super) fn pread(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    let got = file.read_at(&mut buffer, offset)?;
    buffer.truncate(got);
    Ok(buffer)
}

/// The same through `sendfile` into a pipe; at most as much as a pipe holds.
pub(super) fn through_sendfile(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let (from_pipe, to_pipe) = rustix::pipe::pipe()?;
    let mut at = offset;
    let mut sent = 0;
    while sent < len {
        match rustix::fs::sendfile(to_pipe.as_fd(), file, Some(&mut at), len - sent)? {
            0 => break,
            more => sent += more,
        }
    }
    drop(to_pipe);
    let mut buffer = Vec::with_capacity(sent);
    File::from(from_pipe).read_to_end(&mut buffer)?;
    Ok(buffer)
}

/// One page through a mapping made for it.
pub(super) fn map_page(file: &File, page: u64) -> io::Result<Mapping> {
    Mapping::new(file, page * PAGE as u64, PAGE, false)
}

/// The 8-byte words of `bytes`; what is left over at the end is dropped.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}
