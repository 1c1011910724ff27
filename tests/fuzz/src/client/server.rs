//! A server that answers as a fuzzer likes.

use super::Shared;
use crate::forge::{Choices, Known, forge};
use bytes::Bytes;
use leasefs_protocol::control::{Push, Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::limits::MAX_DRIFT_PPM;
use leasefs_protocol::{Attr, FileKind, Handle, Reply, Request, RequestFrame, Response};
use leasefs_transport::{
    CloseCode, Connection, EndpointSecret, FrameReader, FrameWriter, Identity, OutFrame, Outbox,
    Server,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections a server takes: a client that is thrown out comes back.
const CONNECTIONS: usize = 8;

/// Streams on which something can be said unasked.
#[derive(Default)]
struct Lines {
    control: Option<Outbox>,
    pushes: Option<Outbox>,
    connection: Option<Connection>,
}

/// The hostile server.
pub struct Hostile {
    /// Where it listens.
    pub address: SocketAddr,
    /// Who it is.
    pub identity: Identity,
    shared: Arc<Mind>,
}

struct Mind {
    choices: Shared,
    known: Known,
    lines: Mutex<Lines>,
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
        Request::Lookup { .. } | Request::Make { .. } | Request::Link { .. } => "Object",
        Request::GetAttr { .. } | Request::SetAttr { .. } => "Attr",
        Request::Open { .. } => "Opened",
        Request::Create { .. } => "Created",
        Request::Write { .. } | Request::CopyRange { .. } => "Written",
        Request::Seek { .. } => "Offset",
        Request::ReadDir { .. } => "Entries",
        Request::StatFs { .. } => "FsStat",
        _ => "Done",
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
            | Response::Object { attr, .. }
            | Response::Opened { attr, .. }
            | Response::Created { attr, .. },
        ) => (Some(attr), None),
        Ok(Response::Entries { entries, .. }) => (None, Some(entries)),
        _ => (None, None),
    };
    let listed = listed.into_iter().flatten();
    let listed = listed.filter_map(|entry| entry.node.as_mut().map(|(_, attr)| attr));
    touched.chain(told).chain(listed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hostile {
    /// Listens.
    pub fn listen(choices: Shared) -> Self {
        let identity = Identity::generate().expect("an identity");
        let secret = EndpointSecret::new([7; 32]);
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = Server::bind(any, &identity, &secret).expect("an endpoint");
        let address = endpoint.local_addr();
        let shared = Arc::new(Mind {
            choices,
            known: known(),
            lines: Mutex::default(),
        });
        let mind = Arc::clone(&shared);
        tokio::spawn(async move {
            for number in 0..CONNECTIONS {
                let Some(incoming) = endpoint.accept().await else {
                    return;
                };
                if let Ok(connection) = incoming.handshake().await {
                    tokio::spawn(Arc::clone(&mind).attend(connection, number));
                }
            }
            // Whoever comes later meets silence.
            std::future::pending::<()>().await;
        });
        Self {
            address,
            identity,
            shared,
        }
    }

    /// Perhaps says something nobody has asked for.
    pub fn say_something(&self) {
        let mut choices = lock(&self.shared.choices);
        let lines = lock(&self.shared.lines);
        let known = &self.shared.known;
        match choices.byte() {
            0..0x90 => {}
            0x90..0xd0 => {
                if let (Some(push), Some(line)) =
                    (forge::<Push>(&mut choices, known), &lines.pushes)
                {
                    say(line, &push);
                }
            }
            0xd0..0xf8 => {
                let message = forge::<ToClient>(&mut choices, known);
                if let (Some(message), Some(line)) = (message, &lines.control) {
                    say(line, &message);
                }
            }
            0xf8..0xfc => {
                let len = usize::from(choices.byte());
                let noise = OutFrame::raw(Bytes::from(choices.bytes(len)));
                if let Some(line) = &lines.control {
                    let _ = line.push(noise);
                }
            }
            _ => {
                if let Some(connection) = &lines.connection {
                    connection.close(CloseCode::ShuttingDown, "cut");
                }
            }
        }
    }
}

fn say<M: serde::Serialize>(line: &Outbox, message: &M) {
    if let Ok(frame) = OutFrame::new(message, Bytes::new()) {
        let _ = line.push(frame);
    }
}

impl Mind {
    async fn attend(self: Arc<Self>, connection: Connection, number: usize) {
        let Ok((_, mut writer, reader)) = connection.accept().await else {
            return;
        };
        connection.let_in();
        let Some(welcome) = self.welcome(number) else {
            return;
        };
        let welcome = ToClient::Welcome(welcome);
        if writer.send(&welcome, Bytes::new()).await.is_err() {
            return;
        }
        let pushes = connection.open_push().await.ok();
        let control = writer.into_outbox();
        *lock(&self.lines) = Lines {
            control: Some(control.clone()),
            pushes: pushes.map(FrameWriter::into_outbox),
            connection: Some(connection.clone()),
        };
        tokio::spawn(Arc::clone(&self).control(reader, control));
        while let Ok((_, writer, reader)) = connection.accept().await {
            tokio::spawn(Arc::clone(&self).lane(reader, writer.into_outbox()));
        }
    }

    /// One that lets the client in, as it expects at first.
    fn welcome(&self, number: usize) -> Option<Welcome> {
        let mut choices = lock(&self.choices);
        let mut welcome: Welcome = forge(&mut choices, &self.known)?;
        if choices.byte() < 0xf0 {
            welcome.term_ms = 1000;
            welcome.drift_ppm %= MAX_DRIFT_PPM;
            welcome.root_attr.kind = FileKind::Directory;
            tame(&mut welcome.root_attr);
        }
        if number == 0 {
            welcome.root = handle(0);
            welcome.standing = Standing::New;
        }
        Some(welcome)
    }

    async fn control(self: Arc<Self>, mut reader: FrameReader, line: Outbox) {
        while let Ok(Some((message, _))) = reader.next::<ToServer>().await {
            let mut choices = lock(&self.choices);
            let answer = match (message, choices.byte()) {
                (ToServer::KeepAlive { number }, 0..0xe0) => Some(ToClient::KeepAlive {
                    number,
                    renews: true,
                }),
                (ToServer::Cancel { seq }, odd @ 0..0xe0) => Some(ToClient::Cancelled {
                    seq,
                    begun: odd & 1 == 1,
                }),
                (ToServer::Goodbye, 0..0xe0) => Some(ToClient::Farewell),
                (ToServer::Approve(_) | ToServer::Release(_), _) => None,
                _ => forge(&mut choices, &self.known),
            };
            if let Some(answer) = answer {
                say(&line, &answer);
            }
        }
    }

    async fn lane(self: Arc<Self>, mut reader: FrameReader, line: Outbox) {
        while let Ok(Some((frame, _))) = reader.next::<RequestFrame>().await {
            let Some(frame) = self.reply(&frame, &mut lock(&self.choices)) else {
                continue;
            };
            let _ = line.push(frame);
        }
    }

    /// An answer, mostly of the kind that is expected; perhaps none.
    fn reply(&self, frame: &RequestFrame, choices: &mut Choices) -> Option<OutFrame> {
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
            Request::Read { len, .. } => len as usize,
            Request::GetXattr { .. } | Request::ListXattr { .. } | Request::ReadLink { .. } => 20,
            _ => 0,
        };
        let len = match choices.byte() {
            0..0xc0 => asked.min(1 << 20),
            byte @ 0xc0..0xe0 => asked.min(usize::from(byte) * 5),
            byte @ 0xe0..0xf0 => usize::from(byte) * 20,
            byte => usize::from(byte) * 4000,
        };
        OutFrame::new(&reply, Bytes::from(vec![odd; len])).ok()
    }
}
