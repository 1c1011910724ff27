//! Getting ready before the machine sleeps, where systemd-logind or elogind says so.
//!
//! A *delay* inhibitor (<https://systemd.io/INHIBITOR_LOCKS/>) holds a suspend up until it is let go, for
//! `InhibitDelayMaxSec` at most. By then what is buffered is at the server, so that nobody waits a term for who
//! sleeps, and the kernel holds nothing whose timeout would stand still. Where nobody says so, everything is
//! dropped as the first thing afterwards: [`super::waking`].

use crate::fuse::Driver;
use futures_util::StreamExt;
use leasefs_client::Call;
use std::sync::Weak;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zbus::zvariant::OwnedFd;
use zbus::{Connection, proxy};

/// How long a suspend is held up at most, if logind doesn't say.
const DELAY: Duration = Duration::from_secs(5);
/// A suspend that is not over for so long, asleep or not, has been forgotten: logind was started anew.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How long until logind is asked again, if it isn't there.
const AGAIN: Duration = Duration::from_secs(60);

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

    /// The machine is about to sleep; or has slept, or doesn't after all.
    #[zbus(signal)]
    fn prepare_for_sleep(&self, start: bool) -> zbus::Result<()>;

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
        let end = Instant::now() + within;
        // Dropping takes a moment, and what is buffered may be more than the time suffices for.
        let flushed = timeout(within / 4 * 3, driver.call(Call::FlushAll)).await;
        let dropped = timeout_at(end, driver.call(Call::Sleep)).await;
        let status = driver.write_back_status();
        tracing::info!(
            unflushed = status.bytes,
            in_time = flushed.is_ok() && dropped.is_ok(),
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
    let mut said = false;
    loop {
        let ended = match Connection::system().await {
            Ok(bus) => attend(&bus, &driver).await,
            Err(error) => Err(error),
        };
        // Nobody will say that it is over.
        driver.wake().await;
        if let Err(error) = ended
            && !std::mem::replace(&mut said, true)
        {
            tracing::info!(%error, "no systemd-logind: a suspend is noticed when it is over");
        }
        sleep(AGAIN).await;
    }
}

/// Tells it for as long as logind can be heard.
async fn attend(bus: &Connection, sleeper: &impl Sleeper) -> zbus::Result<()> {
    let logind = ManagerProxy::new(bus).await?;
    let mut said = logind.receive_prepare_for_sleep().await?;
    let hold = || {
        let why = "Buffered writes go to the server, and what is cached goes";
        logind.inhibit("sleep", "leasefs", why, "delay")
    };
    let mut held = Some(hold().await?);
    let delay = logind.longest_delay().await;
    let delay = delay.map_or(DELAY, Duration::from_micros);
    loop {
        let heard = match held {
            Some(_) => said.next().await,
            None => match timeout(FORGOTTEN, said.next()).await {
                Ok(heard) => heard,
                Err(_) => return Ok(()),
            },
        };
        let Some(signal) = heard else { return Ok(()) };
        if *signal.args()?.start() {
            sleeper.prepare(delay / 5 * 4).await;
            held = None;
        } else {
            sleeper.wake().await;
            held = Some(hold().await?);
        }
    }
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

    const PATH: &str = "/org/freedesktop/login1";

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
