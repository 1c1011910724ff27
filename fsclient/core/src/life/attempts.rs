//! Attempts to connect: which are worth repeating, and when.

use leasefs_lease::time::BootTime;
use leasefs_protocol::Refusal;
use leasefs_protocol::control::HelloRefusal;
use std::time::Duration;

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What requests are refused with while the server refuses the session; `None` if it is worth
/// waiting.
pub fn refused_for_good(refusal: &HelloRefusal) -> Option<Refusal> {
    match refusal {
        HelloRefusal::NoDirectory(_) => Some(Refusal::Stale),
        HelloRefusal::TooMany(_) | HelloRefusal::Internal(_) => None,
        HelloRefusal::Version { .. }
        | HelloRefusal::NotHello(_)
        | HelloRefusal::UnknownClient(_)
        | HelloRefusal::Revoked(_)
        | HelloRefusal::TicketUnknown
        | HelloRefusal::TicketUsed
        | HelloRefusal::TicketExpired
        | HelloRefusal::ForeignSession => Some(Refusal::Access),
    }
}

/// Jittered pauses between attempts: none, then up to a second.
#[derive(Debug, Default)]
pub struct Pause(Duration);

impl Pause {
    /// The next. `now` is what it is jittered by.
    pub fn next(&mut self, now: BootTime) -> Duration {
        let whole = self.0;
        self.0 = (whole * 2).clamp(Duration::from_millis(50), LONGEST_PAUSE);
        whole.mul_f64(0.5 + 0.5 * jitter(now))
    }
}

/// Between 0 and 1; enough to spread the clients of a restarted server.
fn jitter(now: BootTime) -> f64 {
    let mixed = now.as_nanos().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed as f64 / (1u64 << 24) as f64
}
