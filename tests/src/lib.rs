//! How leasefs is shown to be right on real mounts.
//!
//! # What there is
//! - [`lin`]: histories of operations stamped with `CLOCK_MONOTONIC`, and a checker for
//!   linearizability. Pure.
//! - [`coherence`]: programs that use several mounts of one export at once and have
//!   every history checked. Binary: `leasefs-coherence DIR [DIR..] [--ops N] [--seed S]
//!   [--family registers|appends|names|directories|attributes]`. Any directories will do; on a local
//!   file system, whose single reads are not atomic, add `--not-atomic`.
//! - [`fsx2`]: random operations on one file against a model, read back through
//!   read-only descriptors here and on a second mount. Binary: `leasefs-fsx2 DIR [DIR2]
//!   [--ops N] [--seed S]`.
//! - [`once`]: a load of changes under cuts and crashes, whose every answer is compared with the
//!   final tree.
//! - [`durable`]: writers with a journal of what they were told, and whether what is there after a
//!   crash is what that allows. Binary: `leasefs-durable-writer`, started by the suite.
//! - [`sim`]: the shipped cores of client and server in a seeded simulation of all that is between and
//!   around them.
//! - [`load`]: many sessions on one server, without a mount, and what they cost it. Binary: `leasefs-load`
//!   (`scripts/load`).
//! - [`locks`]: file locks on several mounts, by processes of their own. Binary: `leasefs-locker`, started by
//!   the suites `locks*`; with `LEASEFS_LOCKS_LOCAL` set these run on a local directory.
//! - [`soak`]: all of these for as long as one likes, on three mounts under faults. Binary: `leasefs-soak`
//!   (`scripts/soak`).
//! - [`link`]: a network of its own, as near or far as one likes.
//! - [`mod@bench`]: what operations cost on such a link. Binary: `leasefs-bench` (`scripts/bench`).
//! - [`mounted`]: the harness that starts real daemons on real mounts, for the suites in
//!   `tests/tests/`.
//!
//! # How to run it
//! - The parts without mounts, in seconds: `cargo test -p leasefs-tests --lib`
//! - The simulation: `cargo test -p leasefs-tests --test simulation`; whether it finds faults put into what
//!   ships: `cargo test -p leasefs-tests --test planted`
//! - The mounted suites (they need /dev/fuse and fusermount3; each test has its own
//!   server): `cargo test -p leasefs-tests --test '*' -- --test-threads=1`, or one of them:
//!   `cargo test -p leasefs-tests --test coherence -- --test-threads=1 --nocapture`
//!   - `coherence`: the five families on three mounts; broken clients are noticed
//!   - `fsx2`: the program above on two mounts
//!   - `cached`: cached work sends nothing
//!   - `frozen`: stopped, killed and cut-off clients cost others one term
//!   - `restart`: the server is killed and started again
//!   - `grace`: what waits after that, with clients that buffer writes
//!   - `maps`: shared mappings on two mounts, with and without buffered writes
//!   - `quota`: what a used up quota of the storage host tells writers
//!   - `fire`: git and cargo at work while the server is killed about once a second
//!     (`scripts/programs-under-fire` builds everything)
//!   - `once`: links cut and the server killed in the middle of changes (`LEASEFS_ONCE_CUTS=200`
//!     for more of it)
//!   - `durable`: what was synced survives crashes at random moments (`scripts/durability` for many)
//!   - `load`: many sessions without a mount, small (`scripts/load` for many)
//!   - `contention`: mounts in each other's way; nothing takes over a second
//!   - `locks`, `locks_rules`, `locks_model`, `locks_counter`, `locks_faults`, `locks_programs`, `locks_sqlite`,
//!     `locks_cached`: locks across mounts
//!   - `metrics`: what both daemons tell Prometheus (`scripts/metrics` asks a real one)
//!   - `killable`: callers of a server that is gone can be killed, and end in time
//!
//! `LEASEFS_FSSERVER` and `LEASEFS_FSCLIENT` name daemons to test instead of those of this
//! workspace (which are built first). Everything a run leaves behind on a failure is
//! cleaned up, and its logs are printed. A failure of `coherence` or `fsx2` prints the
//! seed; the same seed makes the same choices.

pub mod bench;
pub mod coherence;
pub mod durable;
pub mod fsx2;
pub mod joint;
pub mod lin;
pub mod link;
pub mod load;
pub mod locks;
pub mod mapping;
pub mod mounted;
pub mod once;
pub mod rng;
pub mod sim;
pub mod soak;
