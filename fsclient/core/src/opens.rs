//! The session's opens: what is needed to reclaim them, and which the server is still to be told
//! to close.
//!
//! Whoever needs an open has a [`ServerOpen`]; the server is told to close what nobody has any more.

use crate::run::{Bell, Map, Part};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::control::ReclaimOpen;
use leasefs_protocol::limits::MAX_BATCH;
use leasefs_protocol::{Handle, OpenId, OpenToken};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// No server gives this number.
const NO_OPEN: OpenId = OpenId(0);

/// An open at the server. When it is dropped the server is told in the background to close it.
pub(crate) struct ServerOpen {
    id: OpenId,
    /// Tells it from what another life of the server gave the same id.
    number: u64,
    opens: Opens,
}

impl ServerOpen {
    /// The server's number for it, to be asked for with each request. What the server has lost or forgotten
    /// has none that it could know, since it may give the old one to another open.
    pub fn id(&self) -> OpenId {
        match self.stands() {
            true => self.id,
            false => NO_OPEN,
        }
    }

    /// Whether the server knows it.
    pub fn stands(&self) -> bool {
        let table = self.opens.0.table.borrow();
        table.stands(self.id, self.number)
    }

    /// Whether it was given one of these numbers.
    pub fn is_any_of(&self, ids: &[OpenId]) -> bool {
        ids.contains(&self.id)
    }
}

impl fmt::Debug for ServerOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerOpen({})", self.id.0)
    }
}

impl Drop for ServerOpen {
    fn drop(&mut self) {
        let queued = self.opens.0.table.borrow_mut().close(self.id, self.number);
        if queued {
            self.opens.0.closes.ring_one();
        }
        if self.opens.fills_a_request() {
            self.opens.hurry();
        }
    }
}

/// Held by who waits until closes are told.
pub(crate) struct AwaitedCloses(Opens);

impl Drop for AwaitedCloses {
    fn drop(&mut self) {
        self.0.0.table.borrow_mut().awaited -= 1;
    }
}

/// Opens that a request under way closes. Dropped when it is answered, or the session is over.
pub(crate) struct Closing {
    ids: Vec<OpenId>,
    opens: Opens,
}

impl Closing {
    pub fn ids(&self) -> &[OpenId] {
        &self.ids
    }

    /// The server may not have got the request, and does not get it any more: another one closes them.
    pub fn not_sent(self) {
        let opens = self.opens.clone();
        self.put_back();
        opens.0.closes.ring_one();
    }

    /// As [`Closing::not_sent`], where none is sent before the next connection.
    pub fn put_back(mut self) {
        let ids = std::mem::take(&mut self.ids);
        self.opens.0.table.borrow_mut().close_later(ids);
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.opens.0.table.borrow_mut().are_told(&self.ids);
        self.opens.0.told.ring_all();
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ids.fmt(f)
    }
}

#[derive(Default)]
struct OpensInner {
    table: Part<OpenRegistry>,
    /// Something is to be closed.
    closes: Bell,
    /// It is to be closed now.
    hurry: Bell,
    /// A request that closes has ended.
    told: Bell,
}

/// All opens of the session. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Opens(Arc<OpensInner>);

impl fmt::Debug for Opens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opens({})", self.len())
    }
}

impl Opens {
    /// The server has opened something.
    pub fn opened(&self, id: OpenId, object: Handle, token: OpenToken) -> ServerOpen {
        let number = self.0.table.borrow_mut().opened(id, object, token);
        ServerOpen {
            id,
            number,
            opens: self.clone(),
        }
    }

    pub fn is_open(&self, open: OpenId) -> bool {
        self.0.table.borrow().held.contains_key(&open)
    }

    /// What an open is of.
    pub fn object(&self, open: OpenId) -> Option<Handle> {
        let table = self.0.table.borrow();
        table.held.get(&open).map(|held| held.object)
    }

    /// How many opens have been closed so far.
    pub fn closed(&self) -> u64 {
        self.0.table.borrow().closed
    }

