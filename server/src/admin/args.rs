//! What commands are given.

use crate::state::{Policy, User};
use clap::Args;
use leasefs_metrics::Place;
use leasefs_protocol::limits::{DEFAULT_PORT, MAX_TERM, MIN_TERM};
use leasefs_protocol::ticket::Addresses;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub(super) struct StateArg {
    /// State directory: the server's keys and clients [default: /var/lib/leasefs as root, else
    /// $XDG_STATE_HOME/leasefs]
    #[arg(long = "state", value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The directory to serve
    pub(super) dir: PathBuf,
    /// UDP address to listen on, and port if it isn't 4430 [default: `[::]:4430`, else `0.0.0.0:4430`]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_listen)]
    pub(super) listen: Option<SocketAddr>,
    /// How clients reach this server, for tickets [default: the address listened on; where that is any, the name
    /// of this host and its addresses]
    #[arg(long, value_name = "HOST[:PORT],..", value_parser = parse_advertised)]
    pub(super) advertise: Option<String>,
    #[command(flatten)]
    pub(super) state: StateArg,
    /// How long a client's leases last without a word from it: a duration as 10s or 1500ms
    #[arg(long, default_value = "10s", value_parser = parse_term)]
    pub(super) term: Duration,
    /// Whose rights clients have [default: root_squash as root, else squash]
    #[arg(long)]
    pub(super) identity: Option<Policy>,
    /// Until a client has enrolled, write the ticket to this file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    pub(super) ticket_file: Option<PathBuf>,
    /// Tell metrics for Prometheus at this loopback address and port, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub(super) metrics: Option<Place>,
}

#[derive(Debug, Args)]
pub(super) struct TicketArgs {
    /// Its client may only read
    #[arg(long)]
    pub(super) read_only: bool,
    /// Its client's user ids are believed, root's too
    #[arg(long)]
    pub(super) trust: bool,
    /// Everybody on its client's machine acts as this one user of the server's host
    #[arg(long = "as", value_name = "UID:GID", conflicts_with = "trust")]
    pub(super) acts_as: Option<User>,
    /// Its client is confined to this directory below the served one
    #[arg(long, value_name = "PATH")]
    pub(super) subdir: Option<String>,
    #[command(flatten)]
    pub(super) state: StateArg,
}

#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    /// Its name, or the beginning of its key (`fsserver clients` lists both)
    pub(super) client: String,
    #[command(flatten)]
    pub(super) state: StateArg,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// In JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) state: StateArg,
}

/// Where no port is named it is that which is listened at, not known yet.
fn parse_advertised(text: &str) -> Result<String, String> {
    let parsed = Addresses::parse(text, DEFAULT_PORT);
    parsed.map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let alone = text.trim_start_matches('[').trim_end_matches(']');
    let with_port = |address: IpAddr| SocketAddr::from((address, DEFAULT_PORT));
    text.parse()
        .or_else(|_| alone.parse().map(with_port))
        .map_err(|_| {
            "expected an address of this host, and a port if it isn't 4430: 10.0.0.1:4430, 0.0.0.0, [::]:4430 (no \
             name: --advertise takes one)"
                .to_owned()
        })
}

fn parse_term(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("ms") => 1,
        Some("s" | "") => 1_000,
        Some("m") => 60_000,
        _ => 0,
    };
    let term = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .map(Duration::from_millis);
    match term {
        Some(term) if (MIN_TERM..=MAX_TERM).contains(&term) => Ok(term),
        _ => Err(format!(
            "expected a duration as 10s or 1500ms, from {MIN_TERM:?} to {MAX_TERM:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_listen_on_may_go_without_its_port() {
        for (text, address) in [
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("10.0.0.1", "10.0.0.1:4430"),
            ("[::]:99", "[::]:99"),
            ("::1", "[::1]:4430"),
            ("[::1]", "[::1]:4430"),
        ] {
            let address = address.parse().map_err(|e| format!("{e}"));
            assert_eq!(parse_listen(text), address, "{text}");
        }
        for bad in ["", "99", ":99", "nas", "nas:99", "10.0.0.1:", "10.0.0.1:x"] {
            assert!(parse_listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn terms_are_durations_within_their_bounds() {
        assert_eq!(parse_term("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_term("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_term("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "0s", "999ms", "301s", "10h", "-1s", "1.5s"] {
            assert!(parse_term(bad).is_err(), "{bad}");
        }
    }
}
