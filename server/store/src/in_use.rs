//! Which objects are open.

use leasefs_protocol::Handle;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many opens each object has.
#[derive(Debug, Default)]
pub(crate) struct InUse(Mutex<HashMap<Handle, usize>>);

impl InUse {
    fn lock(&self) -> MutexGuard<'_, HashMap<Handle, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, handle: &Handle) {
        *self.lock().entry(*handle).or_default() += 1;
    }

    pub fn remove(&self, handle: &Handle) {
        let mut opens = self.lock();
        let count = opens.get_mut(handle);
        debug_assert!(count.is_some(), "an open of {handle} ends that never began");
        if let Some(count) = count {
            *count -= 1;
            if *count == 0 {
                opens.remove(handle);
            }
        }
    }

    /// Whether anybody has it open.
    pub fn is_open(&self, handle: &Handle) -> bool {
        self.lock().contains_key(handle)
    }
}
