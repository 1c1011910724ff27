//! Clients that are broken or mean harm: each gets a reasoned refusal and costs nothing else.

mod support;

use bytes::Bytes;
use leasefs_protocol::codec::{PREFIX, encode};
use leasefs_protocol::control::{Hello, HelloRefusal, IdentityPolicy, ToClient, ToServer};
use leasefs_protocol::limits::{
    MAX_HEADER, MAX_PAYLOAD, OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION,
};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    Change, Handle, KeyHash, Numbered, Query, RawName, Refusal, Request, Seq, SessionId, change,
    query,
};
use leasefs_transport::{CloseCode, Connection, Lost, OutFrame};
use std::time::Duration;
use support::client::{Ask, Client, LONG, Who, mkdir, numbered, raw, read, write};
use support::memory::Ticket;
use support::{House, Running};
use tokio::time::timeout;

async fn closed(connection: &Connection) -> (CloseCode, String) {
    let lost = timeout(LONG, connection.closed()).await.expect("closed");
    match lost {
        Lost::Closed {
            code: Some(code),
            reason,
        } => (code, reason),
        other => panic!("not closed with a reason: {other:?}"),
    }
}

/// Sends bytes as the first of a connection, or behind a lawful hello.
async fn throw(
    who: &Who,
    server: &Running,
    bytes: Bytes,
    behind_hello: bool,
) -> (Connection, Option<Client>) {
    if behind_hello {
        let mut client = who.connect(server).await;
        // The server may close before it has read all.
        let _ = client.lane.send_frames([OutFrame::raw(bytes)]).await;
        client.lane.finish();
        return (client.connection.clone(), Some(client));
    }
    let connection = who.reach(server).await;
    let (mut control, _) = connection.open().await.expect("a control stream");
    let _ = control.send_frames([OutFrame::raw(bytes)]).await;
    control.finish();
    (connection, None)
}

fn frame(header: &[u8], header_len: u32, payload_len: u32) -> Bytes {
    let mut bytes = header_len.to_le_bytes().to_vec();
    bytes.extend(payload_len.to_le_bytes());
    bytes.extend(header);
    bytes.into()
}

