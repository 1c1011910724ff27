//! What the host said to a request that changes nothing, and what of it may be leased.

use super::Call;
use super::access::{Accesses, Targets, of_query};
use super::inputs::Inputs;
use crate::runtime::{Admission, Entry};
use bytes::Bytes;
use leasefs_lease::server::{ReadItem, ReadKind};
use leasefs_protocol::{Grant, Handle, Operation, Parts, Query, Refusal, Response};

/// What the host said.
pub(super) struct Told {
    pub response: Response,
    pub payload: Bytes,
    pub grants: Vec<Grant>,
}

impl Told {
    /// The answer of this operation.
    pub fn of<O: Operation>(_: &O, answer: O::Answer) -> Self {
        Self {
            response: answer.into(),
            payload: Bytes::new(),
            grants: Vec::new(),
        }
    }

    /// The answer of an operation that is answered by data.
    pub fn data<O: Operation<Answer = ()>>(operation: &O, payload: Vec<u8>) -> Self {
        Self {
            payload: payload.into(),
            ..Self::of(operation, ())
        }
    }
}

/// Enters the lease core, if the query reads anything that is leased.
pub(super) fn enter(call: &Call, query: &Query, inputs: &Inputs, targets: &Targets) -> Entry {
    let Accesses {
        mut kind, reads, ..
    } = of_query(query, &inputs.names, targets);
    if kind == ReadKind::FillForStore && !may_store(call, targets) {
        kind = ReadKind::FillPages;
    }
    match reads.is_empty() {
        true => Entry::Now(Admission { grants: Vec::new() }),
        false => {
            let (leases, session) = (&call.server.leases, call.session.id);
            leases.read(session, query.kind(), kind, reads)
        }
    }
}

/// Whether the session has the object open for writing, by whichever descriptor it reads: only then
/// its pages can be stored into.
fn may_store(call: &Call, targets: &Targets) -> bool {
    let opens = &call.session.opens;
    !call.client.read_only && targets.opened.is_some_and(|object| opens.write_to(&object))
}

/// The read of an object's attributes.
pub(super) fn read_of(object: Handle) -> ReadItem {
    ReadItem {
        object,
        parts: Parts::ATTRS,
        name: None,
    }
}

/// Whether the object is gone.
pub(super) fn is_gone(refusal: Refusal) -> bool {
    refusal == Refusal::Stale || refusal == Refusal::Host(libc::ESTALE as u16)
}
