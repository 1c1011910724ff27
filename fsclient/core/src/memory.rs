//! How much memory a mount may use, and for what.

/// Memory that a mount may use, in bytes (approximately): for what it caches, and for what is written
/// and not on the server's disk. Each kind has a share of its own, so that none starves another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(usize);

/// What of its memory a mount uses, in bytes (approximately).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// All that it may use.
    pub limit: usize,
    /// By attributes, names and listings.
    pub cached: usize,
    /// By bytes of files as the server has them.
    pub clean: usize,
    /// By bytes that the server doesn't have yet.
    pub dirty: usize,
    /// By bytes that the server's disk doesn't have yet.
    pub unstable: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self(512 << 20)
    }
}

impl Memory {
    /// With less hardly a few of the largest requests fit.
    pub const LEAST: usize = 16 << 20;

    /// So many bytes.
    pub const fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// All of it.
    pub const fn bytes(self) -> usize {
        self.0
    }

    /// For attributes, names and listings.
    pub(crate) const fn for_cached(self) -> usize {
        self.0 / 4
    }

    /// For bytes of files as the server has them.
    pub(crate) const fn for_clean(self) -> usize {
        self.0 / 4
    }

    /// For bytes that the server doesn't have yet.
    pub(crate) const fn for_dirty(self) -> usize {
        self.0 / 4
    }

    /// For bytes that are kept until they are on the server's disk.
    pub(crate) const fn for_unstable(self) -> usize {
        self.0 / 4
    }

    /// With so many bytes that are not on the server's disk it is time for a commit. The rest is for what
    /// is written until that is answered.
    pub(crate) const fn many_unstable(self) -> usize {
        self.for_unstable() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_no_more_than_all_of_it() {
        for bytes in [0, Memory::LEAST, Memory::default().bytes(), usize::MAX] {
            let memory = Memory::new(bytes);
            let shares = [
                memory.for_cached(),
                memory.for_clean(),
                memory.for_dirty(),
                memory.for_unstable(),
            ];
            let all = shares
                .iter()
                .try_fold(0_usize, |sum, share| sum.checked_add(*share));
            assert!(all.is_some_and(|all| all <= bytes), "{bytes}");
            assert!(memory.many_unstable() <= memory.for_unstable());
        }
    }
}
