//! Where metrics may be asked for.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a daemon is asked for its metrics. Whoever can reach it is told them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// An address of this machine that others can't reach.
    Loopback(SocketAddr),
    /// A socket with this path.
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return match path.is_absolute() && path.file_name().is_some() {
                true => Ok(Self::Unix(path)),
                false => Err(
                    "expected a whole path as unix:/run/leasefs-metrics/metrics.sock".to_owned(),
                ),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            "expected a loopback address and port as 127.0.0.1:9464 or [::1]:9464, or unix:PATH"
        })?;
        match address.ip().to_canonical().is_loopback() {
            true => Ok(Self::Loopback(address)),
            false => Err(format!(
                "other machines may reach {address}, and whoever asks is told: take an address of the \
                 loopback (127.0.0.1, [::1]), and let others in by a reverse proxy or an ssh tunnel"
            )),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_of_this_machine_alone() {
        for good in [
            "127.0.0.1:9464",
            "127.8.9.1:1",
            "[::1]:9464",
            "[::ffff:127.0.0.1]:9464",
            "unix:/run/leasefs/m.sock",
        ] {
            let place: Place = good.parse().expect(good);
            assert_eq!(place.to_string(), good);
        }
        for bad in [
            "",
            "9464",
            "localhost:9464",
            "127.0.0.1",
            "unix:",
            "unix:m.sock",
            "unix:/",
        ] {
            let refused = bad.parse::<Place>().expect_err(bad);
            assert!(refused.starts_with("expected"), "{refused}");
        }
    }

    #[test]
    fn an_address_that_others_may_reach_is_refused_with_what_to_do() {
        for bad in [
            "0.0.0.0:9464",
            "[::]:9464",
            "192.0.2.7:1",
            "[::ffff:10.0.0.1]:1",
        ] {
            let refused = bad.parse::<Place>().expect_err(bad);
            assert!(refused.contains("ssh tunnel"), "{refused}");
        }
    }
}
