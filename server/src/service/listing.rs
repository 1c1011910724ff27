//! Listing a directory.

use super::Call;
use super::told::{Told, is_gone, read_of};
use leasefs_lease::server::{ReadItem, ReadKind};
use leasefs_protocol::answer::Entries;
use leasefs_protocol::query::ReadDir;
use leasefs_protocol::{DirEntry, Grant, Handle, Refusal};
use leasefs_store::OpenFile;
use std::collections::HashMap;

/// A page of a listing. `None` if the server ends.
pub async fn read_dir(
    call: &Call,
    asked: &ReadDir,
    open: &OpenFile,
) -> Option<Result<Told, Refusal>> {
    let (store, leases) = (&call.server.store, &call.server.leases);
    let mark = leases.mark();
    let mut page = match store.readdir(open, asked.cookie, asked.nodes) {
        Ok(page) => page,
        Err(refusal) => return Some(Err(refusal)),
    };
    let found = page.entries.iter().filter_map(|entry| entry.node);
    let items: Vec<ReadItem> = found.map(|(handle, _)| read_of(handle)).collect();
    let mut grants = Vec::new();
    if !items.is_empty() {
        let entry = leases.read(call.session.id, "readdir", ReadKind::Metadata, items);
        grants = entry.decided().await?.grants;
        if !mark.holds_at(leases.mark()) {
            let lost = read_again(call, &mut page.entries).await;
            let is_gone = |g: &&Grant| lost.get(&g.object) == Some(&true);
            let gone: Vec<Grant> = grants.iter().filter(is_gone).copied().collect();
            leases.take_back(call.session.id, &gone);
            grants.retain(|g| !lost.contains_key(&g.object));
        }
    }
    let answer = Entries {
        entries: page.entries,
        end: page.end,
    };
    Some(Ok(Told {
        grants,
        ..Told::of(asked, answer)
    }))
}

/// Reads the entries' attributes again, now that they are covered. Those that can't be had lose
/// their node and are told, each with whether it is gone.
async fn read_again(call: &Call, entries: &mut [DirEntry]) -> HashMap<Handle, bool> {
    let mut lost = HashMap::new();
    for entry in entries {
        let Some((handle, attr)) = &mut entry.node else {
            continue;
        };
        match call.attr(handle).await {
            Ok(now) => *attr = now,
            Err(refusal) => {
                lost.insert(*handle, is_gone(refusal));
                entry.node = None;
            }
        }
    }
    lost
}
