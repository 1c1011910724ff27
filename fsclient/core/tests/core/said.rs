//! What the tests' server says.

use bytes::Bytes;
use leasefs_client::ConnectionId;
use leasefs_protocol::change::Write;
use leasefs_protocol::control::{FEATURES, IdentityPolicy, Standing, Welcome};
use leasefs_protocol::{
    Attr, BootId, Change, FileKind, Grant, Handle, Mode, Numbered, OpenId, OpenToken, Parts,
    RawName, Recall, RecallId, Refusal, Reply, Request, RequestFrame, Response, Scope, Seq, Stamp,
    Touched, answer,
};
use std::sync::Arc;

pub const DIR: FileKind = FileKind::Directory;
pub const FILE: FileKind = FileKind::File;

/// A request that has reached the server.
#[derive(Clone, Debug)]
pub struct Asked {
    pub connection: ConnectionId,
    pub frame: Arc<RequestFrame>,
    pub payload: Bytes,
}

impl Asked {
    pub fn numbered(&self) -> Option<&Numbered> {
        self.frame.request.numbered()
    }

    pub fn change(&self) -> &Change {
        match &self.frame.request {
            Request::Change(_, change) => change,
            Request::Query(query) => panic!("no change: {query:?}"),
        }
    }

    pub fn write(&self) -> &Write {
        match self.change() {
            Change::Write(write) => write,
            other => panic!("not a write: {other:?}"),
        }
    }

    pub fn seq(&self) -> Seq {
        self.numbered().expect("a change").seq
    }

    /// Bytes of the file are written, the last that it has.
    pub fn written(&self, written: answer::Written) -> Reply {
        let attr = Attr {
            size: written.offset + written.len,
            ..attr(1, FILE)
        };
        Reply {
            renews: true,
            touched: vec![Touched {
                object: handle(1),
                attr,
            }],
            ..self.reply(Ok(Response::Written(written)))
        }
    }

    /// The bare answer.
    pub fn reply(&self, result: Result<Response, Refusal>) -> Reply {
        Reply {
            id: self.frame.id,
            renews: false,
            stamp: Stamp(1),
            grants: Vec::new(),
            touched: Vec::new(),
            room: None,
            result,
        }
    }
}

pub fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

/// Of the object with this handle.
pub fn attr(object: u8, kind: FileKind) -> Attr {
    Attr {
        ino: u64::from(object) + 10,
        kind,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        xattrs: true,
    }
}

/// `process` is this life of the server.
pub fn welcome(standing: Standing, process: u8) -> Welcome {
    Welcome {
        features: FEATURES,
        term_ms: 10_000,
        drift_ppm: 1_000,
        process: BootId([process; 16]),
        host: BootId([9; 16]),
        standing,
        renews: standing != Standing::Reclaim,
        root: handle(0),
        root_attr: attr(0, DIR),
        read_only: false,
        identity: IdentityPolicy::Trust,
    }
}

pub fn grant(object: u8, parts: Parts, stamp: u64) -> Grant {
    Grant {
        object: handle(object),
        parts,
        mode: Mode::Read,
        stamp: Stamp(stamp),
    }
}

pub fn opened(open: u64, object: u8) -> Response {
    Response::Opened(answer::Opened {
        open: OpenId(open),
        token: OpenToken(vec![open as u8]),
        attr: attr(object, FILE),
    })
}

pub fn recall(id: u64, object: u8, parts: Parts, names: &[&str]) -> Recall {
    let names = names.iter().map(|name| RawName((*name).into()));
    Recall {
        id: RecallId(id),
        stamp: Stamp(100 + id),
        scope: Scope::Object {
            object: handle(object),
            parts,
            names: names.collect(),
        },
    }
}
