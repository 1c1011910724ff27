//! Attributes as the kernel is shown them.

use super::{Ask, Ops};
use crate::call::{Fh, Node, NodeId, Shown, ShownFor};
use crate::inode::Heard;
use crate::recall::{ChangeScope, PageChange};
use crate::run::within;
use bytes::Bytes;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{
    Attr, FileKind, Handle, LockOwner, Parts, Refusal, SET_IDS, SetAttr, change, query,
};
use std::sync::Arc;
use std::time::Duration;

/// How often attributes are asked for that no lease covers while pages come, or the file is cut off.
pub(super) const MOST_OUTDATED: usize = 3;

/// How long the answer to a truncation waits for pages that may wait for it: before it the kernel writes none of the file back
/// (`fuse_set_nowrite`).
const HOLDS_PAGES: Duration = Duration::from_millis(10);

/// Whom a mount shows as the owner of everything, where the server makes all callers one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Owner {
    fn own(self, attr: Attr) -> Attr {
        Attr {
            uid: self.uid,
            gid: self.gid,
            mode: attr.kind.without_set_ids(attr.mode),
            ..attr
        }
    }

    /// The owner can't be changed where there is only one; to "change" it to what is shown
    /// changes nothing. Set-id bits are ignored, as POSIX allows: programs that copy modes go on.
    fn check(self, kind: FileKind, set: SetAttr) -> Result<SetAttr, Refusal> {
        let other = |id: Option<u32>, own| id.is_some_and(|id| id != own);
        if other(set.uid, self.uid) || other(set.gid, self.gid) {
            return Err(Refusal::NotPermitted);
        }
        Ok(SetAttr {
            uid: None,
            gid: None,
            mode: set.mode.map(|mode| kind.without_set_ids(mode)),
            ..set
        })
    }
}

impl Ops {
    /// Attributes as the kernel is shown them.
    pub(super) fn shown(&self, attr: Attr) -> Shown {
        Shown {
            ino: attr.ino,
            attr: self.owner.map_or(attr, |owner| owner.own(attr)),
        }
    }

    /// `st_mode` of something new that isn't a directory, as the server is asked for it.
    pub(super) fn mode_of_new(&self, mode: u32) -> u32 {
        match self.owner {
            Some(_) => mode & !u32::from(SET_IDS),
            None => mode,
        }
    }
}

impl Ops {
    /// Attributes of a node, if they are cached and need nothing else.
    pub fn getattr_cached(&self, node: NodeId) -> Option<ShownFor> {
        let object = self.inodes().node(node)?.handle;
        let (attr, valid) = self.cache().live()?.attr_for_kernel(&object)?;
        let heard = self.inodes().heard(node);
        if self.must_grow(node, &object, &attr) && !self.will_be_cut((node, &object), &attr, heard)
        {
            return None;
        }
        self.told_asked((node, &object), &attr, heard);
        Some(ShownFor {
            shown: self.shown(attr),
            valid,
        })
    }