fn bad_frames() -> Vec<Bytes> {
    vec![
        frame(b"", MAX_HEADER as u32 + 1, 0),
        frame(b"", 0, MAX_PAYLOAD as u32 + 1),
        frame(b"", u32::MAX, u32::MAX),
        frame(b"", 0, 0),
        frame(&[0xff; 40], 40, 0),
        frame(&[0; 200], 200, 0),
        frame(&[1; 10], 100, 0),
        Bytes::from_static(b"abc"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_close_the_connection_with_a_reason_and_hurt_nobody_else() {
    let house = House::new();
    let server = house.serve().await;
    let mut other = Who::enrolled(&house, 1).connect(&server).await;
    let who = Who::enrolled(&house, 2);
    for (n, bytes) in bad_frames().into_iter().enumerate() {
        let (connection, _client) = throw(&who, &server, bytes.clone(), true).await;
        let (code, reason) = closed(&connection).await;
        assert_eq!(code, CloseCode::Protocol, "frame {n}: {reason}");
        assert!(!reason.is_empty());
        let (connection, _) = throw(&who, &server, bytes, false).await;
        let (code, reason) = closed(&connection).await;
        assert_eq!(code, CloseCode::Refused, "frame {n}: {reason}");
        // Nulls begin like a Hello of version 0.
        let expected = match n {
            5 => "this client version 0",
            _ => "expected Hello",
        };
        assert!(reason.contains(expected), "frame {n}: {reason}");
    }
    assert!(other.getattr(other.root()).await.result.is_ok());
    assert_eq!(server.server.status().violations, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_break_the_protocol_close_the_connection() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let change = |seq: u64, after: &[u64]| {
        let numbered = Numbered {
            seq: Seq(seq),
            after: after.iter().map(|n| Seq(*n)).collect(),
            resent: false,
            dropped: Vec::new(),
            closed: Vec::new(),
            locked: None,
        };
        |root| Request::Change(numbered, mkdir(root, raw("d")))
    };
    let query = |object| Request::Query(query::GetAttr { object }.into());
    type Asks = Box<dyn FnOnce(Handle) -> Request>;
    let cases: [(_, Asks, _); 3] = [
        ("a change numbered 0", Box::new(change(0, &[])), &b""[..]),
        (
            "a change that follows itself",
            Box::new(change(3, &[3])),
            b"",
        ),
        ("data where none belongs", Box::new(query), b"data"),
    ];
    for (what, request, payload) in cases {
        let mut client = who.connect(&server).await;
        let root = client.root();
        let mut frame = client.frame(mkdir(root, raw("d")));
        frame.request = request(root);
        client.send(&frame, payload).await;
        let (code, reason) = closed(&client.connection).await;
        assert_eq!(code, CloseCode::Protocol, "{what}: {reason}");
    }
    let mut client = who.connect(&server).await;
    client.tell(ToServer::Hello(who.hello())).await;
    let (code, reason) = closed(&client.connection).await;
    assert_eq!((code, &reason[..]), (CloseCode::Protocol, "a second hello"));
}

async fn refused(who: &Who, server: &Running, hello: Hello) -> HelloRefusal {
    match who.connect_with(server, hello).await {
        Err(refusal) => refusal,
        Ok(_) => panic!("let in"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_of_another_version_is_told_the_version_whatever_else_it_says() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let hello = Hello {
        version: PROTOCOL_VERSION + 1,
        ..who.hello()
    };
    // With something behind it that this version doesn't know.
    let mut frame = encode(&ToServer::Hello(hello), 0).expect("a frame");
    frame.extend([7; 9]);
    let header = (frame.len() - PREFIX) as u32;
    frame[..4].copy_from_slice(&header.to_le_bytes());
    let connection = who.reach(&server).await;
    let (mut control, mut control_in) = connection.open().await.expect("a control stream");
    let frame = OutFrame::raw(frame.into());
    control.send_frames([frame]).await.expect("sent");
    let expected = HelloRefusal::Version {
        expected: PROTOCOL_VERSION,
        found: PROTOCOL_VERSION + 1,
    };
    let answer = timeout(LONG, control_in.next::<ToClient>())
        .await
        .expect("in time");
    let (answer, _) = answer.expect("a frame").expect("not the end");
    assert_eq!(answer, ToClient::Refused(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused_with_what_was_expected_and_found() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    for version in [OLDEST_PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, u32::MAX] {
        let hello = Hello {
            version,
            ..who.hello()
        };
        let expected = HelloRefusal::Version {
            expected: PROTOCOL_VERSION,
            found: version,
        };
        assert_eq!(refused(&who, &server, hello).await, expected);
    }
    let stranger = Who::new(2);
    let key = stranger.identity.key_hash();
    let refusal = refused(&stranger, &server, stranger.hello()).await;
    assert_eq!(refusal, HelloRefusal::UnknownClient(key));
    let revoked = Who::enrolled(&house, 3);
    let key = revoked.identity.key_hash();
    house.records.revoke(key);
    let refusal = refused(&revoked, &server, revoked.hello()).await;
    assert_eq!(refusal, HelloRefusal::Revoked(key));
    let _first = who.connect(&server).await;
    let thief = Who {
        session: who.session,
        ..Who::enrolled(&house, 4)
    };
    let refusal = refused(&thief, &server, thief.hello()).await;
    assert_eq!(refusal, HelloRefusal::ForeignSession);
    let lost = Hello {
        subdir: vec![raw("nowhere")],
        ..who.hello()
    };
    let refusal = refused(&who, &server, lost).await;
    assert!(matches!(refusal, HelloRefusal::NoDirectory(_)));
    let up = Hello {
        subdir: vec![raw("..")],
        ..who.hello()
    };
    let refusal = refused(&who, &server, up).await;
    assert!(matches!(refusal, HelloRefusal::NoDirectory(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_enrol_one_client_once() {
    let house = House::new();
    let server = house.serve().await;
    let (fresh, expired, used) = ([1; 32], [2; 32], [3; 32]);
    house.records.ticket(fresh, Ticket::Fresh);
    house.records.ticket(expired, Ticket::Expired);
    house.records.ticket(used, Ticket::Used(KeyHash([9; 32])));
    let with = |who: &Who, secret| Hello {
        ticket: Some(secret),
        ..who.hello()
    };
    let who = Who::new(1);
    let cases = [
        (expired, HelloRefusal::TicketExpired),
        (used, HelloRefusal::TicketUsed),
        ([4; 32], HelloRefusal::TicketUnknown),
    ];
    for (secret, expected) in cases {
        let refusal = refused(&who, &server, with(&who, secret)).await;
        assert_eq!(refusal, expected);
    }
    for _ in 0..2 {
        let enrolled = who.connect_with(&server, with(&who, fresh)).await;
        assert!(enrolled.is_ok(), "again after a lost answer, too");
    }
    let second = Who::new(2);
    let refusal = refused(&second, &server, with(&second, fresh)).await;
    assert_eq!(refusal, HelloRefusal::TicketUsed);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_handles_are_stale_whatever_is_asked_of_them() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let (handle, _) = a.lookup(root, "f").await.expect("there");
    let mut bytes = handle.as_bytes().to_vec();
    let mut forged = vec![
        Handle::new(b"").expect("short"),
        Handle::new(&[7; 64]).expect("long"),
    ];
    for at in 0..bytes.len() {
        bytes[at] ^= 1;
        forged.push(Handle::new(&bytes).expect("as long"));
        bytes[at] ^= 1;
    }
    for object in forged {
        let refusal = a.refusal(Query::GetAttr(query::GetAttr { object })).await;
        assert_eq!(refusal.errno(), libc::ESTALE, "{object:?}");
        let refusal = a.refusal(mkdir(object, raw("d"))).await;
        assert_eq!(refusal.errno(), libc::ESTALE, "{object:?}");
    }
    assert_eq!(server.server.status().sessions[0].leases, 2);
}

async fn names_refused(client: &mut Client, name: RawName) -> Vec<i32> {
    let dir = client.root();
    let requests = [
        Ask::Query(Query::Lookup(query::Lookup {
            dir,
            name: name.clone(),
        })),
        mkdir(dir, name.clone()).into(),
        Ask::Change(Change::Unlink(change::Unlink {
            dir,
            name: name.clone(),
        })),
        Ask::Change(Change::Rmdir(change::Rmdir {
            dir,
            name: name.clone(),
        })),
        Ask::Change(Change::Link(change::Link {
            object: dir,
            dir,
            name: name.clone(),
        })),
        Ask::Change(Change::Rename(change::Rename {
            dir,
            name: raw("a"),
            new_dir: dir,
            new_name: name.clone(),
            flags: 0,
        })),
        Ask::Change(Change::Rename(change::Rename {
            dir,
            name,
            new_dir: dir,
            new_name: raw("a"),
            flags: 0,
        })),
    ];
    let mut errors = Vec::new();
    for request in requests {
        errors.push(client.refusal(request).await.errno());
    }
    errors
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_denote_no_entry_are_invalid_and_long_ones_too_long() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    for name in ["", ".", "..", "a/b", "/", "a\0b", "../f"] {
        let errors = names_refused(&mut a, raw(name)).await;
        assert_eq!(errors, [libc::EINVAL; 7], "{name:?}");
    }
    let errors = names_refused(&mut a, RawName(vec![b'x'; 256])).await;
    assert_eq!(errors, [libc::ENAMETOOLONG; 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_beyond_the_largest_offset_are_too_big() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let (_, open) = a.create("f").await;
    const MAX: u64 = i64::MAX as u64;
    assert_eq!(a.refusal(read(open, MAX, 1)).await.errno(), libc::EFBIG);
    assert_eq!(
        a.refusal(read(open, u64::MAX, 1)).await.errno(),
        libc::EFBIG
    );
    let (reply, _) = a.ask_with(write(open, MAX), b"x").await;
    assert_eq!(reply.result, Err(Refusal::TooBig));
    let fallocate = Change::Fallocate(change::Fallocate {
        open,
        mode: 0,
        offset: MAX,
        len: 1,
    });
    assert_eq!(a.refusal(fallocate).await.errno(), libc::EFBIG);
    let copy = Change::CopyRange(change::CopyRange {
        from: open,
        from_offset: 0,
        to: open,
        to_offset: MAX,
        len: 1,
    });
    assert_eq!(a.refusal(copy).await.errno(), libc::EFBIG);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_client_changes_nothing() {
    let house = House::new();
    std::fs::write(house.path("f"), b"x").expect("a file");
    let server = house.serve().await;
    let who = Who::new(1);
    house.records.enrol(who.identity.key_hash(), true);
    let mut a = who.connect(&server).await;
    assert!(a.welcome.read_only);
    assert_eq!(a.welcome.identity, IdentityPolicy::Trust);
    assert_eq!(a.mkdir("d").await.result, Err(Refusal::ReadOnly));
    let root = a.root();
    let (object, _) = a.lookup(root, "f").await.expect("there");
    let flags = (libc::O_RDWR as u32).into();
    assert_eq!(
        a.refusal(Query::Open(query::Open {
            object,
            flags,
            with_data: false,
        }))
        .await,
        Refusal::ReadOnly
    );
    a.open(object, libc::O_RDONLY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_client_is_cut_off_at_once() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut a = who.connect(&server).await;
    a.create("f").await;
    server.server.revoke(who.identity.key_hash()).await;
    let (code, reason) = closed(&a.connection).await;
    assert_eq!(
        (code, &reason[..]),
        (CloseCode::Refused, "the client has been revoked")
    );
    assert!(server.server.status().sessions.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_hold_up_only_their_own_client() {
    let house = House::new();
    std::fs::write(house.path("f"), vec![1; MAX_PAYLOAD]).expect("a file");
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    let (handle, _) = a.lookup(root, "f").await.expect("there");
    let open = a.open(handle, libc::O_RDONLY).await;
    for _ in 0..5000 {
        let frame = a.frame(Query::Read(query::Read {
            open,
            offset: 0,
            len: MAX_PAYLOAD as u32,
            fill: Fill::Nothing,
        }));
        a.lane.send(&frame, Bytes::new()).await.expect("sent");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let taken = server.server.status().sessions[0]
        .requests
        .get("read")
        .copied();
    assert!(taken.is_some_and(|taken| taken < 200), "{taken:?} of 5000");
    let mut b = Who::enrolled(&house, 2).connect(&server).await;
    assert!(b.getattr(handle).await.result.is_ok());
    a.tell(ToServer::KeepAlive { number: 1 }).await;
    assert!(matches!(
        a.told().await,
        ToClient::KeepAlive { number: 1, .. }
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_unfinished_changes_than_allowed_are_not_read() {
    let house = House::new();
    let server = house.serve().await;
    let mut a = Who::enrolled(&house, 1).connect(&server).await;
    let root = a.root();
    // Each follows one that never comes.
    let send = async {
        for seq in 2..3000 {
            let mut frame = a.frame(mkdir(root, raw("d")));
            *numbered(&mut frame) = Numbered {
                seq: Seq(seq),
                after: vec![Seq(1)],
                resent: false,
                dropped: Vec::new(),
                closed: Vec::new(),
                locked: None,
            };
            a.lane.send(&frame, Bytes::new()).await.expect("sent");
        }
    };
    let _ = timeout(Duration::from_secs(1), send).await;
    a.tell(ToServer::KeepAlive { number: 1 }).await;
    assert!(matches!(
        a.told().await,
        ToClient::KeepAlive { number: 1, .. }
    ));
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse().ok()).expect("a size")
}

/// Both sides run in this process, so the client's memory counts too.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_bad_frames_leave_memory_as_it_was() {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let frames = bad_frames();
    let flood = async |count: usize| {
        for n in 0..count {
            let bytes = frames[n % frames.len()].clone();
            throw(&who, &server, bytes, n % 2 == 0).await;
        }
    };
    flood(500).await;
    let before = resident();
    flood(10_000).await;
    let after = resident();
    assert!(
        after < before + 8 * 1024,
        "from {before} KiB to {after} KiB"
    );
    let mut a = Who::enrolled(&house, 2).connect(&server).await;
    assert!(a.getattr(a.root()).await.result.is_ok());
    let session = SessionId([1; 16]);
    assert!(server.server.sessions.get(session).is_some());
}
