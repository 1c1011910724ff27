//! What a response must be to answer its request; a server that answers otherwise has failed.

use leasefs_protocol::{Attr, Handle, OpenId, Refusal, Response};

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

pub(super) fn opened(response: &Response) -> Result<(OpenId, Attr), Refusal> {
    match response {
        Response::Opened { open, attr, .. } => Ok((*open, *attr)),
        other => Err(unexpected("an open", other)),
    }
}

pub(super) fn created(response: &Response) -> Result<(Handle, Attr, OpenId), Refusal> {
    match response {
        Response::Created {
            handle, attr, open, ..
        } => Ok((*handle, *attr, *open)),
        other => Err(unexpected("a created object", other)),
    }
}

pub(super) fn written(response: &Response) -> Result<u64, Refusal> {
    match response {
        Response::Written { len, .. } => Ok(*len),
        other => Err(unexpected("a count of bytes", other)),
    }
}
