//! Programs that lock, on several mounts at once.

use leasefs_tests::locks::{Kind, Locker, SOON, Stage, Type};
use leasefs_tests::mounted::{WorldOptions, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const ROWS: usize = 40;
const TERM: Duration = Duration::from_secs(2);

/// A program that was started here, and says what it does. Dropped, it is killed.
struct Program {
    child: Child,
    said: PathBuf,
}

impl Program {
    /// Its output goes to a file `said`.
    fn start(command: &mut Command, said: PathBuf) -> Self {
        let output = fs::File::create(&said).expect("a file for what it says");
        let errors = output.try_clone().expect("the file again");
        let child = command
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, said }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    fn says(&self, line: &str, limit: Duration) {
        let found = || self.said().lines().any(|said| said == line).then_some(());
        eventually(
            &format!("{line:?} of {}", self.said.display()),
            limit,
            found,
            || self.said(),
        );
    }

    fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.said.display());
        let child = &mut self.child;
        let said = &self.said;
        eventually(
            &what,
            limit,
            || child.try_wait().unwrap_or_default(),
            || fs::read_to_string(said).unwrap_or_default(),
        )
    }

    fn kill(&mut self) {
        // Not reaped before, so the id is its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        self.ends_within(SOON);
    }

    /// Lets a program go on that waits for a line.
    fn tell(&mut self) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(b"\n").expect("it listens");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let until = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Inserts rows, each in a transaction of its own, and says which are committed. What has not begun to
/// be committed is begun again.
const WRITER: &str = r##"
import sqlite3, sys, time
path, writer, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
base = None
for n in range(rows):
    while True:
        try:
            if base is None:
                base = sqlite3.connect(path, timeout=60, isolation_level=None)
                base.execute("pragma synchronous=full")
            base.execute("begin immediate")
            base.execute("insert into t values(?, ?, hex(randomblob(300)))", (writer, n))
            base.execute("commit")
            print(n, flush=True)
            break
        except sqlite3.IntegrityError:
            # What was told to have failed was committed.
            base.close()
            base = None
            print(n, flush=True)
            break
        except sqlite3.Error as error:
            print("#", error, flush=True)
            try:
                base.close()
            except Exception:
                pass
            base = None
            time.sleep(0.05)
print("end", flush=True)
"##;

struct Database {
    stage: Stage,
    folder: PathBuf,
    writers: Vec<Program>,
}

