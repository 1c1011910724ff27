//! Claims about what is told from what a crash has left.

use super::Verdict::{NotHappened, Partly, Repeat, Unknown};
use super::*;
use leasefs_protocol::{FileKind, Timestamp};

pub(crate) const ATTR: Attr = Attr {
    ino: 7,
    kind: FileKind::File,
    mode: 0o644,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: (0, 0),
    size: 0,
    blocks: 0,
    blksize: 4096,
    atime: Timestamp {
        seconds: 1,
        nanos: 0,
    },
    mtime: Timestamp {
        seconds: 1,
        nanos: 0,
    },
    ctime: Timestamp {
        seconds: 1,
        nanos: 0,
    },
    xattrs: true,
};

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte; 30]).expect("fits")
}

const DIR: u8 = 100;
const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;

fn place(name: &str) -> Place {
    Place {
        dir: handle(DIR),
        name: RawName(name.as_bytes().to_vec()),
    }
}

/// What two names denote, by one byte each.
fn seen(name: Option<u8>, new_name: Option<u8>) -> Seen {
    Seen {
        name: name.map(|byte| (handle(byte), ATTR)),
        new_name: new_name.map(handle),
        ..Seen::default()
    }
}

fn sized(size: u64) -> Seen {
    Seen {
        size,
        ..Seen::default()
    }
}

fn with_xattr(has_xattr: bool) -> Seen {
    Seen {
        has_xattr,
        ..Seen::default()
    }
}

fn rename(replaced: Option<u8>, leaves: Leaves) -> Intent {
    Intent::Rename {
        from: place("old"),
        to: place("new"),
        object: handle(A),
        replaced: replaced.map(handle),
        leaves,
    }
}

fn done() -> Verdict {
    happened(Response::Done)
}

#[test]
fn a_name_that_was_free_and_is_taken_was_made_and_its_object_is_the_answer() {
    let intent = Intent::Make {
        at: place("a"),
        open: None,
    };
    assert_eq!(decide(&intent, &seen(None, None)), NotHappened);
    let made = Response::Object(Object {
        handle: handle(A),
        attr: ATTR,
    });
    assert_eq!(decide(&intent, &seen(Some(A), None)), happened(made));
}

#[test]
fn a_name_that_is_gone_was_removed_and_one_that_denotes_another_object_tells_nothing() {
    let intent = Intent::Remove {
        at: place("a"),
        object: handle(A),
    };
    assert_eq!(decide(&intent, &seen(None, None)), done());
    assert_eq!(decide(&intent, &seen(Some(A), None)), NotHappened);
    assert_eq!(decide(&intent, &seen(Some(B), None)), Unknown);
}

#[test]
fn a_rename_is_told_by_both_names() {
    let intent = rename(None, Leaves::Nothing);
    assert_eq!(decide(&intent, &seen(Some(A), None)), NotHappened);
    assert_eq!(decide(&intent, &seen(None, Some(A))), done());
    for (old, new) in [(None, None), (Some(A), Some(A)), (Some(B), Some(A))] {
        assert_eq!(decide(&intent, &seen(old, new)), Unknown);
    }
}

#[test]
fn a_replacing_rename_has_happened_once_the_new_name_denotes_the_old_ones_object() {
    let intent = rename(Some(B), Leaves::Nothing);
    assert_eq!(decide(&intent, &seen(Some(A), Some(B))), NotHappened);
    assert_eq!(decide(&intent, &seen(None, Some(A))), done());
    for (old, new) in [(Some(A), None), (None, Some(B)), (Some(B), Some(A))] {
        assert_eq!(decide(&intent, &seen(old, new)), Unknown);
    }
}

#[test]
fn an_exchange_has_happened_once_both_names_denote_the_others_object() {
    let intent = rename(Some(B), Leaves::Replaced);
    assert_eq!(decide(&intent, &seen(Some(A), Some(B))), NotHappened);
    assert_eq!(decide(&intent, &seen(Some(B), Some(A))), done());
    for (old, new) in [(None, Some(A)), (Some(C), Some(A)), (Some(A), None)] {
        assert_eq!(decide(&intent, &seen(old, new)), Unknown);
    }
}

#[test]
fn a_rename_that_leaves_a_whiteout_has_happened_once_the_old_name_denotes_a_new_object() {
    for replaced in [None, Some(B)] {
        let intent = rename(replaced, Leaves::Whiteout);
        assert_eq!(decide(&intent, &seen(Some(A), replaced)), NotHappened);
        assert_eq!(decide(&intent, &seen(Some(C), Some(A))), done());
        for (old, new) in [(None, Some(A)), (Some(A), Some(A)), (Some(C), None)] {
            assert_eq!(decide(&intent, &seen(old, new)), Unknown);
        }
    }
}

#[test]
fn an_append_is_told_by_the_size_and_a_part_of_it_is_cut_off() {
    let intent = Intent::Append {
        object: handle(A),
        size: 100,
        len: 10,
        durability: Durability::None,
    };
    let written = Response::Written(Written::plain(10, 100));
    assert_eq!(decide(&intent, &sized(100)), NotHappened);
    assert_eq!(decide(&intent, &sized(110)), happened(written));
    for part in [101, 109] {
        assert_eq!(decide(&intent, &sized(part)), Partly { size: 100 });
    }
    for neither in [99, 111] {
        assert_eq!(decide(&intent, &sized(neither)), Unknown);
    }
}

#[test]
fn a_collapse_and_an_insertion_are_told_by_the_size() {
    for new_size in [4096, 12288] {
        let intent = Intent::Resize {
            object: handle(A),
            size: 8192,
            new_size,
        };
        assert_eq!(decide(&intent, &sized(8192)), NotHappened);
        assert_eq!(decide(&intent, &sized(new_size)), done());
        assert_eq!(decide(&intent, &sized(8193)), Unknown);
    }
}

#[test]
fn an_xattr_that_was_missing_or_there_tells_whether_it_was_added_or_removed() {
    let (object, name) = (handle(A), RawName(b"user.a".to_vec()));
    let add = Intent::AddXattr {
        object,
        name: name.clone(),
    };
    assert_eq!(decide(&add, &with_xattr(false)), NotHappened);
    assert_eq!(decide(&add, &with_xattr(true)), done());
    let remove = Intent::RemoveXattr { object, name };
    assert_eq!(decide(&remove, &with_xattr(true)), NotHappened);
    assert_eq!(decide(&remove, &with_xattr(false)), done());
}

#[test]
fn what_can_be_repeated_is_never_taken_for_done() {
    let intent = Intent::Repeatable {
        objects: vec![handle(A)],
    };
    assert_eq!(decide(&intent, &sized(0)), Repeat);
    assert_eq!(decide(&intent, &sized(1)), Repeat);
}
