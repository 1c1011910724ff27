//! The session's life: connect, serve, and again.

use super::clock::now;
use super::link::{self, Link};
use super::serving::Serving;
use super::shared::{Shared, lock};
use super::types::{Config, ConnectError};
use leasefs_protocol::Refusal;
use leasefs_protocol::control::HelloRefusal;
use leasefs_transport::{FrameError, TransportError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// How long the end of a session may take.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// How often the session looks after itself.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// After so long a silence another connection is tried.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two attempts when the server refuses the session.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// The first connection.
pub(super) async fn first(config: &Config) -> Result<Link, ConnectError> {
    let start = Instant::now();
    let mut pause = Pause::default();
    loop {
        let error = match link::establish(config, None).await {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        let late = start.elapsed() >= config.connect_timeout;
        if late || is_final(&error) {
            return Err(error);
        }
        pause.wait().await;
    }
}

fn is_final(error: &ConnectError) -> bool {
    match error {
        ConnectError::Refused { refusal, .. } => refused_for_good(refusal).is_some(),
        ConnectError::Transport { source, .. } => {
            matches!(
                source,
                TransportError::WrongServer { .. } | TransportError::Tls(_)
            )
        }
        ConnectError::Resolve { .. } | ConnectError::Broken { .. } => false,
    }
}

/// What requests are refused with while the server refuses the session; `None` if it is worth
/// waiting.
fn refused_for_good(refusal: &HelloRefusal) -> Option<Refusal> {
    match refusal {
        HelloRefusal::NoDirectory(_) => Some(Refusal::Stale),
        HelloRefusal::TooMany(_) | HelloRefusal::Internal(_) => None,
        HelloRefusal::Version { .. }
        | HelloRefusal::NotHello(_)
        | HelloRefusal::UnknownClient(_)
        | HelloRefusal::Revoked(_)
        | HelloRefusal::TicketUnknown
        | HelloRefusal::TicketUsed
        | HelloRefusal::TicketExpired
        | HelloRefusal::ForeignSession => Some(Refusal::Access),
    }
}

/// Jittered pauses between attempts: none, then up to a second.
#[derive(Debug, Default)]
struct Pause(Duration);

impl Pause {
    async fn wait(&mut self) {
        let whole = self.0;
        self.0 = (whole * 2).clamp(Duration::from_millis(50), LONGEST_PAUSE);
        sleep(whole.mul_f64(0.5 + 0.5 * jitter())).await;
    }
}

/// Between 0 and 1; enough to spread the clients of a restarted server.
fn jitter() -> f64 {
    let nanos = now().as_nanos();
    let mixed = nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed as f64 / (1u64 << 24) as f64
}

/// Starts the session on its first connection; from then on it looks after itself.
pub(super) async fn start(shared: Arc<Shared>, link: Link) -> Result<(), FrameError> {
    let serving = Serving::begin(&shared, link).await?;
    let sweeper = tokio::spawn(sweep(shared.clone()));
    tokio::spawn(async move {
        run(shared, serving).await;
        sweeper.abort();
    });
    Ok(())
}

/// Waits until the flag is set.
pub(super) async fn set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        // Nobody is left who could set it.
        std::future::pending::<()>().await;
    }
}

async fn run(shared: Arc<Shared>, mut serving: Serving) {
    let mut ending = shared.ending.subscribe();
    loop {
        let lost = serving.serve(&shared).await;
        serving.end(&shared, &lost);
        if *ending.borrow() {
            break;
        }
        tracing::warn!(server = %shared.config.server, reason = %lost, "lost the server");
        let again = tokio::select! {
            again = reconnect(&shared) => again,
            () = set(&mut ending) => break,
        };
        serving = again;
    }
    shared.ended.send_replace(true);
}

async fn reconnect(shared: &Arc<Shared>) -> Serving {
    let mut pause = Pause::default();
    loop {
        let process = lock(&shared.contact)
            .welcome
            .as_ref()
            .map(|welcome| welcome.process);
        match link::establish(&shared.config, process).await {
            Ok(link) => match Serving::begin(shared, link).await {
                Ok(serving) => {
                    tracing::info!(server = %shared.config.server, "found the server again");
                    return serving;
                }
                Err(error) => note_trouble(shared, error.to_string()),
            },
            Err(ConnectError::Refused { refusal, .. }) => {
                note_trouble(shared, refusal.to_string());
                if let Some(errno) = refused_for_good(&refusal) {
                    refuse_all(shared, errno);
                    sleep(REFUSED_PAUSE).await;
                }
            }
            Err(error) => note_trouble(shared, error.to_string()),
        }
        pause.wait().await;
    }
}

fn note_trouble(shared: &Shared, trouble: String) {
    let mut contact = lock(&shared.contact);
    if contact.trouble.as_ref() != Some(&trouble) {
        tracing::warn!(server = %shared.config.server, reason = %trouble, "no session");
        contact.trouble = Some(trouble);
    }
}

fn refuse_all(shared: &Shared, refusal: Refusal) {
    let waiting = lock(&shared.table).refused(refusal);
    waiting
        .into_iter()
        .for_each(|id| shared.give_up(id, refusal));
}

/// Ends what has waited too long, connection or not.
async fn sweep(shared: Arc<Shared>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let in_contact = lock(&shared.contact).is_in_contact();
        let overdue = lock(&shared.table).overdue(Instant::now(), in_contact);
        overdue
            .into_iter()
            .for_each(|id| shared.give_up(id, Refusal::TimedOut));
    }
}