    /// Attributes of a node, from the server unless they are cached.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn getattr(self: &Arc<Self>, ask: &Ask, node: NodeId) -> Result<ShownFor, Refusal> {
        let object = self.node(node)?.handle;
        let heard = self.inodes().heard(node);
        if !planted::is(Bug::StatUnflushed) {
            self.settle(ask, &object).await?;
        }
        let cached = || self.cache().live()?.attr_for_kernel(&object);
        let mut told = cached();
        if told.is_none() {
            self.look_along(ask, node, object);
        }
        if told.is_none() && self.open_along(ask, &object).await? {
            // The server's host may have crashed meanwhile.
            self.settle(ask, &object).await?;
            told = cached();
        }
        let (attr, valid) = match told {
            Some((attr, valid)) => {
                let known = (self.inodes().heard(node), heard);
                let valid = self.grow_first((node, &object), (&attr, valid), known);
                (attr, valid.await)
            }
            None => match self
                .getattr_from_server(ask, (node, &object), heard, None)
                .await
            {
                // Removed since the kernel looked it up.
                Err(refusal) if refusal.errno() == libc::ESTALE => self.of_gone(node)?,
                told => told?,
            },
        };
        self.told_asked((node, &object), &attr, heard);
        Ok(ShownFor {
            shown: self.shown(attr),
            valid,
        })
    }

    fn of_gone(&self, node: NodeId) -> Result<(Attr, Duration), Refusal> {
        let gone = self.inodes().of_gone(node).ok_or(Refusal::Stale)?;
        Ok((gone, Duration::ZERO))
    }

    /// `heard`: as the kernel had asked; `most`: so long pages are waited for.
    async fn getattr_from_server(
        &self,
        ask: &Ask,
        (node, object): (NodeId, &Handle),
        heard: Heard,
        most: Option<Duration>,
    ) -> Result<(Attr, Duration), Refusal> {
        let mut asked = 0;
        loop {
            let filled = *self.filled.borrow();
            let known = (self.inodes().heard(node), heard);
            let told = self.call(ask, query::GetAttr { object: *object }).await?;
            let attr = told.answer;
            let clean = ask.unless_left(self.engine.clean(object));
            let most = most.map(|most| self.cx.sleep(most));
            within(clean, most).await.unwrap_or(Ok(()))?;
            let valid = told.learn(self.cache()).attr_for_kernel(object, &attr);
            let valid = self.grow_first((node, object), (&attr, valid), known).await;
            asked += 1;
            // If no lease covers them, pages that have come since may be newer, and the kernel cuts
            // off what lies behind the size it is told. If it has cut it off meanwhile, it goes on with that size.
            let cut = self.inodes().was_cut(node, known.0);
            let current = !cut && (!valid.is_zero() || *self.filled.borrow() == filled);
            if current || asked == MOST_OUTDATED {
                return Ok((attr, valid));
            }
        }
    }

    /// The kernel is answered with these attributes.
    fn told_asked(&self, at: (NodeId, &Handle), attr: &Attr, heard: Heard) {
        let mut inodes = self.inodes();
        inodes.told(at.0, attr);
        if inodes.takes_answer(at, heard) {
            inodes.takes_size(at.0, attr.size);
        }
    }

    /// Sets attributes. An open authorises a change of size.
    ///
    /// # Errors
    /// The server's refusal; `NotPermitted` for another owner where there is only one.
    pub async fn setattr(
        &self,
        ask: &Ask,
        node: NodeId,
        (fh, owner): (Option<Fh>, Option<LockOwner>),
        set: SetAttr,
    ) -> Result<ShownFor, Refusal> {
        let Node {
            handle: object,
            kind,
            ..
        } = self.node(node)?;
        self.inodes().listings_are_taken_up(node);
        let locked = match set.size {
            Some(_) => self.keeps_locks(&object, fh, owner)?,
            None => None,
        };
        self.settle(ask, &object).await?;
        let set = self.owner.map_or(Ok(set), |owner| owner.check(kind, set))?;
        let open = fh
            .and_then(|fh| self.opens.file(fh))
            .filter(|open| open.access.writes())
            .map(|open| open.server.id());
        let scope = match set.size {
            Some(_) => {
                let stores = self.inodes().may_store(&object);
                let scope = ChangeScope::default();
                scope
                    .pages(object, PageChange::Truncate { stores })
                    .under(locked)
            }
            None => ChangeScope::default().object(object, self.parts_of_rights(set)),
        };
        let request = change::SetAttr { object, open, set };
        let told = self.change(ask, scope, request, Bytes::new()).await?;
        let most = set.size.map(|_| HOLDS_PAGES);
        let attr = self.newest(ask, &object, told.answer, most).await;
        if set.size.is_some() {
            self.is_cut(node).await;
        }
        self.inodes().told_set(node, &attr, self.cx.monotonic());
        Ok(ShownFor {
            shown: self.shown(attr),
            valid: Duration::ZERO,
        })
    }

    /// What is to be dropped of an object before its mode or owner are set. Where the kernel doesn't check who may search a directory
    /// it would go on finding names there; where it does it has asked for the mode.
    fn parts_of_rights(&self, set: SetAttr) -> Parts {
        match self.owner.is_some() && !set.rights().is_empty() {
            true => Parts::ATTRS | Parts::NAMES,
            false => Parts::ATTRS,
        }
    }

    /// What the kernel is told in the answer to a change: it takes the size from there even if it was
    /// told a newer one since the change was asked for (`fuse_do_setattr`; `fuse_iget` without a version,
    /// after a link), and reads of an open file go on with that. `most`: so long pages are waited for.
    pub(super) async fn newest(
        &self,
        ask: &Ask,
        object: &Handle,
        changed: Attr,
        most: Option<Duration>,
    ) -> Attr {
        let old = planted::is(Bug::OldAnswer);
        if changed.kind != FileKind::File || !self.inodes().is_open(object) || old {
            return changed;
        }
        let cached = self.cache().live().and_then(|mut tier| tier.attr(object));
        let node = self.inodes().node_of(object);
        match (cached, node) {
            (Some(attr), _) => attr,
            // The change has been made, whatever is refused from here on.
            (None, Some(node)) => {
                let heard = self.inodes().heard(node);
                let asked = self.getattr_from_server(ask, (node, object), heard, most);
                let asked = asked.await;
                asked.map_or(changed, |(attr, _)| attr)
            }
            (None, None) => changed,
        }
    }

    /// A symlink's target, if it is cached.
    pub fn readlink_cached(&self, node: NodeId) -> Option<Bytes> {
        let object = self.inodes().node(node)?.handle;
        self.cache().live()?.target(&object)
    }

    /// A symlink's target, from the server.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn readlink(&self, ask: &Ask, node: NodeId) -> Result<Bytes, Refusal> {
        let object = self.node(node)?.handle;
        let told = self.call(ask, query::ReadLink { object }).await?;
        told.learn(self.cache())
            .target(&object, told.payload.clone());
        Ok(told.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner {
        uid: 1000,
        gid: 100,
    };

    #[test]
    fn giving_a_file_to_its_only_owner_is_no_change() {
        let set = SetAttr {
            uid: Some(1000),
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let kept = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        assert_eq!(OWNER.check(FileKind::File, set), Ok(kept));
    }

    #[test]
    fn giving_a_file_away_is_refused_where_there_is_one_owner() {
        let set = SetAttr {
            gid: Some(5),
            ..SetAttr::default()
        };
        let refused = OWNER.check(FileKind::File, set);
        assert_eq!(refused, Err(Refusal::NotPermitted));
    }

    #[test]
    fn no_program_takes_on_the_rights_of_the_only_owner() {
        let set = |mode| SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        for kind in [FileKind::File, FileKind::CharDevice] {
            assert_eq!(OWNER.check(kind, set(0o6755)), Ok(set(0o755)));
            assert_eq!(kind.without_set_ids(0o7755), 0o1755);
        }
        // Else `chmod 755` would take away what is made in it inherits.
        assert_eq!(FileKind::Directory.without_set_ids(0o2775), 0o2775);
    }
}
