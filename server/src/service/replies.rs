//! The answer of a change that had its turn: what it shows, and what of it may be cached.

use super::access::Targets;
use super::changes::Pending;
use super::ops::Done;
use super::told::is_gone;
use crate::runtime::{Finished, Turn};
use crate::session::Session;
use leasefs_lease::server::{Touch, Wanted};
use leasefs_protocol::answer::{Created, Object};
use leasefs_protocol::{
    Attr, FileKind, Grant, Handle, Parts, Refusal, Reply, RequestId, Response, SessionId, Touched,
};
use std::sync::Arc;

impl Pending<'_> {
    /// What its sender has exclusively from now on is on record before the sender hears of it.
    fn keeps(&self, done: &Done) -> Option<Handle> {
        let object = done.keeps?;
        let call = self.order.call;
        match call.server.records.write_lease(call.session.id, object) {
            Ok(()) => Some(object),
            Err(error) => {
                tracing::error!(%error, "a write lease can't be journalled");
                None
            }
        }
    }

    /// Ends the turn. Attributes of what was touched are read while it still lasts.
    pub(super) fn reply(
        &self,
        turn: Turn,
        touches: &[Touch],
        targets: &Targets,
        done: Result<Done, Refusal>,
    ) -> Reply {
        let mut wants = Vec::new();
        let (mut touched, mut gone) = (Vec::new(), Vec::new());
        let mut keeps = false;
        if let Ok(done) = &done {
            (touched, gone) = self.touched(touches, done.known);
            let read = |t: &Touched| Wanted::read(t.object, shown(touches, targets, t.object));
            wants.extend(touched.iter().map(read));
            if let Some((handle, _)) = done.known
                && touched.iter().all(|t| t.object != handle)
            {
                wants.push(Wanted::read(handle, done.shown));
            }
            if let Some(object) = self.keeps(done) {
                keeps = true;
                wants.retain(|want| want.object != object);
                wants.push(Wanted::write(object, Parts::ATTRS | Parts::DATA));
            }
        }
        let Finished {
            stamp,
            grants,
            undisturbed,
        } = turn.finish(wants);
        let server = &self.order.call.server;
        let at_once = gone.into_iter().filter(|o| !server.store.note_gone(*o));
        at_once.for_each(|object| server.leases.gone(object));
        if touches.iter().any(|touch| !touch.names.is_empty()) {
            let nameless = |t: &&Touched| t.attr.nlink == 0 && t.attr.kind == FileKind::File;
            touched
                .iter()
                .filter(nameless)
                .for_each(|t| self.tell_writers(t.object));
        }
        let mut reply = Reply {
            id: RequestId(0),
            renews: false,
            stamp,
            room: keeps.then(|| self.order.call.server.room()),
            grants,
            touched,
            result: done.map(|done| done.response),
        };
        if !undisturbed {
            self.look_again(touches, &mut reply);
        }
        reply
    }

    /// A file has lost its last name: others who have it open for the sake alone of what they wrote needn't any more.
    fn tell_writers(&self, object: Handle) {
        let call = self.order.call;
        let writes = |session: &Arc<Session>| {
            session.id != call.session.id && session.opens.write_to(&object)
        };
        let sessions = call.server.sessions.all().into_iter().filter(writes);
        let sessions: Vec<SessionId> = sessions.map(|session| session.id).collect();
        if !sessions.is_empty() {
            call.server.leases.unlinked(object, &sessions);
        }
    }

    /// What was made is looked at again under its lease: by its name others may have found and changed
    /// it before the turn ended, which doesn't cover it.
    fn look_again(&self, touches: &[Touch], reply: &mut Reply) {
        let server = &self.order.call.server;
        let Ok(
            Response::Object(Object { handle, attr })
            | Response::Created(Created { handle, attr, .. }),
        ) = &mut reply.result
        else {
            return;
        };
        let leased = |grant: &Grant| grant.object == *handle;
        let touched = touches.iter().any(|touch| touch.object == *handle);
        if touched || !reply.grants.iter().any(leased) {
            return;
        }
        let lost = match server.store.getattr(handle) {
            Ok(now) => {
                *attr = now;
                match now.kind == FileKind::Directory && !server.store.is_empty(handle) {
                    true => Parts::NAMES,
                    false => Parts::NONE,
                }
            }
            Err(_) => Parts::ALL,
        };
        let of_made = reply.grants.iter_mut().filter(|grant| leased(grant));
        let lost: Vec<Grant> = of_made.filter_map(|grant| split_off(grant, lost)).collect();
        reply.grants.retain(|grant| !grant.parts.is_empty());
        server.leases.take_back(self.order.call.session.id, &lost);
    }

    /// What is told of the objects that were touched, and which of them are gone.
    fn touched(
        &self,
        touches: &[Touch],
        known: Option<(Handle, Attr)>,
    ) -> (Vec<Touched>, Vec<Handle>) {
        let store = &self.order.call.server.store;
        // The export's root changes when it takes a file in that has lost its name.
        let confined = self.order.call.session.border().is_some();
        let shown = |object: &Handle| !(confined && store.is_root(object));
        let (mut touched, mut gone) = (Vec::new(), Vec::new());
        for object in touches.iter().map(|touch| touch.object).filter(shown) {
            let attr = match known {
                Some((handle, attr)) if handle == object => Ok(attr),
                _ => store.getattr(&object),
            };
            match attr {
                Ok(attr) => touched.push(Touched { object, attr }),
                Err(refusal) if is_gone(refusal) => gone.push(object),
                Err(_) => {}
            }
        }
        (touched, gone)
    }
}

/// Takes parts out of a grant.
fn split_off(grant: &mut Grant, parts: Parts) -> Option<Grant> {
    let parts = grant.parts & parts;
    grant.parts = grant.parts - parts;
    (!parts.is_empty()).then_some(Grant { parts, ..*grant })
}

/// What a reply shows of a touched object: attributes, and of a directory the names that changed.
fn shown(touches: &[Touch], targets: &Targets, object: Handle) -> Parts {
    let named = |t: &&Touch| t.object == object && !t.names.is_empty();
    match touches.iter().find(named) {
        Some(_) if targets.lists(&object) => Parts::ATTRS | Parts::NAMES,
        _ => Parts::ATTRS,
    }
}
