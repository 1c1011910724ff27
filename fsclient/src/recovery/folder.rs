//! The folder on the disk.

use super::error::{RecoveryError, at};
use super::id::RecoveryId;
use super::item::{ByteRange, Item, Lost};
use super::pieces::Pieces;
use super::user::User;
use leasefs_host::files;
use leasefs_host::random::random;
use leasefs_protocol::limits::{MAX_RECOVERY_ITEM, MAX_RECOVERY_ITEMS};
use leasefs_protocol::printable;
use rustix::fs::{FlockOperation, Mode, OFlags, ResolveFlags, flock, openat2, statvfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};

const ITEM: &str = "item.json";
const DATA: &str = "data";
const LOCK: &str = ".lock";
/// What a name begins with as long as its item is incomplete.
const INCOMPLETE: &str = ".incomplete-";

/// A recovery folder. Made, with mode 0700, when the first item is kept.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    /// Whose items these are, if not its owner's, who is root: what he may have changed is looked at as that user.
    user: Option<User>,
    most_items: usize,
}

/// The right to change the folder, until dropped.
struct Locked(#[expect(dead_code, reason = "its descriptor holds the lock")] File);

impl Folder {
    /// The folder at `path`, whether it is there already or not.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            user: None,
            most_items: MAX_RECOVERY_ITEMS,
        }
    }

    /// Root's folder of a user's items, for root and for that user.
    pub(super) fn of(path: PathBuf, user: User) -> Self {
        Self {
            user: Some(user),
            ..Self::at(path)
        }
    }

    /// Whose items these are, if that is another user than this process is.
    pub fn other_user(&self) -> Option<User> {
        self.user.filter(|_| geteuid().is_root())
    }

    fn act<T>(&self, act: impl FnOnce() -> Result<T, RecoveryError>) -> Result<T, RecoveryError> {
        match self.other_user() {
            Some(user) => user.act(act).map_err(at(&self.path))?,
            None => act(),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps `lost`: when this returns, it survives a crash of this host. Blocks on the disk. Logs one
    /// line, whether it was kept or is lost.
    ///
    /// # Errors
    /// [`RecoveryError::NotKept`], which names the file and says why. Nothing incomplete is left behind.
    pub fn keep(&self, lost: &Lost) -> Result<RecoveryId, RecoveryError> {
        let added = self.add(lost).map_err(|why| lost.not_kept(why));
        let item = added.inspect_err(|error| tracing::error!("{error}"))?;
        item.log();
        Ok(item.id)
    }

    /// Keeps it, and logs nothing.
    pub(super) fn add(&self, lost: &Lost) -> Result<Item, RecoveryError> {
        let _locked = self.lock()?;
        self.sweep();
        let taken = self.ids()?;
        if taken.len() >= self.most_items {
            return Err(RecoveryError::TooManyItems);
        }
        if let Some(user) = self.user {
            self.has_room(user, &taken, lost.bytes())?;
        }
        let item = Item::new(self.fresh_id(&taken)?, lost)?;
        let draft = self.draft(item.id);
        let added = write_item(&draft, &item, lost)
            .and_then(|()| self.give(&draft))
            .and_then(|()| {
                fs::rename(&draft, self.place(item.id)).map_err(at(&draft))?;
                sync_dir(&self.path)
            });
        if added.is_err() {
            // What can't be removed now is swept later.
            let _ = fs::remove_dir_all(&draft);
        }
        added.map(|()| item)
    }

    /// What root keeps for another user is no more than is left for all else: one who has much refused fills no disk.
    fn has_room(&self, user: User, taken: &[RecoveryId], bytes: u64) -> Result<(), RecoveryError> {
        let data = taken.iter().map(|id| self.place(*id).join(DATA));
        let sizes = data.filter_map(|data| fs::symlink_metadata(data).ok());
        let kept: u64 = sizes.map(|found| found.len()).sum();
        let disk = statvfs(&self.path).map_err(|e| at(&self.path)(e.into()))?;
        let left = disk.f_bavail.saturating_mul(disk.f_frsize);
        match kept.saturating_add(bytes) <= left.saturating_sub(bytes) {
            true => Ok(()),
            false => Err(RecoveryError::TooMuch(user.uid)),
        }
    }

    /// To the user whose it is. The folder last: until then nobody else gets at what is in it.
    fn give(&self, draft: &Path) -> Result<(), RecoveryError> {
        let Some(user) = self.user else {
            return Ok(());
        };
        for path in [draft.join(DATA), draft.join(ITEM), draft.to_owned()] {
            lchown(&path, Some(user.uid), Some(user.gid)).map_err(at(&path))?;
        }
        Ok(())
    }

    /// The items there are, in no order; none if there is no folder.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn ids(&self) -> Result<Vec<RecoveryId>, RecoveryError> {
        let names = self.names()?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The descriptions of all items, the oldest first; an error for one that can't be read.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn items(&self) -> Result<Vec<Result<Item, RecoveryError>>, RecoveryError> {
        let items = self.ids()?.into_iter().map(|id| self.item(id));
        // One that has gone meanwhile was discarded.
        let mut items: Vec<_> = items
            .filter(|item| !matches!(item, Err(RecoveryError::NoItem(_))))
            .collect();
        items.sort_by_key(|item| item.as_ref().ok().map(|item| (item.time_ms, item.id)));
        Ok(items)
    }

    /// The description of an item.
    ///
    /// # Errors
    /// If there is none, or it can't be read or is damaged.
    pub fn item(&self, id: RecoveryId) -> Result<Item, RecoveryError> {
        let path = self.place(id).join(ITEM);
        let damaged = |why: String| RecoveryError::Damaged {
            path: path.clone(),
            why,
        };
        let file = self.act(|| self.open(id, &path))?;
        let mut text = Vec::new();
        let read = file.take(MAX_RECOVERY_ITEM).read_to_end(&mut text);
        read.map_err(at(&path))?;
        let item: Item = serde_json::from_slice(&text)
            .map_err(|e| damaged(printable(&e.to_string()).to_string()))?;
        item.flaw(id).map_or(Ok(item), |flaw| Err(damaged(flaw)))
    }

    /// The kept bytes of an item.
    ///
    /// # Errors
    /// If they can't be read, or aren't as many as the item says.
    pub fn pieces(&self, item: &Item) -> Result<Pieces, RecoveryError> {
        let path = self.place(item.id).join(DATA);
        let data = self.act(|| self.open(item.id, &path))?;
        let length = data.metadata().map_err(at(&path))?.len();
        if length != item.bytes {
            let why = format!("{length} bytes, expected {}", item.bytes);
            return Err(RecoveryError::Damaged { path, why });
        }
        Ok(Pieces {
            path,
            data,
            ranges: item.ranges.clone().into_iter(),
            rest: ByteRange {
                offset: 0,
                length: 0,
            },
        })
    }

    /// Removes an item for good.
    ///
    /// # Errors
    /// If there is none, or the disk fails.
    pub fn discard(&self, id: RecoveryId) -> Result<(), RecoveryError> {
        // What is damaged may go too.
        if let Err(error @ RecoveryError::NoItem(_)) = self.item(id) {
            return Err(error);
        }
        match self.user {
            Some(_) => self.act(|| self.empty(id)),
            None => self.remove(id),
        }
    }

    /// Of a folder that is root's only what is in an item can be removed; root sweeps what is left.
    fn empty(&self, id: RecoveryId) -> Result<(), RecoveryError> {
        let place = self.place(id);
        for name in [ITEM, DATA] {
            match fs::remove_file(place.join(name)) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                removed => removed.map_err(at(&place))?,
            }
        }
        sync_dir(&place)
    }

    fn remove(&self, id: RecoveryId) -> Result<(), RecoveryError> {
        let _locked = self.lock()?;
        let (place, draft) = (self.place(id), self.draft(id));
        match fs::rename(&place, &draft) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(RecoveryError::NoItem(id)),
            renamed => renamed.map_err(at(&place))?,
        }
        fs::remove_dir_all(&draft).map_err(at(&draft))?;
        sync_dir(&self.path)
    }

    fn place(&self, id: RecoveryId) -> PathBuf {
        self.path.join(id.to_string())
    }

    fn draft(&self, id: RecoveryId) -> PathBuf {
        self.path.join(format!("{INCOMPLETE}{id}"))
    }

    /// A file of an item; items come and go as a whole. Never one that whoever owns the item has put elsewhere, or to be
    /// waited for in.
    fn open(&self, id: RecoveryId, path: &Path) -> Result<File, RecoveryError> {
        let name = path.strip_prefix(&self.path).unwrap_or(path);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let folder = match File::open(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(RecoveryError::NoItem(id)),
            opened => opened.map_err(at(&self.path))?,
        };
        match openat2(&folder, name, flags, Mode::empty(), inside) {
            Err(Errno::NOENT) => Err(RecoveryError::NoItem(id)),
            opened => opened
                .map(File::from)
                .map_err(|error| at(path)(error.into())),
        }
    }

    fn names(&self) -> Result<Vec<String>, RecoveryError> {
        let entries = match fs::read_dir(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(at(&self.path))?,
        };
        // A name that isn't text is none of ours.
        let text = |entry: fs::DirEntry| entry.file_name().into_string().unwrap_or_default();
        let names: io::Result<_> = entries.map(|entry| entry.map(text)).collect();
        names.map_err(at(&self.path))
    }

    fn fresh_id(&self, taken: &[RecoveryId]) -> Result<RecoveryId, RecoveryError> {
        loop {
            let bytes = random().map_err(at(&self.path))?;
            let id = RecoveryId(u32::from_ne_bytes(bytes));
            if !taken.contains(&id) {
                return Ok(id);
            }
        }
    }

    fn lock(&self) -> Result<Locked, RecoveryError> {
        if !self.path.is_dir() {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.path);
            made.map_err(at(&self.path))?;
            self.path.parent().map_or(Ok(()), sync_dir)?;
        }
        let path = self.path.join(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(at(&path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| at(&path)(e.into()))?;
        Ok(Locked(file))
    }

    /// Removes what crashes left: under the lock nobody works on an incomplete item.
    fn sweep(&self) {
        let names = self.names().unwrap_or_default();
        if self.user.is_some() {
            // What its user has emptied; all else is not.
            let ids = names
                .iter()
                .filter(|name| name.parse::<RecoveryId>().is_ok());
            ids.for_each(|id| drop(fs::remove_dir(self.path.join(id))));
        }
        for name in names.iter().filter(|name| name.starts_with(INCOMPLETE)) {
            let path = self.path.join(name);
            match fs::remove_dir_all(&path) {
                Ok(()) => tracing::warn!(path = %path.display(), "removed an incomplete item"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "an incomplete item"),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn with_most_items(path: PathBuf, most_items: usize) -> Self {
        Self {
            most_items,
            ..Self::at(path)
        }
    }
}

/// Everything of an item, on the disk, in the folder `draft`.
fn write_item(draft: &Path, item: &Item, lost: &Lost) -> Result<(), RecoveryError> {
    let made = DirBuilder::new().mode(0o700).create(draft);
    made.map_err(at(draft))?;
    write_file(&draft.join(DATA), |file| {
        let mut extents = lost.extents.iter();
        extents.try_for_each(|(_, bytes)| file.write_all(bytes))
    })?;
    write_file(&draft.join(ITEM), |file| {
        let text = serde_json::to_vec(item)?;
        file.write_all(&text)
    })?;
    sync_dir(draft)
}

fn write_file(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), RecoveryError> {
    files::write_new(path, write).map_err(at(path))
}

fn sync_dir(path: &Path) -> Result<(), RecoveryError> {
    files::sync_folder(path).map_err(at(path))
}
