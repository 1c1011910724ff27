//! A client that says whatever a fuzzer likes.

use super::MOMENT;
use super::guest::{enter, hello};
use super::house::{House, SECRET};
use crate::forge::{Choices, Known, forge};
use bytes::Bytes;
use fsserver::state::Role;
use leasefs_protocol::control::{Push, ToClient, ToServer};
use leasefs_protocol::{
    Caller, Change, KeyHash, Reply, Request, RequestFrame, RequestId, Response, Scope, Seq,
    SessionId, answer,
};
use leasefs_transport::{Connection, FrameReader, FrameWriter, Identity, OutFrame};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::timeout;

/// What is remembered of each kind of id.
const MEMORY: usize = 24;
const USERS: [u32; 4] = [0, 1000, 65_534, u32::MAX];

/// What its readers share with it.
#[derive(Default)]
struct Ears {
    known: Mutex<Known>,
    heard: Notify,
    secret: Mutex<Option<String>>,
}

impl Ears {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, learn: impl FnOnce(&mut Known)) {
        let mut known = self.known();
        learn(&mut known);
        known.forget_oldest(MEMORY);
        drop(known);
        self.heard.notify_one();
    }

    fn reply(&self, reply: Reply, payload: &Bytes) {
        let leaks = payload.len() < 64 * 1024
            && payload.windows(SECRET.len()).any(|window| window == SECRET);
        if leaks {
            let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
            *secret = Some(format!("{reply:?}"));
        }
        self.hear(|known| {
            known
                .handles
                .extend(reply.grants.iter().map(|grant| grant.object));
            known
                .handles
                .extend(reply.touched.iter().map(|touched| touched.object));
            match reply.result {
                Ok(Response::Object(answer::Object { handle, .. })) => known.handles.push(handle),
                Ok(Response::Opened(answer::Opened { open, token, .. })) => {
                    known.opens.push(open.0);
                    known.tokens.push(token);
                }
                Ok(Response::Created(answer::Created {
                    handle,
                    open,
                    token,
                    ..
                })) => {
                    known.handles.push(handle);
                    known.opens.push(open.0);
                    known.tokens.push(token);
                }
                Ok(Response::Entries(answer::Entries { entries, .. })) => {
                    let nodes = entries.iter().filter_map(|entry| entry.node);
                    known.handles.extend(nodes.map(|(handle, _)| handle));
                }
                _ => {}
            }
        });
    }
}

/// A live connection of a hostile client.
struct Line {
    connection: Connection,
    control: FrameWriter,
    lanes: Vec<FrameWriter>,
}

/// A hostile client.
pub struct Hostile {
    identity: Identity,
    session: SessionId,
    ticket: [u8; 32],
    ears: Arc<Ears>,
    line: Option<Line>,
    id: u64,
    seq: u64,
}

fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        "a",
        "b",
        "shared",
        "private",
        "secret",
        "closed",
        "link",
        "inside",
        "new",
        "other",
        ".",
        "..",
        "",
        "private/secret",
        "a\0b",
        ".leasefs-orphans",
        "user.x",
        "security.capability",
        "trusted.x",
        "system.posix_acl_access",
        "system.posix_acl_default",
        "../outside/secret",
    ]
    .iter()
    .map(|name| name.as_bytes().to_vec())
    .collect();
    names.push(vec![b'n'; 255]);
    names.push(vec![b'n'; 256]);
    names.push(vec![0xff; 3]);
    names
}

impl Hostile {
    /// Comes in.
    pub async fn enter(house: &House, number: u8, read_only: bool) -> Self {
        let role = Role {
            read_only,
            ..Role::default()
        };
        let mut hostile = Self {
            identity: Identity::generate().expect("an identity"),
            session: SessionId([number; 16]),
            ticket: house.ticket(role),
            ears: Arc::default(),
            line: None,
            id: 0,
            seq: 0,
        };
        hostile.ears.hear(|known| known.names = names());
        hostile.connect(house).await;
        assert!(hostile.line.is_some(), "it is let in at first");
        hostile
    }

    /// Its key.
    pub fn key(&self) -> KeyHash {
        self.identity.key_hash()
    }

    /// No answer held what it may not read.
    pub fn told_nothing_secret(&self) {
        // Without root's rights everybody is one user.
        if rustix::process::geteuid().is_root() {
            let secret = self.ears.secret.lock();
            let secret = secret.unwrap_or_else(PoisonError::into_inner);
            assert!(secret.is_none(), "a secret was told: {secret:?}");
        }
    }

    async fn connect(&mut self, house: &House) {
        let hello = hello(self.session, self.ticket);
        let Some((connection, control, reader, welcome)) =
            enter(house, &self.identity, hello).await
        else {
            return;
        };
        self.ears.hear(|known| known.handles.push(welcome.root));
        tokio::spawn(hear_control(Arc::clone(&self.ears), reader));
        tokio::spawn(hear_recalls(Arc::clone(&self.ears), connection.clone()));
        let mut line = Line {
            connection,
            control,
            lanes: Vec::new(),
        };
        self.open_lane(&mut line).await;
        self.line = Some(line);
    }

