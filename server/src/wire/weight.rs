//! What requests and answers are counted for while they are under way.

use leasefs_protocol::limits::{LISTING_PAGE, REQUEST_COST};
use leasefs_protocol::request::Make;
use leasefs_protocol::{Caller, OpenId, Request};

/// What a request takes, its data apart.
pub fn of_request(caller: &Caller, request: &Request) -> usize {
    REQUEST_COST + size_of_val(caller.groups.as_slice()) + names(request)
}

/// Names are looked at later; until then they are kept as they came.
fn names(request: &Request) -> usize {
    match request {
        Request::Lookup { name, .. }
        | Request::Unlink { name, .. }
        | Request::Rmdir { name, .. }
        | Request::Create { name, .. }
        | Request::Link { name, .. }
        | Request::GetXattr { name, .. }
        | Request::SetXattr { name, .. }
        | Request::RemoveXattr { name, .. } => name.0.len(),
        Request::Make { name, make, .. } => match make {
            Make::Symlink { target } => name.0.len() + target.0.len(),
            _ => name.0.len(),
        },
        Request::Rename { name, new_name, .. } => name.0.len() + new_name.0.len(),
        Request::Close { opens } => opens.len() * size_of::<OpenId>(),
        _ => 0,
    }
}

/// What an answer may take.
pub fn of_answer(request: &Request) -> usize {
    match request {
        Request::Read { len, .. } => *len as usize,
        // Each entry comes with its node's attributes and a lease.
        Request::ReadDir { .. } => 4 * LISTING_PAGE,
        Request::GetXattr { .. } | Request::ListXattr { .. } => LISTING_PAGE,
        _ => 0,
    }
}
