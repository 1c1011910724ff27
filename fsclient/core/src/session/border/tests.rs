use super::*;
use crate::cache::fixtures;
use leasefs_protocol::Durability;
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::change::WriteKind;
use leasefs_protocol::control::{IdentityPolicy, Standing};
use leasefs_protocol::query::Fill;
use leasefs_protocol::{
    BootId, DirEntry, Mode, Numbered, OpenToken, RequestId, Seq, Stamp, Touched,
};

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

fn attr() -> Attr {
    Attr {
        kind: FileKind::Directory,
        ..fixtures::attr(0)
    }
}

fn answer(response: Response) -> Reply {
    Reply {
        id: RequestId(1),
        renews: false,
        stamp: Stamp(1),
        grants: Vec::new(),
        touched: Vec::new(),
        room: None,
        result: Ok(response),
    }
}

fn judged(request: &Request, response: Response) -> Result<(), Broken> {
    reply((request, 10), (&answer(response), 0), |_| false)
}

fn numbered() -> Numbered {
    Numbered {
        seq: Seq(1),
        after: Vec::new(),
        resent: false,
        dropped: Vec::new(),
        closed: Vec::new(),
        locked: None,
    }
}

fn get_attr() -> Request {
    Request::Query(Query::GetAttr(query::GetAttr { object: handle(1) }))
}

fn read(len: u32) -> Request {
    Request::Query(Query::Read(query::Read {
        open: OpenId(1),
        offset: 0,
        len,
        fill: Fill::Nothing,
    }))
}

fn write(at: WriteAt) -> Request {
    Request::Change(
        numbered(),
        Change::Write(change::Write {
            open: OpenId(1),
            at,
            kill_priv: false,
            durability: Durability::None,
            kind: WriteKind::Through { keep: false },
        }),
    )
}

fn open() -> Request {
    Request::Query(Query::Open(query::Open {
        object: handle(1),
        flags: 0.into(),
        with_data: false,
    }))
}

fn read_dir(cookie: u64) -> Request {
    Request::Query(Query::ReadDir(query::ReadDir {
        open: OpenId(1),
        cookie,
        nodes: true,
    }))
}

fn entry(name: &[u8], cookie: u64) -> DirEntry {
    DirEntry {
        name: RawName(name.to_vec()),
        ino: 0,
        kind: FileKind::File,
        cookie,
        node: Some((handle(7), attr())),
    }
}

#[test]
fn attributes_that_overflow_or_are_no_attributes_are_refused() {
    assert_eq!(judged(&get_attr(), Response::Attr(attr())), Ok(()));
    let spoil: [fn(&mut Attr); 4] = [
        |attr| attr.size = u64::MAX,
        |attr| attr.mode = 0o104755,
        |attr| attr.mtime.nanos = SECOND,
        |attr| attr.ctime.nanos = u32::MAX,
    ];
    for spoil in spoil {
        let mut found = attr();
        spoil(&mut found);
        assert!(
            judged(&get_attr(), Response::Attr(found)).is_err(),
            "{found:?}"
        );
        let touched = Touched {
            object: handle(1),
            attr: found,
        };
        let with = Reply {
            touched: vec![touched],
            ..answer(Response::Done)
        };
        assert!(reply((&get_attr(), 0), (&with, 0), |_| false).is_err());
        let node = DirEntry {
            node: Some((handle(1), found)),
            ..entry(b"a", 1)
        };
        let page = Response::Entries(Entries {
            entries: vec![node],
            end: true,
        });
        assert!(judged(&read_dir(0), page).is_err());
    }
}

#[test]
fn more_bytes_than_were_asked_for_are_refused() {
    let done = answer(Response::Done);
    let of = |request: &Request, bytes| reply((request, 0), (&done, bytes), |_| false).is_ok();
    assert!(of(&read(100), 100) && !of(&read(100), 101));
    let read_link = Request::Query(Query::ReadLink(query::ReadLink { object: handle(1) }));
    assert!(of(&read_link, MAX_SYMLINK) && !of(&read_link, MAX_SYMLINK + 1));
    let list = Request::Query(Query::ListXattr(query::ListXattr { object: handle(1) }));
    assert!(of(&list, MAX_XATTR_VALUE) && !of(&list, MAX_XATTR_VALUE + 1));
    assert!(!of(&get_attr(), 1));
}

#[test]
fn bytes_are_written_where_they_were_sent_and_not_more_of_them() {
    let written = |len, offset| Response::Written(Written::plain(len, offset));
    let at = write(WriteAt::Offset(5));
    assert_eq!(judged(&at, written(10, 5)), Ok(()));
    assert_eq!(judged(&write(WriteAt::Append), written(3, 99)), Ok(()));
    for (len, offset) in [(11, 5), (10, 6), (u64::MAX, 5)] {
        assert!(
            judged(&at, written(len, offset)).is_err(),
            "{len} at {offset}"
        );
    }
    for offset in [u64::MAX, LARGEST] {
        assert!(judged(&write(WriteAt::Append), written(10, offset)).is_err());
    }
    assert!(judged(&get_attr(), written(0, 0)).is_err());
}

#[test]
fn an_open_comes_to_who_asked_for_one_and_is_no_other() {
    let opened = |token: usize| {
        Response::Opened(Opened {
            open: OpenId(4),
            token: OpenToken(vec![0; token]),
            attr: attr(),
        })
    };
    assert_eq!(judged(&open(), opened(MAX_OPEN_TOKEN)), Ok(()));
    assert!(judged(&open(), opened(MAX_OPEN_TOKEN + 1)).is_err());
    assert!(judged(&get_attr(), opened(1)).is_err());
    let stands = |open| open == OpenId(4);
    assert!(reply((&open(), 0), (&answer(opened(1)), 0), stands).is_err());
}

