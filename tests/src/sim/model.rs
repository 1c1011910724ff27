//! What everything in the simulation speaks of: objects, requests, messages.

use leasefs_lease::client::Span;
use leasefs_protocol::control::{ReclaimLease, Standing};
use leasefs_protocol::request::{Durability, Fill, WriteAt, WriteKind};
use leasefs_protocol::{
    Attr, BootId, Change, Handle, Name, OpenId, RawName, Recall, RecallId, Release, Reply, Request,
    RequestId, Seq, SessionId, SetAttr, Timestamp, Version,
};
use std::fmt;
use std::time::Duration;

/// A moment of true time, or a length of it, in nanoseconds.
pub type Nanos = u64;

/// A microsecond.
pub const US: Nanos = 1_000;
/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// Pages of a file.
pub const PAGES: u8 = 4;
/// Names a directory can have.
pub const NAMES: u8 = 4;
/// A page of the model stands for so many bytes: two of them are dropped in one go.
const PAGE_BYTES: u64 = 2 << 20;
/// Bytes that a page takes in a client's write buffer: its value.
pub const CELL: u64 = 8;
/// Bytes of every file in a client's write buffer.
const FILE_BYTES: u64 = PAGES as u64 * CELL;

/// A file or directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Obj(pub u16);

impl Obj {
    /// Its handle.
    pub fn handle(self) -> Handle {
        Handle::new(&self.0.to_be_bytes()).expect("two bytes fit")
    }

    /// The object with this handle.
    pub fn of(handle: &Handle) -> Self {
        let bytes = handle.as_bytes().try_into().unwrap_or_default();
        Self(u16::from_be_bytes(bytes))
    }
}

impl fmt::Debug for Obj {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o{}", self.0)
    }
}

/// One thing that can be observed, and that changes as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A page of a file; its value is the last one written.
    Page(Obj, u8),
    /// Attributes; their value counts changes.
    Attrs(Obj),
    /// A name; its value is the number of the object, 0 for none.
    Name(Obj, u8),
    /// A directory's listing; its value counts changes.
    Listing(Obj),
}

impl Item {
    /// The object it is part of.
    pub fn object(self) -> Obj {
        match self {
            Self::Page(object, _)
            | Self::Attrs(object)
            | Self::Name(object, _)
            | Self::Listing(object) => object,
        }
    }
}

/// The bytes of `count` pages from `first`.
pub fn span(first: u8, count: u8) -> Span {
    Span::new(u64::from(first) * PAGE_BYTES, u64::from(count) * PAGE_BYTES)
}

/// The pages of a span: the first, and the one behind the last.
pub fn pages(span: Span) -> (u8, u8) {
    let page = |at: u64| (at / PAGE_BYTES).min(u64::from(PAGES)) as u8;
    (page(span.start()), page(span.end()))
}

/// A name as it goes on the wire.
pub fn raw_name(name: u8) -> RawName {
    RawName(vec![b'a' + name])
}

/// The number of a name.
pub fn name_of(raw: &[u8]) -> u8 {
    raw.first().map_or(0, |byte| byte - b'a')
}

/// The attributes' value as it goes on the wire: the time of the last change.
pub fn changed_at(value: u64) -> Timestamp {
    Timestamp {
        seconds: value as i64,
        nanos: 0,
    }
}

/// The value of attributes from the wire.
pub fn value_of(attr: &Attr) -> u64 {
    attr.ctime.seconds as u64
}

/// The version of a file with attributes of this value.
pub fn version(attrs: u64) -> Version {
    Version {
        ctime: changed_at(attrs),
        size: FILE_BYTES,
    }
}

/// The process that wrote a value.
pub fn process_of(value: u64) -> usize {
    (value >> 32 & 0xff) as usize
}

/// Pages of a file that are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub first: u8,
    /// How many.
    pub count: u8,
    values: [u64; PAGES as usize],
}

impl Run {
    /// What a client's write buffer calls a run.
    pub fn of(run: &leasefs_lease::client::Run) -> Self {
        let mut values = [0; PAGES as usize];
        let cells = run.data.chunks_exact(CELL as usize);
        let count = cells.len() as u8;
        for (value, cell) in values.iter_mut().zip(cells) {
            *value = u64::from_le_bytes(cell.try_into().unwrap_or_default());
        }
        let first = (run.offset / CELL) as u8;
        Self {
            first,
            count,
            values,
        }
    }

