//! Programs that are measured at work.

use super::trial::{Sample, Trial};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Runs it to its end.
///
/// # Errors
/// If it fails, with what it has said.
pub fn run(command: &mut Command) -> io::Result<()> {
    fed(command, b"")
}

fn fed(command: &mut Command, input: &[u8]) -> io::Result<()> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| failed(command, &error.to_string()))?;
    // One that doesn't read it all says why.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(
            command,
            String::from_utf8_lossy(&output.stderr).trim(),
        )),
    }
}

fn failed(command: &Command, why: &str) -> io::Error {
    io::Error::other(format!("{command:?}: {why}"))
}

/// When what is imported was committed.
const COMMITTED: &str = "1000000000 +0000";

/// git with nobody's configuration.
fn git(arguments: &[&OsStr]) -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        // Which directories of objects there are depends on it.
        .env("GIT_AUTHOR_DATE", COMMITTED)
        .env("GIT_COMMITTER_DATE", COMMITTED);
    for setting in [
        "user.name=bench",
        "user.email=bench@example.org",
        "safe.directory=*",
        "gc.auto=0",
        "maintenance.auto=false",
    ] {
        git.args(["-c", setting]);
    }
    git.args(arguments);
    git
}

/// Makes the directory a repository with all that is in it, and a bare copy of that.
///
/// # Errors
/// If git can't.
pub fn git_import(dir: &Path, bare: &Path) -> io::Result<()> {
    for command in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "all"],
    ] {
        let arguments: Vec<&OsStr> = command.iter().map(OsStr::new).collect();
        run(git(&arguments).current_dir(dir))?;
    }
    run(&mut git(&[
        "clone".as_ref(),
        "-q".as_ref(),
        "--bare".as_ref(),
        dir.as_ref(),
        bare.as_ref(),
    ]))
}

/// `git clone`, with files of its own.
///
/// # Errors
/// If git can't.
pub fn git_clone(from: &Path, to: &Path) -> io::Result<()> {
    run(&mut git(&[
        "clone".as_ref(),
        "-q".as_ref(),
        "--no-hardlinks".as_ref(),
        from.as_ref(),
        to.as_ref(),
    ]))
}

/// `git status`.
///
/// # Errors
/// If git can't.
pub fn git_status(dir: &Path) -> io::Result<()> {
    run(git(&["status".as_ref(), "--porcelain".as_ref()]).current_dir(dir))
}

/// Packs what is in a directory.
///
/// # Errors
/// If tar can't.
pub fn tar(dir: &Path, archive: &Path) -> io::Result<()> {
    run(Command::new("tar")
        .arg("-cf")
        .arg(archive)
        .arg("-C")
        .arg(dir)
        .arg("."))
}

/// Unpacks it.
///
/// # Errors
/// If tar can't.
pub fn untar(archive: &Path, dir: &Path) -> io::Result<()> {
    run(Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(dir))
}

/// A new database.
///
/// # Errors
/// If sqlite can't.
pub fn sqlite_create(path: &Path) -> io::Result<()> {
    fed(
        Command::new("sqlite3").arg("-bail").arg(path),
        b"create table t (id integer primary key, text);\n",
    )
}

/// So many rows, each in a transaction of its own that is there after a crash.
///
/// # Errors
/// If sqlite can't.
pub fn sqlite_insert(path: &Path, count: usize) -> io::Result<()> {
    let row = format!("insert into t (text) values ('{}');\n", "x".repeat(100));
    let script = "pragma journal_mode = delete; pragma synchronous = full;\n".to_owned()
        + &row.repeat(count);
    fed(
        Command::new("sqlite3").arg("-bail").arg(path),
        script.as_bytes(),
    )
}

// ---- rows ----------------------------------------------------------------

pub(super) fn unpack(trial: &mut Trial) -> io::Result<Sample> {
    let (dir, files) = (trial.fresh_dir("tree")?, trial.scale.tree as u64);
    let archive = &trial.inputs.archive;
    let timed = trial.timed(|| untar(archive, &dir).map(|()| files))?;
    Ok(timed.seconds())
}

pub(super) fn clone(trial: &mut Trial) -> io::Result<Sample> {
    let (dir, files) = (trial.fresh_path("clone"), trial.scale.tree as u64);
    let repository = &trial.inputs.repository;
    let timed = trial.timed(|| git_clone(repository, &dir).map(|()| files))?;
    Ok(timed.seconds())
}

pub(super) fn status(trial: &mut Trial) -> io::Result<Sample> {
    status_is_known(trial)?;
    status_now(trial)
}

pub(super) fn status_cold(trial: &mut Trial) -> io::Result<Sample> {
    status_is_known(trial)?;
    trial.system.remount()?;
    status_now(trial)
}

/// The first time it writes down what it has seen, and each further one as long as that is in the second in which a file was
/// written.
fn status_is_known(trial: &Trial) -> io::Result<()> {
    thread::sleep(Duration::from_secs(1));
    git_status(&trial.path("repository"))
}

fn status_now(trial: &mut Trial) -> io::Result<Sample> {
    let dir = trial.path("repository");
    let timed = trial.timed(|| git_status(&dir).map(|()| 1))?;
    Ok(timed.seconds())
}

pub(super) fn sqlite(trial: &mut Trial) -> io::Result<Sample> {
    let (path, count) = (trial.fresh_path("database"), trial.scale.transactions);
    sqlite_create(&path)?;
    let timed = trial.timed(|| sqlite_insert(&path, count).map(|()| count as u64))?;
    Ok(timed.rate(count as f64))
}
