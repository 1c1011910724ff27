//! What the service manager hears, where one listens (`NOTIFY_SOCKET`); else nothing happens.

use crate::runtime::Leases;
use leasefs_protocol::printable;
use sd_notify::NotifyState;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// So often in the time that the manager waits for a word, the lease core is looked at.
const LOOKS: u32 = 4;

/// Clients can connect.
pub(super) fn serving(export: &Path, address: SocketAddr) {
    let path = export.display().to_string();
    let what = format!("serving {} at {address}", printable(&path));
    tell(&[NotifyState::Ready, NotifyState::Status(&what)]);
}

/// No request is taken any more.
pub(super) fn ending() {
    let why = NotifyState::Status("ending: clients give their leases back");
    tell(&[NotifyState::Stopping, why]);
}

/// Says that the server is alive as long as its lease core makes turns. Ends only where nobody waits for that.
pub(super) async fn keep_alive(leases: Arc<Leases>) {
    let Some(patience) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut pulse = Pulse::default();
    loop {
        if pulse.beats(leases.turns()) {
            tell(&[NotifyState::Watchdog]);
        }
        tokio::time::sleep(patience / LOOKS).await;
    }
}

/// What was seen of the core when it was last looked at.
#[derive(Debug, Default)]
struct Pulse(u64);

impl Pulse {
    /// Whether the core has made a turn since.
    fn beats(&mut self, turns: u64) -> bool {
        std::mem::replace(&mut self.0, turns) != turns
    }
}

fn tell(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager can't be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_makes_no_turn_keeps_nothing_alive() {
        let mut pulse = Pulse::default();
        let beats = [1, 2, 2, 2, 5].map(|turns| pulse.beats(turns));
        assert_eq!(beats, [true, true, false, false, true]);
    }
}
