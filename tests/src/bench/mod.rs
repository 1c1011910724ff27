//! What operations cost: how long they take on a link of its own beside other file systems, and how many requests.
//!
//! - [`rows`]: the work that is measured, a row each; [`work`], [`programs`] and [`sharing`] do it.
//! - [`System`]: what it is done on: [`ours`], or one [`beside`] it.
//! - [`counts`]: what the daemons and the kernel tell of what it has cost.
//! - [`limits`]: how many requests an operation may cost.
//! - [`report`]: what is told of it.

pub mod beside;
pub mod counts;
pub mod inputs;
pub mod limits;
pub mod ours;
pub mod programs;
pub mod report;
pub mod rows;
pub mod scale;
pub mod sharing;
pub mod trial;
pub mod work;

use counts::Counters;
use std::io;
use std::path::PathBuf;

/// A file system that is measured.
pub trait System {
    /// Short.
    fn name(&self) -> &'static str;

    /// The same tree, through each of its mounts.
    fn dirs(&self) -> &[PathBuf];

    /// Whether all its mounts see at once what one has done.
    fn is_coherent(&self) -> bool;

    /// Unmounts the first of them and mounts it again: nothing is cached there any more. Where nothing is mounted,
    /// names and attributes stay cached.
    ///
    /// # Errors
    /// If that fails.
    fn remount(&mut self) -> io::Result<()>;

    /// What its daemons have done so far, once nothing is under way; none if it has none that tell.
    ///
    /// # Errors
    /// If they don't.
    fn settled(&mut self) -> io::Result<Option<Counters>>;

    /// Resident memory of what serves its mounts, in bytes; none if nothing does.
    fn resident(&self) -> Option<u64>;
}
