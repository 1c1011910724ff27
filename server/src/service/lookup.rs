//! Looking a name up.

use super::Call;
use super::access::Targets;
use super::inputs::Inputs;
use super::told::{Told, enter, is_gone, read_of};
use crate::runtime::Admission;
use leasefs_lease::server::ReadKind;
use leasefs_protocol::answer::Object;
use leasefs_protocol::query::Lookup;
use leasefs_protocol::{Grant, Handle, Name, Query, Refusal};
use leasefs_store::{Found, Node};

/// Looked at first, since who may not look gets no lease and waits for nobody; looked at again under
/// the lease unless nothing has changed in between.
///
/// `None` if the server ends.
pub async fn lookup(call: &Call, asked: &Lookup, inputs: &Inputs) -> Option<Result<Told, Refusal>> {
    let (dir, Some(name)) = (&asked.dir, &inputs.names.name) else {
        return Some(Err(Refusal::Invalid));
    };
    let leases = &call.server.leases;
    let mark = leases.mark();
    let first = match look(call, dir, name) {
        Ok(found) => found,
        Err(refusal) => return Some(Err(refusal)),
    };
    let targets = Targets::looked_up(dir, &first);
    let query = Query::Lookup(asked.clone());
    let Admission { mut grants } = enter(call, &query, inputs, &targets).decided().await?;
    if mark.holds_at(leases.mark()) {
        return Some(Ok(told(asked, first.node, grants)));
    }
    let now = match call.within_border([dir]) {
        Ok(()) => look_again(call, dir, name, &first).await,
        // It has been moved out meanwhile.
        Err(refusal) => Err(refusal),
    };
    let stands = |grant: &Grant| match &now {
        Ok(now) if grant.object == *dir => now.lists,
        Ok(now) => handle(now) == Some(grant.object),
        Err(_) => false,
    };
    let lost: Vec<Grant> = grants.extract_if(.., |grant| !stands(grant)).collect();
    leases.take_back(call.session.id, &lost);
    Some(match now {
        Ok(Found {
            node: Some(node), ..
        }) if handle(&first) != Some(node.handle) => Ok(other(call, asked, node, grants).await?),
        Ok(now) => Ok(told(asked, now.node, grants)),
        Err(refusal) => Err(refusal),
    })
}

fn handle(found: &Found) -> Option<Handle> {
    found.node.map(|node| node.handle)
}

fn look(call: &Call, dir: &Handle, name: &Name) -> Result<Found, Refusal> {
    call.server.store.find(&call.identity()?, dir, name)
}

/// Attributes are those between two changes.
async fn look_again(
    call: &Call,
    dir: &Handle,
    name: &Name,
    first: &Found,
) -> Result<Found, Refusal> {
    let _latch = match handle(first) {
        Some(object) => Some(call.server.latches.read(&object).await),
        None => None,
    };
    look(call, dir, name)
}

/// The name, whose lease stands, denotes another object by now.
async fn other(call: &Call, asked: &Lookup, node: Node, mut grants: Vec<Grant>) -> Option<Told> {
    let leases = &call.server.leases;
    let items = vec![read_of(node.handle)];
    let entry = leases.read(call.session.id, "lookup", ReadKind::Metadata, items);
    let Admission { grants: of_object } = entry.decided().await?;
    // If it has gone meanwhile it was there when it was looked up: its attributes of that moment
    // are an answer, but nothing to keep.
    let attr = match call.attr(&node.handle).await {
        Ok(attr) => {
            grants.extend(of_object);
            attr
        }
        Err(refusal) => {
            if is_gone(refusal) {
                leases.take_back(call.session.id, &of_object);
            }
            node.attr
        }
    };
    Some(told(asked, Some(Node { attr, ..node }), grants))
}

fn told(asked: &Lookup, node: Option<Node>, grants: Vec<Grant>) -> Told {
    let found = node.map(|Node { handle, attr }| Object { handle, attr });
    Told {
        grants,
        ..Told::of(asked, found)
    }
}
