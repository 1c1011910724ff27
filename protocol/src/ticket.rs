//! Tickets and mount sources in their text form.
//!
//! A ticket is `leasefs://HOST:PORT[,HOST:PORT..]/#KEYHASH.SECRET`: the server's addresses, the SHA-256 of its
//! public key and a secret that enrols one client. An enrolled client names `HOST[:PORT]:/[SUBDIR]`.

use crate::ids::{BadHex, KeyHash};
use crate::limits::{DEFAULT_PORT, MAX_ADDRESSES};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Host (name or address) and UDP port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddr {
    /// Name, IPv4 or IPv6 address (without brackets).
    pub host: String,
    /// UDP port.
    pub port: u16,
}

/// Why a text is neither a ticket nor a mount source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Not a ticket.
    #[error("not a ticket: expected leasefs://HOST:PORT[,HOST:PORT..]/#KEYHASH.SECRET")]
    Ticket,
    /// Not a source.
    #[error(
        "not a source: expected HOST[:PORT]:/[SUBDIR] (an IPv6 address in brackets) or a ticket"
    )]
    Source,
    /// Not an address.
    #[error("not an address: expected HOST[:PORT], an IPv6 address in brackets")]
    Address,
}

impl From<BadHex> for SourceError {
    fn from(_: BadHex) -> Self {
        Self::Ticket
    }
}

impl FromStr for ServerAddr {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        Self::parse(text, DEFAULT_PORT)
    }
}

