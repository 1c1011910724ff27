//! The lease core with a clock, wakers and a way to send recalls.
//!
//! One lock. Under it an event goes in and all actions come out, so that recalls and grants of a
//! session leave in the order of their stamps. Nothing blocks under it.

mod busiest;
mod progress;
mod snapshot;
mod state;
mod turn;

pub use busiest::Busy;
pub use progress::Mark;
pub use snapshot::{ObjectSnapshot, OpLabel, Snapshot};
pub use state::{Admission, Line, LockLost, Notice, Opened};
pub use turn::{Entry, Finished, Pending, Turn};

use crate::sync;
use leasefs_lease::server::{Config, Event, Grace, OpId, Reclaimed, Standing};
use leasefs_lease::time::BootTime;
use leasefs_protocol::lock::FileLocks;
use leasefs_protocol::{Grant, Handle, KeyHash, LockEpoch, RecallId, Release, SessionId};
use progress::Progress;
use state::State;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Reads the clock of leases; tests give their own.
pub type Clock = fn() -> BootTime;

/// The timer never sleeps longer: tokio's clock stands still while the host sleeps, lease time
/// does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Leases that are reclaimed while others wait: some tenths of a millisecond.
const RECLAIMED_AT_ONCE: usize = 256;

/// The lease core at work. Share it in an `Arc`.
#[derive(Debug)]
pub struct Leases {
    state: Mutex<State>,
    alarm: Notify,
    clock: Clock,
    progress: Progress,
    ops: AtomicU64,
    turns: AtomicU64,
}

impl Leases {
    /// A core in its first moment. What concerns all sessions comes out of the channel.
    pub fn new(
        config: Config,
        grace: Option<Grace>,
        clock: Clock,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Notice>) {
        let (notices, receiver) = mpsc::unbounded_channel();
        let leases = Self {
            state: Mutex::new(State::new(config, clock(), grace, notices)),
            alarm: Notify::new(),
            clock,
            progress: Progress::default(),
            ops: AtomicU64::new(1),
            turns: AtomicU64::new(0),
        };
        (Arc::new(leases), receiver)
    }

