//! Memory of the listings that are being read. A server can go on with one for ever.

use leasefs_protocol::Refusal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all listings of a mount share.
#[derive(Clone, Debug)]
pub struct ListingRoom(Arc<AtomicUsize>);

impl ListingRoom {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }
}

/// What one listing has of it, given back when it is dropped.
#[derive(Debug, Default)]
pub struct Reserved(Option<(ListingRoom, usize)>);

impl Reserved {
    /// Takes more.
    ///
    /// # Errors
    /// `ENOMEM` if there is no more.
    pub fn grow(&mut self, room: &ListingRoom, bytes: usize) -> Result<(), Refusal> {
        let take = |left: usize| left.checked_sub(bytes);
        let taken = room
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| Refusal::Host(libc::ENOMEM as u16))?;
        self.0.get_or_insert_with(|| (room.clone(), 0)).1 += bytes;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some((room, bytes)) = &self.0 {
            room.0.fetch_add(*bytes, Ordering::Relaxed);
        }
    }
}
