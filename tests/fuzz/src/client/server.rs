//! A server that answers as a fuzzer likes.

use super::mount::Happens;
use crate::forge::{Choices, Known, forge};
use bytes::Bytes;
use leasefs_client::{ConnectionId, Event, Now, Unconnected};
use leasefs_protocol::codec::encode;
use leasefs_protocol::control::{HelloRefusal, Push, Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::MAX_DRIFT_PPM;
use leasefs_protocol::{
    Attr, Change, FileKind, Handle, Query, Reply, Request, RequestFrame, Response, answer, query,
};
use serde::Serialize;

/// Connections a server takes: a client that is thrown out comes back.
const CONNECTIONS: u64 = 8;

/// The hostile server.
pub struct Hostile {
    known: Known,
    /// Connections so far.
    number: u64,
    /// The one that stands.
    current: Option<ConnectionId>,
    /// Whether anything but control messages is read on it.
    serves: bool,
    datagrams: u64,
}

impl Default for Hostile {
    fn default() -> Self {
        Self {
            known: known(),
            number: 0,
            current: None,
            serves: false,
            datagrams: 0,
        }
    }
}

/// The handles it names objects by.
pub fn handle(number: u8) -> Handle {
    Handle::new(&[number; 4]).expect("short")
}

fn known() -> Known {
    let names: [&[u8]; 9] = [
        b"a",
        b"b",
        b"c",
        b"",
        b".",
        b"..",
        b"a/b",
        b"user.x",
        &[b'n'; 300],
    ];
    Known {
        handles: (0..5).map(handle).collect(),
        opens: (1..6).collect(),
        recalls: (1..6).collect(),
        seqs: (1..12).collect(),
        names: names.iter().map(|name| name.to_vec()).collect(),
        ..Known::default()
    }
}

/// The kind of answer that a request has.
fn answer(request: &Request) -> &'static str {
    match request {
        Request::Query(query) => match query {
            Query::Lookup(_) => "Object",
            Query::GetAttr(_) => "Attr",
            Query::Open(_) => "Opened",
            Query::Seek(_) => "Offset",
            Query::ReadDir(_) => "Entries",
            Query::StatFs(_) => "FsStat",
            Query::Lock(_) => "Locked",
            Query::TestLock(_) => "LockFound",
            Query::Unlock(_) | Query::CancelLock(_) | Query::ResetLocks(_) => "Unlocked",
            Query::Explain(_) => "Explained",
            _ => "Done",
        },
        Request::Change(_, change) => match change {
            Change::Make(_) | Change::Link(_) => "Object",
            Change::SetAttr(_) => "Attr",
            Change::OpenTruncated(_) => "Opened",
            Change::Create(_) => "Created",
            Change::Write(_) | Change::CopyRange(_) => "Written",
            _ => "Done",
        },
    }
}

/// Values that a file may have: what can't be is turned away where it comes in, and the rest of the client
/// never meets it.
fn tame(attr: &mut Attr) {
    attr.mode &= 0o7777;
    attr.size &= i64::MAX as u64;
    for time in [&mut attr.atime, &mut attr.mtime, &mut attr.ctime] {
        time.nanos %= 1_000_000_000;
    }
}

/// All attributes of a reply.
fn attrs(reply: &mut Reply) -> impl Iterator<Item = &mut Attr> {
    let touched = reply.touched.iter_mut().map(|touched| &mut touched.attr);
    let (told, listed) = match &mut reply.result {
        Ok(
            Response::Attr(attr)
            | Response::Object(answer::Object { attr, .. })
            | Response::Opened(answer::Opened { attr, .. })
            | Response::Created(answer::Created { attr, .. }),
        ) => (Some(attr), None),
        Ok(Response::Entries(answer::Entries { entries, .. })) => (None, Some(entries)),
        _ => (None, None),
    };
    let listed = listed.into_iter().flatten();
    let listed = listed.filter_map(|entry| entry.node.as_mut().map(|(_, attr)| attr));
    touched.chain(told).chain(listed)
}

/// What is over the bounds of the protocol is nothing that can be said.
fn can_be_said<M: Serialize>(message: &M, payload: usize) -> bool {
    encode(message, payload).is_ok()
}

impl Hostile {
    /// Somebody wants to connect.
    pub fn connect(&mut self, choices: &mut Choices, now: Now) -> Happens {
        let welcome = self.welcome(choices);
        self.number += 1;
        let silent = Event::NotConnected(Unconnected::Unreachable("nobody is there".into()));
        if self.number > CONNECTIONS {
            return silent;
        }
        let Some(welcome) = welcome.filter(|welcome| can_be_said(welcome, 0)) else {
            let refusal = forge::<HelloRefusal>(choices, &self.known);
            return refusal.map_or(silent, |refusal| {
                Event::NotConnected(Unconnected::Refused(refusal))
            });
        };
        let connection = ConnectionId(self.number);
        (self.current, self.serves) = (Some(connection), false);
        Event::Connected {
            connection,
            welcome: Box::new(welcome),
            sent: now.boot,
        }
    }

