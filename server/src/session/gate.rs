//! Whether what a client asks for may still be done.
//!
//! All that is done for a client goes through the gate of its key, and stays inside while it is done. To
//! shut a client out its gate is shut, for good: nobody enters any more, and once it is empty
//! nothing of the client is under way. A connection is given its gate *before* its client is
//! looked up, and a client is struck off the list before its gate is shut: so whoever was looked up in
//! time has a gate that is shut, and whoever has another was looked up too late.

use super::per_client::PerClient;
use crate::sync;
use leasefs_protocol::KeyHash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, OwnedMutexGuard};

/// Set once the gate is shut; below it, how many are inside.
const SHUT: usize = 1 << (usize::BITS - 1);

/// One client's.
#[derive(Debug, Default)]
pub struct Gate {
    state: AtomicUsize,
    empty: Notify,
    judging: Arc<tokio::sync::Mutex<()>>,
}

/// Held while something is done for the client.
#[derive(Debug)]
#[must_use = "it is left when this is dropped"]
pub struct Pass(Arc<Gate>);

impl Gate {
    /// Lets in what is to be done; `None` if the client is shut out.
    pub fn enter(self: &Arc<Self>) -> Option<Pass> {
        let before = self.state.fetch_add(1, Ordering::SeqCst);
        let pass = Pass(Arc::clone(self));
        (before & SHUT == 0).then_some(pass)
    }

    /// Held from when the client is looked up until it has its session: what it may do doesn't change in
    /// between.
    pub async fn judge(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.judging).lock_owned().await
    }

    /// Whether the client is shut out.
    pub fn is_shut(&self) -> bool {
        self.state.load(Ordering::SeqCst) & SHUT != 0
    }

    fn shut(&self) {
        self.state.fetch_or(SHUT, Ordering::SeqCst);
    }

    /// How many are inside.
    pub fn inside(&self) -> usize {
        self.state.load(Ordering::SeqCst) & !SHUT
    }

    /// Waits until the gate, which is shut, is empty.
    pub async fn emptied(&self) {
        loop {
            let emptied = self.empty.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.inside() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before & !SHUT > 0, "somebody leaves who never entered");
        if before == SHUT + 1 {
            self.0.empty.notify_waiters();
        }
    }
}

/// The gates of all keys that have something under way.
#[derive(Debug, Default)]
pub struct Gates(Mutex<PerClient<Gate>>);

impl Gates {
    /// The key's gate.
    pub fn of(&self, key: KeyHash) -> Arc<Gate> {
        sync::lock(&self.0).of(key, Arc::default)
    }

    /// Shuts the key's gate. Who asks for it from now on gets another.
    pub fn shut(&self, key: KeyHash) -> Arc<Gate> {
        let gate = self.of(key);
        gate.shut();
        sync::lock(&self.0).forget(key);
        gate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const KEY: KeyHash = KeyHash([1; 32]);

    #[tokio::test]
    async fn a_shut_gate_lets_nobody_in_and_waits_for_those_inside() {
        let gates = Gates::default();
        let gate = gates.of(KEY);
        let inside = [gate.enter().expect("open"), gate.enter().expect("open")];
        let shut = gates.shut(KEY);
        assert!(gate.enter().is_none() && gate.is_shut());
        let [one, other] = inside;
        drop(one);
        assert_eq!(shut.inside(), 1);
        let a_while = Duration::from_millis(20);
        assert!(timeout(a_while, shut.emptied()).await.is_err());
        let waits = tokio::spawn(async move { shut.emptied().await });
        tokio::task::yield_now().await;
        drop(other);
        timeout(Duration::from_secs(5), waits)
            .await
            .expect("in time")
            .expect("empty");
        assert!(gates.of(KEY).enter().is_some(), "the next is another");
    }
}
