//! Where bytes go that can't be brought to the server.

use crate::recovery::{Folder, Lost, Reason, Recovery, RecoveryId, User};
use leasefs_client::{Undelivered, WhyNot};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The recovery folders of a mount.
#[derive(Clone, Debug)]
pub struct Refuge {
    /// Where they are.
    pub recovery: Recovery,
    /// What is mounted, as it is shown to people.
    pub source: String,
}

/// Something that is kept, and where.
pub(super) type Kept = (Folder, RecoveryId);

/// What has been kept of a mount.
pub(super) struct Keeping {
    refuge: Refuge,
    /// What could not be brought in while it was mounted: where it is kept, if it is.
    left_behind: Mutex<Vec<Option<Kept>>>,
}

impl Keeping {
    pub fn new(refuge: Refuge) -> Self {
        Self {
            refuge,
            left_behind: Mutex::default(),
        }
    }

    /// Blocks on the disk. What becomes of it is logged.
    pub fn keep(&self, undelivered: Undelivered) -> Option<Kept> {
        let lost = Lost {
            source: self.refuge.source.clone(),
            path: undelivered.path,
            object: undelivered.object,
            writer: undelivered.writer.map(|caller| User {
                uid: caller.uid,
                gid: caller.gid,
            }),
            reason: reason(undelivered.reason),
            time: SystemTime::now(),
            size: undelivered.size,
            extents: undelivered.extents,
        };
        self.refuge.recovery.keep(&lost).ok()
    }

    /// As [`Keeping::keep`]; it is remembered until the mount ends.
    pub fn keep_for_later(&self, undelivered: Undelivered) {
        let kept = self.keep(undelivered);
        self.lock().push(kept);
    }

    /// How much of what was kept for later nobody has disposed of.
    pub fn left_behind(&self) -> usize {
        let left = self.lock().clone();
        let stands = |(folder, id): &Kept| folder.item(*id).is_ok();
        left.iter()
            .filter(|kept| kept.as_ref().is_none_or(stands))
            .count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Kept>>> {
        let left = self.left_behind.lock();
        left.unwrap_or_else(PoisonError::into_inner)
    }
}

fn reason(why: WhyNot) -> Reason {
    match why {
        WhyNot::ChangedElsewhere => Reason::ChangedElsewhere,
        WhyNot::Unreachable => Reason::Unreachable,
        WhyNot::Refused(refusal) => Reason::Refused {
            errno: refusal.errno(),
        },
    }
}
