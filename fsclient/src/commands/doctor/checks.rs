//! What is made of what was found: pure.

use super::facts::{Clocks, MountFound, Reached, Refused, ServerFound, StateFound, SystemFound};
use crate::fuse::Release;
use leasefs_protocol::control::HelloRefusal;
use leasefs_protocol::escaped;
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
use serde::Serialize;
use std::time::Duration;

/// What is kept for recovery at worst: a mount's dirty and unstable bytes, unless `--memory` says more.
const ROOM: u64 = 256 << 20;
/// The smallest largest datagram of QUIC: where it stays so, larger ones don't get through.
const SMALLEST_DATAGRAM: u16 = 1200;
/// Routes of that many bytes carry more.
const USUAL_MTU: u32 = 1400;
/// A round trip that is felt.
const FAR: Duration = Duration::from_millis(100);
/// So many round trips a lease should last: it counts from when its renewal was asked for, and is renewed in time.
const TRIPS_PER_TERM: u32 = 8;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could.
    Warning,
    /// It doesn't.
    Problem,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// Of what.
    pub(super) name: String,
    /// How it stands.
    pub(super) level: Level,
    /// What was found.
    pub(super) found: String,
    /// What to do.
    pub(super) advice: Option<String>,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>) -> Self {
        Self::new(name, Level::Ok, found, None)
    }

    fn warning(name: &str, found: impl Into<String>, advice: &str) -> Self {
        Self::new(name, Level::Warning, found, Some(advice))
    }

    fn problem(name: &str, found: impl Into<String>, advice: &str) -> Self {
        Self::new(name, Level::Problem, found, Some(advice))
    }

    fn new(name: &str, level: Level, found: impl Into<String>, advice: Option<&str>) -> Self {
        Self {
            name: name.to_owned(),
            level,
            found: found.into(),
            advice: advice.map(str::to_owned),
        }
    }
}

/// Of the machine.
pub(super) fn system(found: &SystemFound) -> Vec<Check> {
    let mut checks = vec![kernel(&found.release), device(&found.fuse)];
    if !found.root {
        checks.push(helper(found.helper.is_some()));
    }
    checks.extend([
        buffers(&found.buffers),
        clock(&found.clocks),
        sleep(found.logind),
    ]);
    checks
}

fn kernel(release: &Result<Release, String>) -> Check {
    let name = "kernel";
    let release = match release {
        Ok(release) => release,
        Err(error) => return Check::problem(name, error, "leasefs needs Linux 6.6 or newer"),
    };
    match (release.check(), release.has_epochs()) {
        (Err(error), _) => Check::problem(name, error.to_string(), "install a newer kernel"),
        (Ok(()), true) => Check::ok(name, format!("Linux {release}: names are cached in it too")),
        (Ok(()), false) => Check::warning(
            name,
            format!("Linux {release}: each name of a path is asked for in the daemon"),
            "from Linux 6.16 on names are cached in the kernel too, which makes opening files faster",
        ),
    }
}

fn device(opened: &Result<(), std::io::ErrorKind>) -> Check {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    let name = "/dev/fuse";
    match opened {
        Ok(()) => Check::ok(name, "can be opened"),
        Err(NotFound) => Check::problem(
            name,
            "is not there",
            "`modprobe fuse`; in a container, pass the device on",
        ),
        Err(PermissionDenied) => Check::problem(
            name,
            "may not be opened by you",
            "mode 0666 is usual (`chmod 666 /dev/fuse`), or mount as root",
        ),
        Err(other) => Check::problem(
            name,
            format!("can't be opened: {other}"),
            "`modprobe fuse`; in a container, allow the device",
        ),
    }
}

fn helper(there: bool) -> Check {
    match there {
        true => Check::ok("fusermount3", "is there"),
        false => Check::problem(
            "fusermount3",
            "is not in PATH",
            "install it (Debian: `apt install fuse3`), or mount as root",
        ),
    }
}

