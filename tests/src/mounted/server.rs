//! A running `fsserver`.

use super::binaries::Binaries;
use super::daemon::{Daemon, within_network};
use super::sandbox::Sandbox;
use crate::link::Namespace;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// How long a server may take to say that it serves.
const START: Duration = Duration::from_secs(20);

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// `--term`, as on the command line; the server's default if `None`.
    pub term: Option<String>,
    /// `--identity`.
    pub identity: Option<String>,
    /// Where to listen; on the loopback if `None`.
    pub listen: Option<IpAddr>,
    /// The directory to serve; a folder of the sandbox if `None`.
    pub export: Option<PathBuf>,
    /// `--state`; a folder of the sandbox if `None`.
    pub state: Option<PathBuf>,
    /// Further options of `serve`, as on the command line.
    pub options: Vec<String>,
    /// Extra environment.
    pub env: Vec<(String, String)>,
    /// Where its network is, and its address there, if not here: it listens there then.
    pub network: Option<(Arc<Namespace>, IpAddr)>,
}

impl ServerOptions {
    fn address(&self) -> IpAddr {
        let there = self.network.as_ref().map(|(_, address)| *address);
        let there = there.or(self.listen);
        there.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    fn start(&self, log_folder: &Path, arguments: Vec<OsString>) -> Daemon {
        let namespace = self
            .network
            .as_ref()
            .map(|(namespace, _)| namespace.clone());
        let program = Binaries::get().server.as_os_str();
        let (program, arguments) = within_network(&namespace, program, arguments);
        Daemon::start("server", log_folder, &program, &arguments, &self.env)
    }
}

/// One export being served.
#[derive(Debug)]
pub struct Server {
    /// The exported directory.
    pub export: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// Where it can be reached.
    pub address: SocketAddr,
    /// How it was started last.
    pub options: ServerOptions,
    /// Its process.
    pub daemon: Daemon,
    log_folder: PathBuf,
}

fn arguments(
    export: &PathBuf,
    state: &PathBuf,
    listen: SocketAddr,
    ticket: Option<PathBuf>,
    options: &ServerOptions,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["serve".into(), export.into()];
    arguments.extend(["--state".into(), state.into()]);
    arguments.extend(["--listen".into(), listen.to_string().into()]);
    if let Some(file) = ticket {
        arguments.extend(["--ticket-file".into(), file.into()]);
    }
    if let Some(term) = &options.term {
        arguments.extend(["--term".into(), term.into()]);
    }
    if let Some(identity) = &options.identity {
        arguments.extend(["--identity".into(), identity.into()]);
    }
    arguments.extend(options.options.iter().map(OsString::from));
    arguments
}

impl Server {
    /// Serves the folder `export` of the sandbox on a port of the kernel's choice.
    ///
    /// # Panics
    /// When it does not serve in time.
    pub fn start(sandbox: &Sandbox, options: ServerOptions) -> Self {
        let export = options.export.clone();
        let export = export.unwrap_or_else(|| sandbox.folder("export"));
        let state = options.state.clone();
        let state = state.unwrap_or_else(|| sandbox.root().join("server-state"));
        let listen = SocketAddr::new(options.address(), 0);
        let log_folder = sandbox.root().to_owned();
        let ticket = Some(log_folder.join("ticket"));
        let arguments = arguments(&export, &state, listen, ticket, &options);
        let mut daemon = options.start(&log_folder, arguments);
        let address = ready_address(&mut daemon);
        Self {
            export,
            state,
            address,
            options,
            daemon,
            log_folder,
        }
    }

    /// Starts it again on the same state and port, after it has ended.
    ///
    /// # Panics
    /// When it does not serve in time.
    pub fn start_again(&mut self) {
        let arguments = arguments(&self.export, &self.state, self.address, None, &self.options);
        self.daemon = self.options.start(&self.log_folder, arguments);
        assert_eq!(ready_address(&mut self.daemon), self.address);
    }

    /// A fresh ticket that leads to `address` (the server's, or a relay's).
    ///
    /// # Panics
    /// When the server gives none.
    pub fn ticket_for(&self, address: SocketAddr) -> String {
        let trusted = self.options.identity.as_deref() == Some("trust");
        let options: &[&str] = if trusted { &["--trust"] } else { &[] };
        self.ticket_with(address, options)
    }

    /// The same with these options of `fsserver ticket`.
    ///
    /// # Panics
    /// When the server gives none.
    pub fn ticket_with(&self, address: SocketAddr, options: &[&str]) -> String {
        let output = self.command(&[&["ticket"], options].concat());
        let ticket = output.lines().find(|line| line.starts_with("leasefs://"));
        let ticket = ticket.unwrap_or_else(|| panic!("no ticket in {output:?}"));
        let (_, secret) = ticket
            .split_once("/#")
            .unwrap_or_else(|| panic!("no ticket: {ticket}"));
        format!("leasefs://{address}/#{secret}")
    }

    /// The output of `fsserver COMMAND.. --state ..`.
    ///
    /// # Panics
    /// When it fails.
    pub fn command(&self, command: &[&str]) -> String {
        let mut call = Command::new(&Binaries::get().server);
        let output = call.args(command).arg("--state").arg(&self.state).output();
        let output = output.expect("fsserver can be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "fsserver {command:?} failed: {errors}"
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn ready_address(daemon: &mut Daemon) -> SocketAddr {
    let line = daemon.line_with("ready ", START);
    let address = line.trim_start_matches("ready ").trim();
    address
        .parse()
        .unwrap_or_else(|error| panic!("{line:?}: {error}"))
}
