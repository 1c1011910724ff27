//! Getting ready before the machine sleeps, where systemd-logind or elogind says so.
//!
//! A *delay* inhibitor (<https://systemd.io/INHIBITOR_LOCKS/>) holds a suspend up until it is let go, for
//! `InhibitDelayMaxSec` at most. By then what is buffered is at the server and leases are given back, so that
//! nobody waits for who sleeps, and the kernel holds nothing whose timeout would stand still. Where nobody says so,
//! everything is dropped as the first thing afterwards: [`super::waking`].
//!
//! Any user of the machine can send a signal to anybody on the bus, under any path and name. So it is the bus that is
//! asked, at each signal, who logind is.

use crate::fuse::Driver;
use futures_util::StreamExt;
use leasefs_client::Call;
use std::sync::Weak;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use zbus::names::WellKnownName;
use zbus::zvariant::OwnedFd;
use zbus::{Connection, MatchRule, Message, MessageStream, fdo, message, proxy};

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const INTERFACE: &str = "org.freedesktop.login1.Manager";
const ANNOUNCEMENT: &str = "PrepareForSleep";

/// How long a suspend is held up at most, if logind doesn't say.
const DELAY: Duration = Duration::from_secs(5);
/// Nor longer, whatever it says.
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// A suspend that isn't over so long after it could begin, asleep or not, has been forgotten: logind was started anew.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How long until logind is asked again, if it isn't there or doesn't want to now: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// `org.freedesktop.login1(5)`, what is needed of it.
#[proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1",
    gen_blocking = false
)]
trait Manager {
    /// Whoever has the descriptor holds up what is about to happen.
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    /// For how long it can be held up, in microseconds.
    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    fn longest_delay(&self) -> zbus::Result<u64>;
}

/// Who is told when the machine sleeps.
pub(super) trait Sleeper {
    /// It is about to. It is held up until this is done, or until the end of this time.
    async fn prepare(&self, within: Duration);

    /// It is awake.
    async fn wake(&self);
}

impl Sleeper for Weak<Driver> {
    async fn prepare(&self, within: Duration) {
        let Some(driver) = self.upgrade() else { return };
        let begun = Instant::now();
        let end = begun + within;
        let flush = |until| timeout_at(until, driver.call(Call::FlushAll));
        // Dropping takes a moment, and what is buffered may be more than the time suffices for.
        if driver.write_back_status().in_contact {
            drop(flush(begun + within / 4 * 3).await);
        }
        let dropped = timeout_at(end, driver.call(Call::Sleep)).await;
        // What came in meanwhile. Nothing is buffered any more.
        if driver.write_back_status().in_contact {
            drop(flush(end).await);
        }
        tracing::info!(
            unflushed = driver.write_back_status().bytes,
            all_dropped = dropped.is_ok(),
            "the machine is about to sleep"
        );
    }

    async fn wake(&self) {
        if let Some(driver) = self.upgrade() {
            // It can't be refused.
            let _ = driver.call(Call::Wake).await;
        }
    }
}

/// Tells a mount when the machine sleeps, for as long as the runtime lives.
pub(super) async fn watch(driver: Weak<Driver>) {
    let [first, most] = AGAIN;
    let (mut said, mut pause) = (false, first);
    loop {
        let begun = Instant::now();
        let ended = match Connection::system().await {
            Ok(bus) => attend(&bus, &driver).await,
            Err(error) => Err(error),
        };
        // Nobody will say that it is over.
        driver.wake().await;
        if let Err(error) = ended
            && !std::mem::replace(&mut said, true)
        {
            tracing::info!(%error, "systemd-logind doesn't say when: a suspend is noticed when it is over");
        }
        if begun.elapsed() > most {
            pause = first;
        }
        sleep(pause).await;
        pause = (pause * 4).min(most);
    }
}

/// Tells it for as long as logind can be heard, and doesn't leave a suspend without an end.
async fn attend(bus: &Connection, sleeper: &impl Sleeper) -> zbus::Result<()> {
    let logind = ManagerProxy::new(bus).await?;
    let mut signals = announcements(bus).await?;
    let hold = || {
        let why = "Buffered writes go to the server, and what is cached goes";
        logind.inhibit("sleep", "leasefs", why, "delay")
    };
    let mut held = Some(hold().await?);
    let delay = logind.longest_delay().await;
    let delay = delay.map_or(DELAY, |micros| {
        Duration::from_micros(micros).min(LONGEST_DELAY)
    });
    let mut forgotten = None;
    loop {
        let heard = match forgotten {
            None => signals.next().await,
            Some(at) => timeout_at(at, signals.next()).await.unwrap_or(None),
        };
        let Some(signal) = heard.transpose()? else {
            return Ok(());
        };
        match announces(bus, &signal).await {
            None => {}
            Some(true) => {
                forgotten.get_or_insert(Instant::now() + delay + FORGOTTEN);
                sleeper.prepare(delay / 5 * 4).await;
                drop(held.take());
            }
            Some(false) => {
                forgotten = None;
                sleeper.wake().await;
                held = Some(hold().await?);
            }
        }
    }
}

