//! Which inodes are open here.

use super::{Access, Inodes};
use leasefs_protocol::Handle;

/// The opens of an inode, from before the server is asked for them.
#[derive(Debug, Default)]
pub(super) struct InUse {
    pub opens: usize,
    /// Those of them that show pages: reads and mappings need one.
    shows: usize,
    /// Those of them whose mappings may store.
    stores: usize,
    /// It has no name any more.
    unlinked: bool,
}

impl InUse {
    fn begin(&mut self, access: Access) {
        self.opens += 1;
        self.shows += usize::from(access.reads());
        self.stores += usize::from(access == Access::ReadWrite);
    }

    fn end(&mut self, access: Access) {
        let (shows, stores) = (access.reads(), access == Access::ReadWrite);
        let (shows, stores) = (usize::from(shows), usize::from(stores));
        assert!(
            self.opens > 0 && self.shows >= shows && self.stores >= stores,
            "an open ends that did not begin"
        );
        self.opens -= 1;
        self.shows -= shows;
        self.stores -= stores;
    }
}

impl Inodes {
    /// Before the server is asked for an open: from now on pages of the file may be used, and
    /// (O_RDWR) stored into.
    pub fn open_begins(&mut self, object: Handle, access: Access) {
        self.make_content(object, |content| {
            content.in_use.get_or_insert_default().begin(access);
        });
    }

    /// The last name of an object is gone; false if it isn't open here.
    pub fn unlinked(&mut self, object: &Handle) -> bool {
        let in_use = self
            .content_mut(object)
            .and_then(|content| content.in_use.as_mut());
        in_use.map(|in_use| in_use.unlinked = true).is_some()
    }

    /// The open has ended, or never came to be. True if it was the last of an object that has no
    /// name: nobody here can reach it any more.
    pub fn open_ends(&mut self, object: &Handle, access: Access) -> bool {
        let out_of_reach = self.change_content(object, |content| {
            let in_use = content.in_use.as_mut()?;
            in_use.end(access);
            let ended = content.in_use.take_if(|in_use| in_use.opens == 0);
            Some(ended.is_some_and(|ended| ended.unlinked))
        });
        assert!(
            out_of_reach.flatten().is_some(),
            "an open ends of what isn't open"
        );
        out_of_reach.flatten().unwrap_or(false)
    }

    /// Whether a file is open.
    pub fn is_open(&self, object: &Handle) -> bool {
        self.in_use(object).is_some()
    }

    /// Whether anybody here can see pages of a file that the kernel has: by a descriptor, or a mapping, which has one.
    pub fn may_see_pages(&self, object: &Handle) -> bool {
        self.in_use(object).is_some_and(|in_use| in_use.shows > 0)
    }

    /// Whether a shared mapping of this mount may store into pages of the object.
    pub fn may_store(&self, object: &Handle) -> bool {
        self.in_use(object).is_some_and(|in_use| in_use.stores > 0)
    }

    fn in_use(&self, object: &Handle) -> Option<&InUse> {
        self.content(object)?.in_use.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Handle {
        Handle::new(&[1]).expect("one byte")
    }

    #[test]
    fn an_object_without_a_name_is_out_of_reach_at_its_last_close() {
        let mut inodes = Inodes::default();
        assert!(!inodes.unlinked(&object()), "it isn't open");
        inodes.open_begins(object(), Access::Read);
        inodes.open_begins(object(), Access::Write);
        assert!(inodes.unlinked(&object()));
        assert!(!inodes.open_ends(&object(), Access::Read));
        assert!(inodes.open_ends(&object(), Access::Write));
    }

    #[test]
    fn stores_are_possible_until_the_last_read_write_open_ends() {
        let mut inodes = Inodes::default();
        inodes.open_begins(object(), Access::ReadWrite);
        inodes.open_begins(object(), Access::Write);
        assert!(inodes.may_store(&object()));
        inodes.open_ends(&object(), Access::ReadWrite);
        assert!(!inodes.may_store(&object()) && inodes.is_open(&object()));
        inodes.open_ends(&object(), Access::Write);
        assert!(!inodes.is_open(&object()));
    }
}
