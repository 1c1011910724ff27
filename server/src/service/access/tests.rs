//! Claims about what requests read and change.

use super::*;
use leasefs_protocol::Durability;
use leasefs_protocol::change::{What, WriteAt, WriteKind};
use leasefs_protocol::{OpenId, RawName, SetAttr, change, query};

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

fn rename(dir: Handle, new_dir: Handle) -> Change {
    Change::Rename(change::Rename {
        dir,
        name: raw("a"),
        new_dir,
        new_name: raw("b"),
        flags: 0,
    })
}

const DIR: Parts = Parts::ATTRS;

#[test]
fn a_rename_changes_both_directories_the_moved_and_the_replaced_inode() {
    let targets = Targets {
        named: Some(handle(3)),
        replaced: Some(handle(4)),
        ..Targets::default()
    };
    let all = of_change(&rename(handle(1), handle(2)), &names("a", "b"), &targets);
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
    let all = of_change(&rename(handle(1), handle(2)), &names("a", "b"), &targets);
    assert!(all.touches.is_empty() && all.reads.is_empty());
}

#[test]
fn a_rename_within_a_directory_names_it_once_with_both_names() {
    let all = of_change(
        &rename(handle(1), handle(1)),
        &names("a", "b"),
        &Targets::default(),
    );
    assert_eq!(all.touches.len(), 1);
    assert_eq!(changed(&all, handle(1)), Some((DIR | Parts::LISTING, 2)));
}

#[test]
fn link_and_unlink_change_the_inode_under_its_other_names() {
    let unlink = Change::Unlink(change::Unlink {
        dir: handle(1),
        name: raw("a"),
    });
    let targets = Targets {
        named: Some(handle(3)),
        ..Targets::default()
    };
    let all = of_change(&unlink, &names("a", ""), &targets);
    assert_eq!(changed(&all, handle(3)), Some((Parts::ATTRS, 0)));
    let link = Change::Link(change::Link {
        object: handle(3),
        dir: handle(1),
        name: raw("a"),
    });
    let all = of_change(&link, &names("a", ""), &Targets::default());
    assert_eq!(changed(&all, handle(3)), Some((Parts::ATTRS, 0)));
    assert_eq!(changed(&all, handle(1)), Some((DIR | Parts::LISTING, 1)));
}

fn create(flags: u32, named: Option<Handle>) -> Accesses {
    let request = Change::Create(change::Create {
        dir: handle(1),
        name: raw("a"),
        mode: 0o100_644,
        umask: 0,
        flags,
        keep: false,
    });
    let targets = Targets {
        named,
        ..Targets::default()
    };
    of_change(&request, &names("a", ""), &targets)
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
    let write = Change::Write(change::Write {
        open: OpenId(1),
        at: WriteAt::Append,
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Through { keep: false },
    });
    let copy = Change::CopyRange(change::CopyRange {
        from: OpenId(2),
        from_offset: 0,
        to: OpenId(1),
        to_offset: 0,
        len: 1,
    });
    let truncate = Change::SetAttr(change::SetAttr {
        object: handle(1),
        open: None,
        set: SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    });
    let open = Change::OpenTruncated(change::OpenTruncated {
        object: handle(1),
        flags: 0.into(),
    });
    for request in [write, copy, truncate, open] {
        let all = of_change(&request, &Names::default(), &opened);
        let both = Parts::DATA | Parts::ATTRS;
        assert_eq!(changed(&all, handle(1)), Some((both, 0)), "{request:?}");
    }
}

#[test]
fn what_is_asked_changes_nothing_and_changes_change_something() {
    let dir = handle(1);
    let make = Change::Make(change::Make {
        dir,
        name: raw("a"),
        mode: 0,
        umask: 0,
        make: What::Directory,
    });
    let lookup = Query::Lookup(query::Lookup {
        dir,
        name: raw("a"),
    });
    let read_dir = Query::ReadDir(query::ReadDir {
        open: OpenId(1),
        cookie: 0,
        nodes: true,
    });
    for query in [lookup, read_dir] {
        let all = of_query(&query, &names("a", "b"), &Targets::default());
        assert!(all.touches.is_empty(), "{query:?}");
    }
    for change in [make, rename(dir, dir)] {
        let all = of_change(&change, &names("a", "b"), &Targets::default());
        assert!(!all.touches.is_empty(), "{change:?}");
    }
}

#[test]
fn only_the_first_page_of_a_listing_grants_it() {
    let page = |cookie| {
        Query::ReadDir(query::ReadDir {
            open: OpenId(1),
            cookie,
            nodes: false,
        })
    };
    let targets = Targets {
        opened: Some(handle(1)),
        ..Targets::default()
    };
    let kind = |cookie| of_query(&page(cookie), &Names::default(), &targets).kind;
    assert_eq!(kind(0), Metadata);
    assert_eq!(kind(7), Uncached);
}
