//! What the server knows of each session while it runs.

pub mod answers;
mod entry;
mod gate;
mod link;
mod opens;
mod per_client;
mod syncs;
mod table;
mod violation;

pub use gate::{Gate, Gates, Pass};
pub use link::{Asked, Link, Place, Sink, refused};
pub use opens::{Opens, Origin, close};
pub use syncs::{Failures, Syncing};
pub use table::{Refused, Sessions};

use crate::account::{Account, Room};
use crate::border::Border;
use crate::counters::Counters;
use crate::records::{Client, Owner};
use crate::seqs::SeqSet;
use crate::sync;
use answers::{Answers, Arrival, Recovered, Violation};
use bytes::Bytes;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{
    Caller, Change, Handle, KeyHash, LockEpoch, Numbered, Reply, Seq, SessionId,
};
use leasefs_store::Holder;
use opens::OpenNumbers;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use syncs::Syncs;
use tokio::sync::Notify;

/// A change that has arrived and not run.
#[derive(Debug)]
pub struct Job {
    /// On whose behalf.
    pub caller: Caller,
    /// What the client may do.
    pub client: Arc<Client>,
    /// What is asked.
    pub change: Change,
    /// Its data.
    pub payload: Bytes,
    /// Objects whose covered parts the client has dropped itself.
    pub dropped: Vec<Handle>,
    /// It may have been carried out in an earlier life of the server.
    pub resent: bool,
    /// It was made under locks of this tenure.
    pub locked: Option<LockEpoch>,
    /// Its connection may end before it: what it takes is counted until it has run.
    pub room: Option<Room>,
}

/// One mount's standing with the server.
#[derive(Debug)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub key: KeyHash,
    /// The same, and what makes it this session and no later one of its number.
    pub owner: Owner,
    /// What is done for it goes through this.
    pub gate: Arc<Gate>,
    /// Where its client is confined. Never another while the session lasts.
    border: OnceLock<Arc<Border>>,
    /// What it has open.
    pub opens: Opens,
    /// What it asks to be made durable.
    pub syncs: Syncs,
    /// Its requests.
    pub counters: Counters,
    /// Held while a `Hello` of the session is answered.
    pub hello: tokio::sync::Mutex<()>,
    /// The low-water mark, to be looked at without the lock.
    low: AtomicU64,
    /// Whether the record says that it may hold leases.
    pub leased: AtomicBool,
    /// Whether what it had from the server's earlier life is still to be reclaimed.
    pub reclaims: AtomicBool,
    /// What its client may not have heard of how it stands, since it has said nothing after that: [`Unheard`].
    unheard: AtomicU8,
    over: AtomicBool,
    forgotten: Mutex<bool>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    changes: Answers<Job, Sink>,
    /// Of changes that wait or run: notified, they end where they wait.
    tasks: HashMap<Seq, Arc<Notify>>,
    link: Option<Arc<Link>>,
    mount: String,
    /// Since when it has neither connection nor leases.
    idle_since: Option<BootTime>,
}

/// What a client may not have heard of how its session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// It has heard all.
    Nothing,
    /// Its leases have ended: others may have changed what is dirty there.
    Expired,
    /// It is another session than it had before: what that has done it would do again, and it would take this one's opens
    /// for that one's.
    Begun,
}

/// What a cancel came to.
#[derive(Debug)]
pub struct Cancelled {
    /// Whether the change had begun.
    pub begun: bool,
    /// Where its refusal goes.
    pub sink: Option<Sink>,
    /// Changes whose turn has come.
    pub ready: Vec<(Seq, Job)>,
}

impl Session {
    /// A session without a connection.
    pub fn new(
        id: SessionId,
        (owner, gate): (Owner, Arc<Gate>),
        numbers: &Arc<OpenNumbers>,
        account: Arc<Account>,
    ) -> Self {
        Self {
            id,
            key: owner.client,
            owner,
            gate,
            border: OnceLock::new(),
            opens: Opens::new(numbers, account),
            syncs: Syncs::default(),
            counters: Counters::default(),
            hello: tokio::sync::Mutex::new(()),
            low: AtomicU64::new(0),
            leased: AtomicBool::new(true),
            reclaims: AtomicBool::new(false),
            unheard: AtomicU8::new(Unheard::Begun as u8),
            over: AtomicBool::new(false),
            forgotten: Mutex::new(false),
            state: Mutex::new(State {
                changes: Answers::default(),
                tasks: HashMap::new(),
                link: None,
                mount: String::new(),
                idle_since: None,
            }),
        }
    }

