//! `fsclient mount`.

use super::{StateArg, say};
use crate::daemon::{self, Failure, Job, StateDir, mounts};
use crate::fuse::Allowed;
use clap::Args;
use leasefs_client::Memory;
use leasefs_metrics::Place;
use leasefs_protocol::ticket::Source;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A ticket is shorter.
const LONGEST_TICKET: u64 = 4096;

#[derive(Debug, Args)]
pub(super) struct MountArgs {
    /// A ticket; `-`, `@FILE` or `env:NAME` for a ticket on standard input, in a file or in an
    /// environment variable; or `HOST[:PORT]:/[SUBDIR]` once this client is enrolled
    source: String,
    /// Where to mount
    dir: PathBuf,
    #[command(flatten)]
    state: StateArg,
    /// Stay in the foreground; `ready DIR` on standard output says that the mount is usable
    #[arg(long)]
    foreground: bool,
    /// How long operations wait for a server that can't be reached: a duration as 60s, 500ms or
    /// 2m, or `hard` to wait for ever
    #[arg(long, default_value = "60s", value_parser = parse_timeout)]
    timeout: TimeoutArg,
    /// Memory for what is cached, and for what is written and not on the server's disk yet: a size as
    /// 512MiB or 2GiB, 16MiB at least; at most a quarter of the machine's is used
    #[arg(long, default_value = "512MiB", value_parser = parse_memory)]
    memory: usize,
    /// Send every write to the server before it returns. Otherwise writes are buffered here for up
    /// to a second where no other mount uses the file; `fsync` waits in both cases
    #[arg(long)]
    write_through: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Let set-user-id and set-group-id programs and file capabilities of the mount take effect; for
    /// root only, and not where the server makes all users one
    #[arg(long)]
    suid: bool,
    /// Let device nodes of the mount lead to this machine's devices; as --suid
    #[arg(long)]
    dev: bool,
    /// Stay in the process group of `mount`, as what the system mounts does
    #[arg(long, hide = true)]
    by_system: bool,
    /// Let no program of the mount be run
    #[arg(long)]
    noexec: bool,
    /// Where the server makes all users one, show everything as this user's [default: who mounts]
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// The same for the group
    #[arg(long, value_name = "GID")]
    gid: Option<u32>,
    /// Tell metrics for Prometheus at this loopback address and port, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    metrics: Option<Place>,
}

impl MountArgs {
    fn allow(&self) -> Result<Allowed, String> {
        let allow = Allowed {
            suid: self.suid,
            dev: self.dev,
            exec: !self.noexec,
        };
        match allow.anything() && !rustix::process::geteuid().is_root() {
            true => Err("only root may mount with --suid or --dev: leave them out".to_owned()),
            false => Ok(allow),
        }
    }
}

/// `None` waits for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeoutArg(Option<Duration>);

fn parse_timeout(text: &str) -> Result<TimeoutArg, String> {
    if text == "hard" {
        return Ok(TimeoutArg(None));
    }
    parse_duration(text)
        .map(|duration| TimeoutArg(Some(duration)))
        .map_err(|error| format!("{error}, or `hard`"))
}

/// # Errors
/// What was expected, for people.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let millis = match unit {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => 0,
    };
    let duration = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(millis))
        .filter(|millis| *millis > 0);
    match duration {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err("expected a duration as 60s, 500ms or 2m".into()),
    }
}

fn parse_memory(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..).unwrap_or_default() {
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        _ => None,
    };
    shift
        .and_then(|shift| digits.parse::<usize>().ok()?.checked_mul(1 << shift))
        .filter(|bytes| *bytes >= Memory::LEAST)
        .ok_or_else(|| "expected a size as 512MiB or 2GiB, 16MiB at least".into())
}

/// What of the memory that is wanted may be used on a machine that has so much.
fn granted_memory(wanted: usize, machine: usize) -> usize {
    wanted.min((machine / 4).max(Memory::LEAST))
}

