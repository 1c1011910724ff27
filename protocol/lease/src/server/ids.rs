//! What sessions and objects are called inside the core: by the slot they are in.

/// A session known to the core. Reused only after everything it held is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Sid(pub(super) u32);

/// An object of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjId(pub(super) u32);
