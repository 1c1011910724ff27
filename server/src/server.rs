//! What all parts of a running server share.

use crate::account::Files;
use crate::counters::Meters;
use crate::interrupted::Interrupted;
use crate::latch::Latches;
use crate::records::{Client, Found, Records, Writes};
use crate::recovery::recover;
use crate::runtime::{Clock, Leases, Notice};
use crate::session::{Failures, Gates, Session, Sessions, close};
use crate::settings::Settings;
use leasefs_host::clock::boot_time;
use leasefs_lease::server::{Config, Grace, LoggedWrites};
use leasefs_lease::time::{BootTime, lengthened};
use leasefs_protocol::limits::{MAX_SESSIONS_PER_CLIENT, REVOKE_PATIENCE};
use leasefs_protocol::{BootId, Fence, KeyHash, Refusal};
use leasefs_store::Store;
use leasefs_transport::CloseCode;
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinHandle;

/// A server between its start and its end.
pub struct Server {
    /// The export.
    pub store: Arc<Store>,
    /// The state directory.
    pub records: Arc<dyn Records>,
    /// The lease core.
    pub leases: Arc<Leases>,
    /// Keep reads of the host and changes of the same object apart.
    pub latches: Latches,
    /// The sessions.
    pub sessions: Sessions,
    /// What clients may still have done for them.
    pub gates: Gates,
    /// Changes of the earlier life that are to be repeated.
    pub interrupted: Interrupted,
    /// How it is run.
    pub settings: Settings,
    /// What is counted of all sessions.
    pub meters: Arc<Meters>,
    /// This life of the process.
    pub process: BootId,
    /// This life of the host.
    pub host: BootId,
    clock: Clock,
    links: AtomicU64,
    io: Io,
    /// Held while all of the export is made durable.
    committing: tokio::sync::Mutex<()>,
    /// How often that has failed.
    pub failures: Failures,
    /// Calls that may take long leave threads to those that don't.
    slow: Semaphore,
    /// A request is on the thread that requests begin on.
    alone: AtomicBool,
    /// Never has a permit; closed when the server begins to end.
    stop: Semaphore,
}

/// Threads that may block: a runtime of their own, so that requests run on them in a straight
/// line and the network's threads never wait for a disk.
struct Io(Option<Runtime>);

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

thread_local! {
    /// On the thread that requests begin on: its request keeps others from beginning there.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Longer than any server runs.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

fn io_threads(settings: &Settings) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(settings.io_threads.max(2))
        .max_blocking_threads(1)
        .thread_keep_alive(FOR_EVER)
        .thread_name("store")
        .enable_time()
        .build()
}

fn lease_config(settings: &Settings, first_fence: Fence) -> Config {
    Config {
        first_fence,
        drift_ppm: settings.drift_ppm,
        ..Config::of_term(settings.term)
    }
}

impl Server {
    /// A server that is about to serve. Makes durable what must be before its first grant, so it
    /// blocks. What concerns all sessions comes out of the channel.
    ///
    /// # Errors
    /// If the state directory can't be written or threads can't be had.
    pub fn start(
        settings: Settings,
        store: Arc<Store>,
        records: Arc<dyn Records>,
        found: Found,
    ) -> io::Result<(Arc<Self>, mpsc::UnboundedReceiver<Notice>)> {
        records.begin_life(settings.term, settings.drift_ppm)?;
        let runtime = io_threads(&settings)?;
        // The thread that requests begin on is there from now on.
        drop(runtime.spawn_blocking(|| ()));
        let clock: Clock = boot_time;
        let grace = grace(&found);
        if grace.is_none() {
            records.grace_ended();
        }
        let (leases, notices) =
            Leases::new(lease_config(&settings, found.first_fence), grace, clock);
        let [a, b, c, d, ..] = found.process.0;
        let files = Files::new(settings.open_files);
        let sessions = Sessions::new(u32::from_le_bytes([a, b, c, d]) >> 2, files);
        // The grace, and a term for those who have come back in its last moment.
        let patience = lengthened(found.max_term, found.max_drift_ppm) * 2;
        let gates = Gates::default();
        if !found.sessions.is_empty() {
            store.expect_claims();
        }
        let mut repeats = Vec::new();
        for on_record in found.sessions {
            let client = (on_record.owner, gates.of(on_record.owner.client));
            let session = sessions.restore(on_record.session, client, clock());
            if on_record.over {
                session.is_over_now();
                continue;
            }
            if !found.host_crashed {
                let (changes, lost) = (on_record.changes, on_record.lost);
                repeats.extend(recover(&store, &*records, &session, changes, lost));
            }
            if found.host_crashed || on_record.host_crashed {
                session.host_has_crashed();
            }
        }
        let journal = Arc::clone(&records);
        let lost = move |(session, seq)| {
            tracing::warn!(%session, %seq, "a change that the server's restart has interrupted is lost");
            journal.change_ends(session, seq, &Err(Refusal::Lost), None);
        };
        let server = Self {
            latches: Latches::default(),
            slow: Semaphore::new((settings.io_threads * 3 / 4).max(1)),
            committing: tokio::sync::Mutex::default(),
            failures: Failures::default(),
            io: Io(Some(runtime)),
            process: found.process,
            host: found.host,
            store,
            records,
            leases,
            sessions,
            gates,
            interrupted: Interrupted::new(repeats, patience, lost),
            settings,
            meters: Arc::default(),
            clock,
            links: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            stop: Semaphore::new(0),
        };
        Ok((Arc::new(server), notices))
    }

