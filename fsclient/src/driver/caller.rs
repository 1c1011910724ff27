//! Who asks: supplementary groups and pending signals from `/proc`.
//!
//! The caller sleeps in the kernel while its request is here, so neither can change between
//! the moment it asked and the moment we look. For the same reason nothing is remembered from
//! one request to the next: the same process may come back with other groups.

use leasefs_client::Signals;
use std::fs::File;
use std::io::Read;

/// Supplementary groups of a process; none if it is unknown or gone.
pub fn groups(pid: u32) -> Vec<u32> {
    status(pid).map(|text| groups_of(&text)).unwrap_or_default()
}

/// What waits for a process, of what it would leave for: a signal that ends it, so that nobody will read the answer; or
/// another one that it doesn't ignore.
pub fn pending_signal(pid: u32, signals: Signals) -> Option<Signals> {
    let text = status(pid)?;
    match signals {
        _ if is_fatal(&text) => Some(Signals::Fatal),
        Signals::All if is_interrupted(&text) => Some(Signals::All),
        Signals::All | Signals::Fatal => None,
    }
}

/// `/proc/TID/status`; `None` for the kernel itself, and for who is gone.
fn status(pid: u32) -> Option<String> {
    if pid == 0 {
        return None;
    }
    let mut text = Vec::with_capacity(2048);
    let mut file = File::open(format!("/proc/{pid}/status")).ok()?;
    file.read_to_end(&mut text).ok()?;
    // A thread calls itself what it likes.
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

fn groups_of(status: &str) -> Vec<u32> {
    field(status, "Groups")
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|gid| gid.parse().ok())
        .collect()
}

fn mask(status: &str, name: &str) -> u64 {
    field(status, name)
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .unwrap_or(0)
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signals whose default action is not to terminate.
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGCONT)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU);

/// Signals that are ignored unless they are caught.
const UNHEARD: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGCONT) | bit(libc::SIGURG) | bit(libc::SIGWINCH);

fn pending(status: &str) -> u64 {
    mask(status, "SigPnd") | mask(status, "ShdPnd")
}

fn is_interrupted(status: &str) -> bool {
    let caught = mask(status, "SigCgt");
    let spared = mask(status, "SigBlk") | mask(status, "SigIgn") | (UNHEARD & !caught);
    pending(status) & !spared != 0
}

fn is_fatal(status: &str) -> bool {
    let pending = pending(status);
    let spared = mask(status, "SigBlk") | mask(status, "SigIgn") | mask(status, "SigCgt");
    pending & bit(libc::SIGKILL) != 0 || pending & !spared & !HARMLESS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: u64, blocked: u64, caught: u64) -> String {
        format!(
            "Name:\tx\nGroups:\t4 27 1000 \nSigQ:\t0/1\nSigPnd:\t0000000000000000\nShdPnd:\t{pending:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t0000000000000000\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn groups_are_read_from_the_status() {
        assert_eq!(groups_of(&status(0, 0, 0)), vec![4, 27, 1000]);
        assert_eq!(groups_of("Groups:\t\n"), Vec::<u32>::new());
    }

    #[test]
    fn a_thread_may_call_itself_what_it_likes() {
        let asked = std::thread::spawn(|| {
            let own = rustix::thread::gettid();
            rustix::thread::set_name(c"\xff\xfe").expect("a name");
            super::status(own.as_raw_nonzero().get().cast_unsigned())
        });
        let told = asked.join().expect("it is told").expect("there");
        assert!(field(&told, "Groups").is_some(), "{told}");
    }

    #[test]
    fn only_a_signal_that_will_end_the_process_is_fatal() {
        let (kill, term, child) = (bit(libc::SIGKILL), bit(libc::SIGTERM), bit(libc::SIGCHLD));
        assert!(is_fatal(&status(kill, !0, 0)));
        assert!(is_fatal(&status(term, 0, 0)));
        assert!(!is_fatal(&status(term, term, 0)));
        assert!(!is_fatal(&status(term, 0, term)));
        assert!(!is_fatal(&status(child, 0, 0)));
        assert!(!is_fatal(&status(0, 0, 0)));
    }

    #[test]
    fn a_signal_that_is_caught_interrupts_and_one_that_is_ignored_does_not() {
        let (term, child) = (bit(libc::SIGTERM), bit(libc::SIGCHLD));
        assert!(is_interrupted(&status(term, 0, term)));
        assert!(is_interrupted(&status(child, 0, child)));
        assert!(!is_interrupted(&status(child, 0, 0)));
        assert!(!is_interrupted(&status(term, term, term)));
    }

    #[test]
    fn a_request_of_the_kernel_itself_has_no_groups_and_never_dies() {
        assert!(groups(0).is_empty());
        assert_eq!(pending_signal(0, Signals::All), None);
    }
}
