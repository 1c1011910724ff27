//! The first connection, before there is anything that could wait for another.

use super::config::{Config, ConnectError};
use super::link::{self, Link};
use crate::clock;
use leasefs_client::refused_for_good;
use leasefs_transport::TransportError;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Connects, and says `Hello`. Tries again until [`Config::connect_timeout`] unless that is in vain.
///
/// # Errors
/// Why the session doesn't stand.
pub async fn first(config: &Config) -> Result<Link, ConnectError> {
    let start = Instant::now();
    let mut pause = Pause::default();
    loop {
        let error = match link::establish(config, None).await {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        let late = start.elapsed() >= config.connect_timeout;
        if late || is_final(&error) {
            return Err(error);
        }
        pause.wait().await;
    }
}

fn is_final(error: &ConnectError) -> bool {
    match error {
        ConnectError::Refused { refusal, .. } => refused_for_good(refusal).is_some(),
        ConnectError::Transport { source, .. } => {
            matches!(
                source,
                TransportError::WrongServer { .. } | TransportError::Tls(_)
            )
        }
        ConnectError::Resolve { .. } | ConnectError::Broken { .. } => false,
    }
}

/// Jittered pauses between attempts: none, then up to a second.
#[derive(Debug, Default)]
struct Pause(Duration);

impl Pause {
    async fn wait(&mut self) {
        let whole = self.0;
        self.0 = (whole * 2).clamp(Duration::from_millis(50), LONGEST_PAUSE);
        sleep(whole.mul_f64(0.5 + 0.5 * jitter())).await;
    }
}

/// Between 0 and 1; enough to spread the clients of a restarted server.
fn jitter() -> f64 {
    let nanos = clock::boot().as_nanos();
    let mixed = nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed as f64 / (1u64 << 24) as f64
}
