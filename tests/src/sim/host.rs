//! The storage host in memory: files of a few cells, directories of a few names.

use super::cx::Cx;
use super::model::{
    ABSENT, CELL, DeedId, Item, Nanos, OWNER, Obj, cells_of, digest, name_of, nanos_of, timestamp,
    value_of,
};
use leasefs_protocol::{Attr, FileKind, SessionId, Timestamp};
use std::collections::BTreeMap;
use std::fmt;

/// The export's root.
pub const ROOT: Obj = Obj(1);
/// Directories that are there from the start, `d` and `e` in the root.
pub const DIRS: [Obj; 2] = [Obj(2), Obj(3)];
/// Files that are there from the start and keep a name for ever: `x`, `y` and `z` in the root.
pub const FILES: [Obj; 3] = [Obj(4), Obj(5), Obj(6)];

/// Names in the root.
pub const ROOT_NAMES: [(&[u8], Obj); 5] = [
    (b"d", DIRS[0]),
    (b"e", DIRS[1]),
    (b"x", FILES[0]),
    (b"y", FILES[1]),
    (b"z", FILES[2]),
];

/// Why the host refuses, as errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u16);

/// No such name.
pub const ENOENT: Errno = Errno(2);
/// The name exists.
pub const EEXIST: Errno = Errno(17);
/// No room.
pub const ENOSPC: Errno = Errno(28);
/// No such object.
pub const ESTALE: Errno = Errno(116);

#[derive(Clone, Debug)]
struct Inode {
    kind: FileKind,
    ino: u64,
    mode: u16,
    links: u32,
    cells: Vec<u64>,
    mtime: Nanos,
    ctime: Nanos,
    names: BTreeMap<Vec<u8>, Obj>,
    durable: Durable,
}

/// What is on the disk.
#[derive(Clone, Debug, Default)]
struct Durable {
    cells: Vec<u64>,
    mtime: Nanos,
    ctime: Nanos,
    mode: u16,
    links: u32,
}

/// Whose change it is.
#[derive(Clone, Copy, Debug)]
pub struct By {
    /// The change, where it is known.
    pub deed: Option<DeedId>,
    /// The session.
    pub session: SessionId,
    /// It may have happened before a crash.
    pub again: bool,
}

/// The storage host.
#[derive(Clone, Debug)]
pub struct Host {
    objects: BTreeMap<Obj, Inode>,
    next: u32,
    last_time: Nanos,
    /// Cells that all files together may have.
    room: usize,
    /// Attributes that objects ever had, by the time of their last change.
    log: BTreeMap<(Obj, Nanos), Attr>,
    /// Inode numbers that are free again; used only if they are to be used again.
    free_inos: Vec<u64>,
    reuses_inos: bool,
}

impl Host {
    /// A host with its first files.
    pub fn new(cx: &mut Cx, room: usize, reuses_inos: bool) -> Self {
        let mut host = Self {
            objects: BTreeMap::new(),
            next: 1,
            last_time: 1_000_000,
            room,
            log: BTreeMap::new(),
            free_inos: Vec::new(),
            reuses_inos,
        };
        for _ in 0..3 {
            host.make(cx, FileKind::Directory, 0o777);
        }
        for _ in FILES {
            let file = host.make(cx, FileKind::File, 0o666);
            let inode = host.inode_mut(file);
            inode.links = 1;
            inode.cells = vec![0; 8];
            host.commit(file);
            host.changed(cx, file, true, None);
        }
        for (name, object) in ROOT_NAMES {
            host.inode_mut(ROOT).names.insert(name.to_vec(), object);
        }
        host
    }

    fn inode(&self, object: Obj) -> Option<&Inode> {
        self.objects.get(&object)
    }

    fn inode_mut(&mut self, object: Obj) -> &mut Inode {
        self.objects.get_mut(&object).expect("it is there")
    }

    fn make(&mut self, cx: &mut Cx, kind: FileKind, mode: u16) -> Obj {
        let object = Obj(self.next);
        self.next += 1;
        let ino = match self.free_inos.pop() {
            Some(ino) if self.reuses_inos => ino,
            _ => 100 + u64::from(object.0),
        };
        let links = if kind == FileKind::Directory { 2 } else { 0 };
        let inode = Inode {
            kind,
            ino,
            mode,
            links,
            cells: Vec::new(),
            mtime: 0,
            ctime: 0,
            names: BTreeMap::new(),
            durable: Durable::default(),
        };
        self.objects.insert(object, inode);
        self.changed(cx, object, true, None);
        let inode = self.inode_mut(object);
        inode.durable = Durable {
            cells: Vec::new(),
            mtime: inode.mtime,
            ctime: inode.ctime,
            mode,
            links,
        };
        object
    }

