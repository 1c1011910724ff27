//! A running `fsclient mount`.

use super::binaries::Binaries;
use super::daemon::{Daemon, within_network};
use super::sandbox::{Sandbox, mounts_below};
use super::wait::{eventually, within};
use crate::link::Namespace;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a mount may take to become usable.
const START: Duration = Duration::from_secs(20);
/// How long `fsclient status` may take.
const STATUS: Duration = Duration::from_secs(10);

/// Kinds of requests that reads cause; all others are changes or cleaning up.
pub const READ_KINDS: [&str; 11] = [
    "lookup",
    "getattr",
    "readlink",
    "open",
    "read",
    "seek",
    "readdir",
    "statfs",
    "access",
    "getxattr",
    "listxattr",
];

/// What a client does with writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// It buffers them under a Write lease.
    Back,
    /// It sends them.
    Through,
}

/// How a client is mounted.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// `--timeout`, as on the command line; the client's default if `None`.
    pub timeout: Option<String>,
    /// What becomes of writes; if `None`, `LEASEFS_WRITE_THROUGH` decides, so that a suite can run
    /// both ways.
    pub writes: Option<Writes>,
    /// Further options, as on the command line.
    pub options: Vec<String>,
    /// Extra environment.
    pub env: Vec<(String, String)>,
    /// Where its network is, if not here.
    pub namespace: Option<Arc<Namespace>>,
}

/// Requests a mount has sent, by kind, renewals apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requests(pub BTreeMap<String, u64>);

impl Requests {
    /// As the status of a mount tells them.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn told_by(status: &Value) -> Self {
        find_requests(status).unwrap_or_else(|| panic!("no request counters in {status}"))
    }

    /// These too.
    pub fn add(&mut self, more: &Self) {
        for (kind, count) in &more.0 {
            *self.0.entry(kind.clone()).or_default() += count;
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Those that reads cause.
    pub fn of_reads(&self) -> u64 {
        READ_KINDS.iter().filter_map(|kind| self.0.get(*kind)).sum()
    }

    /// Requests of one kind.
    pub fn of(&self, kind: &str) -> u64 {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// What has been sent since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = self.0.iter().map(|(kind, count)| {
            (
                kind.clone(),
                count - earlier.0.get(kind).copied().unwrap_or_default(),
            )
        });
        Self(grown.filter(|(_, count)| *count > 0).collect())
    }
}

/// One mount of an export.
#[derive(Debug)]
pub struct Mount {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// Its process.
    pub daemon: Daemon,
}

impl Mount {
    /// Mounts `source` in the foreground under the sandbox; `name` tells mounts
    /// apart.
    ///
    /// # Panics
    /// When it is not usable in time.
    pub fn start(sandbox: &Sandbox, name: &str, source: &str, options: &MountOptions) -> Self {
        let dir = sandbox.folder(name);
        let state = sandbox.root().join(format!("{name}-state"));
        let mut arguments: Vec<OsString> = vec!["mount".into(), source.into(), dir.clone().into()];
        arguments.extend([
            "--state".into(),
            state.clone().into(),
            "--foreground".into(),
        ]);
        if let Some(timeout) = &options.timeout {
            arguments.extend(["--timeout".into(), timeout.into()]);
        }
        arguments.extend(options.options.iter().map(OsString::from));
        let suite = std::env::var_os("LEASEFS_WRITE_THROUGH").map(|_| Writes::Through);
        if options.writes.or(suite) == Some(Writes::Through) {
            arguments.push("--write-through".into());
        }
        let program = Binaries::get().client.as_os_str();
        let (program, arguments) = within_network(&options.namespace, program, arguments);
        let mut daemon = Daemon::start(name, sandbox.root(), &program, &arguments, &options.env);
        daemon.line_with("ready", START);
        assert!(
            mounts_below(&dir).contains(&dir),
            "{} is not mounted",
            dir.display()
        );
        Self { dir, state, daemon }
    }

    /// `name` inside the mount.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Stops the client daemon (SIGSTOP).
    pub fn freeze(&mut self) {
        self.daemon.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&mut self) {
        self.daemon.signal(Signal::CONT);
    }

