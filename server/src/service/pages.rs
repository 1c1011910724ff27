//! Mapped pages as they are written back.

use leasefs_protocol::change::WriteAt;

/// A page without the zeros behind the end of its file. Where another mount has cut the file off while the page was being read, the kernel
/// that writes it back may believe in the size before (`fuse_short_read`), and would make the file that long again. What is no zero has been
/// stored: there was a file then, and the host has lost its size.
pub fn within_file<'a>(at: &WriteAt, size: u64, page: &'a [u8]) -> &'a [u8] {
    let left = size.saturating_sub(at.first().unwrap_or_default());
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    let (within, behind) = page.split_at_checked(left).unwrap_or((page, &[]));
    match behind.iter().all(|byte| *byte == 0) {
        true => within,
        false => page,
    }
}