fn buffers(found: &Result<leasefs_transport::Buffers, String>) -> Check {
    let name = "socket buffers";
    let found = match found {
        Ok(found) => found,
        Err(error) => return Check::problem(name, error, "UDP sockets are needed"),
    };
    let kib = |bytes: usize| bytes >> 10;
    let (least, wanted) = (found.receive.min(found.send), found.wanted);
    match least >= wanted {
        true => Check::ok(name, format!("{} KiB", kib(least))),
        false => Check::warning(
            name,
            format!(
                "{} KiB to receive, {} KiB to send, of {} KiB",
                kib(found.receive),
                kib(found.send),
                kib(wanted)
            ),
            &format!(
                "packets are lost when much comes at once: `sysctl net.core.rmem_max={wanted} net.core.wmem_max={wanted}`"
            ),
        ),
    }
}

fn clock(found: &Clocks) -> Check {
    let (name, bound) = ("clock", DEFAULT_DRIFT_PPM);
    let ppm = found.drift_ppm();
    let slept = match found.slept.as_secs() {
        0 => String::new(),
        seconds => format!("; the machine has slept for {seconds} s since it booted"),
    };
    match ppm.unsigned_abs() > u64::from(bound) {
        true => Check::problem(
            "clock",
            format!("runs {ppm} millionths fast by its own oscillator"),
            &format!(
                "leases allow for {bound}: what sets the clock must slew it more slowly (chrony: `maxslewrate {bound}`)"
            ),
        ),
        false => Check::ok(
            name,
            format!("is slewed by {ppm} millionths, {bound} are allowed for{slept}"),
        ),
    }
}

fn sleep(logind: bool) -> Check {
    match logind {
        true => Check::ok(
            "sleep",
            "systemd-logind says when the machine goes to sleep",
        ),
        false => Check::warning(
            "sleep",
            "nobody says when the machine goes to sleep",
            "if it does: others may wait a lease's term for it then (systemd-logind or elogind on the system bus would tell)",
        ),
    }
}

/// Of the state directory.
pub(super) fn state(found: &StateFound) -> Vec<Check> {
    let name = "state";
    let dir = escaped(found.path.as_os_str().as_encoded_bytes());
    let mut checks = vec![match &found.usable {
        Ok(true) => Check::ok(name, format!("{dir} is yours alone")),
        Ok(false) => Check::ok(name, format!("{dir} is made by the first mount")),
        Err(error) => Check::problem(name, error, "name another directory with --state"),
    }];
    checks.push(match found.room {
        Some(room) if room < ROOM => Check::warning(
            "room",
            format!("{} MiB are free for what can't be brought to a server", room >> 20),
            "written bytes are lost where the disk is full: make room, or name a directory on another disk with --state",
        ),
        Some(room) => Check::ok("room", format!("{} MiB are free for recovery", room >> 20)),
        None => Check::warning("room", "can't be told", "see the state directory"),
    });
    checks.push(match &found.kept {
        Ok(0) => Check::ok("recovery", "nothing is kept"),
        Ok(kept) => Check::warning(
            "recovery",
            format!("{kept} item(s) could not be brought to a server and are kept"),
            "see `fsclient recover list`",
        ),
        Err(error) => Check::problem("recovery", error, "the folder must be readable"),
    });
    checks
}

/// Of the list of servers.
pub(super) fn enrolled(servers: Result<usize, &String>) -> Check {
    match servers {
        Ok(0) => Check::ok("servers", "this client is enrolled with none yet"),
        Ok(servers) => Check::ok("servers", format!("this client is enrolled with {servers}")),
        Err(error) => Check::problem("servers", error, "mounts need the list of servers' keys"),
    }
}

/// Of a mount.
pub(super) fn mount(found: &MountFound) -> Check {
    let name = format!(
        "mount {}",
        escaped(found.dir.as_os_str().as_encoded_bytes())
    );
    let trouble = found
        .trouble
        .as_deref()
        .unwrap_or("nothing comes from the server");
    match found.state.as_str() {
        "connected" => Check::ok(&name, "is connected"),
        "dead" => Check::problem(
            &name,
            "its daemon has died",
            "`fsclient umount` removes it; its log says why",
        ),
        "stopped" => Check::problem(&name, "its daemon is stopped", "SIGCONT lets it go on"),
        "hangs" => Check::problem(
            &name,
            "its daemon does not answer",
            "see its log; `fsclient umount --force` ends it",
        ),
        "hidden" | "refuses" => Check::warning(
            &name,
            "its daemon can't be asked",
            "was it started with another XDG_RUNTIME_DIR or LEASEFS_RUNTIME_DIR, or is it of another version?",
        ),
        state => Check::problem(
            &name,
            format!("is {state}: {}", escaped(trouble)),
            "`fsclient status` says more of it, and the server's line here",
        ),
    }
}