fn memory_of_machine() -> usize {
    let all = rustix::system::sysinfo();
    let bytes = u128::from(all.totalram) * u128::from(all.mem_unit);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// # Errors
/// As [`Failure`] says; one in the background is [`Failure::NoMount`] always.
pub(super) fn run(args: MountArgs) -> Result<(), Failure> {
    let foreground = args.foreground;
    let (job, state) = prepare(args).map_err(Failure::NoMount)?;
    if foreground {
        return daemon::run_foreground(job);
    }
    detach(&job, &state).map_err(Failure::NoMount)
}

fn prepare(args: MountArgs) -> Result<(Job, StateDir), String> {
    let allow = args.allow()?;
    let source = read_source(&args.source)?;
    let _: Source = source.parse().map_err(|e| format!("{e}"))?;
    let dir = mounts::prepare(&args.dir)?;
    let state = StateDir::open(args.state.state.as_deref(), &dir)?;
    let job = Job {
        source,
        dir,
        state: state.path().to_owned(),
        timeout: args.timeout.0,
        memory: granted_memory(args.memory, memory_of_machine()),
        write_back: !args.write_through,
        read_only: args.read_only,
        by_system: args.by_system,
        allow,
        uid: args.uid,
        gid: args.gid,
        metrics: args.metrics,
    };
    Ok((job, state))
}

/// The source as it is meant: tickets need not stand in the process list.
fn read_source(argument: &str) -> Result<String, String> {
    let text = if argument == "-" {
        let mut line = String::new();
        BufReader::new(std::io::stdin().take(LONGEST_TICKET))
            .read_line(&mut line)
            .map_err(|e| format!("can't read the ticket from standard input: {e}"))?;
        line
    } else if let Some(file) = argument.strip_prefix('@') {
        read_ticket_file(Path::new(file))?
    } else if let Some(name) = argument.strip_prefix("env:") {
        std::env::var(name).map_err(|e| format!("can't read the ticket from ${name}: {e}"))?
    } else if Path::new(argument).is_file() {
        return Err(format!(
            "{argument} is a file: with the ticket in it, mount @{argument}"
        ));
    } else {
        argument.to_owned()
    };
    let origin = match argument {
        "-" => "what standard input had",
        other => other,
    };
    match text.trim() {
        "" => Err(format!(
            "there is no ticket in {origin}: `fsserver ticket` on the server prints one"
        )),
        text if text != argument && text.parse::<Source>().is_err() => Err(format!(
            "{origin} is no ticket: one begins with leasefs:// and is a line of its own"
        )),
        text => Ok(text.to_owned()),
    }
}

fn read_ticket_file(file: &Path) -> Result<String, String> {
    let failed = |e| format!("can't read the ticket from {}: {e}", file.display());
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|file| file.take(LONGEST_TICKET).read_to_string(&mut text))
        .map_err(failed)?;
    Ok(text)
}

/// Starts the daemon in a process and session of its own, and waits for its verdict.
fn detach(job: &Job, state: &StateDir) -> Result<(), String> {
    let log = state.log_file(&job.dir)?;
    let failed = |what: &str, e: std::io::Error| format!("can't {what} the daemon: {e}");
    let program = std::env::current_exe().map_err(|e| failed("find", e))?;
    let mut child = Command::new(program)
        .arg("daemon")
        .arg(&job.dir)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log.file)
        .spawn()
        .map_err(|e| failed("start", e))?;
    if let Some(stdin) = child.stdin.take() {
        serde_json::to_writer(stdin, job).map_err(|e| failed("instruct", e.into()))?;
    }
    let stdout = child.stdout.take().into_iter();
    for line in stdout.flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(|e| failed("hear from", e))?;
        match line.split_once(' ') {
            Some(("ready", _)) => return Ok(()),
            Some(("error", message)) => return Err(message.to_owned()),
            Some(("note", message)) => say(message),
            _ => break,
        }
    }
    Err(format!(
        "the daemon has ended unexpectedly; its log is {}",
        log.path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units_or_are_hard() {
        let millis = |n| Ok(TimeoutArg(Some(Duration::from_millis(n))));
        assert_eq!(parse_timeout("60s"), millis(60_000));
        assert_eq!(parse_timeout("500ms"), millis(500));
        assert_eq!(parse_timeout("2m"), millis(120_000));
        assert_eq!(parse_timeout("5"), millis(5_000));
        assert_eq!(parse_timeout("hard"), Ok(TimeoutArg(None)));
        for bad in ["", "s", "0s", "-1s", "5 s", "5x", "99999999999999999999h"] {
            assert!(parse_timeout(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_is_mounted_with_the_ticket_in_it_when_it_is_marked_as_one() {
        let name = format!("leasefs-test-ticket-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "nas:/\n").expect("written");
        let name = file.to_str().expect("text");
        let marked = format!("@{name}");
        let (told, error) = (read_source(&marked), read_source(name));
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(told, Ok("nas:/".to_owned()));
        let error = error.expect_err("not marked");
        assert!(error.ends_with(&format!("mount {marked}")), "{error}");
        assert_eq!(read_source("host:/"), Ok("host:/".to_owned()));
    }

    #[test]
    fn memory_has_a_unit_and_is_no_less_than_what_is_needed() {
        assert_eq!(parse_memory("512MiB"), Ok(512 << 20));
        assert_eq!(parse_memory("2GiB"), Ok(2 << 30));
        assert_eq!(parse_memory("16384KiB"), Ok(16 << 20));
        for bad in [
            "",
            "512",
            "MiB",
            "-1GiB",
            "1 GiB",
            "512MB",
            "15MiB",
            "99999999999999GiB",
        ] {
            assert!(parse_memory(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_more_than_a_quarter_of_the_machines_memory_is_used() {
        assert_eq!(granted_memory(512 << 20, 16 << 30), 512 << 20);
        assert_eq!(granted_memory(512 << 20, 1 << 30), 256 << 20);
        assert_eq!(granted_memory(8 << 30, 16 << 30), 4 << 30);
        assert_eq!(granted_memory(512 << 20, 0), Memory::LEAST);
        assert!(memory_of_machine() > Memory::LEAST);
    }
}
