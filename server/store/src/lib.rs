//! The storage host's file system as leasefs serves it: handles, identities, operations.
//!
//! Everything here blocks and belongs on blocking threads ([`Store::try_read_cached`] and
//! [`Store::check`] excepted). The crate knows nothing of leases, sessions or the network: a
//! [`Store`] is one export, its methods are what requests mean to the host's kernel, run with the
//! rights of an [`Identity`]. Refusals keep the host's errno.
//!
//! Objects are named by MACed [`leasefs_protocol::Handle`]s, which are made only for objects reached
//! from the export's root, one component at a time, without following symlinks or entering mounts.
//! Changes made on the host beside the server are outside the contract: a handle goes on naming an
//! object that was moved out of the export there.

mod attrs;
mod border;
mod data;
mod dirs;
mod error;
mod export;
mod handle;
mod identity;
mod in_use;
mod listing;
mod names;
mod opening;
mod opens;
mod orphans;
mod recovery;
mod resolve;
mod shelter;
mod stat;
mod sys;
#[cfg(test)]
mod tests;
mod tokens;
mod verdicts;
mod xattrs;

pub use border::Border;
pub use data::Written;
pub use error::OpenError;
pub use export::{Node, Options, Store};
pub use handle::MacKey;
pub use identity::Identity;
pub use listing::Listing;
pub use names::Kind;
pub use opening::Created;
pub use opens::OpenFile;
pub use tokens::Holder;
pub use verdicts::Found;