    /// Writes all that anybody could find.
    pub fn digest(&self, to: &mut impl fmt::Write) {
        // Whoever hashes doesn't fail.
        let _ = write!(to, "{:?} {:?}", self.objects, self.last_time);
    }

    /// Whether an object exists.
    pub fn exists(&self, object: Obj) -> bool {
        self.objects.contains_key(&object)
    }

    /// What it is.
    pub fn kind(&self, object: Obj) -> Option<FileKind> {
        self.inode(object).map(|inode| inode.kind)
    }

    /// What a name denotes.
    pub fn name(&self, dir: Obj, name: &[u8]) -> Option<Obj> {
        self.inode(dir)?.names.get(name).copied()
    }

    /// Entries of a directory.
    pub fn entries(&self, dir: Obj) -> Vec<(Vec<u8>, Obj)> {
        let names = self.inode(dir).map(|inode| inode.names.clone());
        names.unwrap_or_default().into_iter().collect()
    }

    /// Whether an object has any name.
    pub fn is_linked(&self, object: Obj) -> bool {
        self.inode(object).is_some_and(|inode| inode.links > 0)
    }

    /// Objects without a name.
    pub fn orphans(&self) -> Vec<Obj> {
        let objects = self.objects.iter();
        let orphans = objects.filter(|(_, inode)| inode.links == 0);
        orphans.map(|(object, _)| *object).collect()
    }

    /// An object that nobody can reach goes.
    pub fn remove(&mut self, object: Obj) {
        if let Some(inode) = self.objects.remove(&object) {
            self.free_inos.push(inode.ino);
        }
    }

    /// The cells of a file.
    pub fn cells(&self, file: Obj) -> &[u64] {
        self.inode(file).map_or(&[], |inode| &inode.cells)
    }

    /// Cells that are free.
    pub fn free(&self) -> usize {
        self.room.saturating_sub(self.used())
    }

    /// Cells that all files together have.
    pub fn used(&self) -> usize {
        self.objects.values().map(|inode| inode.cells.len()).sum()
    }

    /// Attributes as the protocol has them.
    pub fn attr(&self, object: Obj) -> Option<Attr> {
        let inode = self.inode(object)?;
        let size = inode.cells.len() as u64 * CELL;
        Some(Attr {
            ino: inode.ino,
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.links,
            uid: OWNER,
            gid: OWNER,
            rdev: (0, 0),
            size,
            blocks: size / 512,
            blksize: 4096,
            atime: Timestamp::default(),
            mtime: timestamp(inode.mtime),
            ctime: timestamp(inode.ctime),
            xattrs: false,
        })
    }

    /// Whether an object ever had these attributes, but for its inode number. What has gone is shown as it was
    /// before, without a link.
    pub fn had(&self, object: Obj, attr: &Attr) -> bool {
        let gone = !self.exists(object) && attr.nlink == 0;
        let known = self.log.get(&(object, value_of(attr)));
        known.is_some_and(|known| {
            Attr {
                ino: known.ino,
                nlink: if gone { known.nlink } else { attr.nlink },
                ..*attr
            } == *known
        })
    }

    fn time(&mut self, now: Nanos) -> Nanos {
        self.last_time = (self.last_time + 1).max(now + 1_000_000);
        self.last_time
    }

    /// Attributes have changed.
    fn changed(&mut self, cx: &mut Cx, object: Obj, content: bool, by: Option<SessionId>) {
        let time = self.time(cx.moment());
        let inode = self.inode_mut(object);
        inode.ctime = time;
        if content {
            inode.mtime = time;
        }
        if inode.cells == inode.durable.cells {
            self.commit(object);
        }
        self.tell(cx, object, by);
    }

    fn tell(&mut self, cx: &mut Cx, object: Obj, by: Option<SessionId>) {
        let Some(attr) = self.attr(object) else {
            return;
        };
        let value = value_of(&attr);
        self.log.insert((object, value), attr);
        cx.judge.has_rights(cx.now, object, &attr, by);
        let cells = self.cells(object);
        cx.judge.host_has(cx.now, object, cells, value, by);
    }

