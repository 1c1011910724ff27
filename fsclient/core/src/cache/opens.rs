//! Read-only opens at the server, shared by local opens of the same identity and kept when the
//! last of them closes, as long as the lease on the attributes stands that decided them.

use leasefs_protocol::{Caller, OpenId};

/// An open at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shared {
    open: OpenId,
    caller: Caller,
    users: u32,
    /// Whether the server's verdict still holds: nothing that decides it has changed.
    valid: bool,
}

/// The shared opens of one file. There are few: one for each identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Opens(Vec<Shared>);

impl Opens {
    /// An open that the identity may use without asking; counts it as a user.
    pub fn reuse(&mut self, caller: &Caller) -> Option<OpenId> {
        let mut all = self.0.iter_mut();
        let shared = all.find(|shared| shared.valid && shared.caller == *caller)?;
        shared.users += 1;
        Some(shared.open)
    }

    /// Takes in an open that has its first user.
    pub fn add(&mut self, open: OpenId, caller: Caller) {
        self.0.push(Shared {
            open,
            caller,
            users: 1,
            valid: true,
        });
    }

    /// A user has closed. True if the open is of no more use: the server must be told.
    pub fn close(&mut self, open: OpenId, keep: bool) -> bool {
        let Some(at) = self.0.iter().position(|shared| shared.open == open) else {
            return true;
        };
        let Some(shared) = self.0.get_mut(at) else {
            return true;
        };
        shared.users = shared.users.saturating_sub(1);
        let useless = shared.users == 0 && !(shared.valid && keep);
        if useless {
            self.0.swap_remove(at);
        }
        useless
    }

    /// The verdicts no longer hold. Returns the opens that have no user and are given up.
    pub fn invalidate(&mut self) -> Vec<OpenId> {
        let given_up = self.give_up_unused();
        self.0.iter_mut().for_each(|shared| shared.valid = false);
        given_up
    }

    /// Returns the opens that have no user and are given up.
    pub fn give_up_unused(&mut self) -> Vec<OpenId> {
        let unused = self.0.iter().filter(|shared| shared.users == 0);
        let given_up = unused.map(|shared| shared.open).collect();
        self.0.retain(|shared| shared.users > 0);
        given_up
    }

    /// The server doesn't know these any more.
    pub fn lost(&mut self, opens: &[OpenId]) {
        self.0.retain(|shared| !opens.contains(&shared.open));
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

    fn caller(uid: u32) -> Caller {
        Caller {
            uid,
            ..Caller::default()
        }
    }

    #[test]
    fn an_open_is_reused_by_its_identity_alone_while_its_verdict_holds() {
        let mut opens = Opens::default();
        opens.add(OpenId(1), caller(5));
        assert_eq!(opens.reuse(&caller(6)), None);
        assert_eq!(opens.reuse(&caller(5)), Some(OpenId(1)));
        assert!(opens.invalidate().is_empty());
        assert_eq!(opens.reuse(&caller(5)), None);
    }

    #[test]
    fn an_open_without_users_is_kept_until_its_verdict_ends() {
        let mut opens = Opens::default();
        opens.add(OpenId(1), caller(5));
        assert!(!opens.close(OpenId(1), true));
        assert_eq!(opens.reuse(&caller(5)), Some(OpenId(1)));
        assert!(!opens.close(OpenId(1), true));
        assert_eq!(opens.invalidate(), vec![OpenId(1)]);
        assert!(opens.is_empty());
    }

    #[test]
    fn an_open_whose_verdict_ended_in_use_is_closed_by_its_last_user() {
        let mut opens = Opens::default();
        opens.add(OpenId(1), caller(5));
        opens.reuse(&caller(5));
        opens.invalidate();
        assert!(!opens.close(OpenId(1), true));
        assert!(opens.close(OpenId(1), true));
    }
}
