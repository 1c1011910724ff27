//! What follows when a file's attributes are asked for.
//!
//! To open a file the kernel first asks for its attributes, if it may not believe those it has any more, and then for the open: two round
//! trips one after the other, of which the second tells what the first did. Where it went so the last time, the open is
//! made with the attributes. If nobody has needed it by the next time, that was wrong, and isn't done again before it would have been right.

use super::Inodes;
use super::kernel::KernelRefs;
use leasefs_protocol::{FileKind, Handle};

/// What followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Habit {
    #[default]
    Unknown,
    /// Nothing yet: the attributes alone were asked for.
    Looked,
    /// An open for reading.
    Opened,
    /// Nothing yet: it was opened ahead.
    OpenedAhead,
}

impl Inodes {
    /// The server is about to be asked for attributes that the kernel wants: whether it is to be asked for an open as well.
    pub fn is_opened_next(&mut self, object: &Handle) -> bool {
        let Some(refs) = self.file_refs(object) else {
            return false;
        };
        let opened = refs.habit == Habit::Opened;
        refs.habit = match opened {
            true => Habit::OpenedAhead,
            false => Habit::Looked,
        };
        opened
    }

    /// Somebody opens it for reading.
    pub fn is_opened_to_read(&mut self, object: &Handle) {
        let refs = self.file_refs(object);
        if let Some(refs) = refs.filter(|refs| refs.habit != Habit::Unknown) {
            refs.habit = Habit::Opened;
        }
    }

    fn file_refs(&mut self, object: &Handle) -> Option<&mut KernelRefs> {
        let refs = self.get_mut(object)?.kernel.as_deref_mut()?;
        (refs.kind == FileKind::File).then_some(refs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::{attr, handle, inodes, refer};
    use super::*;

    #[test]
    fn what_was_opened_after_it_was_looked_at_is_opened_along_until_that_is_of_no_use() {
        let mut inodes = inodes();
        let file = refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        let mut looks = |opens| {
            let ahead = inodes.is_opened_next(&file.handle);
            if opens {
                inodes.is_opened_to_read(&file.handle);
            }
            ahead
        };
        assert!(!looks(false) && !looks(false) && !looks(true));
        assert!(looks(true) && looks(true));
        assert!(looks(false), "once in vain");
        assert!(!looks(false) && !looks(true) && looks(true));
    }

    #[test]
    fn an_open_without_a_look_tells_nothing_and_a_directory_is_none() {
        let mut inodes = inodes();
        let file = refer(&mut inodes, handle(1), &attr(12, FileKind::File));
        inodes.is_opened_to_read(&file.handle);
        assert!(!inodes.is_opened_next(&file.handle));
        let dir = refer(&mut inodes, handle(2), &attr(13, FileKind::Directory));
        for _ in 0..3 {
            assert!(!inodes.is_opened_next(&dir.handle));
            inodes.is_opened_to_read(&dir.handle);
        }
    }
}
