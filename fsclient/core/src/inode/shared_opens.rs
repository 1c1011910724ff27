//! Read-only opens at the server, shared by local opens of the same identity and kept when the
//! last of them closes, as long as the lease on the attributes stands that decided them.

use crate::opens::ServerOpen;
use leasefs_protocol::{Attr, Caller, OpenId};
use std::sync::Arc;

/// An open that an identity may use without asking: nothing that decides the server's verdict has changed.
#[derive(Debug)]
struct SharedOpen {
    open: Arc<ServerOpen>,
    caller: Caller,
    suspended: Option<Rights>,
}

/// All that decides who may open something that has no access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    mode: u16,
    uid: u32,
    gid: u32,
}

impl Rights {
    /// `None` if it may have an access control list.
    fn of(attr: &Attr) -> Option<Self> {
        attr.has_no_xattrs().then_some(Self {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
        })
    }
}

impl SharedOpen {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.open) > 1
    }
}

/// The shared opens of one file. There are few: one for each identity.
#[derive(Debug, Default)]
pub(super) struct SharedOpens(Vec<SharedOpen>);

impl SharedOpens {
    /// An open that the identity may use without asking.
    pub fn reuse(&self, caller: &Caller) -> Option<Arc<ServerOpen>> {
        let shared = self.0.iter().find(|shared| shared.caller == *caller)?;
        let may = shared.suspended.is_none();
        may.then(|| Arc::clone(&shared.open))
    }

    /// Takes in an open, in place of the one that its identity had: it was asked for while that was suspended.
    pub fn add(&mut self, open: Arc<ServerOpen>, caller: Caller) {
        self.0.retain(|shared| shared.caller != caller);
        self.0.push(SharedOpen {
            open,
            caller,
            suspended: None,
        });
    }

    /// The attributes go because of a change that leaves the rights alone: whether others have changed those shows when
    /// there are attributes again. Returns what won't be used again.
    pub fn suspend(&mut self, attr: Option<&Attr>) -> impl Iterator<Item = Arc<ServerOpen>> {
        let rights = attr.and_then(Rights::of);
        let ended = self.0.extract_if(.., move |open| {
            open.suspended = open.suspended.or(rights);
            open.suspended.is_none()
        });
        ended.map(|shared| shared.open)
    }

    /// There are attributes: what was suspended is used again if the rights are what they were then, and given up else.
    pub fn resume(&mut self, attr: &Attr) {
        let rights = Rights::of(attr);
        self.0
            .retain(|open| open.suspended.is_none() || open.suspended == rights);
        for open in &mut self.0 {
            open.suspended = None;
        }
    }

    /// Gives up an open if whoever has shown it is its last user.
    pub fn give_up_with(&mut self, last: &Arc<ServerOpen>) {
        let mut all = self.0.iter();
        let at = all.position(|shared| Arc::ptr_eq(&shared.open, last));
        // One is here, one is shown.
        if let Some(at) = at.filter(|_| Arc::strong_count(last) == 2) {
            self.0.swap_remove(at);
        }
    }

    /// The verdicts no longer hold: nobody else is to use the opens.
    pub fn invalidate(&mut self) -> impl Iterator<Item = Arc<ServerOpen>> {
        self.0.drain(..).map(|shared| shared.open)
    }

    /// Gives up the opens that have no user.
    pub fn give_up_unused(&mut self) {
        self.0.retain(SharedOpen::is_used);
    }

