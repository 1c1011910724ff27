//! The command. It has a process group of its own, so that what it has begun ends with it; but not on a terminal, which only
//! the foreground's group may read.

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{self, Command, ExitStatus};

/// As shells have it, for what isn't there and what can't be run.
const NOT_FOUND: i32 = 127;
const NOT_RUN: u8 = 126;
/// A process that a signal has ended exits with that many more.
const BY_SIGNAL: i32 = 128;

#[derive(Debug)]
pub(super) struct Child {
    child: process::Child,
    pid: Pid,
    group: bool,
}

impl Child {
    /// Runs it. It ends with this process, which nobody would look after the lock without.
    ///
    /// # Errors
    /// That it can't be run.
    pub(super) fn begin(command: &[OsString], token: &str, path: &Path) -> io::Result<Self> {
        let named = command.split_first();
        let (program, arguments) = named.ok_or(io::ErrorKind::InvalidInput)?;
        let group = !io::stdin().is_terminal();
        let mut command = Command::new(program);
        command.args(arguments);
        command.env("LEASEFS_LOCK", token);
        command.env("LEASEFS_LOCK_PATH", path);
        if group {
            command.process_group(0);
        }
        // SAFETY: between fork and exec: one system call, which allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, group })
    }

    /// Whether the command itself has ended. Its number stays taken until [`Child::code`] asks, so that signals reach what it
    /// has left behind and nobody else.
    pub(super) fn has_ended(&self) -> bool {
        let unreaped = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), unreaped), Ok(None))
    }

    /// With which code it has ended, if it has.
    pub(super) fn code(&mut self) -> Option<u8> {
        match self.child.try_wait() {
            Ok(status) => status.map(code),
            // Nobody else waits for it.
            Err(_) => Some(code(ExitStatus::from_raw(NOT_FOUND << 8))),
        }
    }

    /// Sends it a signal, and what it has begun.
    pub(super) fn signal(&self, signal: Signal) {
        // Who is gone needs none.
        let _ = match self.group {
            true => kill_process_group(self.pid, signal),
            false => kill_process(self.pid, signal),
        };
    }
}

/// What to exit with if the command can't be run.
pub(super) fn not_run(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => code(ExitStatus::from_raw(NOT_FOUND << 8)),
        _ => NOT_RUN,
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| Some(BY_SIGNAL + status.signal()?))
        .unwrap_or(NOT_FOUND);
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_run_has_the_code_that_shells_have_for_it() {
        for (program, exits_with) in [("/nowhere/at/all", 127), ("/", 126)] {
            let begun = Child::begin(&[program.into()], "1", Path::new("/lock"));
            let error = begun.expect_err("it can't be run");
            assert_eq!(not_run(&error), exits_with, "{program}: {error}");
        }
    }

    #[test]
    fn a_commands_end_is_told_as_a_shell_tells_it() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}
