//! Claims about what requests read and change.

use super::*;
use leasefs_protocol::request::{Durability, Make, WriteAt, WriteKind};
use leasefs_protocol::{OpenId, RawName, SetAttr};

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

fn raw(name: &str) -> RawName {
    RawName(name.as_bytes().to_vec())
}

fn names(name: &str, new_name: &str) -> Names {
    let parse = |text: &str| Name::new(text.as_bytes()).ok();
    Names {
        name: parse(name),
        new_name: parse(new_name),
    }
}

fn changed(accesses: &Accesses, object: Handle) -> Option<(Parts, usize)> {
    let mut found = accesses.touches.iter().filter(|c| c.object == object);
    let change = found.next()?;
    assert!(found.next().is_none(), "an object stands once");
    Some((change.parts, change.names.len()))
}

fn rename(dir: Handle, new_dir: Handle) -> Request {
    Request::Rename {
        dir,
        name: raw("a"),
        new_dir,
        new_name: raw("b"),
        flags: 0,
    }
}

const DIR: Parts = Parts::ATTRS;

#[test]
fn a_rename_changes_both_directories_the_moved_and_the_replaced_inode() {
    let targets = Targets {
        named: Some(handle(3)),
        replaced: Some(handle(4)),
        ..Targets::default()
    };
    let all = accesses(&rename(handle(1), handle(2)), &names("a", "b"), &targets);
    assert_eq!(changed(&all, handle(1)), Some((DIR | Parts::LISTING, 1)));
    assert_eq!(changed(&all, handle(2)), Some((DIR | Parts::LISTING, 1)));
    assert_eq!(changed(&all, handle(3)), Some((Parts::ATTRS, 0)));
    assert_eq!(changed(&all, handle(4)), Some((Parts::ATTRS, 0)));
    assert!(all.reads.is_empty());
}

#[test]
fn a_rename_between_two_names_of_one_object_changes_nothing() {
    let targets = Targets {
        named: Some(handle(3)),
        replaced: Some(handle(3)),
        ..Targets::default()
    };
    let all = accesses(&rename(handle(1), handle(2)), &names("a", "b"), &targets);
    assert!(all.touches.is_empty() && all.reads.is_empty());
}

#[test]
fn a_rename_within_a_directory_names_it_once_with_both_names() {
    let all = accesses(
        &rename(handle(1), handle(1)),
        &names("a", "b"),
        &Targets::default(),
    );
    assert_eq!(all.touches.len(), 1);
    assert_eq!(changed(&all, handle(1)), Some((DIR | Parts::LISTING, 2)));
}

#[test]
fn link_and_unlink_change_the_inode_under_its_other_names() {
    let unlink = Request::Unlink {
        dir: handle(1),
        name: raw("a"),
    };
    let targets = Targets {
        named: Some(handle(3)),
        ..Targets::default()
    };
    let all = accesses(&unlink, &names("a", ""), &targets);
    assert_eq!(changed(&all, handle(3)), Some((Parts::ATTRS, 0)));
    let link = Request::Link {
        object: handle(3),
        dir: handle(1),
        name: raw("a"),
    };
    let all = accesses(&link, &names("a", ""), &Targets::default());
    assert_eq!(changed(&all, handle(3)), Some((Parts::ATTRS, 0)));
    assert_eq!(changed(&all, handle(1)), Some((DIR | Parts::LISTING, 1)));
}

fn create(flags: u32, named: Option<Handle>) -> Accesses {
    let request = Request::Create {
        dir: handle(1),
        name: raw("a"),
        mode: 0o100_644,
        umask: 0,
        flags,
        keep: false,
    };
    let targets = Targets {
        named,
        ..Targets::default()
    };
    accesses(&request, &names("a", ""), &targets)
}

#[test]
fn creating_an_existing_name_changes_nothing_unless_it_truncates() {
    assert_eq!(
        changed(&create(0, None), handle(1)),
        Some((DIR | Parts::LISTING, 1))
    );
    assert!(create(0, Some(handle(3))).touches.is_empty());
    assert!(create(O_EXCL, Some(handle(3))).touches.is_empty());
    let truncated = create(O_TRUNC, Some(handle(3)));
    assert_eq!(
        changed(&truncated, handle(3)),
        Some((Parts::DATA | Parts::ATTRS, 0))
    );
    assert_eq!(changed(&truncated, handle(1)), None);
}

#[test]
fn every_change_of_data_changes_attributes_too() {
    let opened = Targets {
        opened: Some(handle(1)),
        copied: Some(handle(2)),
        ..Targets::default()
    };
    let write = Request::Write {
        open: OpenId(1),
        at: WriteAt::Append,
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Through { keep: false },
    };
    let copy = Request::CopyRange {
        from: OpenId(2),
        from_offset: 0,
        to: OpenId(1),
        to_offset: 0,
        len: 1,
    };
    let truncate = Request::SetAttr {
        object: handle(1),
        open: None,
        set: SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    };
    let open = Request::Open {
        object: handle(1),
        flags: O_TRUNC,
    };
    for request in [write, copy, truncate, open] {
        let all = accesses(&request, &Names::default(), &opened);
        let both = Parts::DATA | Parts::ATTRS;
        assert_eq!(changed(&all, handle(1)), Some((both, 0)), "{request:?}");
    }
}

#[test]
fn exactly_the_numbered_requests_change_something() {
    let dir = handle(1);
    let make = Request::Make {
        dir,
        name: raw("a"),
        mode: 0,
        umask: 0,
        make: Make::Directory,
    };
    let lookup = Request::Lookup {
        dir,
        name: raw("a"),
    };
    let read_dir = Request::ReadDir {
        open: OpenId(1),
        cookie: 0,
        nodes: true,
    };
    for request in [make, lookup, read_dir, rename(dir, dir)] {
        let all = accesses(&request, &names("a", "b"), &Targets::default());
        assert_eq!(request.is_change(), !all.touches.is_empty(), "{request:?}");
    }
}

#[test]
fn only_the_first_page_of_a_listing_grants_it() {
    let page = |cookie| Request::ReadDir {
        open: OpenId(1),
        cookie,
        nodes: false,
    };
    let targets = Targets {
        opened: Some(handle(1)),
        ..Targets::default()
    };
    let kind = |cookie| accesses(&page(cookie), &Names::default(), &targets).kind;
    assert_eq!(kind(0), Metadata);
    assert_eq!(kind(7), Uncached);
}
