//! What a state directory may hold after a disk, a restore from a backup or an editor has had it:
//! keys, records of clients, sessions and lives, the journal, pinned keys, recovery items.

use crate::memory;
use crate::place::Place;
use fsclient::daemon::{Pinned, StateDir as ClientDir};
use fsserver::intent::Intent;
use fsserver::records::{Found, Owner, Records, Rights};
use fsserver::state::{JOURNAL, Location, Policy, Role, State, StateDir};
use leasefs_protocol::ticket::ServerAddr;
use leasefs_protocol::{Handle, KeyHash, Refusal, Response, Seq, SessionId};
use leasefs_transport::Identity;
use ring::digest::{SHA256, digest};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const SESSION: SessionId = SessionId([7; 16]);
const CLIENT: KeyHash = KeyHash([8; 32]);
/// What reading a state directory may take, beside what its files themselves do.
const MEMORY: usize = 16 << 20;
/// The most that a byte of them becomes: see [`crate::messages`].
const GROWTH: usize = 1000;

/// Sections, each of a byte for the file, two for the length and the content.
pub fn run(input: &[u8]) {
    let place = Place::new();
    for folder in [
        "server",
        "client",
        "client/recovery",
        "client/recovery/00000001",
    ] {
        fs::create_dir(place.join(folder)).expect("a fresh directory");
    }
    let mut rest = input;
    while let [file, low, high, behind @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let (content, behind) = behind.split_at(behind.len().min(len));
        put(&place, *file, content);
        rest = behind;
    }
    let (_, peak) = memory::peak(|| {
        server(place.path());
        client(place.path());
    });
    let limit = MEMORY + GROWTH * input.len();
    assert!(peak <= limit, "{} bytes took {peak}", input.len());
}

fn put(place: &Place, file: u8, content: &[u8]) {
    let journal = format!("server/{JOURNAL}");
    let (name, content) = match file % 16 {
        0 => ("server/server.key", content.to_vec()),
        1 => ("server/secrets", content.to_vec()),
        2 => ("server/export.json", content.to_vec()),
        3 => ("server/served.json", content.to_vec()),
        4 => ("server/clients.json", content.to_vec()),
        5 => ("server/life.json", content.to_vec()),
        6 => ("server/sessions", content.to_vec()),
        7 => ("server/sessions", log(content)),
        8 => (journal.as_str(), content.to_vec()),
        9 => (journal.as_str(), log(content)),
        10 => ("client/client.key", content.to_vec()),
        11 => ("client/servers.json", content.to_vec()),
        12 => ("client/recovery/00000001/item.json", content.to_vec()),
        13 => ("client/recovery/00000001/data", content.to_vec()),
        14 => ("server/spent", content.to_vec()),
        _ => ("server/spent", log(content)),
    };
    let path = place.join(name);
    fs::write(&path, content).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("made private");
}

/// A log whose checksums are right, of records that follow each other with their lengths: what a
/// log has by chance it never has from a fuzzer.
fn log(mut content: &[u8]) -> Vec<u8> {
    let mut log = Vec::new();
    while let Some((len, behind)) = content.split_first() {
        let (record, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        log.extend_from_slice(&(record.len() as u16).to_le_bytes());
        log.extend_from_slice(record);
        log.extend_from_slice(&digest(&SHA256, record).as_ref()[..4]);
        content = behind;
    }
    log
}

fn server(place: &Path) {
    let location = Location::find(Some(place)).expect("a place");
    let Ok(dir) = location.clone().take() else {
        panic!("nobody else has it");
    };
    // Each is read or refused with a reason.
    let _ = (dir.identity().map(|_| ()), dir.secrets().map(|_| ()));
    let _ = (dir.served().map(|_| ()), dir.export_id(place).map(|_| ()));
    let found = life(dir);
    let Some(found) = found else {
        return;
    };
    // What was read once and went on is read again, and says what was written last.
    let dir = location.take().expect("it was given back");
    let (_, again) = State::open(dir, Policy::RootSquash).expect("read again");
    let mine = again.sessions.iter().any(|on_record| {
        let own = on_record.session == SESSION && on_record.owner.client == CLIENT;
        own && on_record.leased
    });
    assert!(mine, "a session that was granted leases is not on record");
    assert!(!again.clean && again.max_term >= Duration::from_secs(10));
    for earlier in &found.sessions {
        let kept = again
            .sessions
            .iter()
            .any(|later| later.session == earlier.session);
        assert!(kept, "a session of an earlier life is forgotten");
    }
}

/// A life of a server in this state; `None` where it doesn't begin.
fn life(dir: StateDir) -> Option<Found> {
    let (state, mut found) = State::open(dir, Policy::RootSquash).ok()?;
    for client in state.clients() {
        let _ = state.admit(client.key, None, SessionId([3; 16]), &client.name);
    }
    if let Ok(revoked) = state.revoke("fuzz") {
        // What a revoked client had isn't taken up.
        found
            .sessions
            .retain(|known| known.owner.client != revoked.key);
    }
    let secret = state.issue(Role::default()).ok()?;
    state.admit(CLIENT, Some(&secret), SESSION, "fuzz").ok()?;
    state.begin_life(Duration::from_secs(10), 1000).ok()?;
    let known = found.sessions.iter().find(|known| known.session == SESSION);
    let owner = known.map_or_else(own, |known| known.owner);
    if owner.client != CLIENT {
        return None;
    }
    state.record_session(SESSION, owner).ok()?;
    let object = Handle::new(b"object").expect("short");
    state.write_lease(SESSION, object).ok()?;
    let intent = Intent::Repeatable {
        objects: vec![object],
    };
    state.change_begins(SESSION, Seq(5), Seq(3), &intent).ok()?;
    state.change_ends(SESSION, Seq(5), &Ok(Response::Done), None);
    state.change_ends(SESSION, Seq(6), &Err(Refusal::Lost), None);
    for (session, object) in state.idle_writes() {
        state.write_ended(session, &object);
    }
    Some(found)
}

fn own() -> Owner {
    Owner {
        client: CLIENT,
        rights: Rights::default(),
        birth: [0; 16],
    }
}

fn client(place: &Path) {
    let Ok(dir) = ClientDir::find(Some(place)) else {
        return;
    };
    let _ = Identity::load(&place.join("client/client.key")).map(|_| ());
    let server: ServerAddr = "nas".parse().expect("an address");
    if dir.pins().set(&server, CLIENT).is_ok() {
        assert_eq!(dir.pins().get(&server), Ok(Pinned::Key(CLIENT)));
    }
    recovery(&dir);
}

/// Items are described without leading anywhere, and their pieces are those of the description.
fn recovery(dir: &ClientDir) {
    for item in dir.recovery().items().into_iter().flatten() {
        let shown = item.file();
        assert!(!shown.chars().any(char::is_control), "shown as {shown:?}");
        let _ = (item.full_size(), item.reason.to_string());
        let folder = dir.recovery().folder_with(item.id);
        let Ok(pieces) = folder.expect("has it").pieces(&item) else {
            continue;
        };
        let mut bytes = 0;
        for piece in pieces {
            let Ok((offset, piece)) = piece else {
                panic!("a piece of an item without a flaw can't be read");
            };
            assert!(offset + piece.len() as u64 <= item.full_size());
            bytes += piece.len() as u64;
        }
        assert_eq!(bytes, item.bytes);
    }
}
