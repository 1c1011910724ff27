//! The binary's commands, with and without a running server.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A scratch folder with a directory to serve, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-commands-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("export/sub")).expect("scratch folder");
        Self(path)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }

    fn run(&self, arguments: &[&str], state: &str) -> Output {
        program()
            .args(arguments)
            .arg("--state")
            .arg(self.path(state))
            .output()
            .expect("fsserver runs")
    }

    /// Standard output of a command that succeeds.
    fn output(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments, "state");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What a command that fails says.
    fn refusal(&self, arguments: &[&str], state: &str) -> String {
        let output = self.run(arguments, state);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fsserver"))
}

/// A running server, killed when dropped.
struct Serving {
    child: Child,
    lines: Vec<String>,
}

impl Serving {
    fn start(scratch: &Scratch, dir: &Path, more: &[&str]) -> Self {
        let mut child = program()
            .arg("serve")
            .arg(dir)
            .args(["--listen", "127.0.0.1:0", "--state"])
            .arg(scratch.path("state"))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("fsserver starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = Vec::new();
        for line in stdout.lines() {
            lines.push(line.expect("text"));
            if lines.last().is_some_and(|line| line.starts_with("ready ")) {
                break;
            }
        }
        Self { child, lines }
    }

    fn end(mut self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
        self.child.wait().expect("wait").success()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_start_prints_a_ticket_then_ready_and_ends_in_good_order() {
    let scratch = Scratch::new();
    let server = Serving::start(&scratch, &scratch.path("export"), &[]);
    let [ticket, ready] = &server.lines[..] else {
        panic!("{:?}", server.lines);
    };
    let address = ready.strip_prefix("ready ").expect("ready");
    assert!(ticket.starts_with(&format!("leasefs://{address}/#")));
    assert!(server.end());
    let life = std::fs::read_to_string(scratch.path("state/server/life.json"));
    assert!(life.expect("life").contains("\"clean\": true"));
}

#[test]
fn a_ticket_file_is_private_and_keeps_the_ticket_off_the_output() {
    let scratch = Scratch::new();
    let file = scratch.path("ticket");
    let name = file.to_str().expect("text");
    let server = Serving::start(
        &scratch,
        &scratch.path("export"),
        &[
            "--ticket-file",
            name,
            "--advertise",
            "nas.example:99,[2001:db8::1]",
        ],
    );
    let [ready] = &server.lines[..] else {
        panic!("{:?}", server.lines);
    };
    let (_, port) = ready.rsplit_once(':').expect("an address");
    let ticket = std::fs::read_to_string(&file).expect("ticket");
    // The port that is listened at, unless another is named.
    let named = format!("leasefs://nas.example:99,[2001:db8::1]:{port}/#");
    assert!(ticket.starts_with(&named), "{ticket}");
    let mode = std::fs::metadata(&file).expect("ticket").mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn tickets_and_clients_are_to_be_had_with_and_without_a_server() {
    let scratch = Scratch::new();
    let none = scratch.refusal(&["ticket"], "state");
    assert!(none.contains("fsserver serve"), "{none}");
    let server = Serving::start(&scratch, &scratch.path("export"), &[]);
    let while_running = scratch.output(&["ticket", "--read-only"]);
    assert!(scratch.output(&["clients"]).starts_with("no clients"));
    let status = scratch.output(&["status", "--json"]);
    assert!(status.contains("\"sessions\": []"), "{status}");
    let unknown = scratch.refusal(&["revoke", "nobody"], "state");
    assert!(unknown.contains("fsserver clients"), "{unknown}");
    drop(server);
    let afterwards = scratch.output(&["ticket"]);
    let front = |ticket: &str| ticket.split_once('.').map(|_| ticket[..90].to_owned());
    assert_eq!(front(&afterwards), front(&while_running));
    assert_ne!(afterwards, while_running);
    let status = scratch.refusal(&["status"], "state");
    assert!(status.contains("no server is running"), "{status}");
}

#[test]
fn a_second_server_on_the_same_an_enclosing_or_an_enclosed_directory_is_refused() {
    let scratch = Scratch::new();
    let export = scratch.path("export");
    let _server = Serving::start(&scratch, &export, &[]);
    for dir in ["export", "export/sub"] {
        let dir = scratch.path(dir);
        let dir = dir.to_str().expect("text");
        let refused = scratch.refusal(&["serve", dir, "--listen", "127.0.0.1:0"], "other");
        assert!(refused.contains("another fsserver serves"), "{refused}");
    }
    let outside = std::env::temp_dir().join(format!("leasefs-outside-{}", std::process::id()));
    let enclosing = program()
        .args(["serve", "--listen", "127.0.0.1:0", "--state"])
        .arg(&outside)
        .arg(&scratch.0)
        .output()
        .expect("fsserver runs");
    let _ = std::fs::remove_dir_all(&outside);
    let refused = String::from_utf8_lossy(&enclosing.stderr);
    assert!(refused.contains("another fsserver serves"), "{refused}");
    let same_state = scratch.refusal(&["serve", scratch.0.to_str().expect("text")], "state");
    assert!(same_state.contains("lies inside"), "{same_state}");
}

#[test]
fn a_ticket_for_one_user_says_whom_and_is_refused_with_trust_and_for_root() {
    let scratch = Scratch::new();
    let _server = Serving::start(&scratch, &scratch.path("export"), &["--identity", "trust"]);
    assert!(
        scratch
            .output(&["ticket", "--as", "1000:100"])
            .starts_with("leasefs://")
    );
    for wrong in [
        &["ticket", "--as", "1000:100", "--trust"][..],
        &["ticket", "--as", "0:0"],
        &["ticket", "--as", "1000"],
    ] {
        assert!(!scratch.refusal(wrong, "state").is_empty());
    }
    let list = std::fs::read_to_string(scratch.path("state/server/clients.json"));
    assert!(list.expect("the list").contains("\"uid\": 1000"));
}

#[test]
fn a_list_of_clients_put_back_from_a_copy_is_spoken_of_by_every_command() {
    let scratch = Scratch::new();
    let list = scratch.path("state/server/clients.json");
    let server = Serving::start(&scratch, &scratch.path("export"), &[]);
    let old = std::fs::read(&list).expect("the list");
    scratch.output(&["ticket"]);
    drop(server);
    std::fs::write(&list, &old).expect("written");
    let server = Serving::start(&scratch, &scratch.path("export"), &[]);
    for command in ["clients", "status"] {
        let told = scratch.output(&[command]);
        assert!(told.contains("put back from a copy"), "{told}");
    }
    drop(server);
    std::fs::write(&list, &old).expect("written");
    let alone = scratch.run(&["clients"], "state");
    let told = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(told.contains("put back from a copy"), "{told}");
    scratch.output(&["ticket"]);
    let alone = scratch.run(&["clients"], "state");
    assert!(alone.stderr.is_empty(), "{alone:?}");
}

#[test]
fn a_ticket_for_a_directory_is_given_for_one_below_the_served_one_only() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("export/file"), b"").expect("a file");
    std::os::unix::fs::symlink("sub", scratch.path("export/link")).expect("a link");
    let server = Serving::start(&scratch, &scratch.path("export"), &[]);
    assert!(
        scratch
            .output(&["ticket", "--subdir", "/sub"])
            .starts_with("leasefs://")
    );
    for wrong in [
        "/",
        "",
        "nowhere",
        "file",
        "link",
        "sub/..",
        "../export/sub",
    ] {
        let refused = scratch.refusal(&["ticket", "--subdir", wrong], "state");
        assert!(!refused.contains("leasefs://"), "{refused}");
    }
    drop(server);
    let refused = scratch.refusal(&["ticket", "--subdir", "sub"], "state");
    assert!(refused.contains("fsserver serve"), "{refused}");
}
