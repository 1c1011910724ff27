//! Where the file of an item is, or where it is to go.

use crate::commands::say;
use crate::daemon::{MountStatus, mounts, survey};
use crate::recovery::{Folder, Item, RecoveryId, path_for_people};
use leasefs_host::mounts::{Device, Mount};
use leasefs_protocol::ticket::Source;
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, major, minor, open, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a mount's daemon may take to say whose it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// A name in a directory.
pub(super) struct Place {
    dir: OwnedFd,
    dir_path: PathBuf,
    pub(super) name: OsString,
}

impl Place {
    /// The item's file below a mount. Links on the way aren't followed: somebody may have put them there.
    pub(super) fn of(folder: &Folder, item: &Item, mounts: &Mounts) -> Result<Self, String> {
        let path = item.path.as_deref().ok_or_else(|| nameless(item.id))?;
        let name = path.file_name().ok_or_else(|| nameless(item.id))?;
        let below = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let (mount, device) = mounts.of(folder, item)?;
        let dir_path = below.map_or_else(|| mount.clone(), |below| mount.join(below));
        let root = open_dir(&mount).map_err(|e| failed(&mount, e))?;
        if device.is_some_and(|device| !is_of(&root, device)) {
            return Err(format!("{} is not mounted any more", mount.display()));
        }
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = openat2(
            &root,
            below.unwrap_or(Path::new(".")),
            DIR,
            Mode::empty(),
            inside,
        );
        Ok(Self {
            dir: dir.map_err(|e| gone(&dir_path, item.id, e))?,
            dir_path,
            name: name.to_owned(),
        })
    }

    /// A path as its user gave it.
    pub(super) fn at(path: &Path) -> Result<Self, String> {
        let name = path
            .file_name()
            .ok_or_else(|| format!("{} is not a file name", path.display()))?;
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let dir_path = parent.unwrap_or(Path::new(".")).to_owned();
        Ok(Self {
            dir: open_dir(&dir_path).map_err(|e| failed(&dir_path, e))?,
            dir_path,
            name: name.to_owned(),
        })
    }

    /// Another name in the same directory.
    pub(super) fn beside(self, name: OsString) -> Self {
        Self { name, ..self }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir_path.join(&self.name)
    }

    pub(super) fn for_people(&self) -> String {
        path_for_people(&self.path())
    }

    /// The regular file that has the name now, for reading.
    pub(super) fn read(&self) -> Result<Option<File>, String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, &self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => File::from(opened.map_err(|e| failed(&self.path(), e))?),
        };
        let metadata = file.metadata().map_err(|e| failed(&self.path(), e))?;
        match metadata.is_file() {
            true => Ok(Some(file)),
            false => Err(format!(
                "{} is no regular file (any more)",
                self.for_people()
            )),
        }
    }

    /// A new file of the name, which must be free.
    pub(super) fn create(&self) -> Result<File, String> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        openat(&self.dir, &self.name, flags, mode)
            .map(File::from)
            .map_err(|e| {
                let advice = match e {
                    Errno::EXIST | Errno::NAMETOOLONG => ": choose another name with --as NAME",
                    Errno::ROFS => ": name a place that can be written to with --as PATH",
                    _ => "",
                };
                format!("{}{advice}", failed(&self.path(), e))
            })
    }

    /// That the name stands survives a crash.
    pub(super) fn sync(&self) -> Result<(), String> {
        rustix::fs::fsync(&self.dir).map_err(|e| failed(&self.dir_path, e))
    }

    /// Takes back what [`Self::create`] made.
    pub(super) fn remove(&self) {
        if let Err(error) = unlinkat(&self.dir, &self.name, AtFlags::empty()) {
            say(&failed(&self.path(), error));
        }
    }
}

const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, DIR, Mode::empty())
}

/// Whether a directory is of this file system. What was mounted there may have gone since.
fn is_of(dir: &OwnedFd, device: Device) -> bool {
    let found = rustix::fs::fstat(dir).map(|found| found.st_dev);
    found.is_ok_and(|dev| (major(dev), minor(dev)) == (device.major, device.minor))
}

/// Where the file of an item may be.
pub(super) enum Mounts {
    /// Below this directory.
    Only(PathBuf),
    /// Below some mount. With the state directories of those whose daemons answer.
    Any(Vec<Mount>, Vec<MountStatus>),
}

impl Mounts {
    /// To be asked before its caller becomes another user, whom daemons don't answer. What another user's daemon calls
    /// its state directory may be anything.
    pub(super) fn all() -> Result<Self, String> {
        let own = rustix::process::geteuid().as_raw();
        let mut told = survey(PATIENCE)?.mounts;
        told.retain(|mount| mount.user == own);
        Ok(Self::Any(mounts::all()?, told))
    }

    /// A mount of the item's source by the client that kept it, one that can be written to if there is one. A source says
    /// less than a state directory: what two clients see below it may differ.
    fn of(&self, folder: &Folder, item: &Item) -> Result<(PathBuf, Option<Device>), String> {
        let (mounts, told) = match self {
            Self::Only(dir) => return Ok((dir.clone(), None)),
            Self::Any(mounts, told) => (mounts, told),
        };
        let fitting = mounts.iter().filter(|mount| {
            let own = told.iter().find(|one| one.dir == mount.point);
            is_source(item, &mount.source) && is_by(folder, mount, own)
        });
        let best = fitting.min_by_key(|mount| mount.read_only);
        let place = |mount: &Mount| (mount.point.clone(), Some(mount.device));
        best.map(place).ok_or_else(|| {
            let source = &item.source;
            format!(
                "{source} is not mounted by the client that kept this: `fsclient mount {source} DIR` first, or name a \
                 directory that has the file with --mount DIR"
            )
        })
    }
}

fn is_source(item: &Item, source: &str) -> bool {
    match (source.parse::<Source>(), item.source.parse()) {
        (Ok(mounted), Ok(wanted)) => mounted == wanted,
        _ => source == mounts::source_shown(&item.source),
    }
}

/// Whether a mount keeps bytes in this folder. Where its daemon doesn't tell, as root's doesn't tell others, whoever has made
/// the folder has made the mount.
fn is_by(folder: &Folder, mount: &Mount, told: Option<&MountStatus>) -> bool {
    match told {
        Some(told) => is_below(folder.path(), &told.state_dir),
        None => fs::metadata(folder.path())
            .is_ok_and(|made| made.uid() == mount.user.unwrap_or_default()),
    }
}

fn is_below(path: &Path, dir: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(path).starts_with(real(dir))
}

fn nameless(id: RecoveryId) -> String {
    format!(
        "the file's name is not known: `fsclient recover restore {id} --as ./NAME` writes what is kept \
         to a file of its own"
    )
}

fn gone(dir: &Path, id: RecoveryId, error: Errno) -> String {
    let failed = failed(dir, error);
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => format!(
            "{failed}: the directory has gone or moved; `fsclient recover restore {id} --as ./NAME` \
             writes what is kept to another place"
        ),
        _ => failed,
    }
}

pub(super) fn failed(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path_for_people(path))
}

/// Whether the user means a path of their own rather than a name beside the file.
pub(super) fn is_path(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}