    /// Of how many of these nobody has to tell the server any more.
    pub fn told(&self) -> u64 {
        let table = self.0.table.borrow();
        table.closed - (table.closing.len() + table.under_way.len()) as u64
    }

    /// Resolves when a request that closes has ended.
    pub fn further_told(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.told.listen()
    }

    /// Resolves when something is to be closed.
    pub fn further_closes(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.closes.listen()
    }

    /// Resolves when somebody waits for closes, or there are as many as one request takes.
    pub fn hurried(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.hurry.listen()
    }

    /// Whoever tells the server of closes is not to wait for more of them.
    pub fn hurry(&self) {
        self.0.hurry.ring_one();
    }

    /// Whether the server is to be told to close something.
    pub fn has_closing(&self) -> bool {
        !self.0.table.borrow().closing.is_empty()
    }

    /// Whether there are as many to be closed as one request takes.
    pub fn fills_a_request(&self) -> bool {
        self.0.table.borrow().closing.len() >= MAX_BATCH
    }

    /// Those that nobody else uses are closed by an approval that is about to be sent. Returns them; the
    /// server knows once it has answered this keep-alive.
    pub fn close_by_approval(
        &self,
        opens: impl IntoIterator<Item = Arc<ServerOpen>>,
        keep_alive: u64,
    ) -> Vec<OpenId> {
        let unused = opens.into_iter().filter_map(Arc::into_inner);
        let unused: Vec<ServerOpen> = unused.collect();
        let ids = unused.iter().map(|open| open.id).collect();
        let mut table = self.0.table.borrow_mut();
        for open in &unused {
            table.closed_by_approval(open.id, open.number, keep_alive);
        }
        drop(table);
        ids
    }

    /// Requests are sent again: so are closes.
    pub fn connected(&self) {
        self.0.closes.ring_one();
    }

    pub fn acknowledged(&self, keep_alive: u64) {
        let mut table = self.0.table.borrow_mut();
        table.approved.retain(|(number, _)| *number > keep_alive);
    }

    /// What approvals closed and was not acknowledged must be closed again.
    pub fn disconnected(&self) {
        let mut table = self.0.table.borrow_mut();
        let approved = std::mem::take(&mut table.approved);
        if planted::is(Bug::CloseLost) {
            return;
        }
        table.queue(approved.into_iter().map(|(_, open)| open));
    }

    /// What the next request closes, which may be a change.
    pub fn take_closing(&self, change: bool) -> Closing {
        Closing {
            ids: self.0.table.borrow_mut().take_closing(change),
            opens: self.clone(),
        }
    }

    /// What changes under way close, once more: they may wait for other clients.
    pub fn closing_again(&self) -> Closing {
        let under_way = &self.0.table.borrow().under_way;
        let by_changes = under_way.iter().filter(|(_, change)| **change);
        Closing {
            ids: by_changes.take(MAX_BATCH).map(|(id, _)| *id).collect(),
            opens: self.clone(),
        }
    }

    /// Somebody waits until the server knows of all closes: no change takes them, which may wait for other clients.
    pub fn are_awaited(&self) -> AwaitedCloses {
        self.0.table.borrow_mut().awaited += 1;
        AwaitedCloses(self.clone())
    }

    /// Everything is gone. Returns what was open.
    pub fn forget(&self) -> Vec<OpenId> {
        let mut table = self.0.table.borrow_mut();
        table.closing.clear();
        table.approved.clear();
        table.held.drain().map(|(open, _)| open).collect()
    }

    /// Everything that may be reclaimed from a restarted server. It is told nevertheless of what was closed: an earlier
    /// reclaim, whose connection broke, may have opened that again, and what it doesn't know it passes over.
    pub fn reclaim(&self) -> Vec<ReclaimOpen> {
        let table = self.0.table.borrow();
        let held = table.held.iter().map(|(open, held)| ReclaimOpen {
            open: *open,
            token: held.token.clone(),
        });
        held.collect()
    }

    pub fn lost(&self, opens: &[OpenId]) {
        let mut table = self.0.table.borrow_mut();
        for open in opens {
            table.held.remove(open);
        }
    }

    pub fn len(&self) -> usize {
        self.0.table.borrow().held.len()
    }
}

