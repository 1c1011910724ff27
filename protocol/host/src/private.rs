//! What of this machine's other users is believed: nothing. Folders of keys and sockets are this user's
//! own, and at the other end of a local socket is this user, or root.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Group and others may write.
const WRITTEN_BY_OTHERS: u32 = 0o022;
/// Everybody may write.
const WORLD_WRITABLE: u32 = 0o002;
/// Who may write may still not rename or remove what is another's.
const STICKY: u32 = 0o1000;

/// Opens a folder that nobody else can have put anything into, and makes it inaccessible to others.
///
/// # Errors
/// As [`folder_of`].
pub fn own_folder(path: &Path) -> io::Result<OwnedFd> {
    let folder = folder_of(path, geteuid().as_raw())?;
    if rustix::fs::fstat(&folder)?.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&folder, Mode::RWXU)?;
    }
    Ok(folder)
}

/// As [`own_folder`], of one within another that must be this user's own too: else others could put something in its place.
///
/// # Errors
/// As [`folder_of`].
pub fn own_folder_within(above: &Path, path: &Path) -> io::Result<OwnedFd> {
    folder_of(above, geteuid().as_raw())?;
    own_folder(path)
}

/// Opens a folder that nobody but its user, and root, can have put anything into.
///
/// # Errors
/// The kernel's; or, for people, that it is another user's, a link, or may be written by others, or lies
/// where anybody could put another in its place.
pub fn folder_of(path: &Path, user: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOTDIR | Errno::LOOP => denied(path, "is a link or no folder"),
        other => other.into(),
    })?;
    let found = rustix::fs::fstat(&folder)?;
    if let Some(why) = is_foreign(&found, user) {
        return Err(denied(path, why));
    }
    above_is_safe(path)?;
    Ok(folder)
}

fn is_foreign(found: &Stat, own: u32) -> Option<&'static str> {
    if found.st_uid != own {
        return Some("belongs to another user");
    }
    (found.st_mode & WRITTEN_BY_OTHERS != 0).then_some("may be written by other users")
}

/// No folder above is one in which everybody may rename what is another's.
fn above_is_safe(path: &Path) -> io::Result<()> {
    for above in path.canonicalize()?.ancestors().skip(1) {
        let mode = fs::metadata(above)?.mode();
        if mode & WORLD_WRITABLE != 0 && mode & STICKY == 0 {
            let why = "lets everybody rename what is in it";
            return Err(denied(above, why));
        }
    }
    Ok(())
}

fn denied(path: &Path, why: &str) -> io::Error {
    let text = format!(
        "{} {why}: it must be a folder of your own that only you may enter",
        path.display()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Refuses another user at the other end of a local socket; root may do everything anyway.
///
/// # Errors
/// The kernel's, or that it is another user.
pub fn own_peer(socket: impl AsFd) -> io::Result<()> {
    let root = sockopt::socket_peercred(&socket)?.uid.is_root();
    match root {
        true => Ok(()),
        false => peer_is(socket, geteuid().as_raw()),
    }
}

/// Refuses others than `user` at the other end of a local socket, root too.
///
/// # Errors
/// The kernel's, or that it is another user.
pub fn peer_is(socket: impl AsFd, user: u32) -> io::Result<()> {
    let peer = sockopt::socket_peercred(socket)?.uid;
    match peer.as_raw() == user {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("at the other end is user {}", peer.as_raw()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn folder(scratch: &Scratch, name: &str, mode: u32) -> PathBuf {
        let path = scratch.path(name);
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        path
    }

    fn refusal(path: &Path) -> String {
        own_folder(path).expect_err("refused").to_string()
    }

    #[test]
    fn ones_own_folder_is_taken_and_closed_to_others() {
        let scratch = Scratch::new();
        let path = folder(&scratch, "f", 0o755);
        own_folder(&path).expect("mine");
        let mode = fs::metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o7777, 0o700);
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let scratch = Scratch::new();
        for (name, mode) in [("w", 0o777), ("s", 0o1777), ("g", 0o770)] {
            let refused = refusal(&folder(&scratch, name, mode));
            assert!(refused.contains("by other users"), "{refused}");
        }
    }

    #[test]
    fn a_link_to_ones_own_folder_is_refused() {
        let scratch = Scratch::new();
        let target = folder(&scratch, "target", 0o700);
        symlink(target, scratch.path("link")).expect("a link");
        assert!(refusal(&scratch.path("link")).contains("is a link"));
    }

    #[test]
    fn a_folder_below_one_in_which_everybody_may_rename_is_refused() {
        let scratch = Scratch::new();
        let open = folder(&scratch, "open", 0o777);
        let inside = open.join("mine");
        fs::create_dir(&inside).expect("a folder");
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(refusal(&inside).contains("rename"));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("chmod");
        own_folder(&inside).expect("as in /tmp");
    }

    #[test]
    fn what_belongs_to_another_is_foreign_whatever_its_mode() {
        let scratch = Scratch::new();
        let path = folder(&scratch, "f", 0o700);
        let found = rustix::fs::stat(&path).expect("there");
        assert_eq!(is_foreign(&found, found.st_uid), None);
        assert_eq!(
            is_foreign(&found, found.st_uid + 1),
            Some("belongs to another user")
        );
    }
}
