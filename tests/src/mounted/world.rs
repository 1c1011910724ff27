//! A server with its mounts.

use super::mount::{Mount, MountOptions, Writes};
use super::relay::Relay;
use super::require_fuse;
use super::sandbox::{Sandbox, unmount};
use super::server::{Server, ServerOptions};
use super::storage::Storage;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a daemon may take to end when asked to.
const END: Duration = Duration::from_secs(15);

/// How long a killed one may take to be gone.
const DYING: Duration = Duration::from_secs(1);

/// What a world consists of.
#[derive(Debug, Clone, Default)]
pub struct WorldOptions {
    /// The server's.
    pub server: ServerOptions,
    /// Every mount's.
    pub mount: MountOptions,
    /// Mounts, named `mount0`, `mount1`, …
    pub mounts: usize,
    /// Whether each mount reaches the server through a relay of its own.
    pub relays: bool,
}

impl WorldOptions {
    /// `mounts` mounts with default options, but for identities: the suites run as root, who
    /// keeps its rights.
    pub fn mounts(mounts: usize) -> Self {
        let unchanged = Self {
            mounts,
            ..Self::default()
        };
        unchanged.identity("trust")
    }

    /// The same with a lease term.
    pub fn term(mut self, term: &str) -> Self {
        self.server.term = Some(term.to_owned());
        self
    }

    /// The same with an identity policy.
    pub fn identity(mut self, policy: &str) -> Self {
        self.server.identity = Some(policy.to_owned());
        self
    }

    /// The same serving this directory.
    pub fn export(mut self, dir: &std::path::Path) -> Self {
        self.server.export = Some(dir.to_owned());
        self
    }

    /// The same with a client's `--timeout`.
    pub fn timeout(mut self, timeout: &str) -> Self {
        self.mount.timeout = Some(timeout.to_owned());
        self
    }

    /// The same with a relay before each client.
    pub fn with_relays(mut self) -> Self {
        self.relays = true;
        self
    }

    /// The same with writes buffered by every client, whichever way the suite runs.
    pub fn write_back(self) -> Self {
        self.writes(Writes::Back)
    }

    /// The same with this done to writes by every client, whichever way the suite runs.
    pub fn writes(mut self, writes: Writes) -> Self {
        self.mount.writes = Some(writes);
        self
    }

    /// The same with a test-only fault in every client.
    pub fn fault(mut self, fault: &str) -> Self {
        self.mount
            .env
            .push(("LEASEFS_TEST_FAULT".to_owned(), fault.to_owned()));
        self
    }
}

/// A server, its mounts and their folder. Drop the world and all of it is gone.
pub struct World {
    /// The server.
    pub server: Server,
    /// The mounts, in order.
    pub mounts: Vec<Mount>,
    /// Their relays, in the same order, where there are any.
    pub relays: Vec<Relay>,
    /// Their folder.
    pub sandbox: Sandbox,
    mount_options: MountOptions,
    /// Times the storage has lost its power.
    pub(super) power_cuts: u32,
    /// Unmounted when all that uses it has ended.
    pub(super) storage: Option<Storage>,
}

impl World {
    /// Starts everything.
    ///
    /// # Panics
    /// When /dev/fuse is missing or something does not start in time.
    pub fn start(name: &str, options: &WorldOptions) -> Self {
        Self::start_on(name, options, |_| ())
    }

    /// The same on an export that `fill` has put something into.
    ///
    /// # Panics
    /// As [`World::start`].
    pub fn start_on(
        name: &str,
        options: &WorldOptions,
        fill: impl FnOnce(&std::path::Path),
    ) -> Self {
        require_fuse();
        let sandbox = Building(Some(Sandbox::new(name)));
        fill(&sandbox.get().folder("export"));
        let server = Server::start(sandbox.get(), options.server.clone());
        let (mut mounts, mut relays) = (Vec::new(), Vec::new());
        for index in 0..options.mounts {
            let mut address = server.address;
            if options.relays {
                let relay = Relay::start(server.address).expect("a relay");
                address = relay.address();
                relays.push(relay);
            }
            let ticket = server.ticket_for(address);
            let name = format!("mount{index}");
            mounts.push(Mount::start(sandbox.get(), &name, &ticket, &options.mount));
        }
        Self {
            server,
            mounts,
            relays,
            sandbox: sandbox.done(),
            mount_options: options.mount.clone(),
            power_cuts: 0,
            storage: None,
        }
    }