    /// Confines its client, before anything is asked; `false` if that is confined elsewhere.
    pub fn confine(&self, border: Border) -> bool {
        let dir = *border.dir();
        let confined = self.border.get_or_init(|| Arc::new(border));
        *confined.dir() == dir
    }

    /// Where its client is confined.
    pub fn border(&self) -> Option<&Arc<Border>> {
        self.border.get()
    }

    /// Its client says something by this connection, which it does only when it has heard how the session stands.
    pub fn is_heard(&self, link: u64) {
        match self.unheard() {
            Unheard::Nothing => {}
            // What comes by an older one was said before.
            Unheard::Expired if self.link().is_none_or(|now| now.number != link) => {}
            Unheard::Expired | Unheard::Begun => {
                let heard = Unheard::Nothing as u8;
                self.unheard.store(heard, Ordering::Relaxed);
            }
        }
    }

    /// What has to be said again, whatever has happened since.
    pub fn unheard(&self) -> Unheard {
        match self.unheard.load(Ordering::Relaxed) {
            begun if begun == Unheard::Begun as u8 => Unheard::Begun,
            expired if expired == Unheard::Expired as u8 => Unheard::Expired,
            _ => Unheard::Nothing,
        }
    }

    /// Its client is told that its leases have ended.
    pub fn has_expired(&self) {
        let expired = Unheard::Expired as u8;
        self.unheard.fetch_max(expired, Ordering::Relaxed);
    }

    /// It is over from now on; `false` if it was.
    pub fn is_over_now(&self) -> bool {
        !self.over.swap(true, Ordering::AcqRel)
    }

    /// Whether it is over: it only waits to be off the record.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Puts it on record, unless it is off it for good: `None` then. May block.
    pub fn unless_forgotten<T>(&self, record: impl FnOnce() -> T) -> Option<T> {
        let forgotten = sync::lock(&self.forgotten);
        (!*forgotten).then(record)
    }

    /// Does once what of its end may block. When this returns it is done, whoever has done it.
    pub fn once_forgotten(&self, forget: impl FnOnce()) {
        let mut forgotten = sync::lock(&self.forgotten);
        if !std::mem::replace(&mut *forgotten, true) {
            forget();
        }
    }

    /// Whose its open tokens are.
    pub fn holder(&self) -> Holder {
        Holder {
            client: self.owner.client,
            session: self.id,
            birth: self.owner.birth,
        }
    }

    /// Takes over its changes of the server's earlier life; of some the answers are `lost`.
    pub fn recover(&self, changes: Vec<(Seq, Recovered)>, lost: SeqSet) {
        sync::lock(&self.state).changes = Answers::after_restart(changes, lost);
    }

    /// The host has crashed in an earlier life: what is sent again and not known is lost.
    pub fn host_has_crashed(&self) {
        let mut state = sync::lock(&self.state);
        state.changes = std::mem::take(&mut state.changes).and_host_crash();
    }

    /// Makes `link` the session's connection; returns the one it replaces.
    #[must_use = "a replaced connection must be closed"]
    pub fn connect(&self, link: Arc<Link>, mount: String) -> Option<Arc<Link>> {
        let (old, sinks) = {
            let mut state = sync::lock(&self.state);
            state.mount = mount;
            state.idle_since = None;
            (state.link.replace(link), state.changes.fence())
        };
        drop(sinks);
        old
    }

    /// The connection `number` is gone; `true` unless a newer one has taken its place.
    pub fn disconnect(&self, number: u64, now: BootTime) -> bool {
        let mut state = sync::lock(&self.state);
        let own = state.link.as_ref().is_some_and(|l| l.number == number);
        if own {
            state.link = None;
            state.idle_since = Some(now);
        }
        own
    }

