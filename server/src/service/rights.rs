//! One rule: what a request may learn or change is decided under the identity of its
//! caller, or by an open, before anything is done or leased.
//!
//! | decided | of |
//! | --- | --- |
//! | by each operation's `inputs` | what an open allows (and before that, the client's role) |
//! | in `lookup` | names that are looked up |
//! | by each change's `judge` | its names, as their caller finds them, and whether the caller may do what is asked |
//! | by the host | what is read of an object, with the caller's rights (xattrs, the right to open it) |
//! | by nothing | attributes: whoever was given an object's handle may ask for them, and for their lease |
//!
//! A change that isn't allowed waits for nobody, recalls nothing and leaves no intent. What is allowed
//! the host's kernel decides once more when it is done.

use crate::records::Client;
use crate::server::Server;
use leasefs_lease::server::Reclaimed;
use leasefs_protocol::{Caller, Mode, Parts};

/// `R_OK | X_OK`
const LISTS: u32 = 5;

/// Whether the client may take up a lease again: one on names or a listing only if a caller it can speak
/// for may list the directory, since recalls tell what others change there.
pub fn may_reclaim(server: &Server, client: &Client, lease: &Reclaimed) -> bool {
    let (store, object) = (&server.store, &lease.object);
    if store.check(object).is_err() || (client.read_only && lease.mode == Mode::Write) {
        return false;
    }
    if (lease.parts & (Parts::NAMES | Parts::LISTING)).is_empty() {
        return true;
    }
    let Ok(attr) = store.getattr(object) else {
        return false;
    };
    let owner = Caller {
        uid: attr.uid,
        gid: attr.gid,
        groups: Vec::new(),
    };
    [owner, Caller::default()].into_iter().any(|caller| {
        let who = store.identity(client.identity, &client.caller(caller));
        who.is_ok_and(|who| store.access(&who, object, LISTS).is_ok())
    })
}
