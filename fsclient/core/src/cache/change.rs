//! Own changes: what they cover is neither cached nor cacheable while they are under way.

use super::state::State;
use crate::inode::{Changing, Dropped};
use leasefs_lease::client::{ChangeOf, Span};
use leasefs_protocol::{Handle, LockEpoch, Parts, RawName, Stamp};

/// What a change does to the pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageChange {
    /// Changes these bytes (an append: all of them).
    Drop(Span),
    /// Changes the size through SETATTR: until the answer the kernel holds back what it has to
    /// write, so dropping a dirty page would wait for that answer. Then it drops pages itself.
    Truncate {
        /// Whether a shared mapping of this mount may store into the file (it has a read-write
        /// open): then what is in the kernel is held exclusively, and may be dirty.
        stores: bool,
    },
    /// Writes back mapped pages, which the kernel keeps locked until the answer.
    WriteBack(Span),
}

/// The pages of a file that a change changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangedPages {
    pub file: Handle,
    pub change: PageChange,
}

/// What a change covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeScope {
    changes: Vec<ChangeOf>,
    pages: Option<ChangedPages>,
    locked: Option<LockEpoch>,
    moved: Vec<Handle>,
}

impl ChangeScope {
    /// Parts of an object, as a whole.
    #[must_use]
    pub fn object(mut self, object: Handle, parts: Parts) -> Self {
        self.of(object).parts |= parts;
        self
    }

    /// An object that gets another name.
    #[must_use]
    pub fn moved(mut self, object: Handle) -> Self {
        self.moved.push(object);
        self.object(object, Parts::ATTRS)
    }

    /// What gets another name: it does only if nothing of it was lost unseen.
    pub fn all_moved(&self) -> &[Handle] {
        &self.moved
    }

    /// A name of a directory, and so its attributes and listing.
    #[must_use]
    pub fn name(mut self, dir: Handle, name: RawName) -> Self {
        let change = self.of(dir);
        change.parts |= Parts::ATTRS | Parts::LISTING;
        change.names.push(name);
        self
    }

    /// Bytes of a file (one file at most), and so its attributes.
    #[must_use]
    pub fn pages(mut self, file: Handle, change: PageChange) -> Self {
        self.pages = Some(ChangedPages { file, change });
        self.object(file, Parts::ATTRS)
    }

    /// Made under locks of this tenure.
    #[must_use]
    pub fn under(mut self, locked: Option<LockEpoch>) -> Self {
        self.locked = locked;
        self
    }

    /// The tenure of the locks under which it is made.
    pub fn locked(&self) -> Option<LockEpoch> {
        self.locked
    }

    /// Bytes of a file alone: for what stays here for now.
    pub fn only_pages(file: Handle, span: Span) -> Self {
        Self {
            changes: Vec::new(),
            locked: None,
            moved: Vec::new(),
            pages: Some(ChangedPages {
                file,
                change: PageChange::Drop(span),
            }),
        }
    }

    /// The file whose bytes are changed.
    pub fn content(&self) -> Option<Handle> {
        self.pages.map(|pages| pages.file)
    }

    /// The files that it changes at the server, but for mapped pages: what is buffered of them must
    /// be there before (a file that has changed doesn't take it when the lease has ended), and nothing
    /// be buffered until the answer.
    pub fn settles(&self) -> Vec<Handle> {
        let mapped = |pages: &ChangedPages| matches!(pages.change, PageChange::WriteBack(_));
        let mapped = self.pages.filter(mapped).map(|pages| pages.file);
        let whole = self.changes.iter().filter(|change| change.names.is_empty());
        whole
            .map(|c| c.object)
            .filter(|object| Some(*object) != mapped)
            .collect()
    }

    /// The pages that are changed.
    pub fn changed_pages(&self) -> Option<ChangedPages> {
        self.pages
    }

    /// The objects covered.
    pub fn objects(&self) -> Vec<Handle> {
        self.changes.iter().map(|change| change.object).collect()
    }

    fn of(&mut self, object: Handle) -> &mut ChangeOf {
        let known = self.changes.iter().position(|c| c.object == object);
        let at = known.unwrap_or_else(|| {
            self.changes.push(ChangeOf {
                object,
                parts: Parts::NONE,
                names: Vec::new(),
            });
            self.changes.len() - 1
        });
        &mut self.changes[at]
    }
}

impl State {
    /// An own change begins: what it changes is neither cached nor cacheable, and where the order would
    /// matter nothing is buffered. Pages in the kernel are not its concern.
    pub fn begin_change(&mut self, scope: &ChangeScope) -> Dropped {
        let mut dropped = Dropped::default();
        if let Some(file) = scope.content() {
            self.inodes.change_begins(file, Changing::BYTES);
        }
        for file in scope.settles() {
            self.inodes.change_begins(file, Changing::AT_SERVER);
        }
        self.leases.begin_change(&scope.changes);
        for change in &scope.changes {
            let names = change.names.iter().map(|name| name.0.as_slice());
            let (object, parts) = (&change.object, change.parts);
            match change.names.is_empty() {
                true => self.inodes.drop_parts(object, parts, [], &mut dropped),
                false => self.inodes.names_change(object, parts, names, &mut dropped),
            }
        }
        dropped
    }

    /// It has ended; `stamp` as [`leasefs_lease::client::Leases::end_change`] has it.
    pub fn end_change(&mut self, scope: &ChangeScope, stamp: Option<Stamp>) {
        if let Some(file) = scope.content() {
            self.inodes.change_ends(&file, Changing::BYTES);
        }
        for file in scope.settles() {
            self.inodes.change_ends(&file, Changing::AT_SERVER);
        }
        self.leases.end_change(&scope.changes, stamp);
    }
}
