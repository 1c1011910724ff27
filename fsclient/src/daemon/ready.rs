//! How a daemon tells whoever started it that the mount is usable, or why not.

use leasefs_protocol::printable;
use sd_notify::NotifyState;
use std::io::{Write, stdout};
use std::path::Path;

/// To whom the daemon owes a word.
#[derive(Debug)]
pub(super) enum Ready {
    /// A terminal, script or service manager: `ready DIR` on standard output.
    Foreground,
    /// The command that started the daemon, through a pipe on standard output.
    Parent,
}

impl Ready {
    /// Something to know of the mount, which will be usable.
    pub(super) fn note(&self, message: &str) {
        match self {
            Self::Foreground => tracing::warn!("{message}"),
            Self::Parent => say(&format!("note {}", printable(message))),
        }
    }

    /// The mount is usable.
    pub(super) fn ready(self, dir: &Path) {
        say(&format!("ready {}", dir.display()));
        match self {
            Self::Foreground => tell_manager(),
            Self::Parent => let_go(),
        }
    }

    /// It can't be made. (In the foreground the command itself says so.)
    pub(super) fn failed(self, message: &str) {
        if let Self::Parent = self {
            say(&format!("error {}", printable(message)));
        }
    }
}

/// The parent must see the end of the pipe even if the daemon lives on.
fn let_go() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Where a service manager listens (`NOTIFY_SOCKET`); else nothing happens.
fn tell_manager() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "the service manager can't be told");
    }
}

/// Whoever listened may have gone: that is no reason to end.
fn say(line: &str) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