    /// Now.
    pub fn now(&self) -> BootTime {
        (self.clock)()
    }

    /// A number for a new connection.
    pub fn next_link(&self) -> u64 {
        self.links.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs a request that may block. Most never wait for anything but the host: one that is alone begins on a thread
    /// that does nothing else, which alone is woken. A runtime's worker that finds work wakes another to look for more,
    /// which is right where there is more.
    pub fn begin_io(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let Some(runtime) = &self.io.0 else { return };
        if self.alone.swap(true, Ordering::Relaxed) {
            runtime.spawn(work);
            return;
        }
        let (server, mut work) = (Arc::clone(self), Box::pin(work));
        runtime.spawn_blocking(move || {
            ALONE.set(true);
            let mut nobody = Context::from_waker(Waker::noop());
            // Within the runtime, which bounds what goes on without a pause.
            let polled = Handle::current().block_on(async { work.as_mut().poll(&mut nobody) });
            server.nearly_done();
            // What it waits for it asks for again there, where it can be woken.
            if polled.is_pending() {
                tokio::spawn(work);
            }
        });
    }

    /// To be called by a request that is about to be answered: who has waited for that asks for the next thing before
    /// this one has ended, which is left to the same thread then.
    pub fn nearly_done(&self) {
        if ALONE.take() {
            self.alone.store(false, Ordering::Relaxed);
        }
    }

    /// Runs something that may block.
    pub fn spawn_io<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match &self.io.0 {
            Some(runtime) => runtime.spawn(work),
            // Only while the server is dropped.
            None => tokio::spawn(work),
        }
    }

    /// How many bytes a session may buffer: half of what is free, in equal shares. So they find room
    /// when they are flushed, unless others fill the disk within seconds.
    pub fn room(&self) -> u64 {
        self.store.free() / (2 * self.sessions.count().max(1) as u64)
    }

    /// Makes something durable, and counts how long that takes.
    pub fn durably<T>(&self, sync: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = sync();
        self.meters.syncs.add(begun.elapsed());
        done
    }

    /// Waits for leave to make a call that may take long. No client has all that there is.
    pub async fn slow<'a>(&'a self, session: &'a Session) -> Option<Leave<'a>> {
        let own = session.opens.account().slow().await?;
        let shared = self.slow.acquire().await.ok()?;
        Some(Leave(own, shared))
    }

