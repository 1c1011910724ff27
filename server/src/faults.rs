//! Crashes and a quota that tests ask for. Not compiled into release builds.
//!
//! `LEASEFS_TEST_FAULT` is `crash-begun:N`, `crash-happened:N` or `crash-answered:N`: the process
//! ends when its `N`th journalled change gets there. Or it is `quota:N`: writes that bring more
//! than `N` bytes together are refused as by a quota of the storage host.

use leasefs_protocol::Refusal;
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
    if let Some((at, left)) = LEFT.get_or_init(crash)
        && *at == point
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        std::process::abort();
    }
}

/// Counts the bytes of a write.
///
/// # Errors
/// `EDQUOT` if they are more than the quota still allows, where there is one.
pub fn within_quota(bytes: usize) -> Result<(), Refusal> {
    static LEFT: OnceLock<Option<AtomicU64>> = OnceLock::new();
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    let Some(left) = LEFT.get_or_init(quota) else {
        return Ok(());
    };
    let take = |left: u64| left.checked_sub(bytes as u64);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        .map(drop)
        .map_err(|_| Refusal::Host(libc::EDQUOT as u16))
}

/// The kind of fault that is asked for, and its number.
fn asked() -> Option<(String, u64)> {
    let fault = std::env::var("LEASEFS_TEST_FAULT").ok()?;
    let (kind, number) = fault.split_once(':')?;
    Some((kind.to_owned(), number.parse().ok()?))
}

fn quota() -> Option<AtomicU64> {
    let (kind, bytes) = asked()?;
    (kind == "quota").then(|| AtomicU64::new(bytes))
}

fn crash() -> Option<(Point, AtomicU64)> {
    let (kind, number) = asked()?;
    let point = match kind.as_str() {
        "crash-begun" => Point::Begun,
        "crash-happened" => Point::Happened,
        "crash-answered" => Point::Answered,
        _ => return None,
    };
    Some((point, AtomicU64::new(number)))
}
