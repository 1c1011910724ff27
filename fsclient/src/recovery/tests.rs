use super::*;
use bytes::Bytes;
use leasefs_protocol::Handle;
use leasefs_protocol::limits::{MAX_RECOVERY_PATH, MAX_RECOVERY_RANGES};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// A scratch folder, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-recovery-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("scratch folder");
        Self(path)
    }

    fn folder(&self) -> Folder {
        Folder::at(self.0.join("recovery"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lost(path: impl AsRef<OsStr>, extents: &[(u64, &[u8])]) -> Lost {
    let extent = |(offset, bytes): &(u64, &[u8])| (*offset, Bytes::copy_from_slice(bytes));
    Lost {
        writer: None,
        source: "nas:4430:/".into(),
        path: Some(PathBuf::from(path.as_ref())),
        object: Handle::new(&[0xab; 3]).expect("fits"),
        reason: Reason::ChangedElsewhere,
        time: UNIX_EPOCH + Duration::from_millis(1234),
        size: 5000,
        extents: extents.iter().map(extent).collect(),
    }
}

fn read_back(folder: &Folder, id: RecoveryId) -> Vec<(u64, Vec<u8>)> {
    let item = folder.item(id).expect("description");
    let pieces = folder.pieces(&item).expect("data");
    pieces.collect::<Result<_, _>>().expect("pieces")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

#[test]
fn what_is_kept_reads_back_and_extents_that_touch_are_one_range() {
    let scratch = Scratch::new();
    let lost = lost("a/b", &[(10, b"xy"), (12, b"z"), (4, b""), (100, b"!")]);
    let id = scratch.folder().keep(&lost).expect("kept");
    let item = scratch.folder().item(id).expect("description");
    let range = |offset, length| ByteRange { offset, length };
    let expected = Item {
        id,
        source: "nas:4430:/".into(),
        path: Some("a/b".into()),
        object: "ababab".into(),
        writer: None,
        reason: Reason::ChangedElsewhere,
        time_ms: 1234,
        size: 5000,
        bytes: 4,
        ranges: vec![range(10, 3), range(100, 1)],
    };
    assert_eq!(item, expected);
    let pieces = read_back(&scratch.folder(), id);
    assert_eq!(pieces, [(10, b"xyz".to_vec()), (100, b"!".to_vec())]);
}

#[test]
fn large_ranges_are_read_back_in_bounded_pieces() {
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..(5 << 19)).map(|n: u32| (n % 251) as u8).collect();
    let id = scratch
        .folder()
        .keep(&lost("big", &[(7, &bytes)]))
        .expect("kept");
    let pieces = read_back(&scratch.folder(), id);
    let offsets: Vec<u64> = pieces.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [7, 7 + (1 << 20), 7 + (2 << 20)]);
    let whole: Vec<u8> = pieces.into_iter().flat_map(|(_, piece)| piece).collect();
    assert!(whole == bytes);
}

#[test]
fn every_reason_reads_back() {
    let scratch = Scratch::new();
    for reason in [
        Reason::ChangedElsewhere,
        Reason::Unreachable,
        Reason::Refused {
            errno: libc::ENOSPC,
        },
    ] {
        let lost = Lost {
            reason,
            ..lost("f", &[(0, b"x")])
        };
        let id = scratch.folder().keep(&lost).expect("kept");
        assert_eq!(
            scratch.folder().item(id).expect("description").reason,
            reason
        );
    }
}

#[test]
fn a_crash_before_the_item_was_complete_leaves_no_item_and_is_cleared_by_the_next() {
    let scratch = Scratch::new();
    let folder = scratch.folder();
    let cut_short = folder.keep(&lost("cut", &[(0, b"short")])).expect("kept");
    let draft = folder.path().join(format!(".incomplete-{cut_short}"));
    fs::rename(folder.path().join(cut_short.to_string()), &draft).expect("as before its end");
    fs::remove_file(draft.join("item.json")).expect("not written yet");
    assert_eq!(folder.ids().expect("read"), []);
    assert!(matches!(
        folder.item(cut_short),
        Err(RecoveryError::NoItem(_))
    ));

    let id = folder.keep(&lost("next", &[(0, b"whole")])).expect("kept");
    assert_eq!(folder.ids().expect("read"), [id]);
    assert!(!draft.exists());
}

#[test]
fn a_crash_in_the_middle_of_a_discard_leaves_no_item() {
    let scratch = Scratch::new();
    let folder = scratch.folder();
    let id = folder.keep(&lost("f", &[(0, b"x")])).expect("kept");
    let place = folder.path().join(id.to_string());
    fs::rename(&place, folder.path().join(format!(".incomplete-{id}"))).expect("half discarded");
    assert!(matches!(folder.discard(id), Err(RecoveryError::NoItem(_))));
    assert_eq!(folder.ids().expect("read"), []);
}

#[test]
fn an_item_that_lost_bytes_or_its_description_is_damaged_and_hides_no_other() {
    let scratch = Scratch::new();
    let folder = scratch.folder();
    let id = folder.keep(&lost("f", &[(0, b"12345")])).expect("kept");
    let other = folder.keep(&lost("g", &[(0, b"1")])).expect("kept");
    let item = folder.item(id).expect("description");
    let place = folder.path().join(id.to_string());

    fs::write(place.join("data"), b"1234").expect("written");
    assert!(matches!(
        folder.pieces(&item),
        Err(RecoveryError::Damaged { .. })
    ));

    let text = fs::read_to_string(place.join("item.json")).expect("text");
    for bad in [
        text.replace("\"length\":5", "\"length\":4"),
        text.replace("\"offset\":0", "\"offset\":9223372036854775807"),
        text.replace(&id.to_string(), &other.to_string()),
        text[..text.len() / 2].to_owned(),
    ] {
        assert_ne!(bad, text);
        fs::write(place.join("item.json"), &bad).expect("written");
        assert!(
            matches!(folder.item(id), Err(RecoveryError::Damaged { .. })),
            "{bad}"
        );
    }
    let items = folder.items().expect("read");
    assert_eq!(
        items
            .iter()
            .flatten()
            .map(|item| item.id)
            .collect::<Vec<_>>(),
        [other]
    );
    assert_eq!(items.len(), 2);
}

#[test]
fn a_full_folder_refuses_and_names_what_is_lost() {
    let scratch = Scratch::new();
    let folder = Folder::with_most_items(scratch.folder().path().to_owned(), 2);
    let first = folder.keep(&lost("one", &[(0, b"1")])).expect("kept");
    folder.keep(&lost("two", &[(0, b"2")])).expect("kept");
    let error = folder
        .keep(&lost("docs/three", &[(0, b"333")]))
        .expect_err("full");
    let text = error.to_string();
    assert!(
        text.contains("3 bytes of docs/three (nas:4430:/)"),
        "{text}"
    );
    assert!(text.contains("fsclient recover"), "{text}");
    folder.discard(first).expect("discarded");
    folder
        .keep(&lost("docs/three", &[(0, b"333")]))
        .expect("kept");
}

#[test]
fn a_disk_that_fails_is_an_error_that_names_what_is_lost() {
    let scratch = Scratch::new();
    fs::write(scratch.folder().path(), b"in the way").expect("written");
    let error = scratch
        .folder()
        .keep(&lost("f", &[(0, b"333")]))
        .expect_err("no folder");
    let RecoveryError::NotKept {
        file, bytes, why, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((file.as_str(), *bytes), ("f", 3));
    assert!(matches!(**why, RecoveryError::Disk { .. }), "{error}");

    let full = RecoveryError::Disk {
        path: "/state/data".into(),
        error: std::io::Error::from_raw_os_error(libc::ENOSPC),
    };
    assert!(full.to_string().contains("free some space"), "{full}");
}

#[test]
fn ranges_beyond_what_files_can_have_or_too_many_are_refused() {
    let scratch = Scratch::new();
    let why = |lost: &Lost| match scratch.folder().keep(lost) {
        Err(RecoveryError::NotKept { why, .. }) => *why,
        other => panic!("{other:?}"),
    };
    let far = lost("f", &[(i64::MAX as u64, b"x")]);
    assert!(matches!(why(&far), RecoveryError::RangeTooFar(_)));
    let last = lost("f", &[(i64::MAX as u64 - 1, b"x")]);
    scratch
        .folder()
        .keep(&last)
        .expect("the last byte that a file can have");

    let byte = Bytes::from_static(b"x");
    let scattered = |count: usize| Lost {
        extents: (0..count).map(|n| (n as u64 * 2, byte.clone())).collect(),
        ..lost("f", &[])
    };
    assert!(matches!(
        why(&scattered(MAX_RECOVERY_RANGES + 1)),
        RecoveryError::TooManyRanges
    ));
    let id = scratch
        .folder()
        .keep(&scattered(MAX_RECOVERY_RANGES))
        .expect("the most");
    let item = scratch
        .folder()
        .item(id)
        .expect("its description fits its bound");
    assert_eq!(item.ranges.len(), MAX_RECOVERY_RANGES);
}

#[test]
fn names_of_any_bytes_read_back_and_stand_in_one_line() {
    let scratch = Scratch::new();
    let folder = scratch.folder();
    for name in [
        &b"a b/\"quoted\""[..],
        b"new\nline\x1b[2J",
        b"\xff\xfe/latin\xe9",
        b"..\\..",
        b"\xe2\x82\xac",
    ] {
        let path = OsStr::from_bytes(name);
        let id = folder.keep(&lost(path, &[(0, b"x")])).expect("kept");
        let item = folder.item(id).expect("description");
        assert_eq!(item.path.as_deref(), Some(Path::new(path)));
        assert!(
            !item.file().chars().any(char::is_control),
            "{:?}",
            item.file()
        );
    }
}

#[test]
fn data_of_unknown_or_endless_name_is_kept_and_told_by_its_handle() {
    let scratch = Scratch::new();
    let folder = scratch.folder();
    let endless = lost("x/".repeat(MAX_RECOVERY_PATH / 2 + 1), &[(0, b"x")]);
    let unknown = Lost {
        path: None,
        ..lost("", &[(0, b"x")])
    };
    for lost in [endless, unknown] {
        let id = folder.keep(&lost).expect("kept");
        let item = folder.item(id).expect("description");
        assert_eq!(item.path, None);
        assert!(item.file().contains("ababab"), "{}", item.file());
    }
}

#[test]
fn only_the_user_may_read_what_is_kept() {
    let scratch = Scratch::new();
    let id = scratch
        .folder()
        .keep(&lost("f", &[(0, b"x")]))
        .expect("kept");
    let folder = scratch.folder().path().to_owned();
    let place = folder.join(id.to_string());
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&place), 0o700);
    for file in [
        place.join("data"),
        place.join("item.json"),
        folder.join(".lock"),
    ] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn daemons_that_share_a_folder_do_not_disturb_each_other() {
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        for daemon in 0..4_u8 {
            let folder = scratch.folder();
            scope.spawn(move || {
                for round in 0..8_u8 {
                    let id = folder
                        .keep(&lost("f", &[(0, &[daemon, round])]))
                        .expect("kept");
                    assert_eq!(read_back(&folder, id), [(0, vec![daemon, round])]);
                    if round % 2 == 0 {
                        folder.discard(id).expect("discarded");
                    }
                }
            });
        }
    });
    assert_eq!(
        scratch
            .folder()
            .items()
            .expect("read")
            .iter()
            .flatten()
            .count(),
        16
    );
}

