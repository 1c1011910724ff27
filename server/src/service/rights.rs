//! One rule: what a request may learn or change is decided under the identity of its
//! caller, or by an open, before anything is done or leased.
//!
//! | decided | of |
//! | --- | --- |
//! | in `inputs` | the client's role; what an open allows |
//! | in `lookup` | names that are looked up |
//! | here | names of changes, as their caller finds them, and whether the caller may do what is asked |
//! | by the host | what is read of an object, with the caller's rights (xattrs, the right to open it) |
//! | by nothing | attributes: whoever was given an object's handle may ask for them, and for their lease |
//!
//! A change that isn't allowed waits for nobody, recalls nothing and leaves no intent. What is allowed
//! here the host's kernel decides once more when it is done.

use super::Call;
use super::access::{O_EXCL, Targets};
use super::inputs::Inputs;
use crate::records::Client;
use crate::server::Server;
use leasefs_lease::server::Reclaimed;
use leasefs_protocol::request::O_TRUNC;
use leasefs_protocol::{Caller, Handle, Mode, Name, Parts, Refusal, Request};
use leasefs_store::{Found, Identity, OpenFile, Store};
use std::sync::Arc;

/// `R_OK | X_OK`
const LISTS: u32 = 5;
const EEXIST: Refusal = Refusal::Host(libc::EEXIST as u16);

/// What a change's names denote to its caller just now, and which objects its opens are of.
///
/// # Errors
/// Why the caller may not do it.
pub fn judge(call: &Call, request: &Request, inputs: &Inputs) -> Result<Targets, Refusal> {
    let handle = |open: &Option<Arc<OpenFile>>| open.as_ref().map(|open| *open.handle());
    let mut targets = Targets {
        opened: handle(&inputs.open),
        copied: handle(&inputs.from),
        ..Targets::default()
    };
    // By opens alone.
    if let Request::Write { .. } | Request::Fallocate { .. } | Request::CopyRange { .. } = request {
        return Ok(targets);
    }
    let judge = Judge {
        store: &call.server.store,
        who: &call.identity()?,
    };
    judge.names(request, inputs, &mut targets)?;
    judge.objects(request, inputs, &targets)?;
    let victim = targets.victim(request);
    targets.shelter = victim.and_then(|victim| call.server.store.needs_shelter(&victim));
    Ok(targets)
}

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

struct Judge<'a> {
    store: &'a Store,
    who: &'a Identity,
}

impl Judge<'_> {
    fn names(
        &self,
        request: &Request,
        inputs: &Inputs,
        targets: &mut Targets,
    ) -> Result<(), Refusal> {
        let (store, who) = (self.store, self.who);
        let name = || inputs.names.name.as_ref().ok_or(Refusal::Invalid);
        let mut is_in = |dir: &Handle, found: &Found| {
            if !found.lists {
                targets.unlisted.push(*dir);
            }
            found.node.map(|node| node.handle)
        };
        match request {
            Request::Unlink { dir, .. } | Request::Rmdir { dir, .. } => {
                targets.named = is_in(dir, &store.may_unlink(who, dir, name()?)?);
            }
            Request::Create { dir, .. } => {
                targets.named = is_in(dir, &store.may_make(who, dir, name()?)?);
            }
            Request::Make { dir, .. } => {
                let found = is_in(dir, &store.may_make(who, dir, name()?)?);
                return found.map_or(Ok(()), |_| Err(EEXIST));
            }
            Request::Link { object, dir, .. } => {
                is_in(dir, &store.may_link(who, object, dir, name()?)?);
            }
            Request::Rename {
                dir,
                new_dir,
                flags,
                ..
            } => {
                let new_name: &Name = inputs.names.new_name.as_ref().ok_or(Refusal::Invalid)?;
                let (from, to) = ((dir, name()?), (new_dir, new_name));
                let (old, new) = store.may_rename(who, from, to, *flags)?;
                targets.named = is_in(dir, &old);
                targets.replaced = is_in(new_dir, &new);
            }
            _ => (),
        }
        Ok(())
    }

    fn objects(
        &self,
        request: &Request,
        inputs: &Inputs,
        targets: &Targets,
    ) -> Result<(), Refusal> {
        let (store, who) = (self.store, self.who);
        match request {
            Request::Open { object, flags } => store.may_truncate(who, object, *flags),
            Request::Create { flags, .. } => match &targets.named {
                Some(named) if flags & O_TRUNC != 0 && flags & O_EXCL == 0 => {
                    store.may_truncate(who, named, *flags)
                }
                _ => Ok(()),
            },
            Request::SetAttr { object, set, .. } => {
                store.may_set(who, object, inputs.open.as_deref(), set)
            }
            Request::SetXattr { object, name, .. } | Request::RemoveXattr { object, name } => {
                store.may_set_xattr(who, object, &name.0)
            }
            _ => Ok(()),
        }
    }
}
