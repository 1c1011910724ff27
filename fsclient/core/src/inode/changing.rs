//! Own changes of an object that are under way.

use super::Inodes;
use leasefs_protocol::Handle;

/// How many own changes are under way that are not of names alone. (What of them can't be cached
/// meanwhile is the leases' to say.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changing {
    /// Of its bytes: none of them is cached here meanwhile.
    pub bytes: u32,
    /// At the server, mapped pages apart: nothing is buffered meanwhile, which could be read after a
    /// change that came behind it.
    pub at_server: u32,
}

impl Changing {
    /// One change of its bytes.
    pub const BYTES: Self = Self {
        bytes: 1,
        at_server: 0,
    };
    /// One change at the server.
    pub const AT_SERVER: Self = Self {
        bytes: 0,
        at_server: 1,
    };

    pub fn is_idle(self) -> bool {
        self == Self::default()
    }

    /// Changes begin.
    pub fn begin(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.at_server += more.at_server;
    }

    /// They have ended.
    pub fn end(&mut self, less: Self) {
        assert!(
            self.bytes >= less.bytes && self.at_server >= less.at_server,
            "a change ends that did not begin"
        );
        self.bytes -= less.bytes;
        self.at_server -= less.at_server;
    }
}

impl Inodes {
    /// Own changes of an object begin.
    pub fn change_begins(&mut self, object: Handle, changing: Changing) {
        if changing.bytes > 0 {
            self.drop_clean(&object);
            // What is flushed meanwhile is put there.
            self.make_clean(object);
        }
        self.make_content(object, |content| content.changing.begin(changing));
    }

    /// They have ended.
    pub fn change_ends(&mut self, object: &Handle, changing: Changing) {
        let known = self.change_content(object, |content| content.changing.end(changing));
        assert!(
            known.is_some(),
            "an inode went away while it was being changed"
        );
        if changing.bytes > 0 {
            self.drop_clean(object);
        }
    }

    /// Whether nothing may be buffered of a file: it is being changed at the server.
    pub fn is_changing(&self, object: &Handle) -> bool {
        let content = self.content(object);
        content.is_some_and(|content| content.changing.at_server > 0)
    }
}
