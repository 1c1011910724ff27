//! What was written here is read back without asking the server: by the open that is kept anyway while bytes may have to be
//! written again, if whoever wrote them owns the file.

use super::Ops;
use crate::inode::Access;
use crate::opens::ServerOpen;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{Attr, Caller, Handle};
use std::sync::Arc;

/// The owner may read.
const OWNER_READS: u16 = 0o400;
/// Everybody may.
const ALL_READ: u16 = 0o444;
/// Somebody may execute.
const EXECUTABLE: u16 = 0o111;

/// With what flags a file of this mode is asked to be made that is written to, so that its open can be read by: whoever makes a file
/// may ask for any. Not what may be executed: who reads keeps the open, and the storage host executes nothing that is open for writing (ETXTBSY).
pub(super) fn flags_of_new(flags: u32, mode: u32) -> u32 {
    let access = Access::of(flags);
    let made = flags as i32 & libc::O_EXCL != 0;
    let read = mode & u32::from(OWNER_READS | EXECUTABLE) == u32::from(OWNER_READS);
    match access == Access::Write && made && read {
        true => flags & !(libc::O_ACCMODE as u32) | libc::O_RDWR as u32,
        false => flags,
    }
}

impl Ops {
    /// An open of the server's by which a file can be read that this identity has written, and owns.
    pub(super) fn open_of_writer(
        &self,
        object: &Handle,
        caller: &Caller,
    ) -> Option<Arc<ServerOpen>> {
        let may = |attr: &Attr| {
            let reads = match self.manner.identity {
                IdentityPolicy::Trust | IdentityPolicy::RootSquash => {
                    attr.uid == caller.uid && attr.mode & OWNER_READS != 0
                }
                // As whom he does isn't known here.
                IdentityPolicy::Squash => attr.mode & ALL_READ == ALL_READ && attr.has_no_xattrs(),
            };
            reads && attr.mode & EXECUTABLE == 0
        };
        self.cache().live()?.open_of_writer(object, caller, may)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: i32 = libc::O_WRONLY | libc::O_EXCL;

    #[test]
    fn what_is_made_to_be_written_is_asked_for_so_that_it_can_be_read_if_its_owner_may() {
        for (flags, mode, reads) in [
            (NEW, 0o100_644, true),
            (NEW, 0o100_400, true),
            (libc::O_RDWR, 0o100_755, true),
            (NEW, 0o100_244, false),
            (NEW, 0o100_755, false),
            (libc::O_WRONLY, 0o100_644, false),
            (libc::O_RDONLY | libc::O_EXCL, 0o100_644, false),
        ] {
            let asked = flags_of_new(flags as u32, mode);
            let reading = Access::of(asked) == Access::ReadWrite;
            assert_eq!(reading, reads, "{flags:o} {mode:o}");
        }
    }
}
