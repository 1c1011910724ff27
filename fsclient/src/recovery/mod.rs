//! The recovery folder: buffered data that can't be brought in any more is kept here, on the
//! local disk, until its user has decided about it (rule 5 of the contract).
//!
//! One folder per item, named by its id: `item.json` says what it is ([`Item`]), `data` holds the
//! bytes of its ranges one after another. An item appears under its id when it is complete and on
//! the disk; before, and while it is discarded, its name begins with a dot.
//!
//! Several daemons may share a folder: who changes it holds the lock on `.lock`. Readers need no lock.

mod all;
mod error;
mod folder;
mod id;
mod item;
mod pieces;
#[cfg(test)]
mod tests;
mod user;

pub use all::Recovery;
pub use error::RecoveryError;
pub use folder::Folder;
pub use id::{RecoveryId, UnknownId};
pub use item::{ByteRange, Item, Lost, Reason, path_as_text, path_for_people};
pub use pieces::Pieces;
pub use user::User;
