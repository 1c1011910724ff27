//! By which ids, and where, the kernel knows an inode: see [`super::places`].

use crate::call::NodeId;
use smallvec::SmallVec;

/// A name that many are kept of: most need no allocation.
pub(super) type KeptName = SmallVec<[u8; 16]>;

/// A name in a directory, as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub parent: NodeId,
    pub name: &'a [u8],
}

/// Where a node was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Found {
    pub parent: NodeId,
    pub name: KeptName,
}

impl Found {
    pub fn is_at(&self, at: Place<'_>) -> bool {
        self.parent == at.parent && *self.name == *at.name
    }
}

impl From<Place<'_>> for Found {
    fn from(Place { parent, name }: Place<'_>) -> Self {
        Self {
            parent,
            name: name.into(),
        }
    }
}

/// What is known of where the kernel has a node.
#[derive(Debug, Default)]
pub(super) enum Stands {
    /// The root, and what it is about to learn of.
    #[default]
    Nowhere,
    /// What may have many names, and was found last under this one.
    Named(Found),
    /// A directory, under one of these names of one directory; that found last stands last.
    In(Vec<Found>),
    /// A directory that this mount may have moved.
    Lost,
}

impl Stands {
    /// Where it was found last.
    pub fn last(&self) -> Option<&Found> {
        match self {
            Self::Nowhere | Self::Lost => None,
            Self::Named(found) => Some(found),
            Self::In(places) => places.last(),
        }
    }
}

/// What the kernel may have at a place where it was told of a directory.
#[derive(Debug, Default)]
pub(super) struct There {
    pub directories: Vec<NodeId>,
    /// It was told of something else there.
    pub others: bool,
}

/// One id by which the kernel knows an inode.
#[derive(Debug)]
pub(super) struct KnownAs {
    pub id: NodeId,
    /// References that it will give back; of the root none are counted.
    pub lookups: u64,
    /// It was told attributes along with a name, and nothing has shown since that it knows the id.
    pub unseen: bool,
    /// It was told as something that was made, and nothing has shown since that the kernel has taken that up.
    pub made: bool,
    /// How often it was told, or has done, what makes it ignore answers to what it has asked before.
    pub heard: u8,
    /// How often a file's size was set here.
    pub cuts: u32,
    pub stands: Stands,
}

impl KnownAs {
    /// It is told something of the kind, or does it.
    pub fn hears(&mut self) {
        self.heard = self.heard.wrapping_add(1);
    }
}

/// The id by which an inode may be shown at a place, if it is one of those by which the kernel knows it.
pub(super) fn id_at(known: &[KnownAs], at: Place<'_>) -> Option<NodeId> {
    let mut near = None;
    for known in known {
        match &known.stands {
            Stands::Nowhere | Stands::Named(_) => return Some(known.id),
            Stands::In(places) if places.iter().any(|found| found.is_at(at)) => {
                return Some(known.id);
            }
            Stands::In(places) if places.iter().any(|found| found.parent == at.parent) => {
                near = near.or(Some(known.id));
            }
            Stands::In(_) | Stands::Lost => {}
        }
    }
    near
}
