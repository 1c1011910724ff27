//! Names that come and go.
//!
//! To take one name back from the kernel it must be made to look all names up again. What was taken back will probably be
//! again (a file that is saved by a rename, a lock file): the kernel isn't told of it for a while, and asks each time.

use crate::run::Map;
use leasefs_lease::time::BootTime;
use leasefs_protocol::Handle;
use std::time::Duration;

/// So many are remembered.
const MOST: usize = 1024;
/// Where more are taken back at a time they are a directory's, or everything, and it wasn't for their own sake.
const FEW: usize = 4;

/// Names that had to be taken back, and when.
#[derive(Debug)]
pub(super) struct Restless {
    /// How long each counts.
    lasting: Duration,
    names: Map<Handle, Map<Box<[u8]>, BootTime>>,
    count: usize,
}

impl Restless {
    /// None, each of which would count for so long.
    pub fn new(lasting: Duration) -> Self {
        Self {
            lasting,
            names: Map::default(),
            count: 0,
        }
    }

    /// Names were taken back.
    pub fn taken_back<'a>(
        &mut self,
        now: BootTime,
        names: impl ExactSizeIterator<Item = (Handle, &'a [u8])>,
    ) {
        if names.len() > FEW {
            return;
        }
        if self.count + names.len() > MOST {
            let half = self.lasting / 2;
            self.forget(|at| now.since(at) > half);
        }
        for (dir, name) in names {
            if self.count < MOST {
                let of_dir = self.names.entry(dir).or_default();
                let before = of_dir.insert(name.into(), now);
                self.count += usize::from(before.is_none());
            }
        }
    }

    /// Whether it was taken back lately.
    pub fn has(&self, now: BootTime, dir: &Handle, name: &[u8]) -> bool {
        let at = self.names.get(dir).and_then(|names| names.get(name));
        at.is_some_and(|at| now.since(*at) < self.lasting)
    }

    fn forget(&mut self, outdated: impl Fn(BootTime) -> bool) {
        self.names.retain(|_, names| {
            names.retain(|_, at| !outdated(*at));
            !names.is_empty()
        });
        self.count = self.names.values().map(Map::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    const LASTING: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> BootTime {
        BootTime::ZERO + Duration::from_secs(seconds)
    }

    fn dir() -> Handle {
        Handle::new(b"dir").expect("a handle")
    }

    /// Names of these numbers were taken back together.
    fn taken_back(restless: &mut Restless, at: BootTime, numbers: Range<u16>) {
        let names: Vec<[u8; 2]> = numbers.map(u16::to_ne_bytes).collect();
        restless.taken_back(at, names.iter().map(|name| (dir(), name.as_slice())));
    }

    #[test]
    fn a_name_that_was_taken_back_is_restless_for_a_while() {
        let mut restless = Restless::new(LASTING);
        taken_back(&mut restless, at(5), 0..1);
        let has = |seconds| restless.has(at(seconds), &dir(), &[0, 0]);
        assert!(has(5) && has(604) && !has(605));
        assert!(!restless.has(at(5), &dir(), &[1, 0]));
    }

    #[test]
    fn the_names_of_a_whole_directory_are_none_of_them() {
        let mut restless = Restless::new(LASTING);
        taken_back(&mut restless, at(5), 0..5);
        assert!(!restless.has(at(5), &dir(), &[0, 0]));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for_and_the_old_ones_go_first() {
        let mut restless = Restless::new(LASTING);
        for number in 0..2 * MOST as u16 {
            taken_back(&mut restless, at(u64::from(number)), number..number + 1);
        }
        assert!(restless.count <= MOST);
        let last = 2 * MOST as u16 - 1;
        let now = at(u64::from(last));
        assert!(restless.has(now, &dir(), &last.to_ne_bytes()));
    }
}
