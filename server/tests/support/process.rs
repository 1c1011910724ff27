//! A server in a process of its own, so that it can crash.

use super::TempDir;
use leasefs_protocol::ticket::Ticket;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The directory it serves and its state.
pub struct Estate {
    dir: TempDir,
}

impl Estate {
    pub fn new() -> Self {
        let dir = TempDir::new();
        std::fs::create_dir(dir.path().join("export")).expect("a fresh directory");
        Self { dir }
    }

    pub fn export(&self) -> PathBuf {
        self.dir.path().join("export")
    }

    /// Runs a command of the server's; what it prints.
    pub fn command(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsserver"));
        command
            .args(args)
            .arg("--state")
            .arg(self.dir.path().join("state"));
        let output = command.output().expect("fsserver runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// A fresh ticket.
    pub fn ticket(&self) -> Ticket {
        let printed = self.command(&["ticket"]);
        printed.trim().parse().expect("a ticket")
    }

    /// Starts a server that may have so many descriptors.
    pub fn serve_with_descriptors(&self, limit: usize) -> Process {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_fsserver")]);
        self.start(command, "60s", None)
    }

    /// Starts a server; `fault` is a crash that it is told to have.
    pub fn serve(&self, fault: Option<&str>) -> Process {
        self.start(Command::new(env!("CARGO_BIN_EXE_fsserver")), "2s", fault)
    }

    /// Starts a server whose leases are good for so long.
    pub fn serve_for(&self, term: Duration) -> Process {
        let term = format!("{}s", term.as_secs());
        self.start(Command::new(env!("CARGO_BIN_EXE_fsserver")), &term, None)
    }

    fn start(&self, mut command: Command, term: &str, fault: Option<&str>) -> Process {
        command
            .arg("serve")
            .arg(self.export())
            .args(["--listen", "127.0.0.1:0", "--term", term, "--state"])
            .arg(self.dir.path().join("state"))
            .env_remove("LEASEFS_TEST_FAULT")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(fault) = fault {
            command.env("LEASEFS_TEST_FAULT", fault);
        }
        let mut child = command.spawn().expect("fsserver starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (mut ticket, mut address) = (None, None);
        for line in stdout.lines() {
            let line = line.expect("text");
            if let Some(found) = line.strip_prefix("ready ") {
                address = Some(found.parse().expect("an address"));
                break;
            }
            ticket = Some(line.parse().expect("a ticket"));
        }
        Process {
            child,
            ticket,
            address: address.expect("it is ready"),
        }
    }
}

/// A running server, killed when dropped.
pub struct Process {
    child: Child,
    /// Printed at the first start.
    pub ticket: Option<Ticket>,
    pub address: SocketAddr,
}

impl Process {
    /// Its number on the host.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Memory it has had at most so far, in MiB.
    pub fn most_resident(&self) -> usize {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.expect("a size").trim().parse::<usize>().expect("KiB") / 1024
    }

    /// Waits until it has crashed of itself.
    pub async fn has_crashed(&mut self) {
        let begun = Instant::now();
        while self.child.try_wait().expect("its status").is_none() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it lives on");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
