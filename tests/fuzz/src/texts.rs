//! What people and local programs say: mount sources and tickets, ids, the lines of the control
//! sockets.

use fsclient::daemon::{MountStatus, control};
use fsserver::admin::control::{Reply, Request};
use leasefs_protocol::ticket::{ServerAddr, Source, Ticket};
use leasefs_protocol::{KeyHash, Name, SessionId};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first byte says what the rest is taken for.
pub fn run(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match kind % 8 {
        0 => source(&text),
        1 => address(&text),
        2 => ids(&text),
        3 => name(rest),
        4 => line::<Request>(rest),
        5 => line::<Result<Reply, String>>(rest),
        6 => line::<control::Request>(rest),
        _ => line::<MountStatus>(rest),
    }
}

fn source(text: &str) {
    let Ok(source) = text.parse::<Source>() else {
        return;
    };
    match source {
        Source::Ticket(ticket) => {
            assert_eq!(ticket.to_string().parse::<Ticket>(), Ok(ticket.clone()));
            let secret = KeyHash(ticket.secret).to_string();
            let named =
                ticket.key.0 == ticket.secret || ticket.servers.to_string().contains(&secret);
            assert!(named || !format!("{ticket:?}").contains(&secret));
        }
        Source::Enrolled { server, subdir } => {
            assert_eq!(server.to_string().parse(), Ok(server));
            for part in subdir {
                let below = !part.is_empty() && part != "." && part != ".." && !part.contains('/');
                assert!(below, "{part:?} leads elsewhere");
            }
        }
    }
}

fn address(text: &str) {
    if let Ok(address) = text.parse::<ServerAddr>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}

fn ids(text: &str) {
    if let Ok(key) = text.parse::<KeyHash>() {
        assert_eq!(key.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(session) = text.parse::<SessionId>() {
        assert_eq!(session.to_string(), text.to_ascii_lowercase());
    }
}

fn name(bytes: &[u8]) {
    if let Ok(name) = Name::new(bytes) {
        assert_eq!(name.to_raw().0, bytes);
        let entry = !bytes.contains(&b'/') && !bytes.contains(&0) && bytes.len() <= 255;
        assert!(entry && !bytes.is_empty() && bytes != b"." && bytes != b"..");
    }
}

/// A line of JSON says the same when it is written again.
fn line<T: Serialize + DeserializeOwned>(line: &[u8]) {
    let Ok(said) = serde_json::from_slice::<T>(line) else {
        return;
    };
    let written = serde_json::to_string(&said).expect("what was read can be written");
    let again: T = serde_json::from_str(&written).expect("what was written can be read");
    assert_eq!(serde_json::to_string(&again).expect("written"), written);
}
