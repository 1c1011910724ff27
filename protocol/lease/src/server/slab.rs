//! Storage with small stable keys: a lease names its object and session by four bytes each.

/// Values under keys that are reused after removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores `value`; the key is not one in use.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(key) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(key as usize)
        {
            *slot = Some(value);
            return key;
        }
        self.slots.push(Some(value));
        // Four billion objects would fill memory several times over.
        (self.slots.len() - 1) as u32
    }

    pub(super) fn get(&self, key: u32) -> Option<&T> {
        self.slots.get(key as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.slots.get_mut(key as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.slots.get_mut(key as usize)?.take()?;
        self.free.push(key);
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(key, slot)| Some((key, slot.as_ref()?)))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_stable_and_reused_only_after_removal() {
        let mut slab = Slab::new();
        let [a, b] = ["a", "b"].map(|value| slab.insert(value));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!((slab.get(a), slab.get(b)), (None, Some(&"b")));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.insert("c"), a);
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(a, &"c"), (b, &"b")]);
    }
}
