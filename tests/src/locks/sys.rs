//! The lock calls as the kernel has them.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::str::FromStr;

/// Which family of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `F_SETLK`: a process owns it.
    Fcntl,
    /// `F_OFD_SETLK`: an open file description owns it.
    Ofd,
    /// `flock`: an open file description owns it, and the file as a whole is locked.
    Flock,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fcntl, Self::Ofd, Self::Flock];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fcntl => "fcntl",
            Self::Ofd => "ofd",
            Self::Flock => "flock",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| format!("no kind of lock: {text}"))
    }
}

/// What is asked of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None.
    Unlock,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "r",
            Self::Write => "w",
            Self::Unlock => "u",
        })
    }
}

impl FromStr for Type {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "r" => Ok(Self::Read),
            "w" => Ok(Self::Write),
            "u" => Ok(Self::Unlock),
            _ => Err(format!("no type of lock: {text}")),
        }
    }
}

/// From where a range is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// `SEEK_SET`
    Set,
    /// `SEEK_CUR`
    Cur,
    /// `SEEK_END`
    End,
}

impl fmt::Display for Whence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Set => "set",
            Self::Cur => "cur",
            Self::End => "end",
        })
    }
}

impl FromStr for Whence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "set" => Ok(Self::Set),
            "cur" => Ok(Self::Cur),
            "end" => Ok(Self::End),
            _ => Err(format!("no whence: {text}")),
        }
    }
}

/// A range as `struct flock` has it: a length of 0 reaches to wherever the file may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// `l_whence`
    pub whence: Whence,
    /// `l_start`
    pub start: i64,
    /// `l_len`
    pub len: i64,
}

impl Range {
    /// Everything.
    pub const WHOLE: Self = Self {
        whence: Whence::Set,
        start: 0,
        len: 0,
    };
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.whence, self.start, self.len)
    }
}

fn answered(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn raw_type(kind: Type) -> i16 {
    (match kind {
        Type::Read => libc::F_RDLCK,
        Type::Write => libc::F_WRLCK,
        Type::Unlock => libc::F_UNLCK,
    }) as i16
}

fn raw(kind: Type, range: Range) -> libc::flock {
    let whence = match range.whence {
        Whence::Set => libc::SEEK_SET,
        Whence::Cur => libc::SEEK_CUR,
        Whence::End => libc::SEEK_END,
    };
    libc::flock {
        l_type: raw_type(kind),
        l_whence: whence as i16,
        l_start: range.start,
        l_len: range.len,
        // F_OFD_* want nothing else.
        l_pid: 0,
    }
}

/// `F_SETLK`, `F_SETLKW` and their like for descriptions; not for `flock`.
///
/// # Errors
/// What the kernel says.
pub fn set_range(
    file: BorrowedFd<'_>,
    kind: Kind,
    what: Type,
    range: Range,
    wait: bool,
) -> io::Result<()> {
    let command = match (kind, wait) {
        (Kind::Ofd, false) => libc::F_OFD_SETLK,
        (Kind::Ofd, true) => libc::F_OFD_SETLKW,
        (_, false) => libc::F_SETLK,
        (_, true) => libc::F_SETLKW,
    };
    let lock = raw(what, range);
    // SAFETY: the descriptor is borrowed, and the structure lives through the call.
    answered(unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) })
}

/// `flock`.
///
/// # Errors
/// What the kernel says.
pub fn set_whole(file: BorrowedFd<'_>, what: Type, wait: bool) -> io::Result<()> {
    let operation = match what {
        Type::Read => libc::LOCK_SH,
        Type::Write => libc::LOCK_EX,
        Type::Unlock => libc::LOCK_UN,
    };
    let operation = operation | if wait { 0 } else { libc::LOCK_NB };
    // SAFETY: the descriptor is borrowed.
    answered(unsafe { libc::flock(file.as_raw_fd(), operation) })
}

/// The whole file, whichever the kind.
///
/// # Errors
/// What the kernel says.
pub fn set(file: BorrowedFd<'_>, kind: Kind, what: Type, wait: bool) -> io::Result<()> {
    match kind {
        Kind::Flock => set_whole(file, what, wait),
        _ => set_range(file, kind, what, Range::WHOLE, wait),
    }
}

/// `F_GETLK` or `F_OFD_GETLK`, as one line: `free`, or the type, whence, start, length and process
/// of a lock in the way.
///
/// # Errors
/// What the kernel says.
pub fn get(file: BorrowedFd<'_>, kind: Kind, what: Type, range: Range) -> io::Result<String> {
    let command = match kind {
        Kind::Ofd => libc::F_OFD_GETLK,
        _ => libc::F_GETLK,
    };
    let mut lock = raw(what, range);
    // SAFETY: the descriptor is borrowed, and the structure lives through the call.
    answered(unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) })?;
    let found = match i32::from(lock.l_type) {
        libc::F_UNLCK => return Ok("free".to_owned()),
        libc::F_RDLCK => "r",
        _ => "w",
    };
    let libc::flock {
        l_whence,
        l_start,
        l_len,
        l_pid,
        ..
    } = lock;
    Ok(format!("{found} {l_whence} {l_start} {l_len} {l_pid}"))
}

/// The name of an error, for a line of an answer.
pub fn errno_name(error: &io::Error) -> String {
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::EACCES, "EACCES"),
        (libc::EBADF, "EBADF"),
        (libc::EDEADLK, "EDEADLK"),
        (libc::EINTR, "EINTR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EIO, "EIO"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOLCK, "ENOLCK"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::EOVERFLOW, "EOVERFLOW"),
        (libc::ESTALE, "ESTALE"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    let errno = error.raw_os_error();
    let name = known.iter().find(|(number, _)| Some(*number) == errno);
    name.map_or_else(
        || error.to_string().replace('\n', " "),
        |(_, name)| (*name).to_owned(),
    )
}