    /// Whether it is in the mount table.
    pub fn is_mounted(&self) -> bool {
        mounts_below(&self.dir).contains(&self.dir)
    }

    /// What `fsclient` prints when told this, with this mount's state directory.
    ///
    /// # Panics
    /// When it fails, or takes too long.
    pub fn client(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&Binaries::get().client);
        command.args(arguments).arg("--state").arg(&self.state);
        let (output, _) = within(format!("{command:?}"), STATUS, move || command.output());
        let output = output.expect("the client runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `fsclient umount DIR` with these options: its output and how long it took.
    ///
    /// # Panics
    /// When it takes longer than `limit`.
    pub fn umount(&self, options: &[&str], limit: Duration) -> (Output, Duration) {
        let started = Instant::now();
        let mut command: Vec<OsString> = vec!["umount".into(), self.dir.clone().into()];
        command.extend(options.iter().map(OsString::from));
        let output = client_command(&self.state, &command, limit);
        (output, started.elapsed())
    }

    /// `fsclient status DIR --json`.
    ///
    /// # Panics
    /// When it fails or takes too long.
    pub fn status(&self) -> Value {
        status(&self.dir, &self.state)
    }

    /// What it has sent to its server so far.
    ///
    /// # Panics
    /// As [`Mount::status`].
    pub fn requests(&self) -> Requests {
        requests(&self.dir, &self.state)
    }

    /// A counter of the requests that reads have caused, for other threads.
    pub fn read_request_counter(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let (dir, state) = (self.dir.clone(), self.state.clone());
        move || requests(&dir, &state).of_reads()
    }

    /// Waits until it has no request under way that it has not counted yet.
    pub fn settled_requests(&self) -> Requests {
        let mut last = self.requests();
        let probe = || {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.requests();
            let same = now == last;
            last = now.clone();
            same.then_some(now)
        };
        eventually(
            "the mount to stop sending requests",
            STATUS,
            probe,
            String::new,
        )
    }
}

/// `fsclient COMMAND.. --state STATE`.
///
/// # Panics
/// When it takes longer than `limit`.
fn client_command(state: &Path, command: &[OsString], limit: Duration) -> Output {
    let mut call = Command::new(&Binaries::get().client);
    call.args(command).arg("--state").arg(state);
    let what = format!("{call:?}");
    within(what, limit, move || call.output())
        .0
        .expect("fsclient can be started")
}

fn status(dir: &Path, state: &Path) -> Value {
    let command: [OsString; 3] = ["status".into(), dir.into(), "--json".into()];
    let output = client_command(state, &command, STATUS);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "fsclient status failed: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// What the mount on `dir` has sent, asked through `fsclient` ([`Binaries::get`]).
///
/// # Panics
/// As [`Mount::status`].
pub fn requests(dir: &Path, state: &Path) -> Requests {
    Requests::told_by(&status(dir, state))
}

/// The counters wherever they stand: the status of one mount has them once.
fn find_requests(value: &Value) -> Option<Requests> {
    match value {
        Value::Object(fields) => {
            let counters = fields
                .get("requests")
                .and_then(Value::as_object)
                .map(|counters| {
                    let counted = counters.iter();
                    let counted = counted.filter_map(|(kind, n)| Some((kind.clone(), n.as_u64()?)));
                    Requests(counted.collect())
                });
            counters.or_else(|| fields.values().find_map(find_requests))
        }
        Value::Array(items) => items.iter().find_map(find_requests),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_counters_are_found_and_subtracted() {
        let status = |reads: u64| serde_json::json!({"mounts": [{"dir": "/x", "requests": {"read": reads, "write": 2}}]});
        let before = find_requests(&status(3)).expect("counters");
        let after = find_requests(&status(5)).expect("counters");
        assert_eq!(
            after.since(&before).0,
            BTreeMap::from([("read".to_owned(), 2)])
        );
        assert_eq!((after.of_reads(), after.total()), (5, 7));
    }
}