    /// As [`Server::slow`], for what everybody waits for: one at a time, of whose client nothing else has to end before.
    pub async fn slow_alone<'a>(
        &'a self,
        session: &'a Session,
    ) -> Option<(tokio::sync::MutexGuard<'a, ()>, Leave<'a>)> {
        let own = session.opens.account().slow().await?;
        let alone = self.committing.lock().await;
        let shared = self.slow.acquire().await.ok()?;
        Some((alone, Leave(own, shared)))
    }

    /// No further request is taken.
    pub fn stop(&self) {
        self.stop.close();
    }

    /// Waits until [`Server::stop`].
    pub async fn stopped(&self) {
        // There never is a permit: this returns when the semaphore is closed.
        let _ = self.stop.acquire().await;
    }

    /// The session is over: it holds nothing, and nothing of it goes on.
    pub fn end_session(self: &Arc<Self>, session: &Arc<Session>) {
        if self.leaves(session) {
            self.leases.end_session(session.id);
            let (server, session) = (Arc::clone(self), Arc::clone(session));
            self.spawn_io(async move { server.forget(&session) });
        }
    }

    /// Nothing of the session goes on. Its client doesn't know yet, and may not for long: it goes by what it was leased until
    /// that has run out, and others wait as long.
    fn shut_out(self: &Arc<Self>, session: &Arc<Session>) {
        if self.leaves(session) {
            let (server, session) = (Arc::clone(self), Arc::clone(session));
            self.spawn_io(async move { server.end_if_lapsed(&session) });
        }
    }

    /// A session that is over and holds nothing any more goes off the record. May block.
    pub fn end_if_lapsed(&self, over: &Session) {
        if !self.leases.may_hold(over.id) {
            self.leases.end_session(over.id);
            self.forget(over);
        }
    }

    /// Ends what doesn't block; `false` if that has been done. The session keeps its number until it is off
    /// the record.
    fn leaves(&self, session: &Session) -> bool {
        if !session.is_over_now() {
            return false;
        }
        session.end();
        self.interrupted.end_session(session.id);
        true
    }

    /// The session's client has been away for too long.
    pub fn end_absent(self: &Arc<Self>, session: &Arc<Session>) {
        self.end_session(session);
        hang_up(session, CloseCode::Goodbye, OVER);
    }

    /// What of the end of a session may block, unless it is done. Then its number is free.
    pub fn forget(&self, session: &Session) {
        session.once_forgotten(|| {
            close(session.opens.end());
            self.records.forget_session(session.id);
            self.sessions.remove(session);
        });
    }

    /// Ends the client's sessions that it began with other rights than it has now, but for what they were leased, which
    /// runs out: what they have open was decided under those. May block.
    pub fn end_outdated(&self, client: &Client) {
        let rights = client.rights();
        for session in self.sessions.of(client.key) {
            if session.owner.rights != rights && self.leaves(&session) {
                tracing::info!(client = %session.key, session = %session.id, "session ended: its client's rights have changed");
                hang_up(&session, CloseCode::Goodbye, OVER);
                self.end_if_lapsed(&session);
            }
        }
    }

    /// A client that has as many sessions as it may has one more in place of that which has been away for longest, if one
    /// is without leases: of a mount that was killed it never comes back. May block.
    pub fn make_room(&self, client: KeyHash) {
        let sessions = self.sessions.of(client);
        if sessions.len() < MAX_SESSIONS_PER_CLIENT || self.leases.in_grace() {
            return;
        }
        let holds_none = |session: &Arc<Session>| !self.leases.may_hold(session.id);
        let away = sessions.into_iter().filter(holds_none);
        let away = away.filter_map(|session| Some((session.idle_since()?, session)));
        let longest = away.min_by_key(|(since, _)| *since);
        if let Some((_, session)) = longest.filter(|(_, session)| self.leaves(session)) {
            tracing::info!(client = %session.key, session = %session.id, "session ended: its client wants another, and it was away");
            hang_up(&session, CloseCode::Goodbye, OVER);
            self.end_if_lapsed(&session);
        }
    }

    /// Shuts out a client that is no longer admitted: closes its connections, waits until nothing is
    /// done for it any more, and ends its sessions, but for what they were leased: that runs out. Returns how much is still under way on the host
    /// although it was waited for; nothing more begins.
    pub async fn revoke(self: &Arc<Self>, key: KeyHash) -> usize {
        let gate = self.gates.shut(key);
        let sessions = self.sessions.through(&gate);
        for session in &sessions {
            hang_up(session, CloseCode::Refused, REVOKED);
            session.end();
        }
        // A time out is told by what is left.
        let _ = tokio::time::timeout(REVOKE_PATIENCE, gate.emptied()).await;
        for session in sessions {
            tracing::info!(client = %key, session = %session.id, "session ended: its client was revoked");
            // It may have been let in by its hello until the gate was empty.
            hang_up(&session, CloseCode::Refused, REVOKED);
            self.shut_out(&session);
        }
        gate.inside()
    }
}

/// Leave to make a call that may take long, until it is dropped.
#[must_use = "it is given back when this is dropped"]
pub struct Leave<'a>(
    #[expect(dead_code)] SemaphorePermit<'a>,
    #[expect(dead_code)] SemaphorePermit<'a>,
);

const REVOKED: &str = "the client has been revoked";
/// Its client may have come back just now, and nothing would be answered.
const OVER: &str = "the session is over: connect again";

/// Closes the session's connection, if it has one.
pub fn hang_up(session: &Session, code: CloseCode, why: &str) {
    if let Some(link) = session.link() {
        link.close(code, why);
    }
}

/// The grace that what was found asks for.
fn grace(found: &Found) -> Option<Grace> {
    let sessions: Vec<_> = found
        .sessions
        .iter()
        .filter(|recorded| recorded.leased)
        .map(|recorded| recorded.session)
        .collect();
    if found.clean || sessions.is_empty() {
        return None;
    }
    let writes = match &found.writes {
        Writes::Trusted(writes) => LoggedWrites::Trusted(writes.clone()),
        Writes::Unknown => LoggedWrites::Unknown,
    };
    Some(Grace {
        max_term: found.max_term,
        drift_ppm: found.max_drift_ppm,
        sessions,
        writes,
    })
}