#[test]
fn where_nothing_was_kept_there_is_nothing_and_looking_makes_no_folder() {
    let scratch = Scratch::new();
    let folder = scratch.folder();
    assert_eq!(folder.ids().expect("read"), []);
    let id: RecoveryId = "00c0ffee".parse().expect("an id");
    assert!(matches!(folder.item(id), Err(RecoveryError::NoItem(_))));
    assert!(matches!(folder.discard(id), Err(RecoveryError::NoItem(_))));
    assert!(!folder.path().exists());
}

#[test]
fn an_id_has_one_spelling() {
    assert_eq!("00c0ffee".parse(), Ok(RecoveryId(0x00c0_ffee)));
    for bad in [
        "c0ffee",
        "00C0FFEE",
        "+0c0ffee",
        "../../..",
        "",
        "000c0ffee",
    ] {
        assert_eq!(bad.parse::<RecoveryId>(), Err(UnknownId), "{bad:?}");
    }
}

#[test]
fn bytes_that_are_neither_kept_nor_in_the_file_are_gaps() {
    let scratch = Scratch::new();
    let id = scratch
        .folder()
        .keep(&lost("f", &[(10, b"xyz"), (20, b"!")]));
    let item = scratch.folder().item(id.expect("kept")).expect("an item");
    let item = Item { size: 30, ..item };
    let gaps = |base| {
        let gaps = item.gaps(base).into_iter();
        gaps.map(|gap| (gap.offset, gap.length)).collect::<Vec<_>>()
    };
    assert_eq!(gaps(0), [(0, 10), (13, 7), (21, 9)]);
    assert_eq!(gaps(11), [(13, 7), (21, 9)]);
    assert_eq!(gaps(15), [(15, 5), (21, 9)]);
    assert_eq!(gaps(30), []);
    assert_eq!(gaps(100), []);
}
