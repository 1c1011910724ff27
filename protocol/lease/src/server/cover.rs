//! What of one object a read shows, a change touches or a recall takes back.

use super::api::{ReadItem, Touch};
use leasefs_protocol::{Handle, Parts, RawName};

/// Parts as a whole and single names of one object. `NAMES` among the parts means all names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Cover {
    pub(super) parts: Parts,
    pub(super) names: Vec<RawName>,
}

impl Cover {
    pub(super) fn parts(parts: Parts) -> Self {
        Self {
            parts,
            names: Vec::new(),
        }
    }

    fn all_names(&self) -> bool {
        self.parts.contains(Parts::NAMES)
    }

    fn any_name(&self) -> bool {
        self.all_names() || !self.names.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.names.is_empty()
    }

    /// The parts in which both meet; `NAMES` if they meet in any name.
    pub(super) fn meets(&self, other: &Cover) -> Parts {
        let whole = (self.parts & other.parts) - Parts::NAMES;
        let names = (self.all_names() && other.any_name())
            || (other.all_names() && self.any_name())
            || self.names.iter().any(|name| other.names.contains(name));
        if names { whole | Parts::NAMES } else { whole }
    }

    /// The parts a holder must have to know anything of this.
    pub(super) fn leased(&self) -> Parts {
        if self.names.is_empty() {
            self.parts
        } else {
            self.parts | Parts::NAMES
        }
    }

    /// What of this a holder of `held` can have cached.
    pub(super) fn known_to(&self, held: Parts) -> Cover {
        let names = if held.contains(Parts::NAMES) && !self.all_names() {
            self.names.clone()
        } else {
            Vec::new()
        };
        Cover {
            parts: self.parts & held,
            names,
        }
    }

    pub(super) fn add(&mut self, other: Cover) {
        self.parts |= other.parts;
        for name in other.names {
            if !self.names.contains(&name) {
                self.names.push(name);
            }
        }
        if self.all_names() {
            self.names.clear();
        }
    }

    pub(super) fn subtract(&mut self, other: &Cover) {
        self.parts = self.parts - other.parts;
        if other.all_names() {
            self.names.clear();
        } else {
            self.names.retain(|name| !other.names.contains(name));
        }
    }
}

/// What a request wants of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Want {
    pub(super) handle: Handle,
    pub(super) cover: Cover,
}

/// In the order of the handles.
fn merged(items: impl Iterator<Item = Want>) -> Vec<Want> {
    let mut wants: Vec<Want> = items.collect();
    wants.sort_by_key(|want| want.handle);
    wants.dedup_by(|later, first| {
        let same = later.handle == first.handle;
        if same {
            first.cover.add(std::mem::take(&mut later.cover));
        }
        same
    });
    wants
}

/// What a read shows, one want per object.
pub(super) fn of_read(items: Vec<ReadItem>) -> Vec<Want> {
    merged(items.into_iter().map(|item| {
        let mut cover = Cover::parts(item.parts);
        if let Some(name) = item.name {
            cover.parts = cover.parts - Parts::NAMES;
            cover.names.push(name);
        }
        let handle = item.object;
        Want { handle, cover }
    }))
}

/// What a change touches, one want per object.
pub(super) fn of_change(touches: Vec<Touch>) -> Vec<Want> {
    merged(touches.into_iter().map(|touch| {
        let mut cover = Cover::parts(touch.parts);
        cover.add(Cover {
            parts: Parts::NONE,
            names: touch.names,
        });
        let handle = touch.object;
        Want { handle, cover }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(parts: Parts, names: &[&str]) -> Cover {
        Cover {
            parts,
            names: names
                .iter()
                .map(|n| RawName(n.as_bytes().to_vec()))
                .collect(),
        }
    }

    #[test]
    fn covers_meet_in_shared_parts_and_shared_names_only() {
        let create_a = cover(Parts::ATTRS | Parts::LISTING, &["a"]);
        assert_eq!(create_a.meets(&cover(Parts::NONE, &["a"])), Parts::NAMES);
        assert_eq!(create_a.meets(&cover(Parts::NONE, &["b"])), Parts::NONE);
        assert_eq!(create_a.meets(&cover(Parts::NAMES, &[])), Parts::NAMES);
        assert_eq!(
            create_a.meets(&cover(Parts::ATTRS | Parts::DATA, &[])),
            Parts::ATTRS
        );
    }

    #[test]
    fn a_holder_without_names_knows_no_name() {
        let create = cover(Parts::ATTRS | Parts::LISTING, &["a"]);
        assert_eq!(create.known_to(Parts::ATTRS), cover(Parts::ATTRS, &[]));
        assert_eq!(create.known_to(Parts::NAMES), cover(Parts::NONE, &["a"]));
        assert!(create.known_to(Parts::DATA).is_empty());
    }

    #[test]
    fn one_object_named_twice_is_wanted_once() {
        let d = Handle::new(b"d").expect("short");
        let touch = |name: &str| Touch {
            object: d,
            parts: Parts::ATTRS,
            names: vec![RawName(name.as_bytes().to_vec())],
        };
        let wants = of_change(vec![touch("old"), touch("new"), touch("old")]);
        assert_eq!(wants.len(), 1);
        assert_eq!(wants[0].cover, cover(Parts::ATTRS, &["old", "new"]));
    }
}
