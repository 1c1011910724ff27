//! What the log says of kept data. Alone in its process: the subscriber is the process's.

use bytes::Bytes;
use fsclient::recovery::{Folder, Lost, Reason};
use leasefs_protocol::Handle;
use std::fs;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

#[test]
fn each_keeping_logs_one_line_that_names_it_without_its_contents() {
    let name = format!("leasefs-recovery-log-{}", std::process::id());
    let scratch = std::env::temp_dir().join(name);
    fs::create_dir_all(&scratch).expect("scratch folder");
    let log = scratch.join("log");
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Arc::new(fs::File::create(&log).expect("log")))
        .init();
    let lost = Lost {
        writer: None,
        source: "nas:4430:/".into(),
        path: Some("docs/a\nb".into()),
        object: Handle::new(&[0xab; 3]).expect("fits"),
        reason: Reason::ChangedElsewhere,
        time: UNIX_EPOCH,
        size: 6,
        extents: vec![(0, Bytes::from_static(b"secret"))],
    };
    let id = Folder::at(scratch.join("recovery"))
        .keep(&lost)
        .expect("kept");
    let in_the_way = Folder::at(log.clone()).keep(&lost);
    let text = fs::read_to_string(&log).expect("log");
    fs::remove_dir_all(&scratch).expect("removed");

    assert!(in_the_way.is_err());
    let [kept, gone] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("two lines expected: {text}");
    };
    let id = id.to_string();
    for part in [
        "WARN",
        &id,
        "docs/a\\nb",
        "nas:4430:/",
        "bytes=6",
        "changed elsewhere",
    ] {
        assert!(kept.contains(part), "{part} in {kept}");
    }
    for part in [
        "ERROR",
        "6 bytes of",
        "docs/a\\nb",
        "nas:4430:/",
        "are lost",
    ] {
        assert!(gone.contains(part), "{part} in {gone}");
    }
    assert!(!text.contains("secret"), "{text}");
}
