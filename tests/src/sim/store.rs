//! The storage host in memory: files of a few pages, directories of a few names.

use super::cx::Cx;
use super::model::{Deed, DeedId, Item, NAMES, Obj, PAGES, changed_at, version};
use leasefs_protocol::{Attr, FileKind, Handle, SessionId, Timestamp, Version};

/// Directories that are there from the start.
pub const DIRS: [Obj; 2] = [Obj(1), Obj(2)];
/// Files that are there from the start and keep a name for ever.
pub const FILES: [Obj; 3] = [Obj(3), Obj(4), Obj(5)];

/// Why the host refuses, as errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub u16);

/// No such name.
pub const ENOENT: Errno = Errno(2);
/// The name exists.
pub const EEXIST: Errno = Errno(17);

#[derive(Clone, Debug, Default)]
struct Object {
    pages: [u64; PAGES as usize],
    attrs: u64,
    links: u32,
    names: [Option<Obj>; NAMES as usize],
    listing: u64,
    appends: u64,
    /// What is on the disk.
    durable: Durable,
}

#[derive(Clone, Copy, Debug, Default)]
struct Durable {
    pages: [u64; PAGES as usize],
    attrs: u64,
}

/// Whose change it is.
#[derive(Clone, Copy, Debug)]
pub struct By {
    /// The change.
    pub id: DeedId,
    /// The session.
    pub session: SessionId,
    /// It may have happened before a crash.
    pub again: bool,
}

/// The storage host.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Vec<Object>,
    /// The time that attributes show of the last change.
    ticks: u64,
}

/// What the names of a change denote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denoted {
    /// Its name.
    pub named: Option<Obj>,
    /// Its new name.
    pub replaced: Option<Obj>,
}

impl Store {
    /// A host with its first files.
    pub fn new() -> Self {
        let mut objects = vec![Object::default(); FILES[FILES.len() - 1].0 as usize + 1];
        for file in FILES {
            // Beside those that they get.
            objects[file.0 as usize].links = 1;
        }
        Self { objects, ticks: 0 }
    }

    fn object(&self, object: Obj) -> &Object {
        &self.objects[object.0 as usize]
    }

    /// The value of a page.
    pub fn page(&self, file: Obj, page: u8) -> u64 {
        self.object(file).pages[page as usize]
    }

    /// The attributes' value: when they last changed.
    pub fn attrs(&self, object: Obj) -> u64 {
        self.object(object).attrs
    }

    /// How often the listing has changed.
    pub fn listing(&self, dir: Obj) -> u64 {
        self.object(dir).listing
    }

    /// What a name denotes.
    pub fn name(&self, dir: Obj, name: u8) -> Option<Obj> {
        self.object(dir).names[name as usize]
    }

    /// What tells a file's content from any later one.
    pub fn version(&self, file: Obj) -> Version {
        version(self.attrs(file))
    }

    /// How many bytes have been appended.
    pub fn appends(&self, file: Obj) -> u64 {
        self.object(file).appends
    }

    /// Whether an object has any name.
    pub fn is_linked(&self, object: Obj) -> bool {
        self.object(object).links > 0
    }

    /// The newest file, or an older one.
    pub fn recent(&self, back: usize) -> Obj {
        let last = self.objects.len() - 1;
        Obj(last.saturating_sub(back).max(FILES[0].0.into()) as u16)
    }

    /// What the names of a change denote just now.
    pub fn denoted(&self, deed: Deed) -> Denoted {
        let of = |(dir, name): (Obj, u8)| self.name(dir, name);
        match deed {
            Deed::Create(dir, name) | Deed::Unlink(dir, name) => Denoted {
                named: of((dir, name)),
                replaced: None,
            },
            Deed::Rename(from, to) => Denoted {
                named: of(from),
                replaced: of(to),
            },
            _ => Denoted::default(),
        }
    }

    /// Attributes as the protocol has them.
    pub fn attr(&self, handle: &Handle) -> Attr {
        let object = Obj::of(handle);
        Attr {
            ino: object.0.into(),
            kind: FileKind::File,
            mode: 0o600,
            nlink: self.object(object).links,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: self.version(object).size,
            blocks: 0,
            blksize: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: changed_at(self.attrs(object)),
        }
    }

