//! What one client takes of what all share: all its sessions have one account.

use leasefs_protocol::Refusal;
use leasefs_protocol::limits::{
    MAX_BYTES_ANSWERED, MAX_BYTES_ASKED, MAX_OPENS_PER_CLIENT, MAX_SLOW_PER_CLIENT,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Whether somebody may have more of what all share: while he has less than is free. So one has half at
/// most, and of `n` who take what they can get each leaves as much as he has to the others (Choudhury and
/// Hahne, "Dynamic queue length thresholds", 1998).
pub fn may_have_more(own: usize, taken: usize, room: usize) -> bool {
    own < room.saturating_sub(taken)
}

/// Descriptors for what clients have open. What the server needs for itself is not among them.
#[derive(Debug)]
pub struct Files {
    room: usize,
    taken: AtomicUsize,
}

impl Files {
    /// So many.
    pub fn new(room: usize) -> Arc<Self> {
        let taken = AtomicUsize::new(0);
        Arc::new(Self { room, taken })
    }
}

/// One client's account.
#[derive(Debug)]
pub struct Account {
    /// Room for its requests while they are under way, and for its answers.
    asked: Arc<Semaphore>,
    answered: Arc<Semaphore>,
    /// Calls that may take long.
    slow: Semaphore,
    files: Arc<Files>,
    open: AtomicUsize,
}

/// What a request takes of its client's room.
#[derive(Debug)]
pub struct Room {
    _permit: OwnedSemaphorePermit,
    /// What is counted in it keeps it.
    _account: Arc<Account>,
}

impl Account {
    /// Of a client that has nothing yet.
    pub fn new(files: &Arc<Files>) -> Arc<Self> {
        Arc::new(Self {
            asked: Arc::new(Semaphore::new(MAX_BYTES_ASKED)),
            answered: Arc::new(Semaphore::new(MAX_BYTES_ANSWERED)),
            slow: Semaphore::new(MAX_SLOW_PER_CLIENT),
            files: Arc::clone(files),
            open: AtomicUsize::new(0),
        })
    }

    /// Room for what a request brings, as soon as there is some.
    pub async fn room(self: Arc<Self>, bytes: usize) -> Option<Room> {
        let asked = Arc::clone(&self.asked);
        self.some_of(asked, bytes.min(MAX_BYTES_ASKED)).await
    }

    /// Room for its answer, as soon as there is some.
    pub async fn room_for_answer(self: Arc<Self>, bytes: usize) -> Option<Room> {
        let answered = Arc::clone(&self.answered);
        self.some_of(answered, bytes.min(MAX_BYTES_ANSWERED)).await
    }

    async fn some_of(self: Arc<Self>, room: Arc<Semaphore>, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let _permit = room.acquire_many_owned(bytes).await.ok()?;
        Some(Room {
            _permit,
            _account: self,
        })
    }

    /// Leave to make a call that may take long, among the client's own.
    pub async fn slow(&self) -> Option<SemaphorePermit<'_>> {
        self.slow.acquire().await.ok()
    }

    /// A place for another open.
    ///
    /// # Errors
    /// [`Refusal::TooMany`] if others must have what is left.
    pub fn open(self: &Arc<Self>) -> Result<FilePlace, Refusal> {
        self.take(|own, taken, room| own < MAX_OPENS_PER_CLIENT && may_have_more(own, taken, room))
    }

    /// A place for an open of the server's earlier life. There everybody had his share; only the order
    /// may be another now.
    ///
    /// # Errors
    /// [`Refusal::TooMany`].
    pub fn open_again(self: &Arc<Self>) -> Result<FilePlace, Refusal> {
        self.take(|own, taken, room| {
            own < MAX_OPENS_PER_CLIENT.min(room.div_ceil(2)) && taken < room
        })
    }

    fn take(
        self: &Arc<Self>,
        may: impl FnOnce(usize, usize, usize) -> bool,
    ) -> Result<FilePlace, Refusal> {
        let own = self.open.fetch_add(1, Ordering::Relaxed);
        let taken = self.files.taken.fetch_add(1, Ordering::Relaxed);
        // Given back when it is dropped.
        let place = FilePlace(Arc::clone(self));
        match may(own, taken, self.files.room) {
            true => Ok(place),
            false => Err(Refusal::TooMany),
        }
    }
}

/// A place for an open file, until it is dropped.
#[derive(Debug)]
pub struct FilePlace(Arc<Account>);

impl Drop for FilePlace {
    fn drop(&mut self) {
        let own = self.0.open.fetch_sub(1, Ordering::Relaxed);
        let all = self.0.files.taken.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(
            own > 0 && all > 0,
            "a place is given back twice: {own}, {all}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(account: &Arc<Account>) -> Vec<FilePlace> {
        std::iter::from_fn(|| account.open().ok()).collect()
    }

    #[test]
    fn whoever_takes_all_he_can_get_leaves_as_much_to_others() {
        let files = Files::new(1200);
        let accounts: Vec<_> = (0..3).map(|_| Account::new(&files)).collect();
        let first = take_all(&accounts[0]);
        assert_eq!(first.len(), 600);
        let second = take_all(&accounts[1]);
        assert_eq!(second.len(), 300);
        let third = take_all(&accounts[2]);
        assert_eq!(third.len(), 150);
        drop(first);
        assert_eq!(
            take_all(&accounts[2]).len(),
            300,
            "until he has what is free"
        );
    }

    #[test]
    fn after_a_restart_everybody_gets_back_what_he_had_whoever_comes_first() {
        let files = Files::new(1000);
        let accounts: Vec<_> = (0..2).map(|_| Account::new(&files)).collect();
        let had: Vec<usize> = accounts
            .iter()
            .map(|account| take_all(account).len())
            .collect();
        assert_eq!(had, [500, 500], "each alone");
        let had = [500, 250];
        for order in [[0, 1], [1, 0]] {
            let again = order.map(|n| {
                let places = (0..had[n]).map(|_| accounts[n].open_again());
                places.collect::<Result<Vec<_>, _>>().expect("as before")
            });
            drop(again);
        }
    }

    #[test]
    fn a_place_that_is_refused_is_free() {
        let files = Files::new(2);
        let account = Account::new(&files);
        let place = account.open().expect("a place");
        for _ in 0..10 {
            assert_eq!(account.open().err(), Some(Refusal::TooMany));
        }
        drop(place);
        assert!(account.open().is_ok());
    }
}
