//! Whole messages as they go over the wire.

use super::line;
use super::messages::{attr, handle, name};
use crate::control::{Hello, IdentityPolicy, Push, Standing, ToClient, ToServer, Welcome};
use crate::query::Fill;
use crate::*;

pub fn lines() -> String {
    let found = Response::Object(answer::Object {
        handle: handle(),
        attr: attr(),
    });
    [
        line("request", &request()),
        line("read", &read()),
        line("reply", &reply(Err(Refusal::Host(2)))),
        line("hello", &hello()),
        line("welcome", &welcome()),
        line("recall", &recall()),
        line("object", &found),
        line("answer", &reply(Ok(Response::Done))),
    ]
    .concat()
}

fn request() -> RequestFrame {
    let unlink = change::Unlink {
        dir: handle(),
        name: name("n"),
    };
    RequestFrame {
        id: RequestId(1),
        low_water: Seq(2),
        caller: Caller {
            uid: 1000,
            gid: 100,
            groups: vec![4, 27],
        },
        request: Request::Change(numbered(), unlink.into()),
    }
}

pub fn numbered() -> Numbered {
    Numbered {
        seq: Seq(3),
        after: vec![Seq(2)],
        resent: false,
        dropped: vec![handle()],
        closed: vec![OpenId(4)],
        locked: Some(LockEpoch(60)),
    }
}

fn read() -> Query {
    Query::Read(query::Read {
        open: OpenId(9),
        offset: 65536,
        len: 4096,
        fill: Fill::Pages,
    })
}

fn reply(result: Result<Response, Refusal>) -> Reply {
    Reply {
        id: RequestId(1),
        renews: true,
        stamp: Stamp(5),
        grants: vec![Grant {
            object: handle(),
            parts: Parts::ATTRS | Parts::DATA,
            mode: Mode::Read,
            stamp: Stamp(5),
        }],
        touched: vec![Touched {
            object: handle(),
            attr: attr(),
        }],
        room: Some(7),
        result,
    }
}

fn hello() -> ToServer {
    ToServer::Hello(Hello {
        version: 1,
        features: 0,
        session: SessionId([1; 16]),
        ticket: None,
        name: "host:/mnt".into(),
        subdir: vec![name("d")],
        drift_ppm: 1000,
        last_process: Some(BootId([2; 16])),
    })
}

fn welcome() -> ToClient {
    ToClient::Welcome(Welcome {
        features: 0,
        term_ms: 10_000,
        drift_ppm: 1000,
        process: BootId([3; 16]),
        host: BootId([4; 16]),
        standing: Standing::Reclaim,
        renews: false,
        root: handle(),
        root_attr: attr(),
        read_only: false,
        identity: IdentityPolicy::Trust,
    })
}

fn recall() -> Push {
    Push::Recall(Recall {
        id: RecallId(8),
        stamp: Stamp(6),
        scope: Scope::Object {
            object: handle(),
            parts: Parts::ATTRS | Parts::LISTING,
            names: vec![name("n")],
        },
    })
}
