//! Replays the transcripts: lease scenarios as data, inputs and actions side by side.

mod script;

use std::fs;
use std::path::Path;

/// With `LEASE_TRANSCRIPTS=write` the files are rewritten as things are, for review.
fn replay(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/transcripts")
        .join(file);
    let expected = fs::read_to_string(&path).expect("the transcript is there");
    let scenarios = script::scenarios(&expected);
    assert!(!scenarios.is_empty(), "{file} claims nothing");
    let actual: String = scenarios.iter().map(script::replay).collect();
    if std::env::var("LEASE_TRANSCRIPTS").as_deref() == Ok("write") {
        fs::write(&path, actual).expect("the transcript can be written");
        return;
    }
    for (number, (is, should)) in actual.lines().zip(expected.lines()).enumerate() {
        assert_eq!(
            is,
            should,
            "{file}, line {}; as it is:\n{actual}",
            number + 1
        );
    }
    assert_eq!(actual.len(), expected.len(), "{file}; as it is:\n{actual}");
}

macro_rules! transcripts {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                replay(concat!(stringify!($name), ".txt"));
            }
        )*
    };
}

transcripts!(
    sessions,
    changes,
    conduct,
    reads,
    stores,
    directories,
    order,
    grace,
    limits,
    shutdown
);

#[test]
fn every_transcript_is_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let files = fs::read_dir(folder).expect("the folder is there");
    let transcripts = files.filter_map(|file| Some(file.ok()?.path()));
    let found = transcripts
        .filter(|p| p.extension().is_some_and(|e| e == "txt"))
        .count();
    assert_eq!(found, 10, "name new files in `transcripts!`");
}
