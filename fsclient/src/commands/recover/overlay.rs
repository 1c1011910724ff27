//! The file as its writer saw it, as far as that can be told: what is kept, laid over the file as
//! it is now, in the size that the writer saw.

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
) -> Result<(), String> {
    let failed = |e: io::Error| format!("writing the file: {e}");
    let size = item.full_size();
    if let Some(base) = base {
        io::copy(&mut base.take(size), target).map_err(failed)?;
    }
    for piece in folder.pieces(item).map_err(|e| e.to_string())? {
        let (offset, bytes) = piece.map_err(|e| e.to_string())?;
        target.write_all_at(&bytes, offset).map_err(failed)?;
    }
    target.set_len(size).map_err(failed)
}
