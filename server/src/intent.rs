//! What a change is about to do, and how to tell after a crash whether it has.
//!
//! Pure. An intent is taken while the change has its turn, so nothing else changes what it names
//! until its result is journalled: what is found after a crash is the state before the change or
//! the state behind it. A change that must fail, by what it found, has no intent.

use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::answer::{Object, Written};
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{Attr, Caller, Durability, Handle, RawName, Response};
use serde::{Deserialize, Serialize};

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: Handle,
    /// The name.
    pub name: RawName,
}

/// How a created file is opened, and with whose rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAs {
    /// As the request had them.
    pub flags: u32,
    /// Whose rights the caller had.
    pub policy: IdentityPolicy,
    /// Who asked.
    pub caller: Caller,
}

/// What a rename puts in the place of what it takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leaves {
    /// Nothing.
    Nothing,
    /// What it replaces (`RENAME_EXCHANGE`).
    Replaced,
    /// A new device node, by which overlayfs knows a name that was removed (`RENAME_WHITEOUT`).
    Whiteout,
}

/// What a change is about to do, with the state before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// Done twice in a row it is as if done once, as long as nothing else changes these objects.
    Repeatable {
        /// What it reads and changes.
        objects: Vec<Handle>,
    },
    /// Gives an object a name that is free.
    Make {
        /// The name.
        at: Place,
        /// Of a create: its open.
        open: Option<OpenAs>,
    },
    /// Takes a name away.
    Remove {
        /// The name.
        at: Place,
        /// What it denotes.
        object: Handle,
    },
    /// Renames one object, or two into each other's place.
    Rename {
        /// The old name.
        from: Place,
        /// The new name.
        to: Place,
        /// What the old name denotes.
        object: Handle,
        /// What the new name denotes, another object.
        replaced: Option<Handle>,
        /// What becomes of the old name.
        leaves: Leaves,
    },
    /// Writes at the end of a file.
    Append {
        /// The file.
        object: Handle,
        /// Its size.
        size: u64,
        /// Bytes to write.
        len: u64,
        /// What must be durable when the answer comes.
        durability: Durability,
    },
    /// Takes bytes out of a file's middle, or puts some there.
    Resize {
        /// The file.
        object: Handle,
        /// Its size.
        size: u64,
        /// Its size afterwards.
        new_size: u64,
    },
    /// Sets an xattr that isn't there and must not be.
    AddXattr {
        /// The object.
        object: Handle,
        /// The xattr's name.
        name: RawName,
    },
    /// Removes an xattr that is there.
    RemoveXattr {
        /// The object.
        object: Handle,
        /// The xattr's name.
        name: RawName,
    },
}

/// What is found of an intent's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What the name denotes; of a rename, the old one.
    pub name: Option<(Handle, Attr)>,
    /// Of a rename, what the new name denotes.
    pub new_name: Option<Handle>,
    /// The file's size.
    pub size: u64,
    /// Whether the xattr is there.
    pub has_xattr: bool,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has not happened: sent again it runs.
    NotHappened,
    /// It has happened, and this is its answer. Of a create, the open is still to be made.
    Happened(Box<Response>),
    /// A part has: once the file is cut back to this size, it has not happened.
    Partly {
        /// The size before.
        size: u64,
    },
    /// It may have happened, in part too: sent again it is repeated, before anything else changes
    /// its objects.
    Repeat,
    /// Neither the state before nor the one behind is found.
    Unknown,
}

/// Tells from what is found whether a change has happened.
pub fn decide(intent: &Intent, seen: &Seen) -> Verdict {
    match intent {
        Intent::Repeatable { .. } => Verdict::Repeat,
        Intent::Make { .. } => match seen.name {
            None => Verdict::NotHappened,
            Some((handle, attr)) => happened(Response::Object(Object { handle, attr })),
        },
        Intent::Remove { object, .. } => match seen.name {
            None if planted::is(Bug::ForgetRemoval) => Verdict::NotHappened,
            None => happened(Response::Done),
            Some((found, _)) => before(found == *object),
        },
        Intent::Rename {
            object,
            replaced,
            leaves,
            ..
        } => renamed(*object, *replaced, *leaves, seen),
        Intent::Append {
            size: before, len, ..
        } => appended(*before, *len, seen.size),
        Intent::Resize { size, new_size, .. } => match seen.size {
            now if now == *new_size => happened(Response::Done),
            now => before(now == *size),
        },
        Intent::AddXattr { .. } => happened_if(seen.has_xattr),
        Intent::RemoveXattr { .. } => happened_if(!seen.has_xattr),
    }
}

fn happened(answer: Response) -> Verdict {
    Verdict::Happened(Box::new(answer))
}

fn before(is_as_before: bool) -> Verdict {
    match is_as_before {
        true => Verdict::NotHappened,
        false => Verdict::Unknown,
    }
}

fn happened_if(is_behind: bool) -> Verdict {
    match is_behind {
        true => happened(Response::Done),
        false => Verdict::NotHappened,
    }
}

fn renamed(object: Handle, replaced: Option<Handle>, leaves: Leaves, seen: &Seen) -> Verdict {
    let old = seen.name.map(|(handle, _)| handle);
    let is_left = match leaves {
        Leaves::Nothing => old.is_none(),
        Leaves::Replaced => old == replaced,
        // A new object.
        Leaves::Whiteout => old.is_some_and(|old| ![Some(object), replaced].contains(&Some(old))),
    };
    if is_left && seen.new_name == Some(object) {
        return happened(Response::Done);
    }
    before((old, seen.new_name) == (Some(object), replaced))
}

fn appended(before: u64, len: u64, now: u64) -> Verdict {
    match now.checked_sub(before) {
        Some(0) => Verdict::NotHappened,
        Some(_) if planted::is(Bug::AppendAgain) => Verdict::NotHappened,
        Some(grown) if grown == len => happened(Response::Written(Written::plain(len, before))),
        Some(grown) if grown < len => Verdict::Partly { size: before },
        _ => Verdict::Unknown,
    }
}

#[cfg(test)]
pub(crate) mod tests;