impl Database {
    /// Four writers on two mounts.
    fn start(name: &str, options: &WorldOptions) -> Self {
        let stage = Stage::with(name, options);
        let folder =
            std::env::temp_dir().join(format!("leasefs-said-{}-{name}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let make =
            "pragma journal_mode=delete; create table t(writer, n, x, primary key(writer, n));";
        sqlite(&stage.path(0, "base.db"), make);
        let mut database = Self {
            stage,
            folder,
            writers: Vec::new(),
        };
        for number in 0..4 {
            let writer = database.writer(number);
            database.writers.push(writer);
        }
        database
    }

    fn writer(&self, number: usize) -> Program {
        let path = self.stage.path(number % 2, "base.db");
        let mut command = Command::new("python3");
        command.args(["-c", WRITER]).arg(path);
        command.args([number.to_string(), ROWS.to_string()]);
        Program::start(&mut command, self.folder.join(format!("writer{number}")))
    }

    /// All that is said to be committed is there, and nothing is broken. Tells how many rows there are.
    fn is_whole(&self) -> usize {
        self.is_whole_but_for(0)
    }

    /// The same, but each writer of mount 0 may miss so many rows.
    fn is_whole_but_for(&self, forgiven: usize) -> usize {
        let path = self.stage.path(1, "base.db");
        assert_eq!(sqlite(&path, "pragma integrity_check;").trim(), "ok");
        let rows = sqlite(&path, "select writer || ' ' || n from t;");
        let rows: BTreeSet<String> = rows.lines().map(str::to_owned).collect();
        for (number, writer) in self.writers.iter().enumerate() {
            let said = writer.said();
            let committed = said.lines().filter(|line| line.parse::<usize>().is_ok());
            let missing: Vec<&str> = committed
                .filter(|n| !rows.contains(&format!("{number} {n}")))
                .collect();
            let forgiven = if number % 2 == 0 { forgiven } else { 0 };
            assert!(
                missing.len() <= forgiven,
                "rows of writer {number} are lost: {missing:?}\n{said}"
            );
            let troubles = said.lines().filter(|line| line.starts_with('#')).count();
            println!("writer {number}: {troubles} troubles");
        }
        rows.len()
    }

    fn all_end_but(&mut self, killed: Option<usize>) {
        for number in (0..4).filter(|number| Some(*number) != killed) {
            self.writers[number].says("end", LIMIT);
            let status = self.writers[number].ends_within(SOON);
            assert!(status.success(), "{status}");
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.writers.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn sqlite(path: &Path, script: &str) -> String {
    let mut command = Command::new("sqlite3");
    let script = format!(".timeout 30000\n{script}\n");
    let mut child = command
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sqlite3 runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(script.as_bytes()).expect("it listens");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{script}: {errors}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn sqlite_writers_on_two_mounts_lose_nothing() {
    let mut database = Database::start("sqlite", &WorldOptions::mounts(2));
    database.all_end_but(None);
    assert_eq!(database.is_whole(), 4 * ROWS);
    let said: String = database.writers.iter().map(Program::said).collect();
    assert!(!said.contains('#'), "{said}");
}

#[test]
fn sqlite_writers_lose_nothing_when_one_is_killed() {
    let mut database = Database::start("sqlite-kill", &WorldOptions::mounts(2).term("2s"));
    database.writers[2].says("5", LIMIT);
    database.writers[2].kill();
    database.all_end_but(Some(2));
    assert!(database.is_whole() >= 3 * ROWS + 6);
}

#[test]
fn sqlite_writers_lose_nothing_when_a_client_is_killed() {
    if !Stage::has_mounts_apart() {
        return;
    }
    let mut database = Database::start("sqlite-client", &WorldOptions::mounts(2).term("2s"));
    database.writers[0].says("5", LIMIT);
    database.stage.world().kill_client(0);
    database.stage.world().mount_again(0);
    database.all_end_but(None);
    assert_eq!(database.is_whole(), 4 * ROWS);
}

#[test]
fn sqlite_writers_lose_nothing_when_the_server_is_killed() {
    if !Stage::has_mounts_apart() {
        return;
    }
    let mut database = Database::start("sqlite-server", &WorldOptions::mounts(2).term("2s"));
    database.writers[0].says("5", LIMIT);
    database.stage.world().server.daemon.kill();
    database.stage.world().server.start_again();
    database.all_end_but(None);
    assert_eq!(database.is_whole(), 4 * ROWS);
}

#[test]
fn sqlite_writers_lose_no_more_than_one_row_when_a_client_is_stopped_beyond_its_term() {
    if !Stage::has_mounts_apart() {
        return;
    }
    let mut database = Database::start("sqlite-stopped", &WorldOptions::mounts(2).term("2s"));
    database.writers[0].says("5", LIMIT);
    database.stage.world().mounts[0].freeze();
    // Longer than the term: what is to pass is time.
    std::thread::sleep(2 * TERM);
    database.stage.world().mounts[0].thaw();
    database.all_end_but(None);
    // SQLite has committed when it has removed its journal, for which no lock is asked: what had only that
    // left to do when the client was stopped has been rolled back by then.
    assert!(database.is_whole_but_for(1) >= 4 * ROWS - 1);
}

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
fn git_commits_in_one_clone_from_two_mounts_at_once_and_each_is_there_once() {
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
    let log = git(
        &stage,
        &stage.path(0, "repo"),
        "git log --format=%s; git fsck --strict --no-dangling 2>&1",
    );
    let mut log: Vec<&str> = log.lines().collect();
    log.sort_unstable();
    let of = |view: usize| (1..=COMMITS).map(move |number| format!("{view}-{number}"));
    let mut expected: Vec<String> = (0..2).flat_map(of).collect();
    expected.sort_unstable();
    assert_eq!(log, expected);
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