/// Of a server.
pub(super) fn server(found: &ServerFound) -> Vec<Check> {
    let server = format!("server {}", escaped(&found.name));
    match &found.reached {
        Ok(reached) => vec![answers(&server, reached), path(&server, reached)],
        Err(refused) => {
            let mut check = unreached(&server, refused);
            if !found.others.is_empty() {
                let others = found.others.join(", ");
                check.found += &format!(" (nor is it reached as {})", escaped(&others));
            }
            if let Some(advice) = check.advice.as_mut().filter(|_| found.enrolled) {
                *advice += &format!(" If it is gone for good: `fsclient forget {}`", found.name);
            }
            vec![check]
        }
    }
}

fn answers(name: &str, reached: &Reached) -> Check {
    let (rtt, identity) = (reached.rtt, &reached.identity);
    let micros = rtt.as_micros();
    let found = format!(
        "lets this client in ({identity}), round trip {}.{:03} ms, leases last {} s",
        micros / 1000,
        micros % 1000,
        reached.term.as_secs()
    );
    let lapses = rtt * TRIPS_PER_TERM > reached.term;
    match (lapses, rtt > FAR) {
        (true, _) => Check::warning(
            name,
            found,
            "leases may run out here before they are renewed, and little is cached then: a longer `--term` there",
        ),
        (false, true) => Check::warning(
            name,
            found,
            "what isn't cached takes a round trip or more: it is far away",
        ),
        (false, false) => Check::ok(name, found),
    }
}

fn path(name: &str, reached: &Reached) -> Check {
    let name = format!("path to {}", name.trim_start_matches("server "));
    let route = reached
        .route_mtu
        .map_or(String::new(), |mtu| format!(", the route says {mtu}"));
    let found = format!("datagrams of {} bytes get through{route}", reached.datagram);
    let narrow = reached.datagram <= SMALLEST_DATAGRAM
        && reached.route_mtu.is_none_or(|mtu| mtu >= USUAL_MTU);
    match narrow {
        true => Check::warning(
            &name,
            found,
            "something on the way drops larger ones (a tunnel?): bulk data takes more packets",
        ),
        false => Check::ok(&name, found),
    }
}

fn unreached(name: &str, refused: &Refused) -> Check {
    let enrol = "mount once with a ticket: `fsserver ticket` on the server prints one";
    let (found, advice) = match refused {
        Refused::Unknown(why) => (
            format!("the name can't be resolved: {why}"),
            "is it spelled right? does this machine's resolver know it?",
        ),
        Refused::Closed => (
            "the host answers, but nothing listens on that UDP port".to_owned(),
            "does `fsserver` run there? is the port the one of its `ready` line? or does a firewall reject it?",
        ),
        Refused::Unroutable(why) => (
            format!("no way there: {why}"),
            "is the network up? is the address right?",
        ),
        Refused::Silent => (
            "nothing comes back".to_owned(),
            "is the host up? does a firewall let UDP to that port through, both ways?",
        ),
        Refused::NotEnrolled => (
            "a leasefs server answers, but this client isn't enrolled with it".to_owned(),
            enrol,
        ),
        Refused::WrongServer(why) => (
            why.clone(),
            "ask the server's administrator which of both it is",
        ),
        Refused::Hello(refusal) => (
            refusal.to_string(),
            match refusal {
                HelloRefusal::Version { .. } => "install the same leasefs on both sides",
                HelloRefusal::UnknownClient(_) => enrol,
                HelloRefusal::Revoked(_) => {
                    "ask the administrator: only a new ticket lets this client in again"
                }
                _ => "see the server's log",
            },
        ),
        Refused::Other(why) => (why.clone(), "see the server's log"),
    };
    Check::problem(name, escaped(&found).to_string(), advice)
}

#[cfg(test)]
mod tests;
