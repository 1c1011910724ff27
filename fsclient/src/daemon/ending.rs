//! Waiting for what is brought to the server, for as long as anything gets there.

use crate::fuse::Driver;
use leasefs_client::WriteBackStatus;
use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How long nothing may come through to a silent server.
const SILENT: Duration = Duration::from_secs(10);
/// To one in contact: so much beyond the terms for which others' leases may stand in the way.
const BEYOND_TERMS: Duration = Duration::from_secs(5);
/// How long the server's disk may take to make everything durable while the server is in contact.
const COMMIT: Duration = Duration::from_secs(600);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);
/// How often the log says how it gets on.
const SAY: Duration = Duration::from_secs(5);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Bytes go to the server.
    Flush,
    /// The server's disk works.
    Commit,
}

impl Work {
    /// How long it may stand still.
    fn patience(self, status: &WriteBackStatus) -> Duration {
        match (self, status.in_contact) {
            (_, false) => SILENT,
            (Self::Flush, true) => SILENT.max(status.term * 2 + BEYOND_TERMS),
            (Self::Commit, true) => COMMIT,
        }
    }
}

/// Waits as long as it gets on; `None` if it has stood still for too long.
pub(super) async fn while_it_gets_on<T>(
    driver: &Driver,
    work: Work,
    wait: impl Future<Output = T>,
) -> Option<T> {
    let mut wait = pin!(wait);
    let begun = Instant::now();
    let mut said = begun;
    // A server that is heard now and then is silent in between.
    let mut silent_since: Option<Instant> = None;
    loop {
        if let Ok(done) = timeout(LOOK, wait.as_mut()).await {
            return Some(done);
        }
        let status = driver.write_back_status();
        silent_since = match status.in_contact {
            true => None,
            false => silent_since.or(Some(Instant::now())),
        };
        let quiet = silent_since.map_or(Duration::MAX, |since| since.elapsed());
        let still = begun.elapsed().min(status.still).min(quiet);
        if still >= work.patience(&status) {
            return None;
        }
        if said.elapsed() >= SAY {
            said = Instant::now();
            tracing::info!(
                files = status.files,
                bytes = status.bytes,
                bytes_per_second = status.rate,
                "writing back"
            );
        }
    }
}

/// The same; by force a port that nobody has isn't waited for.
pub(super) async fn while_it_may<T>(
    driver: &Driver,
    work: Work,
    force: bool,
    wait: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = while_it_gets_on(driver, work, wait) => done,
        () = port_is_closed(driver), if force => None,
    }
}

async fn port_is_closed(driver: &Driver) {
    loop {
        sleep(LOOK).await;
        if !driver.write_back_status().in_contact && driver.nobody_listens().await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(in_contact: bool, term: u64) -> WriteBackStatus {
        WriteBackStatus {
            in_contact,
            term: Duration::from_secs(term),
            ..WriteBackStatus::default()
        }
    }

    #[test]
    fn a_silent_server_is_waited_for_less_long_than_one_whose_other_clients_must_be_waited_for() {
        let seconds = Duration::from_secs;
        assert_eq!(Work::Flush.patience(&status(false, 10)), seconds(10));
        assert_eq!(Work::Commit.patience(&status(false, 10)), seconds(10));
        assert_eq!(Work::Flush.patience(&status(true, 10)), seconds(25));
        assert_eq!(Work::Flush.patience(&status(true, 1)), seconds(10));
        assert_eq!(Work::Commit.patience(&status(true, 1)), COMMIT);
    }
}