#[derive(Debug, Default)]
struct OpenRegistry {
    held: Map<OpenId, Held>,
    /// To be closed by the next request.
    closing: Vec<OpenId>,
    /// Closed by requests under way, and whether these are changes.
    under_way: BTreeMap<OpenId, bool>,
    /// How many wait until all are told.
    awaited: usize,
    /// Put into `closing` so far.
    closed: u64,
    /// Closed by an approval that the server has acknowledged with the keep-alive of this number.
    approved: Vec<(u64, OpenId)>,
    last: u64,
}

#[derive(Debug)]
struct Held {
    object: Handle,
    token: OpenToken,
    number: u64,
}

impl OpenRegistry {
    fn opened(&mut self, open: OpenId, object: Handle, token: OpenToken) -> u64 {
        self.last += 1;
        let held = Held {
            object,
            token,
            number: self.last,
        };
        self.held.insert(open, held);
        self.last
    }

    /// Returns whether it was open.
    fn close(&mut self, open: OpenId, number: u64) -> bool {
        let known = self.take(open, number);
        if known {
            self.queue([open]);
        }
        known
    }

    fn stands(&self, open: OpenId, number: u64) -> bool {
        let held = self.held.get(&open);
        held.is_some_and(|held| held.number == number)
    }

    fn take(&mut self, open: OpenId, number: u64) -> bool {
        let known = self.stands(open, number);
        if known {
            self.held.remove(&open);
        }
        known
    }

    fn queue(&mut self, opens: impl IntoIterator<Item = OpenId>) {
        let before = self.closing.len();
        self.closing.extend(opens);
        self.closed += (self.closing.len() - before) as u64;
    }

    fn closed_by_approval(&mut self, open: OpenId, number: u64, keep_alive: u64) {
        if self.take(open, number) {
            self.approved.push((keep_alive, open));
        }
    }

    fn close_later(&mut self, opens: Vec<OpenId>) {
        // Some may have been closed by a request that repeated it.
        let untold = opens.into_iter();
        let untold = untold.filter(|id| self.under_way.remove(id).is_some());
        self.closing.extend(untold);
    }

    fn are_told(&mut self, opens: &[OpenId]) {
        for open in opens {
            self.under_way.remove(open);
        }
    }

    fn take_closing(&mut self, change: bool) -> Vec<OpenId> {
        let taken = match change && self.awaited > 0 {
            true => 0,
            false => self.closing.len().min(MAX_BATCH),
        };
        let taken: Vec<OpenId> = self.closing.drain(..taken).collect();
        self.under_way.extend(taken.iter().map(|id| (*id, change)));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::opened;
    use super::*;

    #[test]
    fn an_open_that_the_server_has_forgotten_is_not_taken_for_another_of_its_number() {
        let opens = Opens::default();
        let before = opened(&opens, 1);
        assert_eq!(opens.forget(), [OpenId(1)]);
        let after = opened(&opens, 1);
        assert_eq!((before.id(), after.id()), (NO_OPEN, OpenId(1)));
        drop(before);
        assert!(opens.is_open(OpenId(1)) && opens.take_closing(false).ids().is_empty());
        drop(after);
        assert_eq!(opens.take_closing(false).ids(), [OpenId(1)]);
    }

    #[test]
    fn what_is_closed_between_two_reclaims_is_closed_at_the_server_too() {
        let opens = Opens::default();
        let (kept, closed) = (opened(&opens, 1), opened(&opens, 2));
        assert_eq!(opens.reclaim().len(), 2);
        drop(closed);
        let again: Vec<OpenId> = opens.reclaim().iter().map(|open| open.open).collect();
        assert_eq!(again, [kept.id()]);
        assert_eq!(opens.take_closing(false).ids(), [OpenId(2)]);
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    /// The server has opened something under this number.
    pub(crate) fn opened(opens: &Opens, id: u64) -> Arc<ServerOpen> {
        let object = Handle::new(&[1]).expect("one byte");
        Arc::new(opens.opened(OpenId(id), object, OpenToken(vec![1])))
    }
}
