//! `fsclient recover diff`.

use super::list::range;
use super::overlay::overlay;
use super::place::{Mounts, Place};
use crate::commands::progress::Progress;
use crate::commands::show;
use crate::recovery::{ByteRange, Folder, Item, RecoveryId};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Larger files are only compared, not shown.
const LARGEST_TEXT: u64 = 16 << 20;

pub(super) fn run(folder: &Folder, id: RecoveryId, mounts: &Mounts) -> Result<(), String> {
    let item = folder.item(id).map_err(|e| e.to_string())?;
    let place = Place::of(folder, &item, mounts)?;
    let now = place.read()?;
    let size = match &now {
        Some(file) => file.metadata().map_err(|e| e.to_string())?.len(),
        None => 0,
    };
    let found = match now {
        Some(_) => format!("{}, {size} bytes", place.for_people()),
        None => format!("there is no {}", place.for_people()),
    };
    let kept = format!("{} bytes of the file's {} bytes", item.bytes, item.size);
    let differ = differences(folder, &item, now.as_ref())?;
    let differ = differ.iter().map(|one| format!("  {}\n", for_people(one)));
    let differ: String = differ.collect();
    show(&format!("now   {found}\nkept  {kept}\n{differ}"))?;
    if size.max(item.full_size()) > LARGEST_TEXT {
        return Ok(());
    }
    show_text(folder, &item, now.as_ref(), &place.for_people())
}

/// How a kept range compares with the same bytes now.
struct Difference {
    kept: ByteRange,
    bytes: u64,
    /// First and last byte that differ.
    span: Option<(u64, u64)>,
}

fn for_people(difference: &Difference) -> String {
    let Difference { kept, bytes, span } = difference;
    let kept_bytes = range(kept);
    match span {
        Some((first, last)) => format!(
            "{kept_bytes}: {bytes} of {} bytes differ, between {first} and {last}",
            kept.length
        ),
        None => format!("{kept_bytes}: the same now"),
    }
}

fn differences(
    folder: &Folder,
    item: &Item,
    now: Option<&File>,
) -> Result<Vec<Difference>, String> {
    let untouched = |kept: &ByteRange| Difference {
        kept: *kept,
        bytes: 0,
        span: None,
    };
    let mut all: Vec<Difference> = item.ranges.iter().map(untouched).collect();
    let mut ranges = all.iter_mut();
    let mut range = ranges.next();
    for piece in folder.pieces(item).map_err(|e| e.to_string())? {
        let (offset, kept) = piece.map_err(|e| e.to_string())?;
        let current = read_at(now, offset, kept.len()).map_err(|e| e.to_string())?;
        if let Some(range) = range.as_mut() {
            range.add(offset, &kept, &current);
        }
        if range
            .as_ref()
            .is_some_and(|range| range.kept.end() == offset + kept.len() as u64)
        {
            range = ranges.next();
        }
    }
    Ok(all)
}

impl Difference {
    /// `current` may be shorter: what is not there differs.
    fn add(&mut self, offset: u64, kept: &[u8], current: &[u8]) {
        for (byte, at) in kept.iter().zip(0_usize..) {
            if current.get(at) != Some(byte) {
                let at = offset + at as u64;
                self.bytes += 1;
                self.span = Some((self.span.map_or(at, |(first, _)| first), at));
            }
        }
    }
}

/// Fewer bytes where the file ends.
fn read_at(file: Option<&File>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while let (Some(file), Some(rest)) = (file, bytes.get_mut(filled..).filter(|r| !r.is_empty())) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// `diff -u` of the file now and the file with what is kept in it, if both are text.
fn show_text(folder: &Folder, item: &Item, now: Option<&File>, path: &str) -> Result<(), String> {
    let failed = |e: io::Error| format!("can't compare: {e}");
    let (mut old, mut new) = (memory().map_err(failed)?, memory().map_err(failed)?);
    if let Some(now) = now {
        io::copy(&mut now.take(LARGEST_TEXT), &mut old).map_err(failed)?;
    }
    // The snapshot serves as the base, so that both sides show the same moment.
    old.rewind().map_err(failed)?;
    overlay(
        folder,
        item,
        Some(&old),
        &mut new,
        &mut Progress::new("comparing"),
    )?;
    if !(is_text(&old).map_err(failed)? && is_text(&new).map_err(failed)?) {
        return Ok(());
    }
    let labels = [path.to_owned(), format!("{path} as kept in {}", item.id)];
    let status = Command::new("diff")
        .arg("-u")
        .args(labels.iter().map(|label| format!("--label={label}")))
        .args([&old, &new].map(|file| format!("/proc/self/fd/{}", file.as_raw_fd())))
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(0 | 1)) => Ok(()),
        Ok(_) => Err("`diff` failed".into()),
        Err(e) => Err(format!("can't run `diff`: {e}")),
    }
}

/// A file in memory that a child process inherits.
fn memory() -> io::Result<File> {
    Ok(memfd_create("recover", MemfdFlags::empty())?.into())
}

fn is_text(file: &File) -> io::Result<bool> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let bytes = read_at(Some(file), 0, length)?;
    // A terminal would obey the others.
    let is_shown = |c: char| !c.is_control() || matches!(c, '\n' | '\t' | '\r');
    Ok(std::str::from_utf8(&bytes).is_ok_and(|text| text.chars().all(is_shown)))
}
