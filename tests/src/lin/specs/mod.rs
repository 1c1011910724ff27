//! Sequential objects of a file system, chosen so that checking stays cheap.

mod attrs;
mod log;
mod names;
mod register;
mod renames;

pub use attrs::{
    Attrs, AttrsOp, AttrsState, Change as AttrChange, EXPLICIT_MTIME_LIMIT, Mtime, Seen,
};
pub use log::{Log, LogOp, RecordId};
pub use names::{Inode, Linked, NameOp, Names, NamesState, UNKNOWN_INODE};
pub use register::{Register, RegisterOp};
pub use renames::renames_in_halves;