async fn announcements(bus: &Connection) -> zbus::Result<MessageStream> {
    let rule = MatchRule::builder()
        .msg_type(message::Type::Signal)
        .sender(SERVICE)?
        .path(PATH)?
        .interface(INTERFACE)?
        .member(ANNOUNCEMENT)?
        .build();
    MessageStream::for_match_rule(rule, bus, None).await
}

/// Whether the machine is about to sleep, or awake; `None` if it isn't logind that says so.
async fn announces(bus: &Connection, signal: &Message) -> Option<bool> {
    // A peer is the only one that speaks.
    if bus.is_bus() {
        let bus = fdo::DBusProxy::new(bus).await.ok()?;
        let logind = WellKnownName::try_from(SERVICE).ok()?;
        let owner = bus.get_name_owner(logind.into()).await.ok()?;
        let header = signal.header();
        if header.sender().is_none_or(|sender| *sender != *owner) {
            return None;
        }
    }
    signal.body().deserialize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::io::{PipeReader, pipe};
    use std::sync::Mutex;
    use tokio::net::UnixStream;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use zbus::object_server::SignalEmitter;
    use zbus::{connection, interface};

    /// What stands in for logind: it hands out pipes, whose other ends it keeps.
    struct Logind {
        given: UnboundedSender<(String, PipeReader)>,
    }

    #[interface(name = "org.freedesktop.login1.Manager")]
    impl Logind {
        fn inhibit(&self, what: &str, _who: &str, _why: &str, mode: &str) -> OwnedFd {
            let (reader, writer) = pipe().expect("a pipe");
            let _ = self.given.send((format!("{what} {mode}"), reader));
            std::os::fd::OwnedFd::from(writer).into()
        }

        #[zbus(property, name = "InhibitDelayMaxUSec")]
        fn longest_delay(&self) -> u64 {
            10_000_000
        }

        #[zbus(signal)]
        async fn prepare_for_sleep(from: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
    }

    fn is_let_go(reader: &PipeReader) -> bool {
        let mut polled = [PollFd::new(reader, PollFlags::IN)];
        poll(&mut polled, Some(&rustix::time::Timespec::default())).expect("polled");
        polled[0].revents().contains(PollFlags::HUP)
    }

    #[derive(Debug, PartialEq)]
    enum Told {
        Prepare(Duration),
        Wake,
    }

    struct Host(UnboundedSender<Told>, Mutex<UnboundedReceiver<()>>);

    impl Sleeper for Host {
        async fn prepare(&self, within: Duration) {
            let _ = self.0.send(Told::Prepare(within));
            let ready = std::future::poll_fn(|cx| self.1.lock().expect("sound").poll_recv(cx));
            ready.await;
        }

        async fn wake(&self) {
            let _ = self.0.send(Told::Wake);
        }
    }

    async fn peers(logind: Logind) -> (Connection, Connection) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let guid = zbus::Guid::generate();
        let server = connection::Builder::unix_stream(theirs)
            .server(guid)
            .expect("a server")
            .p2p()
            .serve_at(PATH, logind)
            .expect("served");
        let client = connection::Builder::unix_stream(ours).p2p();
        let (client, server) = tokio::join!(client.build(), server.build());
        (client.expect("a client"), server.expect("a server"))
    }

    #[tokio::test]
    async fn a_suspend_is_held_up_until_everything_is_ready_for_it_and_again_next_time() {
        let (given, mut inhibitors) = unbounded_channel();
        let (told, mut tells) = unbounded_channel();
        let (ready, is_ready) = unbounded_channel();
        let (bus, logind) = peers(Logind { given }).await;
        let attended = tokio::spawn(async move {
            let host = Host(told, Mutex::new(is_ready));
            attend(&bus, &host).await
        });
        let from = SignalEmitter::new(&logind, PATH).expect("an object");
        for _ in 0..2 {
            let (what, held) = inhibitors.recv().await.expect("held up");
            assert_eq!(what, "sleep delay");
            Logind::prepare_for_sleep(&from, true).await.expect("sent");
            let most = Duration::from_secs(8);
            assert_eq!(tells.recv().await, Some(Told::Prepare(most)));
            assert!(!is_let_go(&held), "it isn't ready");
            ready.send(()).expect("waited for");
            while !is_let_go(&held) {
                tokio::task::yield_now().await;
            }
            Logind::prepare_for_sleep(&from, false).await.expect("sent");
            assert_eq!(tells.recv().await, Some(Told::Wake));
        }
        attended.abort();
    }
}
