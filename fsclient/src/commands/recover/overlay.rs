//! The file as its writer saw it, as far as that can be told: what is kept, laid over the file as
//! it is now, in the size that the writer saw.

use crate::commands::progress::Progress;
use crate::recovery::{Folder, Item};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Writes it to `target`, which is empty. Without a `base` what is not kept is zeros.
pub(super) fn overlay(
    folder: &Folder,
    item: &Item,
    base: Option<&File>,
    target: &mut File,
    progress: &mut Progress,
) -> Result<(), String> {
    let failed = |e: io::Error| format!("writing the file: {e}");
    let size = item.full_size();
    if let Some(base) = base {
        progress
            .copy(&mut base.take(size), target)
            .map_err(failed)?;
    }
    for piece in folder.pieces(item).map_err(|e| e.to_string())? {
        let (offset, bytes) = piece.map_err(|e| e.to_string())?;
        target.write_all_at(&bytes, offset).map_err(failed)?;
        progress.add(bytes.len() as u64);
    }
    target.set_len(size).map_err(failed)
}
