//! `fsclient recover restore`.

use super::overlay::overlay;
use super::place::{Mounts, Place, failed, is_path};
use super::{MountArg, list};
use crate::commands::progress::Progress;
use crate::commands::{say, show};
use crate::recovery::{Folder, Item, RecoveryId};
use clap::Args;
use rustix::fs::fgetxattr;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// As `list` shows it
    pub(super) id: RecoveryId,
    /// Name of the new file, beside the old one; with a `/` in it, a path anywhere [default:
    /// NAME.recovered-ID]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<OsString>,
    #[command(flatten)]
    pub(super) mount: MountArg,
}

pub(super) fn run(folder: &Folder, args: &RestoreArgs, mounts: &Mounts) -> Result<(), String> {
    let item = folder.item(args.id).map_err(|e| e.to_string())?;
    let place = Place::of(folder, &item, mounts);
    let (base, target) = base_and_target(place, &item, args)?;
    let mut file = target.create()?;
    let length = base.as_ref().and_then(|base| base.metadata().ok());
    let length = length.map_or(0, |base| base.len());
    let mut progress = Progress::new("restoring");
    progress.at(0, length.min(item.full_size()) + item.bytes);
    let written = overlay(folder, &item, base.as_ref(), &mut file, &mut progress)
        .and_then(|()| finish(&file, base.as_ref(), &target));
    if written.is_err() {
        target.remove();
    }
    drop(progress);
    written?;
    let gaps = item.gaps(length);
    if !gaps.is_empty() {
        say(&format!(
            "note: nobody has kept these bytes, they are zeros{}",
            list::ranges(&gaps)
        ));
    }
    let (id, target) = (item.id, target.for_people());
    show(&format!(
        "{id} is restored as {target}\n\
         when all is well, `fsclient recover discard {id}` removes what is kept"
    ))
}

/// The file as it is now, and where the restored one goes.
fn base_and_target(
    place: Result<Place, String>,
    item: &Item,
    args: &RestoreArgs,
) -> Result<(Option<File>, Place), String> {
    match args.name.as_deref().filter(|name| is_path(name)) {
        Some(path) => {
            let base = place.and_then(|place| present(&place));
            Ok((base.unwrap_or_else(without), Place::at(Path::new(path))?))
        }
        None => {
            let place = place?;
            let base = present(&place)?;
            let name = args
                .name
                .clone()
                .unwrap_or_else(|| default_name(&place, item.id));
            Ok((base, place.beside(name)))
        }
    }
}

fn present(place: &Place) -> Result<Option<File>, String> {
    let base = place.read()?;
    if base.is_none() {
        say(&format!("note: there is no {} now", place.for_people()));
    }
    Ok(base)
}

/// A server that is gone for good is no reason not to get at what is kept.
fn without(error: String) -> Option<File> {
    say(&format!("note: {error}"));
    None
}

fn default_name(place: &Place, id: RecoveryId) -> OsString {
    let mut name = place.name.clone();
    name.push(format!(".recovered-{id}"));
    name
}

/// The old file's readers may read the new one; both file and name survive a crash.
fn finish(file: &File, base: Option<&File>, place: &Place) -> Result<(), String> {
    let failed = |e: io::Error| failed(&place.path(), e);
    if let Some(base) = base {
        let mode = mode_as_of(base, file).map_err(failed)?;
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    place.sync()
}

/// The new file gets the old one's group, if he who restores it may give it that. Returns its mode.
fn mode_as_of(base: &File, file: &File) -> io::Result<u32> {
    let old = base.metadata()?;
    let gid = old.gid();
    if file.metadata()?.gid() != gid {
        // Else it stays as it is.
        let _ = fchown(file, None, Some(gid));
    }
    let has_group = file.metadata()?.gid() == gid;
    Ok(no_wider(old.mode() & 0o777, has_group, has_acl(base)))
}

/// A mode that lets nobody in whom the old file has kept out: without its group, who was in that is anybody now; and an ACL, which isn't
/// copied, may keep out whom the mode seems to let in.
fn no_wider(mode: u32, has_group: bool, had_acl: bool) -> u32 {
    let (owner, all) = (mode & 0o700, mode & (mode >> 3) & 0o007);
    match (had_acl, has_group) {
        (true, _) => owner,
        (false, true) => mode,
        (false, false) => owner | all,
    }
}

fn has_acl(file: &File) -> bool {
    let none: &mut [u8] = &mut [];
    let size = fgetxattr(file, "system.posix_acl_access", none);
    !matches!(size, Ok(0) | Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_old_file_kept_out_the_new_one_does_not_let_in() {
        let (group, acl) = (true, true);
        assert_eq!(no_wider(0o664, group, !acl), 0o664);
        assert_eq!(no_wider(0o664, !group, !acl), 0o604);
        assert_eq!(
            no_wider(0o607, !group, !acl),
            0o600,
            "its group had nothing"
        );
        assert_eq!(no_wider(0o660, group, acl), 0o600, "its group is the mask");
        assert_eq!(no_wider(0o604, !group, acl), 0o600);
    }
}
