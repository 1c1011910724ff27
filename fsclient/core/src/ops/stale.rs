//! ESTALE, which a local file system never says.
//!
//! Linux repeats a system call once that ends in ESTALE, and looks up every name anew. So a file that is replaced
//! all the time can be opened. Who meets it again is told that there is no such file: one that is removed
//! between its lookup and what was to be done with it. So is at once who looks for a name, or makes one, in a directory that was
//! removed: it has none, and some calls aren't repeated then. The root alone stays stale.

use crate::call::{Asker, Call, NodeId};
use crate::run::{Map, Part};
use leasefs_lease::time::BootTime;
use leasefs_protocol::Refusal;
use std::time::Duration;

/// Within this time a thread has repeated its call.
const REPEATED: Duration = Duration::from_secs(1);
/// Threads that are remembered.
const MOST: usize = 1024;

/// What a local file system says.
const NOT_THERE: Refusal = Refusal::Host(libc::ENOENT as u16);

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    /// The root.
    pub root: bool,
    /// A name in a directory.
    pub in_directory: bool,
}

/// Threads that were told ESTALE, and when, as long as nothing else has come of their call.
#[derive(Debug, Default)]
pub(super) struct Stale(Part<Map<u32, BootTime>>);

impl Stale {
    /// What a thread is told in place of this.
    pub fn told(&self, asker: Asker, now: BootTime, about: About, refusal: Refusal) -> Refusal {
        let About { root, in_directory } = about;
        // The host says it in its own way of what goes just then.
        if refusal.errno() != libc::ESTALE || root {
            return refusal;
        }
        if in_directory {
            return NOT_THERE;
        }
        let mut told = self.0.borrow_mut();
        told.retain(|_, at| now.since(*at) <= REPEATED);
        // Not struck off: a lookup on the way that is told so is repeated, too.
        if told.contains_key(&asker.pid) {
            return NOT_THERE;
        }
        if told.len() < MOST {
            told.insert(asker.pid, now);
        }
        refusal
    }

    /// A thread's call has succeeded, or a part of it that is more than looking up a name.
    pub fn done(&self, asker: Asker) {
        let mut told = self.0.borrow_mut();
        if !told.is_empty() {
            told.remove(&asker.pid);
        }
    }
}

impl Call {
    /// Whether it is about a name in a directory, and that alone.
    pub(super) fn is_in_directory(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. }
                | Self::MakeNode { .. }
                | Self::MakeDir { .. }
                | Self::Symlink { .. }
                | Self::Unlink { .. }
                | Self::RemoveDir { .. }
                | Self::Rename { .. }
                | Self::Create { .. }
        )
    }

    /// Whether it may be no more than the way to a file.
    pub(super) fn walks(&self) -> bool {
        matches!(self, Self::Lookup { .. } | Self::GetAttr { .. })
    }

    /// The node that it is about, if it isn't about an open.
    pub(super) fn node(&self) -> Option<NodeId> {
        Some(match self {
            Self::Lookup { parent, .. }
            | Self::MakeNode { parent, .. }
            | Self::MakeDir { parent, .. }
            | Self::Symlink { parent, .. }
            | Self::Unlink { parent, .. }
            | Self::RemoveDir { parent, .. }
            | Self::Rename { parent, .. }
            | Self::Create { parent, .. } => *parent,
            Self::GetAttr { node }
            | Self::SetAttr { node, fh: None, .. }
            | Self::ReadLink { node }
            | Self::Link { node, .. }
            | Self::Open { node, .. }
            | Self::OpenDir { node }
            | Self::Access { node, .. }
            | Self::GetXattr { node, .. }
            | Self::ListXattr { node, .. }
            | Self::SetXattr { node, .. }
            | Self::RemoveXattr { node, .. } => *node,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: About = About {
        root: false,
        in_directory: false,
    };

    #[test]
    fn a_directory_that_was_removed_has_no_names() {
        let about = About {
            in_directory: true,
            ..FILE
        };
        let told = Stale::default().told(thread(1), BootTime::ZERO, about, Refusal::Stale);
        assert_eq!(told, NOT_THERE);
    }

    fn thread(pid: u32) -> Asker {
        Asker {
            uid: 0,
            gid: 0,
            pid,
        }
    }

    #[test]
    fn who_repeats_a_stale_call_is_told_that_there_is_no_such_file() {
        let (stale, now) = (Stale::default(), BootTime::ZERO);
        let told = |pid, now| stale.told(thread(pid), now, FILE, Refusal::Stale);
        assert_eq!(told(1, now), Refusal::Stale);
        assert_eq!(told(2, now), Refusal::Stale);
        assert_eq!(told(1, now), NOT_THERE);
        assert_eq!(told(1, now), NOT_THERE);
        // What comes much later is another call.
        assert_eq!(told(2, now + REPEATED + REPEATED), Refusal::Stale);
    }

    #[test]
    fn a_call_that_succeeds_when_it_is_repeated_counts_no_more() {
        let (stale, now) = (Stale::default(), BootTime::ZERO);
        let told = || stale.told(thread(1), now, FILE, Refusal::Stale);
        assert_eq!(told(), Refusal::Stale);
        stale.done(thread(1));
        assert_eq!(told(), Refusal::Stale);
    }

    #[test]
    fn the_root_is_stale_however_often_it_is_asked_for_and_other_refusals_stay() {
        let (stale, now) = (Stale::default(), BootTime::ZERO);
        for _ in 0..3 {
            let about = About { root: true, ..FILE };
            let told = stale.told(thread(1), now, about, Refusal::Stale);
            assert_eq!(told, Refusal::Stale);
        }
        let told = stale.told(thread(1), now, FILE, Refusal::Invalid);
        assert_eq!(told, Refusal::Invalid);
    }
}
