//! What requests and answers are counted for while they are under way.

use leasefs_protocol::change::{
    Create, Link, RemoveXattr, Rmdir, SetXattr, Unlink, What, Write, WriteAt,
};
use leasefs_protocol::limits::{LISTING_PAGE, OPEN_DATA, REQUEST_COST};
use leasefs_protocol::query::{GetXattr, Lookup};
use leasefs_protocol::{Caller, Change, Query};

/// What a query takes.
pub fn of_query(caller: &Caller, query: &Query) -> usize {
    // Names are looked at later; until then they are kept as they came.
    let kept = match query {
        Query::Lookup(Lookup { name, .. }) | Query::GetXattr(GetXattr { name, .. }) => name.0.len(),
        Query::Close(close) => size_of_val(close.opens.as_slice()),
        Query::Explain(explain) => explain
            .path
            .iter()
            .map(|name| name.0.len() + size_of_val(name))
            .sum(),
        _ => 0,
    };
    of_caller(caller) + kept
}

/// What a change takes, its data apart.
pub fn of_change(caller: &Caller, change: &Change) -> usize {
    let kept = match change {
        Change::Unlink(Unlink { name, .. })
        | Change::Rmdir(Rmdir { name, .. })
        | Change::Create(Create { name, .. })
        | Change::Link(Link { name, .. })
        | Change::SetXattr(SetXattr { name, .. })
        | Change::RemoveXattr(RemoveXattr { name, .. }) => name.0.len(),
        Change::Make(make) => match &make.make {
            What::Symlink { target } => make.name.0.len() + target.0.len(),
            _ => make.name.0.len(),
        },
        Change::Write(Write {
            at: WriteAt::Places(places),
            ..
        }) => size_of_val(places.as_slice()),
        Change::Rename(rename) => rename.name.0.len() + rename.new_name.0.len(),
        _ => 0,
    };
    of_caller(caller) + kept
}

fn of_caller(caller: &Caller) -> usize {
    REQUEST_COST + size_of_val(caller.groups.as_slice())
}

/// What an answer may take.
pub fn of_answer(query: &Query) -> usize {
    match query {
        Query::Read(read) => read.len as usize,
        Query::Open(open) if open.with_data => OPEN_DATA,
        // Each entry comes with its node's attributes and a lease.
        Query::ReadDir(_) => 4 * LISTING_PAGE,
        Query::GetXattr(_) | Query::ListXattr(_) => LISTING_PAGE,
        Query::Explain(_) => 2 * LISTING_PAGE,
        _ => 0,
    }
}