#[test]
fn a_listing_has_names_and_goes_on() {
    let page = |entries, end| Response::Entries(Entries { entries, end });
    let long = vec![entry(b"a", 1); MAX_LISTING_ENTRIES + 1];
    assert_eq!(
        judged(&read_dir(3), page(vec![entry(b"a", 4)], false)),
        Ok(())
    );
    assert_eq!(
        judged(&read_dir(3), page(vec![entry(b"a", 3)], true)),
        Ok(())
    );
    assert!(judged(&read_dir(3), page(vec![entry(b"a", 3)], false)).is_err());
    assert!(judged(&read_dir(0), page(long, true)).is_err());
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        let page = page(vec![entry(name, 1)], true);
        assert!(judged(&read_dir(0), page).is_err(), "{name:?}");
    }
    assert!(judged(&get_attr(), page(Vec::new(), true)).is_err());
}

#[test]
fn a_file_system_has_blocks() {
    let stat = FsStat {
        blocks: u64::MAX,
        bfree: u64::MAX,
        bavail: 0,
        files: 0,
        ffree: 0,
        bsize: 4096,
        frsize: 4096,
        namelen: 255,
    };
    let asked = Request::Query(Query::StatFs(query::StatFs { object: handle(1) }));
    assert_eq!(judged(&asked, Response::FsStat(stat)), Ok(()));
    for stat in [FsStat { frsize: 0, ..stat }, FsStat { bsize: 0, ..stat }] {
        assert!(judged(&asked, Response::FsStat(stat)).is_err());
    }
}

#[test]
fn leases_of_objects_that_nobody_asked_about_are_left_out() {
    let grant = |byte| Grant {
        object: handle(byte),
        parts: Parts::ATTRS,
        mode: Mode::Write,
        stamp: Stamp(u64::MAX),
    };
    let granted = |request: &Request, response| {
        let all = (0..50).map(grant).collect();
        let mut reply = Reply {
            grants: all,
            ..answer(response)
        };
        grants(request, &mut reply, |open| {
            (open == OpenId(1)).then(|| handle(9))
        });
        reply
            .grants
            .iter()
            .map(|grant| grant.object)
            .collect::<Vec<_>>()
    };
    let lookup = Request::Query(Query::Lookup(query::Lookup {
        dir: handle(2),
        name: RawName(b"a".to_vec()),
    }));
    let found = Response::Object(Object {
        handle: handle(3),
        attr: attr(),
    });
    assert_eq!(granted(&lookup, found), [handle(2), handle(3)]);
    assert_eq!(granted(&read(1), Response::Done), [handle(9)]);
    let entries = vec![entry(b"a", 1)];
    let page = Response::Entries(Entries { entries, end: true });
    assert_eq!(granted(&read_dir(0), page), [handle(7), handle(9)]);
}

fn welcomed() -> Welcome {
    Welcome {
        features: 0,
        term_ms: 10_000,
        drift_ppm: 1_000,
        process: BootId([1; 16]),
        host: BootId([2; 16]),
        standing: Standing::New,
        renews: true,
        root: handle(0),
        root_attr: attr(),
        read_only: false,
        identity: IdentityPolicy::Trust,
    }
}

#[test]
fn a_session_stands_on_a_term_a_drift_bound_and_a_directory() {
    assert_eq!(welcome(&welcomed()), Ok(()));
    let spoil: [fn(&mut Welcome); 5] = [
        |said| said.term_ms = 0,
        |said| said.term_ms = u32::MAX,
        |said| said.drift_ppm = u32::MAX,
        |said| said.root_attr.kind = FileKind::Symlink,
        |said| said.root_attr.size = u64::MAX,
    ];
    for spoil in spoil {
        let mut said = welcomed();
        spoil(&mut said);
        assert!(welcome(&said).is_err(), "{said:?}");
    }
}

fn recall(id: u64, names: Vec<RawName>) -> Recall {
    let (object, parts) = (handle(1), Parts::ALL);
    Recall {
        id: RecallId(id),
        stamp: Stamp(id),
        scope: Scope::Object {
            object,
            parts,
            names,
        },
    }
}

#[test]
fn recalls_that_nobody_can_keep_up_with_are_refused() {
    let mut recalls = Recalls::default();
    for id in 0..MOST_RECALLS as u64 {
        assert_eq!(
            recalls.come(BootTime::ZERO, &mut recall(id, Vec::new())),
            Ok(())
        );
    }
    // Sent again.
    assert_eq!(
        recalls.come(BootTime::ZERO, &mut recall(0, Vec::new())),
        Ok(())
    );
    recalls.approved(RecallId(0));
    let next = MOST_RECALLS as u64;
    assert_eq!(
        recalls.come(BootTime::ZERO, &mut recall(next, Vec::new())),
        Ok(())
    );
    assert!(
        recalls
            .come(BootTime::ZERO, &mut recall(next + 1, Vec::new()))
            .is_err()
    );
}

#[test]
fn a_recall_names_names_and_not_too_many() {
    let mut recalls = Recalls::default();
    let name = RawName(b"a".to_vec());
    let many = vec![name.clone(); MAX_BATCH + 1];
    assert_eq!(
        recalls.come(BootTime::ZERO, &mut recall(1, vec![name])),
        Ok(())
    );
    assert!(recalls.come(BootTime::ZERO, &mut recall(2, many)).is_err());
    assert!(
        recalls
            .come(
                BootTime::ZERO,
                &mut recall(3, vec![RawName(b"a/b".to_vec())])
            )
            .is_err()
    );
}
