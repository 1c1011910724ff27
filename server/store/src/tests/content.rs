use super::*;
use crate::{OpenFile, Written};
use leasefs_protocol::Durability;
use leasefs_protocol::change::{Place, WriteAt};
use leasefs_protocol::{SetAttr, SetTime, Timestamp};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn write(w: &World, open: &OpenFile, at: WriteAt, data: &[u8]) -> Result<Written, Refusal> {
    w.store.write(open, &at, data, false)
}

fn file(w: &World) -> Arc<OpenFile> {
    w.create(0, "f", 0o600).open
}

#[test]
fn what_is_written_is_read_and_reads_end_at_the_end() {
    let w = world();
    let open = file(&w);
    for (at, durability) in [
        (0, Durability::None),
        (3, Durability::Data),
        (6, Durability::All),
    ] {
        let written = write(&w, &open, WriteAt::Offset(at), b"abc");
        assert_eq!(written, Ok(Written { offset: at, len: 3 }));
        assert_eq!(w.store.commit(&open, durability), Ok(()));
    }
    assert_eq!(w.store.commit_all(), Ok(()));
    assert_eq!(w.store.read(&open, 2, 100), Ok(b"cabcabc".to_vec()));
    assert_eq!(w.store.read(&open, 2, 3), Ok(b"cab".to_vec()));
    assert_eq!(w.store.read(&open, 9, 1), Ok(Vec::new()));
    let cached = w.store.try_read_cached(&open, 2, 100);
    assert!(cached.is_none() || cached == Some(Ok(b"cabcabc".to_vec())));
}

fn places(all: &[(u64, u64)]) -> WriteAt {
    let place = |&(offset, len)| Place { offset, len };
    WriteAt::Places(all.iter().map(place).collect())
}

#[test]
fn a_write_of_several_places_puts_each_part_where_it_goes() {
    let w = world();
    let open = file(&w);
    let at = places(&[(1, 2), (6, 3)]);
    let written = write(&w, &open, at.clone(), b"abcde");
    assert_eq!(written, Ok(Written { offset: 1, len: 5 }));
    assert_eq!(w.store.read(&open, 0, 100), Ok(b"\0ab\0\0\0cde".to_vec()));
    assert!(w.store.holds(&open, &at, b"abcde"));
    assert!(!w.store.holds(&open, &at, b"abcdX"));
    assert!(!w.store.holds(&open, &places(&[(1, 2), (7, 3)]), b"abcde"));
}

#[test]
fn of_several_places_what_the_host_has_taken_before_one_that_it_refuses_is_told() {
    let w = world();
    let open = file(&w);
    let beyond = places(&[(0, 2), (i64::MAX as u64, 1)]);
    let written = write(&w, &open, beyond, b"abc");
    assert_eq!(written, Ok(Written { offset: 0, len: 2 }));
    let only = places(&[(i64::MAX as u64, 1)]);
    assert_eq!(write(&w, &open, only, b"c"), Err(Refusal::TooBig));
    assert_eq!(w.store.read(&open, 0, 100), Ok(b"ab".to_vec()));
}

#[test]
fn bytes_that_come_late_date_the_file_between_its_mtime_and_now() {
    let w = world();
    let open = file(&w);
    let at = |seconds| Timestamp { seconds, nanos: 5 };
    let set = |time| {
        let mtime = Some(SetTime::At(time));
        let set = SetAttr {
            mtime,
            ..SetAttr::default()
        };
        let done = w.store.setattr(&w.who(0), open.handle(), None, &set);
        done.expect("setattr").mtime
    };
    let dated = |when| {
        let late = w
            .store
            .write_late(&open, &WriteAt::Offset(0), b"late", false, when);
        late.expect("written");
        w.store.getattr(open.handle()).expect("getattr").mtime
    };
    set(at(1000));
    assert_eq!(dated(at(2000)), at(2000));
    assert_eq!(dated(at(1500)), at(2000), "it would go back");
    let now = w.store.getattr(open.handle()).expect("getattr").ctime;
    let dated_to_come = dated(at(now.seconds + 1000));
    assert!(dated_to_come >= now && dated_to_come < at(now.seconds + 1000));
    set(at(now.seconds + 1000));
    assert_eq!(
        dated(at(3000)),
        at(3000),
        "a time to come ends with a write"
    );
    let never = Timestamp {
        seconds: 0,
        nanos: 1_000_000_000,
    };
    let late = w
        .store
        .write_late(&open, &WriteAt::Offset(0), b"no", false, never);
    assert_eq!(late, Err(Refusal::Invalid));
    assert_eq!(w.store.read(&open, 0, 4), Ok(b"late".to_vec()));
}

