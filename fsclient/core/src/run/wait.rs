//! What tasks wait for: a sign, or a place. In order of arrival.

use super::Part;
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

#[derive(Default)]
struct Ring {
    /// Rung for one when nobody was listening.
    kept: bool,
    listeners: Vec<oneshot::Sender<()>>,
}

/// Wakes those who listen.
#[derive(Default)]
pub(crate) struct Bell(Part<Ring>);

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

impl Bell {
    /// Listens from now on; resolves when it is rung.
    pub fn listen(&self) -> impl Future<Output = ()> + Send + use<> {
        let (tell, told) = oneshot::channel();
        let mut ring = self.0.borrow_mut();
        if std::mem::take(&mut ring.kept) {
            // The receiver is here.
            let _ = tell.send(());
        } else {
            ring.listeners.retain(|tell| !tell.is_canceled());
            ring.listeners.push(tell);
        }
        async move {
            // A bell goes away only together with what is listened for.
            let _ = told.await;
        }
    }

    /// Wakes one who listens, or else the next who does.
    pub fn ring_one(&self) {
        let mut ring = self.0.borrow_mut();
        while !ring.listeners.is_empty() {
            if ring.listeners.remove(0).send(()).is_ok() {
                return;
            }
        }
        ring.kept = true;
    }

    /// Wakes all who listen now.
    pub fn ring_all(&self) {
        let listeners = std::mem::take(&mut self.0.borrow_mut().listeners);
        for tell in listeners {
            // Who listened may be gone.
            let _ = tell.send(());
        }
    }
}

struct Queue {
    free: usize,
    queue: VecDeque<oneshot::Sender<Place>>,
}

/// A bounded number of places. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places(Arc<Part<Queue>>);

/// One of them; given back when it is dropped.
pub(crate) struct Place(Option<Places>);

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

impl Places {
    /// So many.
    pub fn new(free: usize) -> Self {
        Self(Arc::new(Part::new(Queue {
            free,
            queue: VecDeque::new(),
        })))
    }

    /// One that is free now.
    pub fn at_once(&self) -> Option<Place> {
        let mut room = self.0.borrow_mut();
        room.free = room.free.checked_sub(1)?;
        Some(Place(Some(self.clone())))
    }

    /// The next that is free.
    pub async fn next(&self) -> Option<Place> {
        if let Some(place) = self.at_once() {
            return Some(place);
        }
        let (give, given) = oneshot::channel();
        self.0.borrow_mut().queue.push_back(give);
        given.await.ok()
    }

    fn give_back(self) {
        loop {
            let next = {
                let mut room = self.0.borrow_mut();
                let next = room.queue.pop_front();
                room.free += usize::from(next.is_none());
                next
            };
            let Some(give) = next else { return };
            match give.send(Place(Some(self.clone()))) {
                Ok(()) => return,
                // Who waited is gone; this isn't given back a second time.
                Err(mut place) => place.0 = None,
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.0.take() {
            places.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Tasks;

    fn run(tasks: &mut Tasks<u32>) -> Vec<u32> {
        std::iter::from_fn(|| tasks.step()).flatten().collect()
    }

    #[test]
    fn a_bell_wakes_who_listens_and_keeps_one_ring() {
        let bell = Arc::new(Bell::default());
        let mut tasks = Tasks::default();
        for id in [1, 2] {
            let heard = bell.listen();
            tasks.add(Box::pin(async move {
                heard.await;
                id
            }));
        }
        assert!(run(&mut tasks).is_empty());
        bell.ring_one();
        assert_eq!(run(&mut tasks), [1]);
        bell.ring_all();
        assert_eq!(run(&mut tasks), [2]);
        bell.ring_one();
        let heard = bell.listen();
        tasks.add(Box::pin(async move {
            heard.await;
            3
        }));
        assert_eq!(run(&mut tasks), [3]);
    }

    #[test]
    fn places_are_given_in_order_and_those_who_left_are_passed_over() {
        let places = Places::new(1);
        let first = places.at_once();
        assert!(first.is_some() && places.at_once().is_none());
        let mut tasks = Tasks::default();
        let waits = |id: u32, places: &Places| {
            let places = places.clone();
            Box::pin(async move {
                let place = places.next().await;
                drop(place);
                id
            })
        };
        let mut left: crate::run::Task<u32> = waits(9, &places);
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        assert!(left.as_mut().poll(&mut context).is_pending());
        drop(left);
        tasks.add(waits(1, &places));
        tasks.add(waits(2, &places));
        assert!(run(&mut tasks).is_empty());
        drop(first);
        assert_eq!(run(&mut tasks), [1, 2]);
        assert!(places.at_once().is_some());
    }
}
