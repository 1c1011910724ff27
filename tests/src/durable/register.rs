//! What one thing (a cell, a size, a name) may be after a crash.

/// What must have survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Whatever has returned.
    Returned,
    /// What was acknowledged as durable; of what came later anything may be there.
    Durable,
}

#[derive(Debug, Clone)]
struct Version<T> {
    seq: u64,
    value: T,
    returned: bool,
}

/// The values of one thing that one writer changes, call by call.
#[derive(Debug, Clone)]
pub struct Register<T> {
    /// What it may be if nothing of `since` has happened; one value, unless calls have failed.
    durable: Vec<T>,
    since: Vec<Version<T>>,
}

impl<T: Clone + PartialEq> Register<T> {
    /// A thing that durably is `initial`.
    pub fn new(initial: T) -> Self {
        Self {
            durable: vec![initial],
            since: Vec::new(),
        }
    }

    /// The call `seq` is about to make it `value`.
    pub fn begin(&mut self, seq: u64, value: T) {
        self.since.push(Version {
            seq,
            value,
            returned: false,
        });
    }

    /// The call has succeeded.
    pub fn returned(&mut self, seq: u64) {
        let of_call = self.since.iter_mut().filter(|version| version.seq == seq);
        of_call.for_each(|version| version.returned = true);
    }

    /// What has returned is durable.
    pub fn synced(&mut self) {
        if !self.since.is_empty() {
            self.durable = self.visible();
            self.since.clear();
        }
    }

    /// Making it durable has failed: what has returned may be gone for good.
    pub fn doubtful(&mut self) {
        let all = self.since.iter_mut();
        all.for_each(|version| version.returned = false);
    }

    /// What it may be.
    pub fn may_be(&self, floor: Floor) -> Vec<T> {
        match floor {
            Floor::Returned => self.visible(),
            Floor::Durable => self.from(0, true),
        }
    }

    /// What it is if every call has happened.
    pub fn newest(&self) -> Option<&T> {
        let newest = self.since.last().map(|version| &version.value);
        newest.or(self.durable.last())
    }

    /// The newest value that has returned, or any whose call hasn't since.
    fn visible(&self) -> Vec<T> {
        match self.since.iter().rposition(|version| version.returned) {
            Some(last) => self.from(last, false),
            None => self.from(0, true),
        }
    }

    fn from(&self, index: usize, durable: bool) -> Vec<T> {
        let durable = self.durable.iter().filter(|_| durable).cloned();
        let since = self.since.iter().skip(index);
        let mut all: Vec<T> = durable.collect();
        for version in since {
            if !all.contains(&version.value) {
                all.push(version.value.clone());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_returned_counts_after_a_process_crash_and_what_was_synced_after_any() {
        let mut register = Register::new(0);
        register.begin(1, 10);
        register.returned(1);
        register.begin(2, 20);
        assert_eq!(register.may_be(Floor::Returned), [10, 20]);
        assert_eq!(register.may_be(Floor::Durable), [0, 10, 20]);
        register.returned(2);
        register.synced();
        assert_eq!(register.may_be(Floor::Durable), [20]);
        assert_eq!(register.newest(), Some(&20));
    }

    #[test]
    fn a_failed_call_leaves_both_and_a_failed_sync_all() {
        let mut register = Register::new(0);
        register.begin(1, 10);
        register.synced();
        assert_eq!(register.may_be(Floor::Returned), [0, 10]);
        register.begin(2, 20);
        register.returned(2);
        register.doubtful();
        register.synced();
        assert_eq!(register.may_be(Floor::Durable), [0, 10, 20]);
    }
}
