//! What kind of file system an export is on: whoever changes it beside the server isn't noticed.

use super::error::StateError;
use super::locks::mount_id;
use leasefs_host::mounts::{self, Mount};
use leasefs_protocol::escaped;
use std::io;
use std::path::Path;

/// File systems that other machines may change, but for those in user space.
const SHARED: [&str; 18] = [
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs",
];

/// Refuses what is on a leasefs mount. What administrators should know of another file system, if anything.
///
/// # Errors
/// [`StateError::ExportOnLeasefs`], or the kernel's.
pub fn judge(export: &Path) -> Result<Option<String>, StateError> {
    let mount = mount_of(export).map_err(StateError::file(export))?;
    mount.map_or(Ok(None), |mount| judge_mount(export, &mount))
}

/// By its number, not its path, which another mount may hide. To open it may mount it (autofs), so the table is read then.
fn mount_of(export: &Path) -> io::Result<Option<Mount>> {
    let id = mount_id(export)?;
    Ok(mounts::with_id(&mounts::table()?, id).cloned())
}

fn judge_mount(export: &Path, mount: &Mount) -> Result<Option<String>, StateError> {
    let source_shown = escaped(&mount.source).to_string();
    if mount.is_leasefs {
        return Err(StateError::ExportOnLeasefs {
            export: export.to_owned(),
            source_shown,
        });
    }
    Ok(is_shared(&mount.kind).then(|| {
        format!(
            "{} is on a file system of type {} ({source_shown}): what others change there beside this server is served stale, so \
             nobody else may write to it",
            export.display(),
            mount.kind
        )
    }))
}

/// `fuseblk` is of a disk of this host.
fn is_shared(kind: &str) -> bool {
    SHARED.contains(&kind) || kind == "fuse" || kind.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(kind: &str) -> Result<Option<String>, StateError> {
        let line = format!("29 1 0:26 / /mnt/a rw shared:7 - {kind} nas:/ rw\n");
        let table = mounts::parse(line.as_bytes());
        judge_mount(Path::new("/mnt/a/b"), &table[0])
    }

    #[test]
    fn a_directory_on_a_leasefs_mount_is_refused_with_what_to_do() {
        let refused = judged("fuse.leasefs")
            .expect_err("it is refused")
            .to_string();
        for part in [
            "/mnt/a/b",
            "nas:/",
            "on the storage host",
            "mount that server directly",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn what_other_machines_may_change_is_warned_of_and_a_file_system_of_this_host_is_not() {
        for kind in [
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "ceph",
            "fuse.sshfs",
            "fuse",
            "9p",
            "virtiofs",
        ] {
            let note = judged(kind).expect("it is served").expect("a warning");
            assert!(
                note.contains(kind) && note.contains("served stale"),
                "{note}"
            );
        }
        for kind in [
            "ext4", "xfs", "btrfs", "tmpfs", "zfs", "overlay", "fuseblk", "fusectl",
        ] {
            assert!(judged(kind).expect("it is served").is_none(), "{kind}");
        }
    }

    #[test]
    fn what_is_mounted_on_the_export_itself_counts() {
        let here = std::env::temp_dir();
        assert!(judge(&here).is_ok());
        assert_eq!(
            mount_of(Path::new("/proc"))
                .expect("a table")
                .map(|m| m.kind)
                .as_deref(),
            Some("proc")
        );
    }
}
