//! Changes that no commit covers yet: a crash of the server's host may have undone them.
//!
//! The host of before the crash can't be asked any more, and the one of after it knows nothing
//! of them: it would find nothing to commit, and say that all is well.

use leasefs_protocol::{BootId, Handle, Refusal};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An object that has been changed.
#[derive(Debug, Default)]
struct Changed {
    /// The life of the host in which the first change since the last commit was answered.
    since: Option<BootId>,
    /// Changes so far.
    count: u64,
    /// Commits that have come too late so far.
    losses: u64,
}

/// What there is to commit when a commit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered(u64);

/// Losses of its object that an open has no more to be told of.
#[derive(Debug)]
pub struct Told(AtomicU64);

/// All objects that have been changed; no more than the kernel knows.
#[derive(Debug, Default)]
pub struct Uncommitted(Mutex<HashMap<Handle, Changed>>);

impl Uncommitted {
    /// A change of the object was answered in this life of the host.
    pub fn changed(&self, object: Handle, host: BootId) {
        let mut objects = self.lock();
        let changed = objects.entry(object).or_default();
        changed.since.get_or_insert(host);
        changed.count += 1;
    }

    /// The object is about to be changed by bytes that are flushed later.
    pub fn buffered(&self, object: Handle) {
        self.lock().entry(object).or_default();
    }

    /// Buffered bytes of the object were flushed in this life of the host. Of no interest once nobody
    /// can ask for a commit any more.
    pub fn flushed(&self, object: &Handle, host: BootId) {
        if let Some(changed) = self.lock().get_mut(object) {
            changed.since.get_or_insert(host);
            changed.count += 1;
        }
    }

    /// For a new open of the object, which earlier losses don't concern.
    pub fn told(&self, object: &Handle) -> Told {
        let losses = self.lock().get(object).map_or(0, |changed| changed.losses);
        Told(AtomicU64::new(losses))
    }

    /// A commit of the object is about to be sent.
    pub fn commits(&self, object: &Handle) -> Covered {
        Covered(self.lock().get(object).map_or(0, |changed| changed.count))
    }

    /// The commit that was asked for through an open has succeeded in this life of the host.
    ///
    /// # Errors
    /// [`Refusal::Lost`], once for each open, if changes were answered in another: they may be
    /// gone.
    pub fn committed(
        &self,
        object: &Handle,
        covered: Covered,
        host: BootId,
        told: &Told,
    ) -> Result<(), Refusal> {
        let mut objects = self.lock();
        let Some(changed) = objects.get_mut(object) else {
            return Ok(());
        };
        if changed.since.is_some_and(|since| since != host) {
            changed.losses += 1;
        }
        changed.since = (changed.count != covered.0).then_some(host);
        match told.0.swap(changed.losses, Ordering::Relaxed) == changed.losses {
            true => Ok(()),
            false => Err(Refusal::Lost),
        }
    }

    /// The kernel doesn't know the object any more: nobody has it open.
    pub fn forget(&self, object: &Handle) {
        self.lock().remove(object);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, Changed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: BootId = BootId([1; 16]);
    const AFTER: BootId = BootId([2; 16]);

    fn object() -> Handle {
        Handle::new(&[1]).expect("one byte")
    }

    fn commit(uncommitted: &Uncommitted, host: BootId, told: &Told) -> Result<(), Refusal> {
        let covered = uncommitted.commits(&object());
        uncommitted.committed(&object(), covered, host, told)
    }

    #[test]
    fn a_commit_after_a_crash_of_the_host_fails_once_for_what_came_before_it() {
        let uncommitted = Uncommitted::default();
        let open = uncommitted.told(&object());
        uncommitted.changed(object(), BEFORE);
        uncommitted.changed(object(), AFTER);
        assert_eq!(commit(&uncommitted, AFTER, &open), Err(Refusal::Lost));
        assert_eq!(commit(&uncommitted, AFTER, &open), Ok(()));
    }

    #[test]
    fn each_open_of_before_the_loss_is_told_of_it_and_none_of_after_it() {
        let uncommitted = Uncommitted::default();
        let opens = [uncommitted.told(&object()), uncommitted.told(&object())];
        uncommitted.changed(object(), BEFORE);
        for open in &opens {
            assert_eq!(commit(&uncommitted, AFTER, open), Err(Refusal::Lost));
        }
        let later = uncommitted.told(&object());
        uncommitted.changed(object(), AFTER);
        for open in [&later, &opens[0], &opens[1]] {
            assert_eq!(commit(&uncommitted, AFTER, open), Ok(()));
        }
    }

    #[test]
    fn what_was_committed_before_the_crash_is_no_loss() {
        let uncommitted = Uncommitted::default();
        let open = uncommitted.told(&object());
        uncommitted.changed(object(), BEFORE);
        assert_eq!(commit(&uncommitted, BEFORE, &open), Ok(()));
        assert_eq!(commit(&uncommitted, AFTER, &open), Ok(()));
        uncommitted.changed(object(), AFTER);
        assert_eq!(commit(&uncommitted, AFTER, &open), Ok(()));
    }

    #[test]
    fn a_change_that_is_answered_while_a_commit_is_under_way_is_not_covered_by_it() {
        let uncommitted = Uncommitted::default();
        let open = uncommitted.told(&object());
        uncommitted.changed(object(), BEFORE);
        let covered = uncommitted.commits(&object());
        uncommitted.changed(object(), BEFORE);
        let first = uncommitted.committed(&object(), covered, BEFORE, &open);
        assert_eq!(first, Ok(()));
        assert_eq!(commit(&uncommitted, AFTER, &open), Err(Refusal::Lost));
    }
}