    /// The server doesn't know these any more.
    pub fn lost(&mut self, opens: &[OpenId]) {
        self.0.retain(|shared| !shared.open.is_any_of(opens));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fixtures::attr;
    use crate::opens::Opens;
    use crate::opens::fixtures::opened;

    #[test]
    fn an_identity_has_one_open() {
        let (server, mut shared) = (Opens::default(), SharedOpens::default());
        shared.add(opened(&server, 1), caller(5));
        let used = shared.reuse(&caller(5)).expect("shared");
        shared.add(opened(&server, 2), caller(5));
        shared.add(opened(&server, 3), caller(6));
        assert_eq!(shared.len(), 2);
        assert!(server.is_open(OpenId(1)), "it is used");
        drop(used);
        assert!(!server.is_open(OpenId(1)) && server.is_open(OpenId(2)));
    }

    #[test]
    fn no_open_is_suspended_of_what_may_have_an_access_control_list() {
        let (server, mut shared) = (Opens::default(), SharedOpens::default());
        shared.add(opened(&server, 1), caller(5));
        let with_acl = Attr {
            xattrs: true,
            ..attr(0)
        };
        assert_eq!(shared.suspend(Some(&with_acl)).count(), 1);
        assert!(shared.is_empty() && !server.is_open(OpenId(1)));
    }

    fn caller(uid: u32) -> Caller {
        Caller {
            uid,
            ..Caller::default()
        }
    }

    #[test]
    fn an_open_is_reused_by_its_identity_alone_while_its_verdict_holds() {
        let (server, mut shared) = (Opens::default(), SharedOpens::default());
        shared.add(opened(&server, 1), caller(5));
        assert!(shared.reuse(&caller(6)).is_none());
        let used = shared.reuse(&caller(5)).expect("shared");
        assert_eq!(used.id(), OpenId(1));
        assert_eq!(shared.invalidate().count(), 1);
        assert!(shared.reuse(&caller(5)).is_none());
        assert!(server.is_open(OpenId(1)), "it is used");
    }

    #[test]
    fn an_open_without_users_is_kept_until_its_verdict_ends() {
        let (server, mut shared) = (Opens::default(), SharedOpens::default());
        shared.add(opened(&server, 1), caller(5));
        drop(shared.reuse(&caller(5)));
        assert!(server.is_open(OpenId(1)));
        shared.invalidate().for_each(drop);
        assert!(shared.is_empty() && !server.is_open(OpenId(1)));
    }

    #[test]
    fn an_open_whose_verdict_ended_in_use_is_closed_by_its_last_user() {
        let (server, mut shared) = (Opens::default(), SharedOpens::default());
        shared.add(opened(&server, 1), caller(5));
        let users = [shared.reuse(&caller(5)), shared.reuse(&caller(5))];
        shared.invalidate().for_each(drop);
        for user in users {
            assert!(server.is_open(OpenId(1)));
            drop(user);
        }
        assert!(!server.is_open(OpenId(1)));
    }

    #[test]
    fn a_suspended_open_is_used_again_if_the_rights_are_the_same() {
        let before = Attr {
            xattrs: false,
            ..attr(0)
        };
        for (now, used) in [
            (Attr { size: 9, ..before }, true),
            (
                Attr {
                    mode: 0o700,
                    ..before
                },
                false,
            ),
            (Attr { uid: 1, ..before }, false),
            (Attr { gid: 1, ..before }, false),
            (
                Attr {
                    xattrs: true,
                    ..before
                },
                false,
            ),
        ] {
            let (server, mut shared) = (Opens::default(), SharedOpens::default());
            shared.add(opened(&server, 1), caller(5));
            assert_eq!(shared.suspend(Some(&before)).count(), 0);
            assert!(
                shared.reuse(&caller(5)).is_none(),
                "others may have changed them"
            );
            assert_eq!(shared.suspend(None).count(), 0, "one more change");
            shared.resume(&now);
            assert_eq!(shared.reuse(&caller(5)).is_some(), used, "{now:?}");
            assert_eq!(server.is_open(OpenId(1)), used);
        }
    }

    #[test]
    fn what_is_not_worth_keeping_goes_with_its_last_user() {
        let (server, mut shared) = (Opens::default(), SharedOpens::default());
        let first = opened(&server, 1);
        shared.add(Arc::clone(&first), caller(5));
        let second = shared.reuse(&caller(5)).expect("shared");
        shared.give_up_with(&first);
        drop(first);
        assert_eq!(shared.len(), 1, "it has another user");
        shared.give_up_with(&second);
        drop(second);
        assert!(shared.is_empty() && !server.is_open(OpenId(1)));
    }
}
