//! What opens allow.

/// What an open allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// `O_RDONLY`: cached by the kernel.
    Read,
    /// `O_WRONLY`.
    Write,
    /// `O_RDWR`: a shared mapping may store through it.
    ReadWrite,
}

impl Access {
    /// Of `open(2)` flags. `O_ACCMODE` itself (3) asks for both.
    pub fn of(flags: u32) -> Self {
        match (flags as i32) & libc::O_ACCMODE {
            libc::O_RDONLY => Self::Read,
            libc::O_WRONLY => Self::Write,
            _ => Self::ReadWrite,
        }
    }

    /// Whether whoever may this may that.
    pub fn covers(self, other: Self) -> bool {
        self == Self::ReadWrite || self == other
    }

    /// Whether it may read.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether it may write.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_read_as_open_means_them() {
        let extra = (libc::O_APPEND | libc::O_SYNC) as u32;
        assert_eq!(Access::of(libc::O_RDONLY as u32 | extra), Access::Read);
        assert_eq!(Access::of(libc::O_WRONLY as u32), Access::Write);
        assert_eq!(Access::of(libc::O_RDWR as u32), Access::ReadWrite);
        assert_eq!(Access::of(3), Access::ReadWrite);
    }
}