    /// Each page and its value.
    pub fn pages(self) -> impl Iterator<Item = (u8, u64)> {
        let values = self.values.into_iter().take(self.count.into());
        (self.first..).zip(values)
    }
}

/// The session numbered `number`.
pub fn session(number: u32) -> SessionId {
    let mut id = [0; 16];
    id[12..].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}

/// A request that changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Attributes.
    GetAttr(Obj),
    /// A name.
    Lookup(Obj, u8),
    /// Half of a directory's listing: the first (0) or the second (1) page.
    List(Obj, u8),
    /// Pages, as many as given from the first.
    Read(Obj, u8, u8, Fill),
    /// That a file's pages be durable, for a process.
    Commit(Obj, usize),
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Writes a page.
    Write(Obj, u8, u64),
    /// Writes a page, durable when it is answered.
    WriteSync(Obj, u8, u64),
    /// Writes pages that were buffered, of a file that was of this version.
    Flush(Obj, Run, Version),
    /// Writes the last page, wherever the server finds it.
    Append(Obj, u64),
    /// Changes all pages.
    Truncate(Obj, u64),
    /// Changes attributes.
    Chmod(Obj),
    /// Makes a file under a free name.
    Create(Obj, u8),
    /// Removes a name.
    Unlink(Obj, u8),
    /// Moves a name.
    Rename((Obj, u8), (Obj, u8)),
    /// Gives an object a further name.
    Link(Obj, (Obj, u8)),
}

/// `O_CREAT | O_EXCL | O_RDWR`.
const EXCLUSIVE: u32 = 0o100 | fsserver::service::access::O_EXCL | 0o2;

impl Ask {
    /// The object asked.
    pub fn object(self) -> Obj {
        match self {
            Self::GetAttr(object)
            | Self::Lookup(object, _)
            | Self::List(object, _)
            | Self::Read(object, ..)
            | Self::Commit(object, _) => object,
        }
    }

    /// As it goes on the wire.
    pub fn request(self) -> Request {
        match self {
            Self::GetAttr(object) => Request::GetAttr {
                object: object.handle(),
            },
            Self::Lookup(dir, name) => Request::Lookup {
                dir: dir.handle(),
                name: raw_name(name),
            },
            Self::List(_, page) => Request::ReadDir {
                open: OpenId(0),
                cookie: page.into(),
                nodes: false,
            },
            Self::Read(_, first, count, fill) => Request::Read {
                open: OpenId(0),
                offset: u64::from(first) * PAGE_BYTES,
                len: u32::from(count) * PAGE_BYTES as u32,
                fill,
            },
            Self::Commit(..) => Request::Commit {
                open: OpenId(0),
                durability: Durability::All,
            },
        }
    }

    /// Its name, if it has one.
    pub fn name(self) -> Option<Name> {
        match self {
            Self::Lookup(_, name) => Some(checked(name)),
            _ => None,
        }
    }
}

/// A name, checked.
pub fn checked(name: u8) -> Name {
    Name::new(&raw_name(name).0).expect("a letter is a name")
}

impl Deed {
    /// Objects whose order of changes its sender keeps.
    pub fn touches(self) -> Vec<Obj> {
        match self {
            Self::Write(o, ..)
            | Self::WriteSync(o, ..)
            | Self::Flush(o, ..)
            | Self::Append(o, _)
            | Self::Truncate(o, _)
            | Self::Chmod(o) => vec![o],
            Self::Create(dir, _) | Self::Unlink(dir, _) => vec![dir],
            Self::Rename((from, _), (to, _)) if from == to => vec![from],
            Self::Rename((from, _), (to, _)) => vec![from, to],
            Self::Link(object, (dir, _)) => vec![dir, object],
        }
    }

    /// Whether an approval its sender owes may wait for it.
    pub fn is_writeback(self) -> bool {
        match self.request() {
            Request::Write { kind, .. } => kind.is_writeback(),
            Request::SetAttr { set, .. } => set.size.is_some(),
            _ => false,
        }
    }

