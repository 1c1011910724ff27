//! Whatever a peer, a disk or a local user can hand us, handed over by a fuzzer.
//!
//! A [`Target`] is a function of some bytes that panics where what must hold of them doesn't.
//! `scripts/fuzz` looks for such bytes, guided by coverage; `cargo test` runs each target on its
//! corpus.

pub mod client;
pub mod files;
pub mod forge;
pub mod frames;
pub mod memory;
pub mod messages;
pub mod place;
pub mod session;
pub mod texts;

/// What is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Panics if the bytes show a bug.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "messages",
        run: messages::run,
    },
    Target {
        name: "frames",
        run: frames::run,
    },
    Target {
        name: "texts",
        run: texts::run,
    },
    Target {
        name: "files",
        run: files::run,
    },
    Target {
        name: "session",
        run: session::run,
    },
    Target {
        name: "client",
        run: client::run,
    },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
