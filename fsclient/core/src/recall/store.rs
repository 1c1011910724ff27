//! Writes that stay here for a while, under a Write lease.

use super::{ChangeScope, Engine, EngineInner, Span};
use crate::cache::{Store, Stored};
use crate::inode::Dropped;
use leasefs_protocol::Refusal;
use std::sync::Arc;

impl Engine {
    /// As [`Engine::store`], if it need not wait: it answers [`Stored::Pages`] where pages have to be
    /// dropped.
    pub fn store_at_once(&self, store: &Store) -> Stored {
        match self.0.dropping_at_once() {
            Some(_dropping) => self.0.store(store, false),
            None => Stored::Pages,
        }
    }

    /// Keeps a write here if the lease allows it. When it is done, no page and no attribute older
    /// than it is left in the kernel.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`] if pages could not be dropped in time.
    pub async fn store(&self, store: &Store) -> Result<Stored, Refusal> {
        match self.store_at_once(store) {
            Stored::Pages => {}
            stored => return Ok(stored),
        }
        let of_bytes = |offset| Span::new(offset, store.data.len() as u64);
        let span = store.at.first().map_or(Span::ALL, of_bytes);
        let scope = ChangeScope::only_pages(store.object, span);
        let mut change = self.own_change(scope).await?;
        change.close_gate().await;
        let stored = {
            let _dropping = self.0.dropping().await;
            self.0.store(store, true)
        };
        change.never_sent();
        Ok(stored)
    }
}

impl EngineInner {
    /// To be called while nothing is being dropped. `clear`: no page of its range is in the kernel, nor can one come in.
    fn store(self: &Arc<Self>, store: &Store, clear: bool) -> Stored {
        let mut dropped = Dropped::default();
        let stored = self.with(|state, out| {
            let now = self.cache.look(state);
            match state.store(now, store, clear, &mut dropped) {
                Stored::Pages if state.inodes.sweep_unseen(store.object, out) => {
                    state.store(now, store, true, &mut dropped)
                }
                stored => stored,
            }
        });
        for object in &dropped.attrs {
            drop(self.drop_attrs(object));
            // It has been opened.
            self.cache.inodes().is_seen_as_all(object);
        }
        stored
    }
}
