//! What is asked of a client again and again.

use crate::said::{attr, handle, opened};
use crate::world::{Outcome, World};
use leasefs_client::call::Opened;
use leasefs_client::{Answer, Call, NodeId};
use leasefs_protocol::{FileKind, Grant, Query, Request, Response, answer, query};

impl World {
    /// A name of the root is looked up; nothing of it is cached.
    pub fn node(&mut self, object: u8, kind: FileKind) -> NodeId {
        let lookup = self.call(Call::Lookup {
            parent: NodeId::ROOT,
            name: [b'a' + object].into(),
        });
        let asked = self.asked();
        let (handle, attr) = (handle(object), attr(object, kind));
        self.answer(
            &asked,
            Ok(Response::Object(answer::Object { handle, attr })),
        );
        match self.answered(lookup) {
            Ok(Answer::Found(Some(entry))) => entry.node.id,
            other => panic!("not found: {other:?}"),
        }
    }

    /// A file is opened to read, by this number at the server, with these leases.
    pub fn open(&mut self, node: NodeId, open: u64, grants: Vec<Grant>) -> Opened {
        let call = self.call(Call::Open {
            node,
            flags: libc::O_RDONLY as u32,
        });
        let asked = self.asked();
        let Request::Query(Query::Open(query::Open { object, .. })) = asked.frame.request else {
            panic!("another request: {asked:?}")
        };
        self.grant(&asked, opened(open, object.as_bytes()[0]), grants);
        match self.answered(call) {
            Ok(Answer::Opened(opened)) => opened,
            other => panic!("not opened: {other:?}"),
        }
    }
}

pub fn getattr() -> Call {
    Call::GetAttr { node: NodeId::ROOT }
}

pub fn removal(parent: NodeId) -> Call {
    Call::Unlink {
        parent,
        name: b"x".as_slice().into(),
    }
}

pub fn opening(node: NodeId, flags: i32) -> Call {
    Call::Open {
        node,
        flags: flags as u32,
    }
}

pub fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Ok(Answer::Done))
}