impl ServerAddr {
    /// At this port unless the text names one.
    fn parse(text: &str, port: u16) -> Result<Self, SourceError> {
        let (host, is_host, rest) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(SourceError::Address)?;
                (host, is_ipv6(host), rest)
            }
            None => {
                let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
                (host, is_label(host), rest)
            }
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| SourceError::Address)?,
            None if rest.is_empty() => port,
            None => return Err(SourceError::Address),
        };
        if !is_host {
            return Err(SourceError::Address);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// An IPv6 address, with the zone a link-local one needs (RFC 4007 §11: `fe80::1%eth0`).
fn is_ipv6(host: &str) -> bool {
    let (address, zone) = host
        .split_once('%')
        .map_or((host, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_label)
}

/// What names of hosts and of interfaces, and IPv4 addresses, are made of.
fn is_label(text: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty() && text.chars().all(part)
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Where one server can be reached: one address at least, the preferred first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Addresses(Vec<ServerAddr>);

impl Addresses {
    /// One, and as many others as fit.
    pub fn new(first: ServerAddr, others: impl IntoIterator<Item = ServerAddr>) -> Self {
        let mut all = vec![first];
        for other in others {
            if all.len() < MAX_ADDRESSES && !all.contains(&other) {
                all.push(other);
            }
        }
        Self(all)
    }

    /// Those that a text names, at this port where it names none.
    ///
    /// # Errors
    /// If one is no address, or they are too many.
    pub fn parse(text: &str, port: u16) -> Result<Self, SourceError> {
        let one = |text| ServerAddr::parse(text, port);
        let all: Result<Vec<ServerAddr>, _> = text.split(',').map(one).collect();
        match all? {
            all if all.len() > MAX_ADDRESSES => Err(SourceError::Address),
            all => Ok(Self(all)),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[ServerAddr] {
        &self.0
    }

    /// The preferred one.
    pub fn first(&self) -> &ServerAddr {
        // There is one: `new` and `from_str` see to it.
        &self.0[0]
    }

    /// Prefers this one from now on.
    pub fn prefer(&mut self, address: &ServerAddr) {
        self.0.sort_by_key(|one| one != address);
    }
}

impl From<ServerAddr> for Addresses {
    fn from(only: ServerAddr) -> Self {
        Self(vec![only])
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ServerAddr::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl FromStr for Addresses {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        Self::parse(text, DEFAULT_PORT)
    }
}

/// A single-use invitation to enrol. Its `Debug` form hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Where the server is.
    pub servers: Addresses,
    /// Its key: checked before the secret is sent.
    pub key: KeyHash,
    /// What enrols the client.
    pub secret: [u8; 32],
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, {})", self.servers, self.key)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = KeyHash(self.secret);
        write!(f, "leasefs://{}/#{}.{secret}", self.servers, self.key)
    }
}

impl FromStr for Ticket {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let rest = text.strip_prefix("leasefs://").ok_or(SourceError::Ticket)?;
        let (servers, keys) = rest.split_once("/#").ok_or(SourceError::Ticket)?;
        let (key, secret) = keys.split_once('.').ok_or(SourceError::Ticket)?;
        Ok(Self {
            servers: servers.parse()?,
            key: key.parse()?,
            secret: secret.parse::<KeyHash>()?.0,
        })
    }
}

/// What a mount is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A ticket: enrols, then mounts the export's root.
    Ticket(Ticket),
    /// A server that knows this client already, and a directory below its export.
    Enrolled {
        /// Where the server is.
        server: ServerAddr,
        /// Components of the directory.
        subdir: Vec<String>,
    },
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if text.starts_with("leasefs://") {
            return text.parse().map(Source::Ticket);
        }
        let (server, path) = text.split_once(":/").ok_or(SourceError::Source)?;
        let subdir: Vec<String> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        if subdir.iter().any(|part| part == "." || part == "..") {
            return Err(SourceError::Source);
        }
        Ok(Self::Enrolled {
            server: server.parse()?,
            subdir,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_reads_back_and_its_debug_form_hides_the_secret() {
        let text = format!(
            "leasefs://[::1]:4430/#{}.{}",
            "ab".repeat(32),
            "cd".repeat(32)
        );
        let ticket: Ticket = text.parse().expect("ticket");
        assert_eq!(ticket.to_string(), text);
        assert!(!format!("{ticket:?}").contains("cdcd"));
    }

    #[test]
    fn a_ticket_names_several_addresses_each_once_and_no_more_than_fit() {
        let address = |n: usize| -> ServerAddr { format!("h{n}:1").parse().expect("an address") };
        let text = format!(
            "leasefs://nas:1,[::1]:2,10.0.0.1:1/#{}.{}",
            "ab".repeat(32),
            "cd".repeat(32)
        );
        let ticket: Ticket = text.parse().expect("ticket");
        assert_eq!(ticket.to_string(), text);
        assert_eq!(ticket.servers.all().len(), 3);
        let many = Addresses::new(address(0), (0..50).map(address));
        assert_eq!(many.all().len(), MAX_ADDRESSES);
        let mut many: Addresses = many.to_string().parse().expect("as many as fit");
        many.prefer(&address(3));
        assert_eq!(many.first(), &address(3));
        assert_eq!(many.all()[1], address(0));
        let more = format!("{many},more:1");
        for text in ["", ",", "nas:1,", &more] {
            assert!(text.parse::<Addresses>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_names_and_addresses_of_hosts_are_addresses_and_they_read_back() {
        for text in [
            "nas:1",
            "10.0.0.1:1",
            "a-b.c_d:1",
            "[::1]:1",
            "[fe80::1%eth0.2]:1",
        ] {
            let address = text.parse::<ServerAddr>();
            assert_eq!(address.map(|a| a.to_string()).as_deref(), Ok(text));
        }
        for text in [
            "",
            ":1",
            "::1",
            "[nas]",
            "[[fe80::1]:1",
            "[::1",
            "[::1]x",
            "[fe80::1%]",
            "[::1%a]b]",
            "a b",
            "a\tb",
            "a/b",
            "a#b",
            "a@b",
            "a[b",
            "nas:",
            "nas:70000",
        ] {
            assert_eq!(
                text.parse::<ServerAddr>(),
                Err(SourceError::Address),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_source_may_leave_out_the_port_and_have_brackets() {
        let source = |text: &str| text.parse::<Source>();
        let enrolled = |host: &str, port, subdir: &[&str]| {
            Ok(Source::Enrolled {
                server: ServerAddr {
                    host: host.into(),
                    port,
                },
                subdir: subdir.iter().map(|s| (*s).to_owned()).collect(),
            })
        };
        assert_eq!(source("nas:/"), enrolled("nas", DEFAULT_PORT, &[]));
        assert_eq!(source("nas:99:/a/b"), enrolled("nas", 99, &["a", "b"]));
        assert_eq!(source("[::1]:99:/"), enrolled("::1", 99, &[]));
        assert_eq!(source("nas:/a/../b"), Err(SourceError::Source));
        assert_eq!(source("nas"), Err(SourceError::Source));
        assert_eq!(source(":/x"), Err(SourceError::Address));
    }
}