    /// The session's connection.
    pub fn link(&self) -> Option<Arc<Link>> {
        sync::lock(&self.state).link.clone()
    }

    /// Host and mount point, as the client tells them.
    pub fn mount(&self) -> String {
        sync::lock(&self.state).mount.clone()
    }

    /// Since when it has no connection; `None` if it has one.
    pub fn idle_since(&self) -> Option<BootTime> {
        sync::lock(&self.state).idle_since
    }

    /// Counts the courtesy period from `now`, unless it is connected.
    pub fn idle_from(&self, now: BootTime) {
        let mut state = sync::lock(&self.state);
        if state.link.is_none() {
            state.idle_since = Some(now);
        }
    }

    /// Whether a frame with this number would bring nothing new.
    pub fn knows(&self, seq: Seq) -> bool {
        sync::lock(&self.state).changes.knows(seq)
    }

    /// The client has the answers of all changes below this one.
    pub fn low(&self) -> Seq {
        Seq(self.low.load(Ordering::Relaxed))
    }

    /// The client has the answers of all changes below `low`; `true` if that is news.
    pub fn low_water(&self, low: Seq) -> bool {
        // Most frames bring no news.
        if low.0 <= self.low.load(Ordering::Relaxed) {
            return false;
        }
        self.low.fetch_max(low.0, Ordering::Relaxed);
        sync::lock(&self.state).changes.low_water(low)
    }

    /// Takes in a change that has come by the connection `link`. What comes by one that has been
    /// replaced is sent again by the newer.
    ///
    /// # Errors
    /// If the client broke the protocol.
    pub fn arrive(
        &self,
        link: u64,
        numbered: &Numbered,
        job: Job,
        sink: Sink,
    ) -> Result<Arrival<Job, Sink>, Violation> {
        let mut state = sync::lock(&self.state);
        let replaced = state.link.as_ref().is_some_and(|now| now.number != link);
        if replaced || self.is_over() {
            return Ok(Arrival::Attached);
        }
        state.changes.scattered()?;
        state.changes.arrive(numbered, job, sink)
    }

    /// The task of a change begins, whose turn has come. It is to end where it waits when it is notified.
    pub fn start(&self, seq: Seq) -> Arc<Notify> {
        let withdrawn = Arc::new(Notify::new());
        let mut state = sync::lock(&self.state);
        state.tasks.insert(seq, Arc::clone(&withdrawn));
        withdrawn
    }

    /// The change is about to run, and has run when the pass is dropped; `None` if it must not
    /// (cancelled, its session over, or its client shut out).
    pub fn begin(&self, seq: Seq) -> Option<Pass> {
        let pass = self.gate.enter().filter(|_| !self.is_over())?;
        sync::lock(&self.state).changes.begin(seq).then_some(pass)
    }

    /// The change is done: where its answer goes, and the changes whose turn has come.
    pub fn finish(&self, seq: Seq, reply: Arc<Reply>) -> (Option<Sink>, Vec<(Seq, Job)>) {
        let mut state = sync::lock(&self.state);
        state.tasks.remove(&seq);
        state.changes.finish(seq, reply)
    }

    /// The client gives up on a change.
    ///
    /// # Errors
    /// If the client broke the protocol.
    pub fn give_up(&self, seq: Seq) -> Result<Cancelled, Violation> {
        sync::lock(&self.state).changes.scattered()?;
        Ok(self.cancel(seq))
    }

    fn cancel(&self, seq: Seq) -> Cancelled {
        let mut state = sync::lock(&self.state);
        let outcome = state.changes.cancel(seq);
        if outcome.withdraw
            && let Some(task) = state.tasks.remove(&seq)
        {
            task.notify_one();
        }
        Cancelled {
            begun: outcome.begun,
            sink: outcome.sink,
            ready: outcome.ready,
        }
    }

    /// The session is over: whatever of it has not begun never will.
    pub fn end(&self) {
        let seqs: Vec<Seq> = sync::lock(&self.state).tasks.keys().copied().collect();
        for seq in seqs {
            self.cancel(seq);
        }
    }
}
