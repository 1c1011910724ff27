//! Programs that lock, on two mounts at once.

use leasefs_tests::locks::{Kind, Locker, Program, SOON, Stage, Type};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// `flock(1)` with these arguments on the file `f` of a view, and then a command.
fn flock(stage: &Stage, view: usize, options: &[&str], then: &[&str]) -> Command {
    let mut command = Command::new("flock");
    command.args(options).arg(stage.path(view, "f")).args(then);
    command
}

fn code(mut command: Command) -> Option<i32> {
    command.status().expect("it runs").code()
}

/// A program that has locked `f` on a view, until it is let go on.
fn holds(mut command: Command) -> Child {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("it says so");
    assert_eq!(line, "held\n");
    child
}

fn let_go(mut child: Child) {
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"\n")
        .expect("it listens");
    child.wait().expect("it ends");
}

const HOLD: [&str; 3] = ["sh", "-c", "echo held; read -r _"];

#[test]
fn flock_1_excludes_across_mounts() {
    let stage = Stage::start("flock-1", 2);
    stage.make("f", 8);
    let holder = holds(flock(&stage, 0, &["-x"], &HOLD));
    assert_eq!(code(flock(&stage, 1, &["-n"], &["true"])), Some(1));
    assert_eq!(code(flock(&stage, 1, &["-s", "-n"], &["true"])), Some(1));
    assert_eq!(code(flock(&stage, 1, &["-w", "0.3"], &["true"])), Some(1));
    let said = std::env::temp_dir().join(format!("leasefs-said-{}-flock", std::process::id()));
    let mut command = flock(&stage, 1, &["-w", "20"], &["sh", "-c", "echo got"]);
    let mut waiter = Program::start(&mut command, said.clone());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(waiter.said(), "");
    let_go(holder);
    assert!(waiter.ends_within(Duration::from_secs(2)).success());
    assert_eq!(waiter.said(), "got\n");
    fs::remove_file(said).expect("it is there");
    let reader = holds(flock(&stage, 0, &["-s"], &HOLD));
    assert_eq!(code(flock(&stage, 1, &["-s", "-n"], &["true"])), Some(0));
    assert_eq!(code(flock(&stage, 1, &["-n"], &["true"])), Some(1));
    let_go(reader);
    assert_eq!(code(flock(&stage, 1, &["-n"], &["true"])), Some(0));
}

/// Locks by one of Python's calls, or says that it can't.
const PYTHON: &str = r#"
import fcntl, sys
file = open(sys.argv[1], "r+b")
call = getattr(fcntl, sys.argv[2])
try:
    call(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if len(sys.argv) > 3 else 0))
except BlockingIOError:
    sys.exit(7)
print("held", flush=True)
sys.stdin.readline()
"#;

#[test]
fn pythons_lockf_and_flock_exclude_across_mounts() {
    let stage = Stage::start("python", 2);
    stage.make("f", 8);
    for call in ["lockf", "flock"] {
        let python = |view: usize, more: &[&str]| {
            let mut command = Command::new("python3");
            command
                .args(["-c", PYTHON])
                .arg(stage.path(view, "f"))
                .arg(call)
                .args(more);
            command.stdin(Stdio::null());
            command
        };
        let holder = holds(python(0, &[]));
        assert_eq!(code(python(1, &["nb"])), Some(7), "{call}");
        let said = std::env::temp_dir().join(format!("leasefs-said-{}-{call}", std::process::id()));
        let mut waiter = Program::start(&mut python(1, &[]), said.clone());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(waiter.said(), "", "{call}");
        let_go(holder);
        waiter.says("held", SOON);
        assert_eq!(code(python(0, &["nb"])), Some(7), "{call}");
        waiter.tell();
        assert!(waiter.ends_within(SOON).success());
        assert_eq!(code(python(0, &["nb"])), Some(0), "{call}");
        fs::remove_file(said).expect("it is there");
    }
}

const COMMITS: usize = 10;

/// Commits with messages of its own until each is in.
fn committer(stage: &Stage, view: usize, said: PathBuf) -> Program {
    let script = format!(
        "for i in $(seq {COMMITS}); do
             echo $i >> own{view}
             until git add own{view} 2>/dev/null; do sleep 0.01; done
             until git commit --allow-empty -qm {view}-$i 2>/dev/null; do sleep 0.01; done
         done; echo end"
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .current_dir(stage.path(view, "repo"));
    command.env("HOME", stage.dir(view));
    Program::start(&mut command, said)
}

#[test]
fn git_commits_in_one_clone_from_two_mounts_at_once_and_nothing_is_lost() {
    let stage = Stage::start("git", 2);
    git(
        &stage,
        stage.dir(0),
        "git config --global user.name t; git config --global user.email t@t.invalid
         git config --global gc.auto 0; git init -q repo",
    );
    let said = |view: usize| {
        std::env::temp_dir().join(format!("leasefs-said-{}-git{view}", std::process::id()))
    };
    let mut committers = [0, 1].map(|view| committer(&stage, view, said(view)));
    for (view, committer) in committers.iter_mut().enumerate() {
        committer.says("end", LIMIT);
        committer.ends_within(SOON);
        fs::remove_file(said(view)).expect("it is there");
    }
    let found = git(
        &stage,
        &stage.path(0, "repo"),
        "git fsck --strict --no-dangling 2>&1; git log --format=%H | wc -l; cat own0 own1 | wc -l
         git add own0 own1; git commit --allow-empty -qm last; git status --porcelain; git show HEAD:own0 HEAD:own1 | wc -l",
    );
    // Not by their messages: git writes one to a file, without a lock, and reads it again. Nor by what the last of them has of
    // the files: a commit reads the index before it locks it, and may put it back over an `add` meanwhile, on any file system.
    let all = 2 * COMMITS;
    assert_eq!(found, format!("{all}\n{all}\n{all}\n"));
}

fn git(stage: &Stage, dir: &Path, script: &str) -> String {
    let mut command = Command::new("sh");
    command
        .args(["-e", "-c", script])
        .current_dir(dir)
        .env("HOME", stage.dir(0));
    let output = command.output().expect("sh runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{text}{errors}");
    text
}

#[test]
fn a_process_that_locks_is_in_the_way_of_programs_on_the_other_mount() {
    let stage = Stage::start("mixed", 2);
    stage.make("f", 8);
    let mut locker: Locker = stage.locker_on(0, "f");
    locker.lock(0, Kind::Flock, Type::Write);
    assert_eq!(code(flock(&stage, 1, &["-n"], &["true"])), Some(1));
    locker.dies_within(SOON);
    assert_eq!(code(flock(&stage, 1, &["-w", "2"], &["true"])), Some(0));
}
