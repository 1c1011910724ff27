//! What was written here is opened again without asking the server: by the open that is kept anyway while bytes may have to be
//! written again, if whoever wrote them owns the file.

use super::Ops;
use crate::inode::Access;
use crate::opens::ServerOpen;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{Attr, Caller, Handle};
use std::sync::Arc;

/// The owner may read.
const OWNER_READS: u16 = 0o400;
/// Somebody may execute.
const EXECUTABLE: u16 = 0o111;

/// The bits of a mode by which others may this.
fn bits(access: Access) -> u16 {
    match access {
        Access::Read => 0o4,
        Access::Write => 0o2,
        Access::ReadWrite => 0o6,
    }
}

/// Whether the server lets this caller open a file that has these attributes; false if that isn't known.
fn may(policy: IdentityPolicy, caller: &Caller, access: Access, attr: &Attr) -> bool {
    let (bits, mode) = (bits(access), attr.mode);
    let as_himself = match policy {
        IdentityPolicy::Trust => true,
        IdentityPolicy::RootSquash => caller.uid != 0,
        IdentityPolicy::Squash => false,
    };
    match as_himself {
        true => attr.uid == caller.uid && mode >> 6 & bits == bits,
        // As whom he does isn't known here.
        false => mode & (bits * 0o111) == bits * 0o111 && attr.has_no_xattrs(),
    }
}

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
    /// An open of the server's for a file that this identity has written, and owns, and what it allows.
    pub(super) fn open_of_writer(
        &self,
        object: &Handle,
        caller: &Caller,
        access: Access,
    ) -> Option<(Arc<ServerOpen>, Access)> {
        let policy = self.manner.identity;
        // Who reads keeps the open, and the storage host executes nothing that is open for writing (ETXTBSY).
        let may = |attr: &Attr| {
            let executed = !access.writes() && attr.mode & EXECUTABLE != 0;
            !executed && may(policy, caller, access, attr)
        };
        self.cache()
            .live()?
            .open_of_writer(object, caller, access, may)
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

    #[test]
    fn an_owner_may_what_his_bits_say_and_whoever_is_made_another_what_all_may() {
        use Access::{Read, ReadWrite, Write};
        use IdentityPolicy::{RootSquash, Squash, Trust};
        for (policy, (uid, owner), mode, access, expected) in [
            (Trust, (5, 5), 0o600, ReadWrite, true),
            (Trust, (0, 0), 0o400, Read, true),
            (Trust, (5, 5), 0o466, Write, false),
            (Trust, (5, 6), 0o666, Read, false),
            (RootSquash, (5, 5), 0o600, ReadWrite, true),
            (RootSquash, (0, 0), 0o600, Read, false),
            (RootSquash, (0, 65_534), 0o444, Read, true),
            (Squash, (5, 5), 0o600, Read, false),
            (Squash, (5, 6), 0o444, Read, true),
            (Squash, (5, 6), 0o446, Write, false),
            (Squash, (5, 6), 0o222, Write, true),
        ] {
            let caller = Caller {
                uid,
                ..Caller::default()
            };
            let attr = Attr {
                uid: owner,
                mode,
                xattrs: false,
                ..crate::cache::fixtures::attr(0)
            };
            let found = may(policy, &caller, access, &attr);
            assert_eq!(
                found, expected,
                "{policy:?} {uid} {owner} {mode:o} {access:?}"
            );
        }
    }
}
