//! Where a client stands in the export.

use crate::border::Border;
use crate::records::Client;
use crate::server::Server;
use leasefs_protocol::control::HelloRefusal;
use leasefs_protocol::{Caller, Name, RawName, Refusal};
use leasefs_store::Node;

/// Where the client is confined.
pub(super) fn border(server: &Server, client: &Client) -> Result<Option<Border>, HelloRefusal> {
    let border = |dir| Border::new(&server.store, dir, client.key);
    client.border.map(border).transpose().map_err(|refusal| {
        HelloRefusal::NoDirectory(format!(
            "this client is confined to a directory that is not to be had: {refusal}"
        ))
    })
}

/// The mounted directory, reached with the rights the client has; from its border, if it has one.
pub(super) fn root(
    server: &Server,
    client: &Client,
    subdir: &[RawName],
) -> Result<Node, HelloRefusal> {
    let no = |what: String| HelloRefusal::NoDirectory(what);
    let refused = |refusal: Refusal| no_directory(refusal, refusal.to_string());
    let mut node = match &client.border {
        Some(dir) => server.store.node_at(dir).map_err(refused)?,
        None => server.store.root().map_err(refused)?,
    };
    let caller = client.caller(Caller::default());
    let who = server.store.identity(client.identity, &caller);
    let who = who.map_err(refused)?;
    for raw in subdir {
        let shown = String::from_utf8_lossy(&raw.0).into_owned();
        let found = Name::try_from(raw).and_then(|n| server.store.lookup(&who, &node.handle, &n));
        node = match found {
            Ok(Some(node)) => node,
            Ok(None) => return Err(no(format!("{shown}: no such directory"))),
            Err(refusal) => return Err(no_directory(refusal, format!("{shown}: {refusal}"))),
        };
        if node.attr.kind != leasefs_protocol::FileKind::Directory {
            return Err(no(format!("{shown}: not a directory")));
        }
    }
    Ok(node)
}

/// A client takes a directory that can't be had for gone for good; of what may pass it tries again.
fn no_directory(refusal: Refusal, what: String) -> HelloRefusal {
    const PASSES: [i32; 6] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOMEM,
        libc::EIO,
        libc::EINTR,
        libc::EAGAIN,
    ];
    match PASSES.contains(&refusal.errno()) {
        true => HelloRefusal::Internal(what),
        false => HelloRefusal::NoDirectory(what),
    }
}
