//! Why a request is refused, and the one place where refusals become errno values.

use serde::{Deserialize, Serialize};

/// Why the server (or the client's own bookkeeping) refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Refusal {
    /// The storage host's kernel refused it; Linux errno, which both sides share.
    #[error("storage host: errno {0}")]
    Host(u16),
    /// An argument has no meaning, for instance the name `..`.
    #[error("invalid argument")]
    Invalid,
    /// A name over 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// Offset and length reach beyond 2^63 - 1.
    #[error("file too big")]
    TooBig,
    /// The handle names nothing (any more), or was never given out.
    #[error("stale handle")]
    Stale,
    /// The open is not known, or doesn't allow this.
    #[error("bad open")]
    BadOpen,
    /// The client, its mount or the export is read-only.
    #[error("read-only")]
    ReadOnly,
    /// The name or operation is reserved or not permitted whoever asks.
    #[error("not permitted")]
    NotPermitted,
    /// The caller may not do this.
    #[error("access denied")]
    Access,
    /// The rename would cross into something that is another file system.
    #[error("crosses a file system")]
    CrossesFileSystem,
    /// Not supported by this host or this version.
    #[error("not supported")]
    Unsupported,
    /// A bound of the server is reached (see [`crate::limits`]).
    #[error("too many")]
    TooMany,
    /// The change was under way when the server's process or host ended: its effect is unknown.
    #[error("answer lost, effect unknown")]
    Lost,
    /// Buffered bytes came too late: their lease has ended and the file has changed since.
    #[error("the file has changed since its lease ended")]
    Changed,
    /// Made under locks that are lost: another may have taken them.
    #[error("its locks are lost")]
    LockLost,
    /// The change was cancelled before it began: it never happens.
    #[error("cancelled")]
    Cancelled,
    /// The server couldn't be reached in time; the request has been cancelled.
    #[error("timed out")]
    TimedOut,
    /// The server failed inside; its log says how.
    #[error("server failure")]
    Internal,
}

impl Refusal {
    /// The refusal for an error of the host's kernel. The only conversion of its kind.
    pub fn from_io(error: &std::io::Error) -> Self {
        match error.raw_os_error().map(u16::try_from) {
            Some(Ok(errno)) => Self::Host(errno),
            _ => Self::Internal,
        }
    }

    /// The errno an application sees (Linux numbers). The only conversion of its kind.
    ///
    /// A peer's number is not passed on unseen: an answer with one that no application can get (0, and
    /// 512 and more, which are the kernel's own) is no answer to the kernel's FUSE, and its caller would
    /// wait for ever; `ENOSYS` makes it stop asking, and take every later `fsync` for done.
    pub fn errno(self) -> i32 {
        match self {
            Self::Host(errno) => match i32::from(errno) {
                errno::ENOSYS => errno::EOPNOTSUPP,
                known if errno::is_known(known) => known,
                _ => errno::EIO,
            },
            Self::Invalid => errno::EINVAL,
            Self::NameTooLong => errno::ENAMETOOLONG,
            Self::TooBig => errno::EFBIG,
            Self::Stale => errno::ESTALE,
            Self::BadOpen => errno::EBADF,
            Self::ReadOnly => errno::EROFS,
            Self::NotPermitted => errno::EPERM,
            Self::Access => errno::EACCES,
            Self::CrossesFileSystem => errno::EXDEV,
            Self::Unsupported => errno::EOPNOTSUPP,
            Self::TooMany => errno::ENFILE,
            Self::Lost | Self::Changed | Self::LockLost | Self::Internal => errno::EIO,
            Self::Cancelled => errno::EINTR,
            Self::TimedOut => errno::ETIMEDOUT,
        }
    }
}

/// Linux errno values (asm-generic/errno.h): this crate does no I/O and needs no libc.
mod errno {
    pub const EPERM: i32 = 1;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const EBADF: i32 = 9;
    pub const EACCES: i32 = 13;
    pub const EXDEV: i32 = 18;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const EFBIG: i32 = 27;
    pub const EROFS: i32 = 30;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOSYS: i32 = 38;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ETIMEDOUT: i32 = 110;
    pub const ESTALE: i32 = 116;
    /// The last one (EHWPOISON).
    const LAST: i32 = 133;
    /// 41 and 58 would be a second EAGAIN and EDEADLK.
    const GAPS: [i32; 2] = [41, 58];

    pub fn is_known(errno: i32) -> bool {
        (1..=LAST).contains(&errno) && !GAPS.contains(&errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_errno_passes_through_unchanged() {
        let enospc = std::io::Error::from_raw_os_error(28);
        assert_eq!(Refusal::from_io(&enospc).errno(), 28);
    }

    #[test]
    fn an_errno_that_no_application_can_get_is_an_io_error() {
        for errno in [0, 41, 58, 134, 511, 512, 516, 529, 4095, u16::MAX] {
            assert_eq!(Refusal::Host(errno).errno(), errno::EIO, "{errno}");
        }
        for errno in [1, 2, 11, 28, 61, 85, 122, 133] {
            assert_eq!(Refusal::Host(errno).errno(), i32::from(errno));
        }
    }

    #[test]
    fn a_server_cannot_make_the_kernel_stop_asking() {
        assert_eq!(Refusal::Host(38).errno(), errno::EOPNOTSUPP);
    }

    #[test]
    fn an_error_without_errno_is_an_internal_failure() {
        let other = std::io::Error::other("no errno");
        assert_eq!(Refusal::from_io(&other), Refusal::Internal);
    }
}
