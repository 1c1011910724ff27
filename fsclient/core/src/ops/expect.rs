//! What a response must be to answer its request; a server that answers otherwise has failed.

use super::Told;
use crate::opens::ServerOpen;
use leasefs_protocol::{Attr, Handle, Refusal, Response};
use std::sync::Arc;

pub(super) fn unexpected(what: &'static str, found: &Response) -> Refusal {
    tracing::error!(expected = what, ?found, "the server broke the protocol");
    Refusal::Internal
}

pub(super) fn done(response: &Response) -> Result<(), Refusal> {
    match response {
        Response::Done | Response::Attr(_) => Ok(()),
        other => Err(unexpected("done", other)),
    }
}

pub(super) fn attr_of(response: &Response) -> Result<Attr, Refusal> {
    match response {
        Response::Attr(attr) => Ok(*attr),
        other => Err(unexpected("attributes", other)),
    }
}

pub(super) fn object_of(response: &Response) -> Result<(Handle, Attr), Refusal> {
    match response {
        Response::Object { handle, attr } => Ok((*handle, *attr)),
        other => Err(unexpected("an object", other)),
    }
}

/// An open that was asked for.
pub(super) struct ServerOpened {
    pub open: Arc<ServerOpen>,
    pub attr: Attr,
}

pub(super) fn opened(told: &Told) -> Result<ServerOpened, Refusal> {
    match (&told.response, &told.open) {
        (Response::Opened { attr, .. }, Some(open)) => Ok(ServerOpened {
            open: Arc::clone(open),
            attr: *attr,
        }),
        (other, _) => Err(unexpected("an open", other)),
    }
}

/// An object that was made, and its open.
pub(super) struct ServerCreated {
    pub object: Handle,
    pub attr: Attr,
    pub open: Arc<ServerOpen>,
}

pub(super) fn created(told: &Told) -> Result<ServerCreated, Refusal> {
    match (&told.response, &told.open) {
        (Response::Created { handle, attr, .. }, Some(open)) => Ok(ServerCreated {
            object: *handle,
            attr: *attr,
            open: Arc::clone(open),
        }),
        (other, _) => Err(unexpected("a created object", other)),
    }
}

pub(super) fn written(response: &Response) -> Result<u64, Refusal> {
    match response {
        Response::Written { len, .. } => Ok(*len),
        other => Err(unexpected("a count of bytes", other)),
    }
}