    /// Writes cells at an offset; returns how many bytes were taken.
    ///
    /// # Errors
    /// `ENOSPC` where there is room for nothing.
    pub fn write(
        &mut self,
        cx: &mut Cx,
        by: By,
        file: Obj,
        (offset, data): (u64, &[u8]),
        when: Option<Timestamp>,
    ) -> Result<u64, Errno> {
        let mut cells = cells_of(data);
        let first = (offset / CELL) as usize;
        let free = self.free();
        let inode = self.objects.get_mut(&file).ok_or(ESTALE)?;
        let most = inode.cells.len() + free;
        if first + cells.len() > most {
            cx.stats.full += 1;
            cells.truncate(most.saturating_sub(first));
            if cells.is_empty() {
                return Err(ENOSPC);
            }
        }
        let end = first + cells.len();
        if inode.cells.len() < end {
            inode.cells.resize(end, 0);
        }
        inode.cells[first..end].copy_from_slice(&cells);
        let old = inode.mtime;
        let time = self.time(cx.moment());
        let inode = self.inode_mut(file);
        inode.ctime = time;
        inode.mtime = when.map_or(time, |when| nanos_of(when).clamp(old.min(time), time));
        let Some(attr) = self.attr(file) else {
            return Err(ESTALE);
        };
        let value = value_of(&attr);
        self.log.insert((file, value), attr);
        let (host, now) = (self.cells(file), cx.now);
        for (cell, value) in (first..).zip(&cells) {
            cx.trace(Some(file), || format!("host: cell {cell} is {value:x}"));
        }
        cx.judge
            .stored(now, (file, by.session), (first as u32, &cells), host, value);
        Ok(cells.len() as u64 * CELL)
    }

    /// What an interrupted append has left beyond this size goes.
    pub fn cut_back(&mut self, cx: &mut Cx, file: Obj, size: u64) {
        let Some(inode) = self.objects.get_mut(&file) else {
            return;
        };
        let beyond = ((size / CELL) as usize).min(inode.cells.len());
        cx.judge.taken_back(&inode.cells.split_off(beyond));
        cx.trace(Some(file), || format!("host: cut back to {size}"));
        self.changed(cx, file, true, None);
    }

    /// Sets attributes: size, mode.
    ///
    /// # Errors
    /// `ENOSPC`, or the object is gone.
    pub fn set(
        &mut self,
        cx: &mut Cx,
        by: By,
        object: Obj,
        (size, mode): (Option<u64>, Option<u16>),
    ) -> Result<(), Errno> {
        let free = self.free();
        let inode = self.objects.get_mut(&object).ok_or(ESTALE)?;
        if let Some(size) = size {
            let cells = (size / CELL) as usize;
            if cells > inode.cells.len() + free {
                return Err(ENOSPC);
            }
            inode.cells.resize(cells, 0);
            cx.judge.truncated(object, cells as u32, by.session);
        }
        if let Some(mode) = mode {
            inode.mode = mode;
        }
        cx.trace(Some(object), || {
            format!("host: size {size:?} mode {mode:?}")
        });
        self.done(cx, by, Item::Attrs(object));
        self.changed(cx, object, size.is_some(), Some(by.session));
        Ok(())
    }

    fn done(&self, cx: &mut Cx, by: By, item: Item) {
        let Some(deed) = by.deed else { return };
        match by.again {
            true => cx.judge.happens_again(deed, Some(item)),
            false => cx.judge.happens(deed, Some(item)),
        }
    }