    /// As it goes on the wire.
    pub fn request(self) -> Request {
        let write = |at, durability, kind| Request::Write {
            open: OpenId(0),
            at,
            kill_priv: false,
            durability,
            kind,
        };
        let through = |keep| WriteKind::Through { keep };
        let at = |page: u8| WriteAt::Offset(u64::from(page) * PAGE_BYTES);
        let set = |object: Obj, set| Request::SetAttr {
            object: object.handle(),
            open: None,
            set,
        };
        match self {
            Self::Write(_, page, _) => write(at(page), Durability::None, through(true)),
            Self::WriteSync(_, page, _) => write(at(page), Durability::All, through(false)),
            Self::Flush(_, run, base) => {
                let written = None;
                let kind = WriteKind::Flush {
                    base,
                    written,
                    repeated: true,
                };
                write(at(run.first), Durability::None, kind)
            }
            Self::Append(..) => write(WriteAt::Append, Durability::None, through(true)),
            Self::Truncate(file, _) => set(
                file,
                SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                },
            ),
            Self::Chmod(object) => set(
                object,
                SetAttr {
                    mode: Some(0o600),
                    ..SetAttr::default()
                },
            ),
            Self::Create(dir, name) => Request::Create {
                dir: dir.handle(),
                name: raw_name(name),
                mode: 0o600,
                umask: 0,
                flags: EXCLUSIVE,
                keep: true,
            },
            Self::Unlink(dir, name) => Request::Unlink {
                dir: dir.handle(),
                name: raw_name(name),
            },
            Self::Rename((dir, name), (new_dir, new_name)) => Request::Rename {
                dir: dir.handle(),
                name: raw_name(name),
                new_dir: new_dir.handle(),
                new_name: raw_name(new_name),
                flags: 0,
            },
            Self::Link(object, (dir, name)) => Request::Link {
                object: object.handle(),
                dir: dir.handle(),
                name: raw_name(name),
            },
        }
    }
}

/// A change as the judge knows it; unique in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeedId(pub u32);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Something that changes nothing.
    Ask(Ask),
    /// A change.
    Deed(DeedId, Deed),
}

/// A request on a lane.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Matches the reply.
    pub id: RequestId,
    /// The low-water mark.
    pub low: Seq,
    /// Of a change.
    pub change: Option<Change>,
    /// What is asked for.
    pub what: What,
}

/// Data behind a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None.
    Nothing,
    /// Pages.
    Pages(Vec<u64>),
    /// A directory's listing.
    Listing(u64),
}

/// Client to server.
#[derive(Clone, Debug)]
pub enum Up {
    /// The first message of a connection.
    Hello {
        /// The session.
        session: SessionId,
        /// The client's drift bound.
        drift_ppm: u32,
    },
    /// Asks for renewal.
    KeepAlive(u64),
    /// Approves recalls.
    Approve(Vec<RecallId>),
    /// Gives leases back.
    Release(Vec<Release>),
    /// Gives up on a change.
    Cancel(Seq),
    /// Leases to reclaim.
    Reclaim(Vec<ReclaimLease>),
    /// Everything is reclaimed.
    ReclaimDone,
    /// The mount ends.
    Goodbye,
    /// A request.
    Request(Frame),
}

/// Server to client.
#[derive(Clone, Debug)]
pub enum Down {
    /// The session stands.
    Welcome(Welcome),
    /// Answers a keep-alive.
    KeepAlive {
        /// Of the question.
        number: u64,
        /// Whether the session is renewed.
        renews: bool,
    },
    /// Answers a cancel.
    Cancelled {
        /// The change.
        seq: Seq,
        /// Whether it had begun.
        begun: bool,
    },
    /// Answers a reclaim.
    Reclaimed(Vec<Handle>),
    /// A recall.
    Recall(Recall),
    /// Answers a request.
    Reply(Box<Reply>, Payload),
}

/// What the server grants a session.
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// How it stands.
    pub standing: Standing,
    /// Whether it is renewed.
    pub renews: bool,
    /// This life of the server.
    pub process: BootId,
    /// This life of its host.
    pub host: BootId,
    /// The term.
    pub term: Duration,
    /// The drift bound that counts.
    pub drift_ppm: u32,
}
