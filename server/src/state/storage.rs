//! What kind of file system an export is on: whoever changes it beside the server isn't noticed. And what of the export is on
//! others, which isn't served.

use super::error::StateError;
use super::locks::mount_id;
use leasefs_host::mounts::{self, Mount};
use leasefs_protocol::escaped;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// File systems that other machines may change, but for those in user space.
const SHARED: [&str; 18] = [
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "vboxsf", "virtiofs",
];

/// File systems that number a file anew when the host reads it in again (`iunique`): who knows it by its former number isn't asked.
const FORGETFUL: [&str; 3] = ["exfat", "msdos", "vfat"];

/// So many mount points are named.
const NAMED: usize = 4;

/// Refuses what is on a leasefs mount. What administrators should know of what is served, if anything.
///
/// # Errors
/// [`StateError::ExportOnLeasefs`], or the kernel's.
pub fn judge(export: &Path) -> Result<Vec<String>, StateError> {
    let (table, id) = mounted(export).map_err(StateError::file(export))?;
    let mount = mounts::with_id(&table, id);
    let own = mount.map_or(Ok(None), |mount| judge_mount(export, mount))?;
    let whole = export.canonicalize().map_err(StateError::file(export))?;
    Ok(own
        .into_iter()
        .chain(mounted_below(&table, &whole))
        .collect())
}

/// The table, and the export's mount in it: by its number, not its path, which another mount may hide. To open the export may mount
/// it (autofs), so the table is read then.
fn mounted(export: &Path) -> io::Result<(Vec<Mount>, u64)> {
    let id = mount_id(export)?;
    Ok((mounts::table()?, id))
}

fn mounted_below(table: &[Mount], export: &Path) -> Option<String> {
    let points = table.iter().map(|mount| mount.point.as_path());
    let below = points.filter(|point| point.starts_with(export) && *point != export);
    let below: BTreeSet<&Path> = below.collect();
    let named = below.iter().take(NAMED);
    let named: Vec<_> = named
        .map(|point| escaped(point.as_os_str().as_encoded_bytes()).to_string())
        .collect();
    let more = below.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!below.is_empty()).then(|| {
        format!(
            "what is mounted below {} isn't served: clients see the directories beneath {}{more}; serve each on its own",
            export.display(),
            named.join(", ")
        )
    })
}

fn judge_mount(export: &Path, mount: &Mount) -> Result<Option<String>, StateError> {
    let source_shown = escaped(&mount.source).to_string();
    if mount.is_leasefs {
        return Err(StateError::ExportOnLeasefs {
            export: export.to_owned(),
            source_shown,
        });
    }
    if FORGETFUL.contains(&mount.kind.as_str()) {
        return Ok(Some(format!(
            "{} is on a file system of type {} ({source_shown}), where a file that this host has not used for a while is another one: \
             what clients have cached of it is served stale, and what they have open is lost, so serve another file system",
            export.display(),
            mount.kind
        )));
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
            "vfat",
            "exfat",
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
        let (table, id) = mounted(Path::new("/proc")).expect("a table");
        assert_eq!(
            mounts::with_id(&table, id).map(|mount| mount.kind.as_str()),
            Some("proc")
        );
    }

    #[test]
    fn what_is_mounted_below_the_export_is_named_as_not_served() {
        let line = |point: &&str| format!("29 1 0:26 / {point} rw - tmpfs t rw\n");
        let told = |points: &[&str]| {
            let lines: String = points.iter().map(line).collect();
            mounted_below(&mounts::parse(lines.as_bytes()), Path::new("/srv/data"))
        };
        assert_eq!(told(&["/", "/srv", "/srv/data", "/srv/database"]), None);
        let note = told(&["/srv/data/b", "/srv/data/a", "/srv/data/a"]).expect("a warning");
        assert!(
            note.contains("beneath /srv/data/a, /srv/data/b; serve"),
            "{note}"
        );
        let many: Vec<_> = (0..6).map(|n| format!("/srv/data/{n}")).collect();
        let note = told(&many.iter().map(String::as_str).collect::<Vec<_>>()).expect("a warning");
        assert!(note.contains("/srv/data/3 and 2 more;"), "{note}");
    }
}
