//! Who lists directories, and whether he looks at the files in them, too. `find -name` doesn't: to be told what they denote
//! would cost it time, and the kernel and this mount memory.

use crate::call::NodeId;
use crate::run::Map;

/// So many threads are remembered.
const REMEMBERED: usize = 256;
/// Of so many directories a thread is told the files before it has to show once more that it looks at them.
const TOLD: u32 = 16;

/// A thread that lists directories.
#[derive(Debug)]
struct Walker {
    /// The one that it listed last.
    dir: NodeId,
    /// It has looked up a file in a directory that it had listed.
    looks: bool,
    /// Directories of which it was told the files since then.
    told: u32,
    /// When it was here last, by the count of calls.
    used: u64,
}

/// The threads that have listed directories lately.
#[derive(Debug, Default)]
pub(super) struct Walkers {
    all: Map<u32, Walker>,
    calls: u64,
}

impl Walkers {
    /// A thread begins to list a directory. Whether it is to be told what files there are.
    pub fn lists(&mut self, thread: u32, dir: NodeId) -> bool {
        self.calls += 1;
        if self.all.len() >= REMEMBERED && !self.all.contains_key(&thread) {
            self.forget_oldest();
        }
        let used = self.calls;
        let walker = self.all.entry(thread).or_insert(Walker {
            dir,
            looks: false,
            told: 0,
            used,
        });
        (walker.dir, walker.used) = (dir, used);
        walker.looks &= walker.told < TOLD;
        walker.told = if walker.looks { walker.told + 1 } else { 0 };
        walker.looks
    }

    /// A thread looks up a file in a directory.
    pub fn looks(&mut self, thread: u32, dir: NodeId) {
        if let Some(walker) = self.all.get_mut(&thread).filter(|w| w.dir == dir) {
            walker.looks = true;
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self.all.iter().min_by_key(|(_, walker)| walker.used);
        if let Some(thread) = oldest.map(|(thread, _)| *thread) {
            self.all.remove(&thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 7;

    fn dir(number: u64) -> NodeId {
        NodeId(number)
    }

    #[test]
    fn who_looks_at_no_files_is_told_none() {
        let mut walkers = Walkers::default();
        for number in 1..100 {
            walkers.looks(ME, dir(number));
            assert!(!walkers.lists(ME, dir(number)));
            walkers.looks(ME + 1, dir(number));
        }
    }

    #[test]
    fn who_looks_at_the_files_of_a_directory_is_told_those_of_the_next_until_it_has_to_show_it_again()
     {
        let mut walkers = Walkers::default();
        for _ in 0..3 {
            assert!(!walkers.lists(ME, dir(1)));
            walkers.looks(ME, dir(1));
            for number in 0..u64::from(TOLD) {
                assert!(walkers.lists(ME, dir(2 + number)));
            }
        }
        assert!(!walkers.lists(ME, dir(1)));
        assert!(!walkers.lists(ME, dir(2)), "it didn't");
    }

    #[test]
    fn few_threads_are_remembered_those_that_list_among_them() {
        let mut walkers = Walkers::default();
        walkers.lists(ME, dir(1));
        walkers.looks(ME, dir(1));
        for thread in 100..1_000 {
            walkers.lists(thread, dir(1));
            assert!(thread % 100 > 0 || walkers.lists(ME, dir(2)));
        }
        assert_eq!(walkers.all.len(), REMEMBERED);
    }
}