    /// The client reads all it says from now on.
    pub fn serve(&mut self, connection: ConnectionId) {
        self.serves |= self.current == Some(connection);
    }

    /// The client has enough.
    pub fn disconnect(&mut self, connection: ConnectionId) -> Option<Happens> {
        if self.current == Some(connection) {
            self.current = None;
        }
        Some(Event::Lost(connection, "closed".into()))
    }

    /// How many have been sent, with a little imagination.
    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// Perhaps says something nobody has asked for.
    pub fn say_something(&mut self, choices: &mut Choices) -> Option<Happens> {
        let connection = self.current?;
        self.datagrams += 1;
        match choices.byte() {
            0..0x90 => None,
            0x90..0xd0 => {
                let push = forge::<Push>(choices, &self.known)?;
                let said = self.serves && can_be_said(&push, 0);
                said.then_some(match push {
                    Push::Recall(recall) => Event::Recall(connection, recall),
                    Push::LockGranted(granted) => Event::LockGranted(connection, granted),
                    Push::Unlinked(object) => Event::Unlinked(connection, object),
                })
            }
            0xd0..0xf8 => {
                let message = forge::<ToClient>(choices, &self.known)?;
                can_be_said(&message, 0).then_some(Event::Control(connection, message))
            }
            _ => {
                self.current = None;
                Some(Event::Lost(connection, "cut".into()))
            }
        }
    }

    /// One that lets the client in, as it expects at first.
    fn welcome(&self, choices: &mut Choices) -> Option<Welcome> {
        let mut welcome: Welcome = forge(choices, &self.known)?;
        if choices.byte() < 0xf0 {
            welcome.term_ms = 1000;
            welcome.drift_ppm %= MAX_DRIFT_PPM;
            welcome.root_attr.kind = FileKind::Directory;
            tame(&mut welcome.root_attr);
        }
        if self.number == 0 {
            welcome.root = handle(0);
            welcome.standing = Standing::New;
        }
        Some(welcome)
    }

    /// Answers a control message, or not.
    pub fn control(
        &mut self,
        choices: &mut Choices,
        connection: ConnectionId,
        message: ToServer,
    ) -> Option<Happens> {
        if self.current != Some(connection) {
            return None;
        }
        self.datagrams += 1;
        let answer = match (message, choices.byte()) {
            (ToServer::KeepAlive { number }, 0..0xe0) => ToClient::KeepAlive {
                number,
                renews: true,
            },
            (ToServer::Cancel { seq }, odd @ 0..0xe0) => ToClient::Cancelled {
                seq,
                begun: odd & 1 == 1,
            },
            (ToServer::Goodbye, 0..0xe0) => ToClient::Farewell,
            (ToServer::Approve(_) | ToServer::Release(_), _) => return None,
            _ => forge(choices, &self.known)?,
        };
        can_be_said(&answer, 0).then_some(Event::Control(connection, answer))
    }

    /// Answers a request, or not.
    pub fn request(
        &mut self,
        choices: &mut Choices,
        connection: ConnectionId,
        frame: &RequestFrame,
    ) -> Option<Happens> {
        if self.current != Some(connection) {
            return None;
        }
        self.datagrams += 1;
        let (reply, payload) = self.reply(frame, choices)?;
        can_be_said(&reply, payload.len()).then_some(Event::Reply {
            connection,
            reply,
            payload,
        })
    }

    /// An answer, mostly of the kind that is expected; perhaps none.
    fn reply(&self, frame: &RequestFrame, choices: &mut Choices) -> Option<(Reply, Bytes)> {
        let odd = choices.byte();
        if odd >= 0xfc {
            return None;
        }
        let known = Known {
            preferred: vec![("Result", "Ok"), ("Response", answer(&frame.request))],
            ..self.known.clone()
        };
        let mut reply: Reply = forge(choices, &known)?;
        if odd < 0xf4 {
            reply.id = frame.id;
        }
        if odd < 0xe0 {
            attrs(&mut reply).for_each(tame);
        }
        let asked = match frame.request {
            Request::Query(Query::Read(query::Read { len, .. })) => len as usize,
            Request::Query(Query::GetXattr(_) | Query::ListXattr(_) | Query::ReadLink(_)) => 20,
            _ => 0,
        };
        let len = match choices.byte() {
            0..0xc0 => asked.min(1 << 20),
            byte @ 0xc0..0xe0 => asked.min(usize::from(byte) * 5),
            byte @ 0xe0..0xf0 => usize::from(byte) * 20,
            byte => usize::from(byte) * 4000,
        };
        Some((reply, Bytes::from(vec![odd; len])))
    }
}
