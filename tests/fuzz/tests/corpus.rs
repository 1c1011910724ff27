//! Each target on its corpus: what fuzzing has found once stays found.

use leasefs_fuzz::TARGETS;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Panics, caught ones too.
static PANICS: AtomicU32 = AtomicU32::new(0);
/// One at a time: targets measure memory.
static RUNNING: Mutex<()> = Mutex::new(());

fn corpus(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let entries = fs::read_dir(&folder).expect("a corpus");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    files
}

fn replay(name: &str) {
    let _running = RUNNING.lock();
    let target = leasefs_fuzz::target(name).expect("a target");
    let files = corpus(name);
    assert!(files.len() >= 5, "the corpus of {name} is missing");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        hook(info);
    }));
    for file in files {
        let input = fs::read(&file).expect("an input");
        let before = PANICS.load(Ordering::SeqCst);
        let ran = std::panic::catch_unwind(|| (target.run)(&input));
        let panics = PANICS.load(Ordering::SeqCst) - before;
        assert!(
            ran.is_ok() && panics == 0,
            "{panics} panics: scripts/fuzz --replay {}",
            file.display()
        );
    }
}

#[test]
fn messages_decode_in_bounded_memory_and_read_back() {
    replay("messages");
}

#[test]
fn frames_are_the_same_however_the_stream_is_cut() {
    replay("frames");
}

#[test]
fn texts_of_people_and_local_programs_read_back() {
    replay("texts");
}

#[test]
fn files_of_a_state_directory_are_read_or_refused() {
    replay("files");
}

#[test]
fn hostile_sessions_break_nothing_and_hold_nobody_up() {
    replay("session");
}

#[test]
fn a_hostile_server_neither_ends_a_client_nor_keeps_its_callers() {
    replay("client");
}

#[test]
fn every_target_is_replayed_here() {
    let source = include_str!("corpus.rs");
    for target in TARGETS {
        let call = format!("replay(\"{}\")", target.name);
        assert!(source.contains(&call), "{} is not replayed", target.name);
    }
}
