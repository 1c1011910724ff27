//! SQLite with writers on two mounts.

use leasefs_tests::locks::{Program, SOON, Stage};
use leasefs_tests::mounted::WorldOptions;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const ROWS: usize = 40;
const TERM: Duration = Duration::from_secs(2);

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
    /// Four writers on two mounts, with a rollback journal.
    fn start(name: &str, options: &WorldOptions) -> Self {
        Self::with_journal("delete", name, options)
    }

    fn with_journal(mode: &str, name: &str, options: &WorldOptions) -> Self {
        let stage = Stage::with(name, options);
        let folder =
            std::env::temp_dir().join(format!("leasefs-said-{}-{name}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let make = format!(
            "pragma journal_mode={mode}; create table t(writer, n, x, primary key(writer, n));"
        );
        sqlite(&stage.path(0, "base.db"), &make);
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
fn sqlite_writers_with_a_write_ahead_log_lose_nothing_while_all_clients_are_well() {
    let mut database = Database::with_journal("wal", "sqlite-wal", &WorldOptions::mounts(2));
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
