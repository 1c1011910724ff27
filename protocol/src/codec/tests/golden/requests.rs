//! A sample of each variant of the enums in requests. No two fields of one type are equal in a
//! sample, so that exchanging them shows.

use super::frames::numbered;
use super::messages::{handle, name, object, range, timestamp};
use crate::change::{Place, What, WriteAt, WriteKind};
use crate::query::Fill;
use crate::*;

const MODE: u32 = 0o100_640;
const UMASK: u32 = 0o22;

pub fn requests() -> Vec<Request> {
    let query = query::GetAttr { object: object() };
    vec![
        Request::Query(query.into()),
        Request::Change(numbered(), rename()),
    ]
}

pub fn queries() -> Vec<Query> {
    [of_objects(), of_opens(), of_locks()].concat()
}

fn of_objects() -> Vec<Query> {
    let object = object();
    vec![
        Query::GetAttr(query::GetAttr { object }),
        Query::ReadLink(query::ReadLink { object }),
        Query::StatFs(query::StatFs { object }),
        Query::Access(query::Access { object, mask: 4 }),
        Query::GetXattr(query::GetXattr {
            object,
            name: name("user.a"),
        }),
        Query::ListXattr(query::ListXattr { object }),
        Query::Lookup(query::Lookup {
            dir: handle(),
            name: name("n"),
        }),
        Query::Open(query::Open {
            object,
            flags: 0o2002.into(),
            with_data: true,
        }),
    ]
}

fn of_opens() -> Vec<Query> {
    let open = OpenId(1);
    vec![
        Query::Close(query::Close {
            opens: vec![OpenId(250), OpenId(251)],
        }),
        Query::Commit(query::Commit {
            open,
            durability: Durability::All,
        }),
        Query::CommitAll(query::CommitAll),
        Query::ReadDir(query::ReadDir {
            open,
            cookie: u64::MAX,
            nodes: true,
        }),
        Query::Read(query::Read {
            open,
            offset: 1 << 16,
            len: 4096,
            fill: Fill::PagesForStore,
        }),
        Query::Seek(query::Seek {
            open,
            offset: 4096,
            whence: 3,
        }),
    ]
}

fn of_locks() -> Vec<Query> {
    let (open, owner, kind) = (OpenId(1), LockOwner(50), LockKind::Posix);
    vec![
        Query::Lock(query::Lock {
            open,
            owner,
            kind,
            mode: LockMode::Exclusive,
            range: range(5, 6),
            pid: 51,
            wait: Some(LockWait(52)),
        }),
        Query::Unlock(query::Unlock {
            object: object(),
            owner,
            kind,
            range: range(7, 8),
        }),
        Query::TestLock(query::TestLock {
            open,
            owner,
            kind: LockKind::Flock,
            mode: LockMode::Shared,
            range: LockRange::ALL,
        }),
        Query::CancelLock(query::CancelLock {
            object: object(),
            wait: LockWait(53),
        }),
        Query::ResetLocks(query::ResetLocks),
        Query::Explain(query::Explain {
            dir: handle(),
            path: vec![name("d"), name("f")],
        }),
    ]
}

pub fn changes() -> Vec<Change> {
    [of_attributes(), of_names(), of_data()].concat()
}

fn of_attributes() -> Vec<Change> {
    let object = object();
    vec![
        Change::SetAttr(change::SetAttr {
            object,
            open: Some(OpenId(1)),
            set: set_attr(),
        }),
        Change::SetXattr(change::SetXattr {
            object,
            name: name("user.b"),
            flags: 2,
        }),
        Change::RemoveXattr(change::RemoveXattr {
            object,
            name: name("user.c"),
        }),
        Change::OpenTruncated(change::OpenTruncated {
            object,
            flags: 0o2002.into(),
        }),
    ]
}

fn set_attr() -> SetAttr {
    SetAttr {
        mode: Some(0o7755),
        uid: Some(1000),
        gid: Some(100),
        size: Some(1 << 32),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(timestamp(-2))),
        kill_priv: true,
    }
}

fn of_names() -> Vec<Change> {
    let (dir, object) = (handle(), object());
    let name = name("n");
    vec![
        Change::Make(change::Make {
            dir,
            name: name.clone(),
            mode: MODE,
            umask: UMASK,
            make: What::Directory,
        }),
        Change::Unlink(change::Unlink {
            dir,
            name: name.clone(),
        }),
        Change::Rmdir(change::Rmdir {
            dir,
            name: name.clone(),
        }),
        rename(),
        Change::Create(change::Create {
            dir,
            name: name.clone(),
            mode: MODE,
            umask: UMASK,
            flags: 0o301,
            keep: true,
        }),
        Change::Link(change::Link { object, dir, name }),
    ]
}

fn rename() -> Change {
    Change::Rename(change::Rename {
        dir: handle(),
        name: name("from"),
        new_dir: object(),
        new_name: name("to"),
        flags: 1,
    })
}

fn of_data() -> Vec<Change> {
    let open = OpenId(1);
    vec![
        Change::Write(change::Write {
            open,
            at: WriteAt::Offset(1 << 32),
            kill_priv: true,
            durability: Durability::Data,
            kind: WriteKind::Page { late: false },
        }),
        Change::Fallocate(change::Fallocate {
            open,
            mode: 3,
            offset: 512,
            len: 1024,
        }),
        Change::CopyRange(change::CopyRange {
            from: open,
            from_offset: 10,
            to: OpenId(2),
            to_offset: 20,
            len: 30,
        }),
    ]
}

pub fn makes() -> Vec<What> {
    vec![
        What::Directory,
        What::Node { rdev: (8, 300) },
        What::Symlink {
            target: name("../t"),
        },
    ]
}

pub fn fills() -> Vec<Fill> {
    vec![Fill::Nothing, Fill::Pages, Fill::PagesForStore, Fill::Cache]
}

pub fn write_ats() -> Vec<WriteAt> {
    let place = |offset, len| Place { offset, len };
    vec![
        WriteAt::Offset(300),
        WriteAt::Append,
        WriteAt::Places(vec![place(0, 300), place(4096, 1)]),
    ]
}

pub fn write_kinds() -> Vec<WriteKind> {
    let base = Version {
        ctime: timestamp(300),
        size: 4096,
    };
    vec![
        WriteKind::Through { keep: true },
        WriteKind::Page { late: true },
        WriteKind::Flush {
            base,
            written: Some(timestamp(300)),
            late: false,
            repeated: true,
            set: set_attr(),
        },
    ]
}

pub fn durabilities() -> Vec<Durability> {
    vec![Durability::None, Durability::Data, Durability::All]
}

pub fn set_times() -> Vec<SetTime> {
    vec![SetTime::Now, SetTime::At(timestamp(300))]
}
