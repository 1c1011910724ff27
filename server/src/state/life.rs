//! The life of a server's leases: whether the last one ended cleanly, and how long leases of it
//! may still be alive.

use super::error::StateError;
use super::files;
use leasefs_protocol::limits::FENCES_OF_LIFE;
use leasefs_protocol::{BootId, Fence};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Life {
    /// No lease is alive. Gone while a server may grant.
    clean: bool,
    /// Boot id of the host, for people.
    host: String,
    max_term_ms: u64,
    max_drift_ppm: u32,
    /// No lock has a greater number.
    #[serde(default)]
    last_fence: u64,
}

/// The record of the server's life.
#[derive(Debug)]
pub struct LifeRecord {
    path: PathBuf,
    host: BootId,
    life: Life,
}

impl LifeRecord {
    /// Reads the record kept in a file. Before the first life no lease is alive.
    pub fn open(path: &Path, host: BootId) -> Result<Self, StateError> {
        let life = files::read_json(path)?.unwrap_or(Life {
            clean: true,
            host: host.to_string(),
            max_term_ms: 0,
            max_drift_ppm: 0,
            last_fence: 0,
        });
        Ok(Self {
            path: path.to_owned(),
            host,
            life,
        })
    }

    /// Whether no lease of an earlier life is alive.
    pub fn ended_clean(&self) -> bool {
        self.life.clean
    }

    /// The longest term a lease that may be alive was granted for.
    pub fn max_term(&self) -> Duration {
        Duration::from_millis(self.life.max_term_ms)
    }

    /// The largest drift bound in force for such a lease.
    pub fn max_drift_ppm(&self) -> u32 {
        self.life.max_drift_ppm
    }

    /// The first number of a lock that no life has given.
    pub fn first_fence(&self) -> Fence {
        Fence(self.life.last_fence).next()
    }

    /// Makes durable that leases may be alive, of at most this term and drift bound, or of an
    /// earlier life's if any of those are still `leased`.
    pub fn begin(&mut self, term: Duration, drift_ppm: u32, leased: bool) -> io::Result<()> {
        let earlier = leased.then_some(&self.life);
        let term_ms = u64::try_from(term.as_millis()).map_err(io::Error::other)?;
        let life = Life {
            clean: false,
            host: self.host.to_string(),
            max_term_ms: earlier.map_or(0, |life| life.max_term_ms).max(term_ms),
            max_drift_ppm: earlier.map_or(0, |life| life.max_drift_ppm).max(drift_ppm),
            last_fence: self.life.last_fence.saturating_add(FENCES_OF_LIFE),
        };
        self.write(life)
    }

    /// Leaves the mark that no lease is alive.
    pub fn end(&mut self) -> io::Result<()> {
        self.write(Life {
            clean: true,
            ..self.life.clone()
        })
    }

    fn write(&mut self, life: Life) -> io::Result<()> {
        files::write_json(&self.path, &life)?;
        self.life = life;
        Ok(())
    }
}