    async fn open_lane(&self, line: &mut Line) {
        if let Ok(Ok((writer, reader))) = timeout(MOMENT, line.connection.open()).await {
            tokio::spawn(hear_lane(Arc::clone(&self.ears), reader));
            line.lanes.push(writer);
        }
    }

    /// Says something.
    pub async fn step(&mut self, house: &House, choices: &mut Choices) {
        let Some(mut line) = self.line.take() else {
            return self.connect(house).await;
        };
        let kept = match choices.byte() {
            0..0xb0 => self.request(&mut line, choices, true).await,
            0xb0..0xd0 => self.request(&mut line, choices, false).await,
            0xd0..0xe8 => self.control(&mut line, choices).await,
            0xe8..0xf0 => {
                self.open_lane(&mut line).await;
                true
            }
            0xf0..0xf4 => self.noise(&mut line, choices).await,
            // A newer connection fences the older.
            0xf4..0xfa => {
                self.connect(house).await;
                return;
            }
            _ => {
                line.connection
                    .close(leasefs_transport::CloseCode::Goodbye, "cut");
                false
            }
        };
        if kept && line.connection.close_reason().is_none() {
            self.line = Some(line);
        }
    }

    /// Whether the connection takes it within a moment.
    async fn send(writer: &mut FrameWriter, frame: OutFrame) -> bool {
        let sent = timeout(MOMENT * 10, writer.send_frames([frame])).await;
        matches!(sent, Ok(Ok(())))
    }

    async fn request(&mut self, line: &mut Line, choices: &mut Choices, waits: bool) -> bool {
        let Some(frame) = self.frame(choices) else {
            return true;
        };
        let payload = match choices.byte() {
            0..0xc0 if !takes_data(&frame) => Bytes::new(),
            len @ 0..0xf0 => Bytes::from(vec![len; usize::from(len)]),
            len => Bytes::from(vec![len; usize::from(len) * 700]),
        };
        let Ok(frame) = OutFrame::new(&frame, payload) else {
            return true;
        };
        let lane = usize::from(choices.byte()).checked_rem(line.lanes.len());
        let Some(writer) = lane.and_then(|lane| line.lanes.get_mut(lane)) else {
            return true;
        };
        let kept = Self::send(writer, frame).await;
        if waits {
            let _ = timeout(MOMENT, self.ears.heard.notified()).await;
        }
        kept
    }

    /// A request that makes some sense: mostly with the next numbers.
    fn frame(&mut self, choices: &mut Choices) -> Option<RequestFrame> {
        let odd = choices.byte();
        let known = self.ears.known();
        let mut frame: RequestFrame = forge(choices, &known)?;
        if odd & 0x03 != 3 {
            self.id += 1;
            frame.id = RequestId(self.id);
            frame.low_water = Seq(self.seq.saturating_sub(2));
        }
        if odd & 0x0c != 0x0c {
            let user = USERS[usize::from(odd >> 6)];
            frame.caller = Caller {
                uid: user,
                gid: user,
                groups: Vec::new(),
            };
        }
        drop(known);
        if let Request::Change(numbered, _) = &mut frame.request {
            if odd & 0x30 != 0x30 {
                self.seq += 1;
                numbered.seq = Seq(self.seq);
            }
            self.ears.known().seqs.push(numbered.seq.0);
        }
        Some(frame)
    }

    async fn control(&mut self, line: &mut Line, choices: &mut Choices) -> bool {
        let message: Option<ToServer> = forge(choices, &self.ears.known());
        let frame = message.map(|message| OutFrame::new(&message, Bytes::new()));
        match frame {
            Some(Ok(frame)) => Self::send(&mut line.control, frame).await,
            _ => true,
        }
    }

    /// Bytes that are no message at all, on any stream.
    async fn noise(&mut self, line: &mut Line, choices: &mut Choices) -> bool {
        let lane = choices.byte();
        let len = usize::from(choices.byte());
        let noise = OutFrame::raw(Bytes::from(choices.bytes(len)));
        match line.lanes.get_mut(usize::from(lane)) {
            Some(writer) => Self::send(writer, noise).await,
            None => Self::send(&mut line.control, noise).await,
        }
    }
}

fn takes_data(frame: &RequestFrame) -> bool {
    matches!(
        frame.request,
        Request::Change(_, Change::Write(_) | Change::SetXattr(_))
    )
}

async fn hear_control(ears: Arc<Ears>, mut reader: FrameReader) {
    while let Ok(Some(_)) = reader.next::<ToClient>().await {
        ears.heard.notify_one();
    }
}

async fn hear_lane(ears: Arc<Ears>, mut reader: FrameReader) {
    while let Ok(Some((reply, payload))) = reader.next::<Reply>().await {
        ears.reply(reply, &payload);
    }
}

async fn hear_recalls(ears: Arc<Ears>, connection: Connection) {
    let Ok(mut reader) = connection.accept_push().await else {
        return;
    };
    while let Ok(Some((Push::Recall(recall), _))) = reader.next::<Push>().await {
        ears.hear(|known| {
            known.recalls.push(recall.id.0);
            if let Scope::Object { object, .. } = recall.scope {
                known.handles.push(object);
            }
        });
    }
}
