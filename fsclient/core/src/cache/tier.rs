//! Reading what is cached.

use super::Cache;
use super::state::State;
use super::status::Kind;
use crate::call::{Listing, Node, NodeId};
use crate::inode::{Access, Brought, Dentry, Inodes, Place};
use crate::opens::ServerOpen;
use atomic_refcell::AtomicRefMut;
use bytes::Bytes;
use leasefs_lease::client::Live;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Attr, Caller, Handle, OpenId};
use std::sync::Arc;
use std::time::Duration;

/// Entries that whoever goes through a listing may have left out: it knew what they denote.
const SOON: usize = 64;

/// The cached data, at a moment at which the leases are valid.
///
/// It holds the cache's lock: it can't be held over an `.await`, and should be short-lived.
#[derive(Debug)]
pub struct Tier<'a> {
    cache: &'a Cache,
    state: AtomicRefMut<'a, State>,
    now: BootTime,
}

impl<'a> Tier<'a> {
    pub(super) fn new(
        cache: &'a Cache,
        state: AtomicRefMut<'a, State>,
        now: BootTime,
    ) -> Option<Self> {
        state
            .session
            .witness(now)
            .is_some()
            .then_some(Self { cache, state, now })
    }

    /// Attributes, for the daemon's own use.
    pub fn attr(&mut self, object: &Handle) -> Option<Attr> {
        self.read(Kind::Attr, |inodes, live| inodes.attr(live, object))
    }

    /// As [`Tier::attr`], without counting as a use.
    pub fn peek_attr(&self, object: &Handle) -> Option<Attr> {
        let live = self.state.session.witness(self.now)?;
        self.state.inodes.peek_attr(&live, object)
    }

    /// Attributes for the reply to a GETATTR, with their timeout. Only there: the timeout must not
    /// go into any other reply.
    pub fn attr_for_kernel(&mut self, object: &Handle) -> Option<(Attr, Duration)> {
        if self.state.inodes.is_unclean(object) {
            return None;
        }
        self.read(Kind::Attr, |inodes, live| {
            inodes.attr_for_kernel(live, object)
        })
    }

    /// How long the kernel may believe the attributes of a node that it is told now along with a name.
    pub fn attr_with_name(&mut self, node: Node) -> Duration {
        let told = self.attr_for_kernel(&node.handle);
        let valid = told.map_or(Duration::ZERO, |(_, valid)| valid);
        self.state.inodes.told_with_name(node.id, valid);
        valid
    }

    /// What a name denotes.
    pub fn name(&mut self, dir: &Handle, name: &[u8]) -> Option<Dentry> {
        self.read(Kind::Name, |inodes, live| inodes.name(live, dir, name))
    }

    /// How long the kernel may believe a name that it is told now in the reply to a LOOKUP, or along with a listing. Only there.
    pub fn name_timeout(&mut self, dir: &Handle, name: &[u8]) -> Duration {
        self.cache
            .name_timeout(&mut self.state, self.now, dir, name)
    }

    /// Attributes of a dirty file as those know them here who have written to it: not to be shown, since its times will
    /// be the server's.
    pub fn written_attr(&mut self, object: &Handle) -> Option<Attr> {
        self.state.session.witness(self.now)?;
        let exclusive = self.state.leases.may_buffer(object);
        self.state
            .inodes
            .dirty(object)
            .filter(|_| exclusive)?
            .attr()
    }

    /// A directory is about to be brought to the server's disk by an open of this identity, if it has one: that, and the number of
    /// it, see [`Inodes::begin_along`].
    pub fn begin_along(&mut self, dir: &Handle, caller: &Caller) -> Option<(u64, Arc<ServerOpen>)> {
        let State {
            session, inodes, ..
        } = &mut *self.state;
        let live = session.witness(self.now)?;
        let open = inodes.reuse_open(&live, dir, caller)?;
        Some((inodes.begin_along(&live, dir, open.id())?, open))
    }

    /// See [`Inodes::brought_along`].
    pub fn brought_along(&mut self, dir: &Handle, open: OpenId) -> Brought {
        let State {
            session, inodes, ..
        } = &mut *self.state;
        let live = session.witness(self.now);
        live.map_or(Brought::Nothing, |live| {
            inodes.brought_along(&live, dir, open)
        })
    }

    /// The object a name denotes, for the daemon's own use: no answer is given with it.
    pub fn denoted(&mut self, dir: &Handle, name: &[u8]) -> Option<Handle> {
        let State {
            session, inodes, ..
        } = &mut *self.state;
        match inodes.name(&session.witness(self.now)?, dir, name)? {
            Dentry::Object(object) => Some(object),
            Dentry::Absent => None,
        }
    }