    /// Carries out a change; returns what it has made.
    ///
    /// # Errors
    /// As the host's kernel would refuse it; nothing has changed then.
    pub fn apply(&mut self, cx: &mut Cx, by: By, deed: Deed) -> Result<Option<Obj>, Errno> {
        let denoted = self.denoted(deed);
        let mut made = None;
        match deed {
            Deed::Write(file, page, value) => self.write(cx, by, file, (page, value)),
            Deed::WriteSync(file, page, value) => {
                self.write(cx, by, file, (page, value));
                self.commit(file);
            }
            Deed::Flush(file, run, _) => {
                run.pages().for_each(|at| self.write(cx, by, file, at));
            }
            Deed::Append(file, value) => {
                self.objects[file.0 as usize].appends += 1;
                self.write(cx, by, file, (PAGES - 1, value));
            }
            Deed::Truncate(file, value) => {
                (0..PAGES).for_each(|page| self.write(cx, by, file, (page, value)));
            }
            Deed::Chmod(object) => self.changed(cx, object),
            Deed::Create(dir, name) => {
                if denoted.named.is_some() {
                    return Err(EEXIST);
                }
                let file = Obj(self.objects.len() as u16);
                self.objects.push(Object::default());
                self.link(cx, file, (dir, name));
                made = Some(file);
            }
            Deed::Unlink(dir, name) => {
                let file = denoted.named.ok_or(ENOENT)?;
                self.unlink(cx, file, (dir, name));
            }
            Deed::Rename(from, to) => {
                let file = denoted.named.ok_or(ENOENT)?;
                if denoted.replaced != Some(file) {
                    if let Some(replaced) = denoted.replaced {
                        self.unlink(cx, replaced, to);
                    }
                    self.unlink(cx, file, from);
                    self.link(cx, file, to);
                }
            }
            Deed::Link(object, (dir, name)) => {
                if self.name(dir, name).is_some() {
                    return Err(EEXIST);
                }
                if !self.is_linked(object) {
                    return Err(ENOENT);
                }
                self.link(cx, object, (dir, name));
                made = Some(object);
            }
        }
        let item = Item::Attrs(deed.touches().first().copied().unwrap_or(DIRS[0]));
        let idle = matches!(deed, Deed::Rename(..)) && denoted.named == denoted.replaced;
        match by.again {
            _ if idle => cx.judge.happens_idly(by.id),
            true => cx.judge.happens_again(by.id, Some(item)),
            false => cx.judge.happens(by.id, Some(item)),
        }
        Ok(made)
    }

    fn changed(&mut self, cx: &mut Cx, object: Obj) {
        self.ticks += 1;
        let known = &mut self.objects[object.0 as usize];
        known.attrs = self.ticks;
        if known.pages == known.durable.pages {
            known.durable.attrs = self.ticks;
        }
        cx.judge.attrs_stored(cx.now, object, self.ticks);
    }

    /// Makes a file durable.
    pub fn commit(&mut self, file: Obj) {
        let known = &mut self.objects[file.0 as usize];
        known.durable = Durable {
            pages: known.pages,
            attrs: known.attrs,
        };
    }

    /// The host crashes: pages that no commit covers are as they were.
    pub fn crash(&mut self, cx: &mut Cx) {
        for (number, known) in self.objects.iter_mut().enumerate() {
            let file = Obj(number as u16);
            let durable = known.durable;
            if known.pages != durable.pages {
                known.attrs = durable.attrs;
            }
            known.pages = durable.pages;
            for (page, value) in (0..).zip(durable.pages) {
                cx.judge.found(cx.now, Item::Page(file, page), value);
            }
            cx.judge.found(cx.now, Item::Attrs(file), known.attrs);
        }
    }

    fn write(&mut self, cx: &mut Cx, by: By, file: Obj, (page, value): (u8, u64)) {
        self.objects[file.0 as usize].pages[page as usize] = value;
        let item = Item::Page(file, page);
        cx.judge.stored(cx.now, item, value, by.session);
        cx.trace(Some(file), || format!("store: page {page} is {value}"));
        self.changed(cx, file);
    }

    fn set_name(&mut self, cx: &mut Cx, (dir, name): (Obj, u8), to: Option<Obj>) {
        let object = &mut self.objects[dir.0 as usize];
        object.names[name as usize] = to;
        object.listing += 1;
        let listing = object.listing;
        let value = to.map_or(0, |o| o.0.into());
        cx.judge.effect(cx.now, Item::Name(dir, name), value);
        cx.judge.effect(cx.now, Item::Listing(dir), listing);
        cx.trace(Some(dir), || format!("store: name {name} is {to:?}"));
        self.changed(cx, dir);
    }

    fn link(&mut self, cx: &mut Cx, file: Obj, at: (Obj, u8)) {
        self.objects[file.0 as usize].links += 1;
        self.set_name(cx, at, Some(file));
        self.changed(cx, file);
    }

    fn unlink(&mut self, cx: &mut Cx, file: Obj, at: (Obj, u8)) {
        self.objects[file.0 as usize].links -= 1;
        self.set_name(cx, at, None);
        self.changed(cx, file);
    }
}