    fn new_op(&self) -> OpId {
        OpId(self.ops.fetch_add(1, Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Runs `step` under the lock, then sees to the timer.
    fn with<T>(&self, step: impl FnOnce(&mut State, BootTime) -> T) -> T {
        let mut state = self.lock();
        let changing = sync::Changing::begins();
        let outcome = step(&mut state, (self.clock)());
        let earlier = state.rearm();
        drop(changing);
        drop(state);
        if earlier {
            self.alarm.notify_one();
        }
        outcome
    }

    /// Runs the core's deadlines as they come. Never ends.
    pub async fn keep_time(&self) {
        loop {
            let sleep = self.with(|state, now| {
                state.step(&self.progress, now, Event::Tick);
                state.sleeps(now, LONGEST_SLEEP)
            });
            self.turns.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = tokio::time::sleep(sleep) => (),
                () = self.alarm.notified() => (),
            }
        }
    }

    /// How often the deadlines have been looked at: more often each second, as long as the core gets on.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// A session's client has said `Hello`; its recalls go to `line` from now on, those it has
    /// not approved first.
    pub fn open_session(
        &self,
        session: SessionId,
        client: KeyHash,
        drift_ppm: u32,
        line: Line,
    ) -> Opened {
        self.with(|state, now| {
            let event = Event::SessionOpened {
                session,
                client,
                drift_ppm,
            };
            let outcome = state.step(&self.progress, now, event);
            state.connect(session, line);
            outcome.opened.unwrap_or(Opened {
                standing: Standing::New,
                renewed: false,
            })
        })
    }

    /// The session's connection `link` is gone, unless a newer one has taken its place.
    pub fn disconnect(&self, session: SessionId, link: u64) {
        self.lock().disconnect(session, link);
    }

    /// The session is over: it holds nothing any more.
    pub fn end_session(&self, session: SessionId) {
        self.event(Event::SessionEnded { session });
    }

    /// Whether an answer given now renews the session.
    pub fn renew(&self, session: SessionId) -> bool {
        self.with(|state, now| state.renew(now, session))
    }

    /// The round-trip time of the session's connection.
    pub fn round_trip(&self, session: SessionId, rtt: Duration) {
        self.event(Event::RoundTrip { session, rtt });
    }

    /// The session's client has approved recalls. They count only on its present connection, where those
    /// that are open were repeated.
    pub fn approve(
        &self,
        session: SessionId,
        link: u64,
        recalls: impl IntoIterator<Item = RecallId>,
    ) {
        self.with(|state, now| {
            let speaks = state.speaks_on(session, link);
            for recall in recalls.into_iter().filter(|_| speaks) {
                state.step(&self.progress, now, Event::Approve { session, recall });
            }
        });
    }

    /// The session's client has brought in buffered bytes, for which a recall of the object may wait.
    pub fn flushed(&self, session: SessionId, object: Handle, bytes: u64) {
        self.event(Event::Flushed {
            session,
            object,
            bytes,
        });
    }

    /// Whether the session has the object's data to itself.
    pub fn holds_write(&self, session: SessionId, object: &Handle) -> bool {
        self.lock().holds_write(session, object)
    }

    /// Whether nobody else has changed the object's data since the session was granted it, or will
    /// before the session's approval.
    pub fn holds_data(&self, session: SessionId, object: &Handle) -> bool {
        self.lock().holds_data(session, object)
    }

    /// The session's client has given leases back, on its present connection.
    pub fn release(&self, session: SessionId, link: u64, releases: Vec<Release>) {
        self.with(|state, now| {
            let speaks = state.speaks_on(session, link);
            for release in releases.into_iter().filter(|_| speaks) {
                let event = Event::Release {
                    session,
                    object: release.object,
                    parts: release.parts,
                    seen: release.seen,
                };
                state.step(&self.progress, now, event);
            }
        });
    }

    /// Takes back grants that no reply carries, because their object is gone. They are recalled: the
    /// session may hold the same parts by an earlier grant, and have cached something under it.
    pub fn take_back(&self, session: SessionId, grants: &[Grant]) {
        for grant in grants {
            self.event(Event::TakeBack {
                session,
                object: grant.object,
                parts: grant.parts,
            });
        }
    }

    /// The object is gone: what is still held of it is recalled.
    pub fn gone(&self, object: Handle) {
        self.event(Event::Gone { object });
    }

    /// A file that these sessions have open has lost its last name.
    pub fn unlinked(&self, object: Handle, sessions: &[SessionId]) {
        self.lock().unlinked(object, sessions);
    }

    /// Takes over leases of the server's earlier life. Returns of each whether it stands.
    pub fn reclaim(&self, session: SessionId, leases: &[Reclaimed]) -> Vec<bool> {
        let some = |leases: &[Reclaimed]| {
            self.with(|state, now| {
                let stands = |lease: &Reclaimed| state.reclaim(now, session, *lease).is_ok();
                let stand: Vec<bool> = leases.iter().map(stands).collect();
                // A change that waits may recall what has just been reclaimed.
                state.step(&self.progress, now, Event::Tick);
                stand
            })
        };
        leases.chunks(RECLAIMED_AT_ONCE).flat_map(some).collect()
    }

    /// What the session's client holds of files whose locks it decides, as it says on its present connection.
    pub fn held(&self, session: SessionId, link: u64, files: Vec<FileLocks>) {
        self.with(|state, now| {
            if state.speaks_on(session, link) {
                state.step(&self.progress, now, Event::Held { session, files });
            }
        });
    }

    /// Takes over locks of the server's earlier life. Returns those that can't be.
    pub fn reclaim_locks(
        &self,
        session: SessionId,
        epoch: LockEpoch,
        files: Vec<FileLocks>,
    ) -> Vec<Handle> {
        let of = (session, epoch);
        self.with(|state, now| state.reclaim_locks(&self.progress, now, of, files))
    }

    /// Whether anybody holds a lock: then the next life has to wait until it is reclaimed.
    pub fn holds_locks(&self) -> bool {
        self.lock().holds_locks()
    }

    /// The session has reclaimed everything it wants.
    pub fn reclaim_done(&self, session: SessionId) {
        self.event(Event::ReclaimDone { session });
    }

    /// Recalls everything from everybody and grants nothing any more.
    pub fn shut_down(&self) {
        self.event(Event::Shutdown);
    }

    /// Whether nobody holds anything and no operation runs or waits.
    pub fn all_quiet(&self) -> bool {
        self.lock().all_quiet()
    }

    /// Whether nobody holds anything.
    pub fn all_given_back(&self) -> bool {
        self.lock().all_given_back()
    }

    /// Whether everything holds that always does.
    ///
    /// # Errors
    /// The first claim that doesn't hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.lock().check_invariants()
    }

    /// Whether leases of the server's earlier life may be alive.
    pub fn in_grace(&self) -> bool {
        self.lock().in_grace()
    }

    /// Whether the session may hold leases.
    pub fn may_hold(&self, session: SessionId) -> bool {
        self.lock().may_hold(session)
    }

    /// What is going on at an object, for people of this session.
    pub fn object(&self, object: &Handle, by: SessionId) -> ObjectSnapshot {
        self.lock().object((self.clock)(), object, by)
    }

    /// What it looks like, for people.
    pub fn snapshot(&self) -> Snapshot {
        self.with(|state, now| state.snapshot(now))
    }

    fn event(&self, event: Event) {
        self.with(|state, now| {
            state.step(&self.progress, now, event);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    #[ignore = "ends its process: run by the test below"]
    fn the_core_panics() {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .init();
        let (leases, _notices) = Leases::new(Config::default(), None, || BootTime::ZERO);
        let panics = || leases.with(|_, _| panic!("a claim of the core doesn't hold"));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        println!("it goes on");
    }

    #[test]
    fn a_panic_of_the_lease_core_ends_the_server_and_the_log_says_why() {
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("runtime::tests::the_core_panics")
            .output()
            .expect("it runs");
        let (out, log) = (child.stdout, child.stderr);
        let (out, log) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&log));
        assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{out}{log}");
        assert!(!out.contains("it goes on"), "{out}");
        assert!(log.contains("a claim of the core doesn't hold"), "{log}");
        assert!(
            log.contains("ending, so that a restart can recover"),
            "{log}"
        );
    }
}
