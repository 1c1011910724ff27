use bitflags::bitflags;

bitflags! {
    /// Flags of [`getlk`](crate::Filesystem::getlk) and [`setlk`](crate::Filesystem::setlk)
    /// operations.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct LkFlags: u32 {
        /// The lock is one of flock(2), not of fcntl(2).
        const FUSE_LK_FLOCK = 1 << 0;
    }
}
