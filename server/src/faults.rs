//! Crashes that tests ask for. Not compiled into release builds.
//!
//! `LEASEFS_TEST_FAULT` is `crash-begun:N`, `crash-happened:N` or `crash-answered:N`: the process
//! ends when its `N`th journalled change gets there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Its intent is journalled.
    Begun,
    /// The host has done it.
    Happened,
    /// Its answer is journalled and has not left.
    Answered,
}

/// Ends the process if this is where it was told to crash.
pub fn may_crash(point: Point) {
    static LEFT: OnceLock<Option<(Point, AtomicU64)>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return;
    }
    if let Some((at, left)) = LEFT.get_or_init(asked)
        && *at == point
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        std::process::abort();
    }
}

fn asked() -> Option<(Point, AtomicU64)> {
    let fault = std::env::var("LEASEFS_TEST_FAULT").ok()?;
    let (point, number) = fault.split_once(':')?;
    let point = match point {
        "crash-begun" => Point::Begun,
        "crash-happened" => Point::Happened,
        "crash-answered" => Point::Answered,
        _ => return None,
    };
    Some((point, AtomicU64::new(number.parse().ok()?)))
}
