//! A machine that is about to sleep: logind says so on a message bus of the test's own.

#![expect(missing_docs, reason = "what the macro makes of a signal")]

use leasefs_tests::mounted::{Sandbox, World, WorldOptions, eventually, within};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::runtime::Runtime;
use zbus::message::Header;
use zbus::names::UniqueName;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, connection, interface, zvariant};

const LOGIND: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const LIMIT: Duration = Duration::from_secs(20);

/// A message bus; it ends with this.
struct Bus {
    place: Sandbox,
    daemon: Child,
    address: String,
}

impl Bus {
    fn start() -> Self {
        let place = Sandbox::new("asleep-bus");
        let socket = place.root().join("bus");
        let mut daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--print-address"])
            .arg(format!("--address=unix:path={}", socket.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("dbus-daemon, which scripts/setup installs");
        let mut address = String::new();
        let said = daemon.stdout.take().expect("its output");
        BufReader::new(said).read_line(&mut address).expect("said");
        let address = address.trim().to_owned();
        assert!(!address.is_empty(), "no message bus");
        Self {
            place,
            daemon,
            address,
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        self.place.clean();
    }
}

/// Somebody who holds a suspend up: the other end of what it was given, and its name on the bus.
struct Inhibitor {
    held: PipeReader,
    name: UniqueName<'static>,
}

impl Inhibitor {
    fn is_held_for(&self, time: Duration) -> bool {
        let time = rustix::time::Timespec::try_from(time).expect("not so long");
        let mut polled = [PollFd::new(&self.held, PollFlags::IN)];
        poll(&mut polled, Some(&time)).expect("polled");
        polled[0].revents().is_empty()
    }
}

/// What stands in for logind: it hands out pipes, whose other ends it keeps.
struct Manager(Sender<Inhibitor>);

#[interface(name = "org.freedesktop.login1.Manager")]
impl Manager {
    fn inhibit(
        &self,
        what: &str,
        who: &str,
        _why: &str,
        mode: &str,
        #[zbus(header)] header: Header<'_>,
    ) -> zvariant::OwnedFd {
        assert_eq!([what, who, mode], ["sleep", "leasefs", "delay"]);
        let (held, writer) = pipe().expect("a pipe");
        let name = header.sender().expect("of somebody").to_owned();
        let _ = self.0.send(Inhibitor { held, name });
        OwnedFd::from(writer).into()
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn longest_delay(&self) -> u64 {
        5_000_000
    }

    #[zbus(signal)]
    async fn prepare_for_sleep(from: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

struct Logind {
    runtime: Runtime,
    connection: Connection,
    inhibitors: Receiver<Inhibitor>,
}

impl Logind {
    fn start(bus: &Bus) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let (given, inhibitors) = channel();
        let connection = runtime.block_on(async {
            connection::Builder::address(bus.address.as_str())?
                .name(LOGIND)?
                .serve_at(PATH, Manager(given))?
                .build()
                .await
        });
        Self {
            runtime,
            connection: connection.expect("on the bus"),
            inhibitors,
        }
    }

    /// Whoever holds a suspend up.
    fn held(&self) -> Inhibitor {
        self.inhibitors.recv_timeout(LIMIT).expect("held up")
    }

    fn says(&self, sleeps: bool) {
        let from = SignalEmitter::new(&self.connection, PATH).expect("an object");
        let sent = self
            .runtime
            .block_on(Manager::prepare_for_sleep(&from, sleeps));
        sent.expect("said");
    }
}

/// Another user of the machine, who says what logind would say, and that logind is somebody else.
fn lies(logind: &Logind, bus: &Bus, to: &UniqueName<'static>) {
    let lie = async {
        let stranger = connection::Builder::address(bus.address.as_str())?;
        let stranger = stranger.build().await?;
        let own = stranger.unique_name().expect("on the bus").to_string();
        let owns = (LOGIND, "", own.as_str());
        let (dbus, its_path) = ("org.freedesktop.DBus", "/org/freedesktop/DBus");
        let to = Some(to.clone());
        stranger
            .emit_signal(to.clone(), its_path, dbus, "NameOwnerChanged", &owns)
            .await?;
        stranger
            .emit_signal(to, PATH, MANAGER, "PrepareForSleep", &true)
            .await
    };
    logind.runtime.block_on(lie).expect("said");
}

/// How often the kernel asks for the attributes of a file that is looked at five times.
fn asked_in_five(world: &World, file: &Path) -> u64 {
    let asked = || {
        let status = world.mount(0).status();
        let of_mount = &status["mounts"][0];
        let count = |by: &str| of_mount[by]["getattr"].as_u64().unwrap_or_default();
        count("requests") + count("cache_answers")
    };
    let before = asked();
    for _ in 0..5 {
        fs::metadata(file).expect("the file");
    }
    asked() - before
}

#[test]
fn a_suspend_waits_for_what_is_buffered_and_nothing_is_believed_until_it_is_over() {
    let bus = Bus::start();
    let logind = Logind::start(&bus);
    let mut options = WorldOptions::mounts(1).term("60s").write_back();
    let env = &mut options.mount.env;
    env.push(("DBUS_SYSTEM_BUS_ADDRESS".into(), bus.address.clone()));
    let world = World::start_on("asleep", &options, |export| {
        fs::write(export.join("old"), "old").expect("a file");
    });
    let Inhibitor { mut held, .. } = {
        let inhibitor = logind.held();
        lies(&logind, &bus, &inhibitor.name);
        let suspended = !inhibitor.is_held_for(Duration::from_millis(500));
        assert!(!suspended, "only logind says that the machine sleeps");
        inhibitor
    };
    let file = world.mount(0).path("old");
    fs::metadata(&file).expect("the file");
    fs::write(world.mount(0).path("new"), "buffered").expect("written");
    assert!(asked_in_five(&world, &file) <= 1, "it is believed");

    logind.says(true);
    let (let_go, _) = within("the suspend goes on", LIMIT, move || held.read(&mut [0]));
    assert_eq!(let_go.expect("read"), 0, "it is closed");
    let there = fs::read(world.sandbox.root().join("export/new"));
    assert_eq!(there.expect("at the server"), b"buffered");
    assert!(asked_in_five(&world, &file) >= 5, "nothing is believed");

    logind.says(false);
    let _again = logind.held();
    let believes = || (asked_in_five(&world, &file) <= 1).then_some(());
    eventually("it is believed again", LIMIT, believes, String::new);
}
