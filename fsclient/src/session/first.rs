//! The first connection, before there is anything that could wait for another.

use super::config::{Config, ConnectError};
use super::link::{self, Link};
use crate::clock;
use leasefs_client::{Pause, refused_for_good};
use leasefs_transport::TransportError;
use tokio::time::{Instant, sleep};

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
        sleep(pause.next(clock::boot())).await;
    }
}

fn is_final(error: &ConnectError) -> bool {
    match error {
        ConnectError::Refused { refusal, .. } => refused_for_good(refusal).is_some(),
        ConnectError::Transport { source, .. } => {
            matches!(
                source,
                TransportError::WrongServer { .. }
                    | TransportError::NotListening(_)
                    | TransportError::Tls(_)
            )
        }
        ConnectError::Resolve { .. } => true,
        ConnectError::Broken { .. } => false,
    }
}
