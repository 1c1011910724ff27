//! A file of which a Write lease is held, for tests.

use super::rounds::Flushed;
use super::state::State;
use super::storing::{Store, Stored};
use crate::inode::{Access, Dropped, Writer};
use crate::memory::Memory;
use crate::opens::Opens;
use crate::opens::fixtures::opened;
use bytes::Bytes;
use leasefs_lease::client::Batch;
use leasefs_lease::time::BootTime;
use leasefs_protocol::answer::Written;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::{
    Attr, Caller, FileKind, Grant, Handle, Mode, Parts, Reply, RequestId, Stamp, Timestamp,
};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn now() -> BootTime {
    BootTime::from_nanos(1_000_000_000)
}

pub(crate) fn object() -> Handle {
    Handle::new(&[1]).expect("one byte")
}

pub(crate) fn grant(mode: Mode, stamp: u64) -> Grant {
    Grant {
        object: object(),
        parts: Parts::ATTRS | Parts::DATA,
        mode,
        stamp: Stamp(stamp),
    }
}

pub(crate) fn attr(size: u64) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino: 2,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        xattrs: true,
    }
}

/// A session with a Write lease on a file of this size.
pub(crate) fn holding(size: u64) -> State {
    let mut state = State::new(Handle::new(&[0]).expect("one byte"), Memory::default());
    state.renewed(now(), Duration::from_secs(10), 0);
    let (asked, grants) = (state.leases.ask(), [grant(Mode::Write, 1)]);
    state.granted(asked, &grants);
    assert!(state.put_attr(asked, &grants, &object(), &attr(size)));
    state.inodes.told_room(now(), Some(1 << 20));
    state
}

pub(crate) fn write(state: &mut State, offset: u64, data: &'static [u8]) {
    write_by(writer(1), state, offset, data);
}

pub(crate) fn write_by(writer: Writer, state: &mut State, offset: u64, data: &'static [u8]) {
    let store = Store {
        object: object(),
        at: WriteAt::Offset(offset),
        data: Bytes::from_static(data),
        kill_priv: false,
        date: None,
        writer,
        locked: None,
    };
    let mut dropped = Dropped::default();
    let stored = state.store(now(), &store, true, &mut dropped);
    assert!(matches!(stored, Stored::Done { .. }));
}

/// A descriptor whose open nobody knows of.
pub(crate) fn writer(open: u64) -> Writer {
    Writer {
        open: opened(&Opens::default(), open),
        allows: Access::Write,
        caller: Caller::default(),
        written: Arc::default(),
    }
}

/// Brings everything to the server.
pub(crate) fn flush(state: &mut State, stamp: u64) {
    let round = state.begin_round(&object(), true).expect("dirty bytes");
    for batch in round.batches {
        answer(state, batch, stamp);
    }
}

/// The server has taken what a request of a round has brought.
pub(crate) fn answer(state: &mut State, batch: Batch, stamp: u64) {
    let asked = state.leases.ask();
    let written = Written::plain(batch.len() as u64, batch.runs()[0].offset);
    let reply = Box::new(Reply {
        id: RequestId(0),
        renews: false,
        stamp: Stamp(stamp),
        grants: Vec::new(),
        touched: Vec::new(),
        room: None,
        result: Ok(written),
    });
    let flushed = Flushed::Answered(batch, reply, Some(attr(8)));
    state.flushed(now(), asked, &object(), flushed);
}
