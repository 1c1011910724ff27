//! The recovery folders of a state directory: its owner's, and where root has mounted for others, one for each user
//! whose bytes could not be brought in. That one is root's, so that nobody else puts anything into its way; what is
//! in it is the user's, who lists, restores and discards it.

use super::error::{RecoveryError, at};
use super::folder::Folder;
use super::id::RecoveryId;
use super::item::{Item, Lost};
use super::user::User;
use leasefs_host::{files, private};
use rustix::fs::{Gid, Mode, fchmod, fchown, fstat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Who keeps what is another user's.
const ROOT: u32 = 0;
/// Of the client's own folder, below the state directory.
const OWN: &str = "client/recovery";
/// Of the folder with those of other users, there too.
const OTHERS: &str = "recovery";

/// All that is kept in a state directory, as far as this user may see it.
#[derive(Clone, Debug)]
pub struct Recovery {
    state: PathBuf,
    /// Root's state directory, in which there may be something of this user's too.
    also: Option<PathBuf>,
}

impl Recovery {
    /// Of this state directory, and of what `also` has for this user.
    pub fn of(state: &Path, also: Option<&Path>) -> Self {
        Self {
            state: state.to_owned(),
            also: also.map(Path::to_owned),
        }
    }

    /// Keeps `lost` where its writer finds it; where that can't be done, with this client's own. See [`Folder::keep`].
    ///
    /// # Errors
    /// [`RecoveryError::NotKept`].
    pub fn keep(&self, lost: &Lost) -> Result<(Folder, RecoveryId), RecoveryError> {
        let others = lost.writer.filter(|writer| writer.uid != 0);
        if let Some(user) = others.filter(|_| geteuid().is_root()) {
            let folder = self.folder_of(user);
            match self.make_folder(user).and_then(|()| folder.add(lost)) {
                Ok(item) => {
                    item.log();
                    return Ok((folder, item.id));
                }
                // It would use up what root's own needs.
                Err(why @ (RecoveryError::TooManyItems | RecoveryError::TooMuch(_))) => {
                    let not_kept = lost.not_kept(why);
                    tracing::error!("{not_kept}");
                    return Err(not_kept);
                }
                Err(error) => tracing::warn!(%error, "kept with root's own"),
            }
        }
        let own = self.own();
        let id = own.keep(lost)?;
        Ok((own, id))
    }

    /// All folders that are there. Those of other users are root's to see.
    pub fn folders(&self) -> Vec<Folder> {
        let own = Some(self.own()).filter(|own| is_own(own.path()));
        let others: Vec<Folder> = match geteuid().is_root() {
            true => self
                .users()
                .into_iter()
                .map(|user| self.folder_of(user))
                .collect(),
            false => self.mine().collect(),
        };
        own.into_iter().chain(others).collect()
    }

    /// The folder that has an item.
    ///
    /// # Errors
    /// That none has it.
    pub fn folder_with(&self, id: RecoveryId) -> Result<Folder, RecoveryError> {
        let mut folders = self.folders().into_iter();
        let has = |folder: &Folder| !matches!(folder.item(id), Err(RecoveryError::NoItem(_)));
        folders.find(has).ok_or(RecoveryError::NoItem(id))
    }

    /// The descriptions of all items, the oldest of each folder first; an error for what can't be read.
    pub fn items(&self) -> Vec<Result<Item, RecoveryError>> {
        let of = |folder: Folder| folder.items().unwrap_or_else(|error| vec![Err(error)]);
        self.folders().into_iter().flat_map(of).collect()
    }

    fn own(&self) -> Folder {
        Folder::at(self.state.join(OWN))
    }

    fn place_of(state: &Path, uid: u32) -> PathBuf {
        state.join(OTHERS).join(uid.to_string())
    }

    fn folder_of(&self, user: User) -> Folder {
        Folder::of(Self::place_of(&self.state, user.uid), user)
    }

    /// What root's mounts have kept of this user's.
    fn mine(&self) -> impl Iterator<Item = Folder> {
        let me = User {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        };
        let states = std::iter::once(&self.state).chain(&self.also);
        states
            .map(move |state| Self::place_of(state, me.uid))
            .filter(|place| fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()))
            .map(move |place| Folder::of(place, me))
    }

    /// Users of whom something is, or was, kept.
    fn users(&self) -> Vec<User> {
        let folders = fs::read_dir(self.state.join(OTHERS)).into_iter().flatten();
        let user = |entry: fs::DirEntry| {
            let uid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let found = fs::symlink_metadata(entry.path()).ok()?;
            // Its group is the user's.
            let gid = found.gid();
            (found.is_dir() && found.uid() == 0).then_some(User { uid, gid })
        };
        folders.flatten().filter_map(user).collect()
    }

    /// The user's folder, and a way to it: what is secret lies in folders of mode 0700 beside it.
    fn make_folder(&self, user: User) -> Result<(), RecoveryError> {
        let others = self.state.join(OTHERS);
        make(&others, 0o711)?;
        for passed in [&self.state, &others] {
            let folder = private::folder_of(passed, ROOT).map_err(at(passed))?;
            let failed = |e: Errno| at(passed)(e.into());
            let mode = fstat(&folder).map_err(failed)?.st_mode;
            let open = Mode::from_raw_mode(mode & 0o777 | 0o111);
            fchmod(folder, open).map_err(failed)?;
        }
        let place = Self::place_of(&self.state, user.uid);
        if make(&place, 0o755)? {
            files::sync_folder(&others).map_err(at(&others))?;
        }
        let folder = private::folder_of(&place, ROOT).map_err(at(&place))?;
        let group = Gid::from_raw(user.gid);
        fchown(folder, None, Some(group)).map_err(|e| at(&place)(e.into()))
    }
}

/// Whether the folder is this user's own, or not there: not a link, and of no other user's client.
fn is_own(folder: &Path) -> bool {
    let above = folder.parent().unwrap_or(folder);
    [above, folder].iter().all(|path| {
        let found = fs::symlink_metadata(path);
        found.map_or_else(
            |e| e.kind() == ErrorKind::NotFound,
            |found| found.is_dir() && found.uid() == geteuid().as_raw(),
        )
    })
}

/// Whether it was not there.
fn make(folder: &Path, mode: u32) -> Result<bool, RecoveryError> {
    match DirBuilder::new().mode(mode).create(folder) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(at(folder)(e)),
    }
}