    /// Makes a file under a free name.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn create(
        &mut self,
        cx: &mut Cx,
        by: By,
        (dir, name): (Obj, &[u8]),
        (kind, mode): (FileKind, u16),
    ) -> Result<Obj, Errno> {
        if self.name(dir, name).is_some() {
            return Err(EEXIST);
        }
        let made = self.make(cx, kind, mode);
        self.done(cx, by, Item::Attrs(dir));
        self.enter(cx, by, made, (dir, name));
        Ok(made)
    }

    /// Gives an object a further name.
    ///
    /// # Errors
    /// `EEXIST`, or it has no name any more.
    pub fn link(
        &mut self,
        cx: &mut Cx,
        by: By,
        object: Obj,
        to: (Obj, &[u8]),
    ) -> Result<(), Errno> {
        if self.name(to.0, to.1).is_some() {
            return Err(EEXIST);
        }
        if !self.is_linked(object) {
            return Err(ENOENT);
        }
        self.done(cx, by, Item::Attrs(to.0));
        self.enter(cx, by, object, to);
        Ok(())
    }

    /// Removes a name; what loses its last one stays until it is removed.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn unlink(&mut self, cx: &mut Cx, by: By, (dir, name): (Obj, &[u8])) -> Result<Obj, Errno> {
        let object = self.name(dir, name).ok_or(ENOENT)?;
        self.done(cx, by, Item::Attrs(dir));
        self.leave(cx, by, object, (dir, name));
        Ok(object)
    }

    /// Renames; returns what has lost a name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn rename(
        &mut self,
        cx: &mut Cx,
        by: By,
        from: (Obj, &[u8]),
        to: (Obj, &[u8]),
    ) -> Result<Option<Obj>, Errno> {
        let object = self.name(from.0, from.1).ok_or(ENOENT)?;
        let replaced = self.name(to.0, to.1);
        if replaced == Some(object) {
            if let Some(deed) = by.deed {
                cx.judge.happens_idly(deed);
            }
            return Ok(None);
        }
        self.done(cx, by, Item::Attrs(from.0));
        if let Some(replaced) = replaced {
            self.leave(cx, by, replaced, to);
        }
        self.leave(cx, by, object, from);
        self.enter(cx, by, object, to);
        Ok(replaced)
    }

    fn enter(&mut self, cx: &mut Cx, by: By, object: Obj, at: (Obj, &[u8])) {
        self.inode_mut(object).links += 1;
        self.set_name(cx, by, at, Some(object));
        self.changed(cx, object, false, Some(by.session));
    }

    fn leave(&mut self, cx: &mut Cx, by: By, object: Obj, at: (Obj, &[u8])) {
        self.inode_mut(object).links -= 1;
        self.set_name(cx, by, at, None);
        self.changed(cx, object, false, Some(by.session));
    }

    fn set_name(&mut self, cx: &mut Cx, by: By, (dir, name): (Obj, &[u8]), to: Option<Obj>) {
        let names = &mut self.inode_mut(dir).names;
        match to {
            Some(object) => drop(names.insert(name.to_vec(), object)),
            None => drop(names.remove(name)),
        }
        let listing = self.listing(dir);
        let (number, value) = (name_of(name), to.map_or(0, |o| o.0.into()));
        let session = Some(by.session);
        cx.judge
            .effect(cx.now, Item::Name(dir, number), value, session);
        cx.judge
            .effect(cx.now, Item::Listing(dir), listing, session);
        cx.trace(Some(dir), || format!("host: name {number} is {to:?}"));
        self.changed(cx, dir, true, session);
    }

    /// A digest of a directory's entries.
    pub fn listing(&self, dir: Obj) -> u64 {
        let entries = self.entries(dir);
        let inos = entries.iter().map(|(name, object)| {
            let ino = self.inode(*object).map_or(0, |inode| inode.ino);
            (name.as_slice(), ino)
        });
        digest(inos)
    }

    /// Makes an object durable.
    pub fn commit(&mut self, object: Obj) {
        if let Some(inode) = self.objects.get_mut(&object) {
            inode.durable = Durable {
                cells: inode.cells.clone(),
                mtime: inode.mtime,
                ctime: inode.ctime,
                mode: inode.mode,
                links: inode.links,
            };
        }
    }

    /// Makes everything durable.
    pub fn commit_all(&mut self) {
        let all: Vec<Obj> = self.objects.keys().copied().collect();
        all.into_iter().for_each(|object| self.commit(object));
    }

    /// The host crashes: what of files no commit covers is as it was, or has reached the disk by itself.
    /// Names survive.
    pub fn crash(&mut self, cx: &mut Cx) {
        cx.judge.host_crashes();
        for object in self.objects.keys().copied().collect::<Vec<_>>() {
            if self.kind(object) != Some(FileKind::File) || cx.rng.chance(25) {
                self.commit(object);
                continue;
            }
            let inode = self.inode_mut(object);
            let durable = inode.durable.clone();
            if inode.cells == durable.cells {
                continue;
            }
            (inode.cells, inode.mtime, inode.mode) = (durable.cells, durable.mtime, durable.mode);
            // A name that came since has changed it too, and survives.
            let time = match inode.links == durable.links {
                true => durable.ctime,
                false => self.time(cx.moment()),
            };
            self.inode_mut(object).ctime = time;
            self.commit(object);
            let Some(attr) = self.attr(object) else {
                continue;
            };
            self.log.insert((object, time), attr);
            cx.judge.found_rights(cx.now, object, &attr);
            cx.judge.found(cx.now, object, self.cells(object), time);
            cx.trace(Some(object), || "host: undone".into());
        }
    }

    /// Whether a file holds these bytes.
    pub fn holds(&self, file: Obj, offset: u64, data: &[u8]) -> bool {
        let first = (offset / CELL) as usize;
        let cells = cells_of(data);
        let have = self.cells(file).get(first..first + cells.len());
        have == Some(cells.as_slice())
    }

    /// The bytes of a range, as far as there are any.
    pub fn read(&self, file: Obj, offset: u64, len: u32) -> Vec<u8> {
        let cells = self.cells(file);
        let first = ((offset / CELL) as usize).min(cells.len());
        let end = (first + (u64::from(len).div_ceil(CELL)) as usize).min(cells.len());
        debug_assert!(!cells[first..end].contains(&ABSENT));
        super::model::bytes_of(&cells[first..end])
    }
}
