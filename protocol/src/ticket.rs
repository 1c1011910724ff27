//! Tickets and mount sources in their text form.
//!
//! A ticket is `leasefs://HOST:PORT/#KEYHASH.SECRET`: the server's address, the SHA-256 of its
//! public key and a secret that enrols one client. An enrolled client names `HOST[:PORT]:/[SUBDIR]`.

use crate::ids::{BadHex, KeyHash};
use crate::limits::DEFAULT_PORT;
use std::fmt;
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
    #[error("not a ticket: expected leasefs://HOST:PORT/#KEYHASH.SECRET")]
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
        let (host, rest) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(SourceError::Address)?,
            None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| SourceError::Address)?,
            None if rest.is_empty() => DEFAULT_PORT,
            None => return Err(SourceError::Address),
        };
        if host.is_empty() || host.contains(['/', '#', '@', ' ']) {
            return Err(SourceError::Address);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
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

/// A single-use invitation to enrol. Its `Debug` form hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Where the server is.
    pub server: ServerAddr,
    /// Its key: checked before the secret is sent.
    pub key: KeyHash,
    /// What enrols the client.
    pub secret: [u8; 32],
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, {})", self.server, self.key)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = KeyHash(self.secret);
        write!(f, "leasefs://{}/#{}.{secret}", self.server, self.key)
    }
}

impl FromStr for Ticket {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let rest = text.strip_prefix("leasefs://").ok_or(SourceError::Ticket)?;
        let (server, keys) = rest.split_once("/#").ok_or(SourceError::Ticket)?;
        let (key, secret) = keys.split_once('.').ok_or(SourceError::Ticket)?;
        Ok(Self {
            server: server.parse()?,
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
