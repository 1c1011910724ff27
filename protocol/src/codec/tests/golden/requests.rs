//! A sample of each variant of the enums in requests. No two fields of one type are equal in a
//! sample, so that exchanging them shows.

use super::messages::{handle, name, object, timestamp};
use crate::request::{Durability, Fill, Make, Request, WriteAt, WriteKind};
use crate::*;

const MODE: u32 = 0o100_640;
const UMASK: u32 = 0o22;

pub fn requests() -> Vec<Request> {
    [of_attributes(), of_names(), of_opens(), of_data()].concat()
}

fn of_attributes() -> Vec<Request> {
    let object = object();
    vec![
        Request::GetAttr { object },
        Request::SetAttr {
            object,
            open: Some(OpenId(1)),
            set: set_attr(),
        },
        Request::ReadLink { object },
        Request::StatFs { object },
        Request::Access { object, mask: 4 },
        Request::GetXattr {
            object,
            name: name("user.a"),
        },
        Request::ListXattr { object },
        Request::SetXattr {
            object,
            name: name("user.b"),
            flags: 2,
        },
        Request::RemoveXattr {
            object,
            name: name("user.c"),
        },
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

fn of_names() -> Vec<Request> {
    let (dir, object) = (handle(), object());
    let name = name("n");
    vec![
        Request::Lookup {
            dir,
            name: name.clone(),
        },
        Request::Make {
            dir,
            name: name.clone(),
            mode: MODE,
            umask: UMASK,
            make: Make::Directory,
        },
        Request::Unlink {
            dir,
            name: name.clone(),
        },
        Request::Rmdir {
            dir,
            name: name.clone(),
        },
        rename(),
        Request::Link { object, dir, name },
    ]
}

fn rename() -> Request {
    Request::Rename {
        dir: handle(),
        name: name("from"),
        new_dir: object(),
        new_name: name("to"),
        flags: 1,
    }
}

fn of_opens() -> Vec<Request> {
    vec![
        Request::Open {
            object: object(),
            flags: 0o2002,
        },
        Request::Create {
            dir: handle(),
            name: name("n"),
            mode: MODE,
            umask: UMASK,
            flags: 0o301,
            keep: true,
        },
        Request::Close {
            opens: vec![OpenId(250), OpenId(251)],
        },
        Request::Commit {
            open: OpenId(1),
            durability: Durability::All,
        },
        Request::CommitAll,
        Request::ReadDir {
            open: OpenId(1),
            cookie: u64::MAX,
            nodes: true,
        },
    ]
}

fn of_data() -> Vec<Request> {
    let open = OpenId(1);
    vec![
        Request::Read {
            open,
            offset: 1 << 16,
            len: 4096,
            fill: Fill::PagesForStore,
        },
        Request::Write {
            open,
            at: WriteAt::Offset(1 << 32),
            kill_priv: true,
            durability: Durability::Data,
            kind: WriteKind::Page,
        },
        Request::Fallocate {
            open,
            mode: 3,
            offset: 512,
            len: 1024,
        },
        Request::Seek {
            open,
            offset: 4096,
            whence: 3,
        },
        Request::CopyRange {
            from: open,
            from_offset: 10,
            to: OpenId(2),
            to_offset: 20,
            len: 30,
        },
    ]
}

pub fn makes() -> Vec<Make> {
    vec![
        Make::Directory,
        Make::Node { rdev: (8, 300) },
        Make::Symlink {
            target: name("../t"),
        },
    ]
}

pub fn fills() -> Vec<Fill> {
    vec![Fill::Nothing, Fill::Pages, Fill::PagesForStore, Fill::Cache]
}

pub fn write_ats() -> Vec<WriteAt> {
    vec![WriteAt::Offset(300), WriteAt::Append]
}

pub fn write_kinds() -> Vec<WriteKind> {
    let base = Version {
        ctime: timestamp(300),
        size: 4096,
    };
    vec![
        WriteKind::Through { keep: true },
        WriteKind::Page,
        WriteKind::Flush {
            base,
            written: Some(timestamp(300)),
            repeated: true,
        },
    ]
}

pub fn durabilities() -> Vec<Durability> {
    vec![Durability::None, Durability::Data, Durability::All]
}

pub fn set_times() -> Vec<SetTime> {
    vec![SetTime::Now, SetTime::At(timestamp(300))]
}