#[test]
fn concurrent_appends_are_whole_and_each_learns_its_offset() {
    let w = world();
    let open = file(&w);
    let offsets: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u8)
            .map(|writer| {
                let (w, open) = (&w, &open);
                scope.spawn(move || {
                    (0..200)
                        .map(|_| {
                            let done = write(w, open, WriteAt::Append, &[writer; 10]);
                            let offset = done.expect("append").offset;
                            let back = w.store.read(open, offset, 10);
                            assert_eq!(back, Ok(vec![writer; 10]));
                            offset
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        writers
            .into_iter()
            .flat_map(|writer| writer.join().expect("writer"))
            .collect()
    });
    let mut sorted = offsets;
    sorted.sort_unstable();
    let expected: Vec<u64> = (0..800).map(|i| i * 10).collect();
    assert_eq!(sorted, expected);
}

#[test]
fn an_offset_write_on_an_append_open_goes_to_its_offset() {
    let w = world();
    file(&w);
    let flags = (libc::O_WRONLY | libc::O_APPEND) as u32;
    let handle = w.look("f");
    let (open, _) = w
        .store
        .open_object(&w.who(0), &handle, flags)
        .expect("open");
    write(&w, &open, WriteAt::Append, b"aaaa").expect("append");
    write(&w, &open, WriteAt::Offset(0), b"b").expect("write");
    assert_eq!(std::fs::read(w.path("f")).expect("read"), b"baaa");
}

#[test]
fn offsets_beyond_the_largest_file_are_too_big() {
    let w = world();
    let open = file(&w);
    let big = i64::MAX as u64;
    let too_big = Err(Refusal::TooBig);
    assert_eq!(w.store.read(&open, big, 1).map(drop), too_big);
    assert_eq!(w.store.read(&open, u64::MAX, 1).map(drop), too_big);
    let written = write(&w, &open, WriteAt::Offset(big), b"x");
    assert_eq!(written.map(drop), too_big);
    assert_eq!(w.store.fallocate(&open, 0, (big, 1), false), too_big);
    assert_eq!(w.store.seek(&open, u64::MAX, 3).map(drop), too_big);
    let copied = w.store.copy_range((&open, 0), (&open, big), 1, false);
    assert_eq!(copied.map(drop), too_big);
}

#[test]
fn opens_allow_only_what_they_were_opened_for() {
    let w = world();
    file(&w);
    let handle = w.look("f");
    let open = |flags: i32| {
        let opened = w.store.open_object(&w.who(0), &handle, flags as u32);
        opened.expect("open").0
    };
    let (reader, writer) = (open(libc::O_RDONLY), open(libc::O_WRONLY));
    let bad = Err(Refusal::BadOpen);
    let written = write(&w, &reader, WriteAt::Append, b"x");
    assert_eq!(written.map(drop), bad);
    assert_eq!(w.store.fallocate(&reader, 0, (0, 1), false), bad);
    assert_eq!(w.store.read(&writer, 0, 1).map(drop), bad);
    let copied = w.store.copy_range((&writer, 0), (&writer, 5), 1, false);
    assert_eq!(copied.map(drop), bad);
    let (dir, _) = w
        .store
        .open_object(&w.who(0), &w.root(), 0)
        .expect("directory");
    let read = w.store.read(&dir, 0, 1).map(drop);
    assert_eq!(read, Err(errno(libc::EISDIR)));
    assert_eq!(w.store.commit(&dir, Durability::All), Ok(()));
}

#[test]
fn setuid_goes_with_a_write_that_kills_privileges_though_the_server_is_root() {
    let w = world();
    let open = file(&w);
    let setuid = || {
        let mode = std::fs::Permissions::from_mode(0o6755);
        std::fs::set_permissions(w.path("f"), mode).expect("chmod");
    };
    let mode = || w.store.getattr(open.handle()).expect("attr").mode;
    setuid();
    write(&w, &open, WriteAt::Offset(0), b"x").expect("write");
    assert_eq!(mode(), 0o6755, "root keeps the bits, as on the host");
    for at in [WriteAt::Offset(0), WriteAt::Append] {
        setuid();
        w.store.write(&open, &at, b"x", true).expect("write");
        assert_eq!(mode(), 0o755);
    }
    setuid();
    let set = leasefs_protocol::SetAttr {
        size: Some(0),
        kill_priv: true,
        ..Default::default()
    };
    let attr = w
        .store
        .setattr(&w.who(0), open.handle(), Some(&open), &set)
        .expect("truncate");
    assert_eq!((attr.mode, attr.size), (0o755, 0));
    setuid();
    let set = leasefs_protocol::SetAttr { size: None, ..set };
    let attr = w.store.setattr(&w.who(BOB), open.handle(), None, &set);
    assert_eq!(attr.expect("nothing to do").mode, 0o6755, "nobody writes");
}

#[test]
fn a_change_of_owner_clears_setuid_on_files_and_nothing_on_directories() {
    let w = world();
    w.create(0, "f", 0o600);
    w.mkdir(&w.root(), "d");
    for (text, after) in [("f", 0o755), ("d", 0o6755)] {
        let mode = std::fs::Permissions::from_mode(0o6755);
        std::fs::set_permissions(w.path(text), mode).expect("chmod");
        let set = leasefs_protocol::SetAttr {
            uid: Some(ALICE),
            kill_priv: true,
            ..Default::default()
        };
        let attr = w.store.setattr(&w.who(0), &w.look(text), None, &set);
        assert_eq!(attr.expect("chown").mode, after, "{text}");
    }
}

/// `chattr +a` for as long as this lives, so that the file can be removed.
struct AppendOnly(std::path::PathBuf);

impl AppendOnly {
    fn set(path: std::path::PathBuf) -> Self {
        chattr("+a", &path);
        Self(path)
    }
}

impl Drop for AppendOnly {
    fn drop(&mut self) {
        chattr("-a", &self.0);
    }
}

/// A log of one byte, `1`.
fn append_only_log(w: &World) -> (Handle, AppendOnly) {
    std::fs::write(w.path("log"), b"1").expect("write");
    (w.look("log"), AppendOnly::set(w.path("log")))
}

fn chattr(flag: &str, path: &std::path::Path) {
    let done = std::process::Command::new("chattr")
        .arg(flag)
        .arg(path)
        .status();
    assert!(done.expect("chattr (e2fsprogs)").success(), "{flag}");
}

#[test]
fn an_append_only_file_is_appended_to_and_nothing_else_also_after_a_restart() {
    let w = world();
    let (log, _append_only) = append_only_log(&w);
    let open = |flags: i32| w.store.open_object(&w.who(0), &log, flags as u32);
    assert_eq!(open(libc::O_RDWR).map(drop), Err(errno(libc::EPERM)));
    let (opened, _) = open(libc::O_RDWR | libc::O_APPEND).expect("for appending");
    let session = leasefs_protocol::SessionId([5; 16]);
    let token = w.store.mint(&opened, NUMBER, &holder(session));
    drop(opened);
    let opened = w
        .store
        .reopen(&token, NUMBER, &holder(session))
        .expect("after a restart");
    let appended = write(&w, &opened, WriteAt::Append, b"2");
    assert_eq!(appended, Ok(Written { offset: 1, len: 1 }));
    let written = write(&w, &opened, WriteAt::Offset(0), b"0");
    assert_eq!(written.map(drop), Err(Refusal::NotPermitted));
    assert_eq!(w.store.read(&opened, 0, 9), Ok(b"12".to_vec()));
}

#[test]
fn appends_that_were_buffered_come_to_an_append_only_file_once_though_they_are_sent_twice() {
    let w = world();
    let (log, _append_only) = append_only_log(&w);
    let flags = (libc::O_WRONLY | libc::O_APPEND) as u32;
    let (opened, _) = w.store.open_object(&w.who(0), &log, flags).expect("open");
    let put = |offset, data: &[u8]| write(&w, &opened, WriteAt::Offset(offset), data);
    assert_eq!(put(1, b"234"), Ok(Written { offset: 1, len: 3 }));
    assert_eq!(put(1, b"234"), Ok(Written { offset: 1, len: 3 }));
    assert_eq!(put(2, b"3456"), Ok(Written { offset: 2, len: 4 }));
    for (offset, data) in [(1, b"xy"), (7, b"89")] {
        assert_eq!(put(offset, data).map(drop), Err(Refusal::NotPermitted));
    }
    assert_eq!(std::fs::read(w.path("log")).expect("read"), b"123456");
}

#[test]
fn an_append_that_comes_twice_confirms_no_bytes_that_may_not_be_read() {
    let w = world();
    std::fs::write(w.path("log"), b"secret").expect("write");
    let mode = std::fs::Permissions::from_mode(0o622);
    std::fs::set_permissions(w.path("log"), mode).expect("chmod");
    chattr("+a", &w.path("log"));
    let _append_only = AppendOnly(w.path("log"));
    let flags = (libc::O_WRONLY | libc::O_APPEND) as u32;
    let log = w.look("log");
    let (opened, _) = w.store.open_object(&w.who(BOB), &log, flags).expect("open");
    for guess in [b"secret", b"guess!"] {
        let put = write(&w, &opened, WriteAt::Offset(0), guess);
        assert_eq!(put.map(drop), Err(Refusal::NotPermitted), "{guess:?}");
        assert!(!w.store.holds(&opened, &WriteAt::Offset(0), guess));
    }
    let appended = write(&w, &opened, WriteAt::Offset(6), b"!");
    assert_eq!(appended, Ok(Written { offset: 6, len: 1 }));
}

#[test]
fn holes_are_punched_and_found() {
    let w = world();
    let open = file(&w);
    write(&w, &open, WriteAt::Offset(0), &[1; 3 * 65536]).expect("write");
    let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    let punched = w.store.fallocate(&open, punch, (65536, 65536), false);
    assert_eq!(punched, Ok(()));
    let hole = w.store.seek(&open, 0, libc::SEEK_HOLE as u32);
    assert_eq!(hole, Ok(65536));
    let data = w.store.seek(&open, 65536, libc::SEEK_DATA as u32);
    assert_eq!(data, Ok(2 * 65536));
    let behind = w.store.seek(&open, 3 * 65536, libc::SEEK_DATA as u32);
    assert_eq!(behind, Err(errno(libc::ENXIO)));
    assert_eq!(w.store.seek(&open, 0, 0), Err(Refusal::Invalid));
    let unknown = w.store.fallocate(&open, 0x8000, (0, 1), false);
    assert_eq!(unknown, Err(Refusal::Unsupported));
}

#[test]
fn ranges_are_copied_within_the_host() {
    let w = world();
    let open = file(&w);
    let other = w.create(0, "g", 0o600).open;
    write(&w, &open, WriteAt::Offset(0), b"0123456789").expect("write");
    let copied = w.store.copy_range((&open, 2), (&other, 1), 5, false);
    assert_eq!(copied, Ok(5));
    assert_eq!(w.store.read(&other, 0, 10), Ok(b"\x0023456".to_vec()));
}

#[test]
fn reads_leave_the_access_time_alone() {
    let w = world();
    std::fs::write(w.path("f"), b"data").expect("write");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let times = std::fs::FileTimes::new().set_accessed(old);
    let host = std::fs::File::options().write(true).open(w.path("f"));
    host.expect("open").set_times(times).expect("utimes");
    let (open, before) = w
        .store
        .open_object(&w.who(BOB), &w.look("f"), 0)
        .expect("open");
    w.store.read(&open, 0, 4).expect("read");
    assert_eq!(before.atime.seconds, 1);
    assert_eq!(w.store.getattr(open.handle()).expect("attr"), before);
}
