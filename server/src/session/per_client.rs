//! What each client has one of, for as long as anybody has it.

use leasefs_protocol::KeyHash;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Fewest that are looked over.
const FEW: usize = 256;

#[derive(Debug)]
pub(super) struct PerClient<T> {
    of: HashMap<KeyHash, Weak<T>>,
    /// From so many on, those that nobody has any more are dropped.
    many: usize,
}

impl<T> Default for PerClient<T> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            many: 0,
        }
    }
}

impl<T> PerClient<T> {
    /// The client's, made if it has none.
    pub(super) fn of(&mut self, client: KeyHash, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.of.get(&client).and_then(Weak::upgrade) {
            return known;
        }
        if self.of.len() >= self.many {
            self.of.retain(|_, known| known.strong_count() > 0);
            self.many = FEW.max(2 * self.of.len());
        }
        let made = make();
        self.of.insert(client, Arc::downgrade(&made));
        made
    }

    /// The client gets another from now on.
    pub(super) fn forget(&mut self, client: KeyHash) {
        self.of.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_is_dropped() {
        let mut all = PerClient::default();
        let client = |number: usize| {
            let mut key = KeyHash([2; 32]);
            key.0[..8].copy_from_slice(&number.to_le_bytes());
            key
        };
        let kept = all.of(client(0), || Arc::new(0));
        for number in 1..10 * FEW {
            drop(all.of(client(number), || Arc::new(number)));
        }
        assert!(all.of.len() <= FEW + 1);
        assert!(Arc::ptr_eq(&kept, &all.of(client(0), || Arc::new(1))));
        all.forget(client(0));
        assert_eq!(*all.of(client(0), || Arc::new(1)), 1);
    }
}