    /// The node id by which the kernel knows an object.
    pub fn node_of(&self, object: &Handle) -> Option<NodeId> {
        self.state.inodes.node_of(object)
    }

    /// See [`Inodes::made_elsewhere`].
    pub fn made_elsewhere(&self, object: &Handle, dir: NodeId) -> Option<NodeId> {
        self.state.inodes.made_elsewhere(object, dir)
    }

    /// Counts a reference, see [`Inodes::refer`].
    pub fn refer(&mut self, object: Handle, attr: &Attr, at: Place<'_>) -> Node {
        self.state.inodes.refer(object, attr, at)
    }

    /// A whole directory.
    pub fn listing(&mut self, dir: &Handle) -> Option<Listing> {
        self.read(Kind::Listing, |inodes, live| inodes.listing(live, dir))
    }

    /// Where this name is in a directory's listing, if it is at `from` or soon behind. For the daemon's own use.
    pub fn place(&mut self, dir: &Handle, from: usize, name: &[u8]) -> Option<usize> {
        let State {
            session, inodes, ..
        } = &mut *self.state;
        let listing = inodes.listing(&session.witness(self.now)?, dir)?;
        let mut soon = (from..listing.len()).take(SOON);
        soon.find(|at| listing.get(*at).is_some_and(|entry| entry.name == name))
    }

    /// Where the server goes on behind this entry of a directory's listing, and an open to go on with. For the daemon's
    /// own use.
    pub fn cookie_of(
        &mut self,
        dir: &Handle,
        at: usize,
        caller: &Caller,
    ) -> Option<(u64, Arc<ServerOpen>)> {
        let State {
            session, inodes, ..
        } = &mut *self.state;
        let live = session.witness(self.now)?;
        let cookie = inodes.listing(&live, dir)?.get(at)?.cookie;
        Some((cookie, inodes.reuse_open(&live, dir, caller)?))
    }

    /// A symlink's target.
    pub fn target(&mut self, object: &Handle) -> Option<Bytes> {
        self.read(Kind::Target, |inodes, live| inodes.target(live, object))
    }

    /// An xattr's value; `Some(None)` if there is no such xattr.
    pub fn xattr(&mut self, object: &Handle, name: &[u8]) -> Option<Option<Bytes>> {
        let exclusive = self.state.leases.may_buffer(object);
        self.read(Kind::Xattr, |inodes, live| {
            let known = inodes.xattr(live, object, name);
            known.or_else(|| inodes.xattr_of_dirty(object, name).filter(|_| exclusive))
        })
    }

    /// The names of all xattrs that root or others are told, each with a NUL behind it.
    pub fn xattr_names(&mut self, object: &Handle, to_root: bool) -> Option<Bytes> {
        self.read(Kind::Xattr, |inodes, live| {
            inodes.xattr_names(live, object, to_root)
        })
    }

    /// A read-only open of the server's that this identity may use. `None` while the file is unclean.
    pub fn reuse_open(&mut self, object: &Handle, caller: &Caller) -> Option<Arc<ServerOpen>> {
        if self.state.inodes.is_unclean(object) {
            return None;
        }
        self.read(Kind::Open, |inodes, live| {
            inodes.reuse_open(live, object, caller)
        })
    }

    /// The open of whoever wrote a file last, while that is kept or dirty, and what it allows: an open for this identity as long as `may` says so
    /// of the file's attributes. `None` while the file is unclean.
    pub fn open_of_writer(
        &mut self,
        object: &Handle,
        caller: &Caller,
        access: Access,
        may: impl FnOnce(&Attr) -> bool,
    ) -> Option<(Arc<ServerOpen>, Access)> {
        if self.state.inodes.is_unclean(object) {
            return None;
        }
        let written = self.written_attr(object);
        written.or_else(|| self.peek_attr(object)).filter(may)?;
        self.read(Kind::Open, |inodes, _| {
            inodes.open_of_writer(object, caller, access)
        })
    }

    fn read<T>(
        &mut self,
        kind: Kind,
        read: impl FnOnce(&mut Inodes, &Live<'_>) -> Option<T>,
    ) -> Option<T> {
        let State {
            session, inodes, ..
        } = &mut *self.state;
        let found = read(inodes, &session.witness(self.now)?);
        if found.is_some() {
            self.cache.counters.count(kind);
        }
        found
    }
}