    /// Kills a client (SIGKILL). One that just then takes a mapped page from its kernel can't die
    /// before its connection to the kernel has ended, which unmounting by force does.
    ///
    /// # Panics
    /// When it does not end even so.
    pub fn kill_client(&mut self, index: usize) {
        let mount = &mut self.mounts[index];
        mount.daemon.signal(Signal::KILL);
        let started = Instant::now();
        while mount.daemon.exited().is_none() {
            if started.elapsed() > DYING {
                // Busy or not: the connection ends first.
                let _ = rustix::mount::unmount(&mount.dir, UnmountFlags::FORCE);
                mount.daemon.ends_within(END);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Mounts one again whose daemon has died, or dies now.
    ///
    /// # Panics
    /// When it is not usable in time.
    pub fn mount_again(&mut self, index: usize) {
        let mount = &mut self.mounts[index];
        mount.daemon.kill();
        if mount.is_mounted() {
            unmount(&mount.dir);
        }
        self.start_mount(index);
    }

    /// Unmounts one and mounts it again: nothing is cached there any more.
    ///
    /// # Panics
    /// When it does not end, or is not usable, in time.
    pub fn remount(&mut self, index: usize) {
        let mount = &mut self.mounts[index];
        let (output, _) = mount.umount(&[], END);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "it can't be unmounted: {errors}");
        mount.daemon.ends_within(END);
        self.start_mount(index);
    }

    fn start_mount(&mut self, index: usize) {
        let relay = self.relays.get(index).map(Relay::address);
        let source = format!("{}:/", relay.unwrap_or(self.server.address));
        let name = format!("mount{index}");
        self.mounts[index] = Mount::start(&self.sandbox, &name, &source, &self.mount_options);
    }

    /// One of the mounts.
    pub fn mount(&self, index: usize) -> &Mount {
        &self.mounts[index]
    }

    /// Ends the daemons, clients first; tells which did not end or left a mount.
    fn end(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for mount in &mut self.mounts {
            let was_alive = mount.daemon.exited().is_none();
            if !mount.daemon.end_or_kill(END) {
                left.push(format!(
                    "{} did not end {END:?} after SIGTERM",
                    mount.dir.display()
                ));
            }
            if mount.is_mounted() {
                if was_alive {
                    left.push(format!("{} was left mounted", mount.dir.display()));
                }
                unmount(&mount.dir);
            }
        }
        if !self.server.daemon.end_or_kill(END) {
            left.push(format!("the server did not end {END:?} after SIGTERM"));
        }
        left
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("sandbox", &self.sandbox)
            .finish_non_exhaustive()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.sandbox.log_tails());
        }
        let mut left = self.end();
        self.relays.clear();
        left.extend(self.sandbox.clean());
        if !left.is_empty() {
            let left = format!("left behind: {}", left.join("; "));
            if std::thread::panicking() {
                eprintln!("{left}");
            } else {
                panic!("{left}");
            }
        }
    }
}

/// A sandbox that is cleaned if the world in it does not come up.
struct Building(Option<Sandbox>);

impl Building {
    fn get(&self) -> &Sandbox {
        self.0.as_ref().expect("it is there until done")
    }

    fn done(mut self) -> Sandbox {
        self.0.take().expect("it is there until done")
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        if let Some(sandbox) = &self.0 {
            eprintln!("{}", sandbox.log_tails());
            let left = sandbox.clean();
            if !left.is_empty() {
                eprintln!("left behind: {}", left.join("; "));
            }
        }
    }
}
