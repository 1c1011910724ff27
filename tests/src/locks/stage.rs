//! Where processes lock.

use super::locker::Locker;
use super::sys::Kind;
use crate::mounted::{Sandbox, World, WorldOptions};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes the views one directory of the local file system, or one mount.
const LOCAL: &str = "LEASEFS_LOCKS_LOCAL";
const ONE_MOUNT: &str = "LEASEFS_LOCKS_ONE_MOUNT";

/// Several views of one directory.
pub struct Stage {
    /// The mounts, if the views are mounts.
    pub world: Option<World>,
    local: Option<Sandbox>,
    dirs: Vec<PathBuf>,
}

impl Stage {
    /// As many mounts; or what the environment says.
    ///
    /// # Panics
    /// As [`World::start`].
    pub fn start(name: &str, views: usize) -> Self {
        Self::with(name, &WorldOptions::mounts(views))
    }

    /// The same with these options, where they are mounts.
    ///
    /// # Panics
    /// As [`World::start`].
    pub fn with(name: &str, options: &WorldOptions) -> Self {
        if env::var_os(LOCAL).is_some() {
            Self::on_local(name, options.mounts)
        } else if env::var_os(ONE_MOUNT).is_some() {
            Self::on_one_mount(name, options.mounts, options)
        } else {
            Self::on_mounts(name, options)
        }
    }

    fn on_mounts(name: &str, options: &WorldOptions) -> Self {
        let world = World::start(name, options);
        let dirs = world.mounts.iter().map(|mount| mount.dir.clone());
        Self {
            dirs: dirs.collect(),
            world: Some(world),
            local: None,
        }
    }

    /// One mount under as many names.
    ///
    /// # Panics
    /// As [`World::start`].
    pub fn on_one_mount(name: &str, views: usize, options: &WorldOptions) -> Self {
        let mut options = options.clone();
        options.mounts = 1;
        let mut stage = Self::on_mounts(name, &options);
        stage.dirs = vec![stage.dirs[0].clone(); views];
        stage
    }

    /// Whether the views of this run are mounts apart; faults that only such have are left out else.
    pub fn has_mounts_apart() -> bool {
        env::var_os(LOCAL).is_none() && env::var_os(ONE_MOUNT).is_none()
    }

    /// One local directory under as many names.
    ///
    /// # Panics
    /// When there can't be one.
    pub fn on_local(name: &str, views: usize) -> Self {
        let sandbox = Sandbox::new(&format!("local-{name}"));
        Self {
            dirs: vec![sandbox.folder("export"); views],
            world: None,
            local: Some(sandbox),
        }
    }

    /// Whether all views are one local directory.
    pub fn is_local(&self) -> bool {
        self.world.is_none()
    }

    /// Whether the views are mounts apart.
    pub fn is_apart(&self) -> bool {
        self.world
            .as_ref()
            .is_some_and(|world| world.mounts.len() == self.dirs.len())
    }

    /// The mounts, for faults that only mounts have.
    ///
    /// # Panics
    /// If the views are none.
    pub fn world(&mut self) -> &mut World {
        self.world.as_mut().expect("the views are mounts")
    }

    /// How many views there are.
    pub fn views(&self) -> usize {
        self.dirs.len()
    }

    /// Whether what is locked in one is known by its process to whom looks by way of the other.
    pub fn share_processes(&self, one: usize, other: usize) -> bool {
        self.dirs[one] == self.dirs[other]
    }

    /// A view.
    pub fn dir(&self, view: usize) -> &Path {
        &self.dirs[view]
    }

    /// A name in a view.
    pub fn path(&self, view: usize, name: &str) -> PathBuf {
        self.dirs[view].join(name)
    }

    /// The directory behind the views.
    pub fn export(&self) -> &Path {
        match &self.world {
            Some(world) => &world.server.export,
            None => &self.dirs[0],
        }
    }

    /// Makes a file of so many zeroes, by way of a view.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn make(&self, name: &str, size: usize) {
        fs::write(self.path(0, name), vec![0; size]).expect("a file");
    }

    /// A process that works in a view.
    pub fn locker(&self, view: usize) -> Locker {
        Locker::start(format!("a process on mount {view}"), self.dir(view))
    }

    /// A process that works in a view, with this file open in slot 0.
    ///
    /// # Panics
    /// When it can't be opened.
    pub fn locker_on(&self, view: usize, name: &str) -> Locker {
        let mut locker = self.locker(view);
        locker.open(0, &self.path(view, name));
        locker
    }

    /// One of a view that has a file for each kind of lock open, in the slots 0, 1 and 2, named after
    /// the kind ([`Stage::make_for_each_kind`]).
    ///
    /// # Panics
    /// When they can't be opened.
    pub fn locker_of_each_kind(&self, view: usize) -> Locker {
        let mut locker = self.locker(view);
        for (slot, kind) in (0..).zip(Kind::ALL) {
            locker.open(slot, &self.path(view, &kind.to_string()));
        }
        locker
    }

    /// A file of 8 zeroes for each kind of lock.
    ///
    /// # Panics
    /// When they can't be made.
    pub fn make_for_each_kind(&self) {
        for kind in Kind::ALL {
            self.make(&kind.to_string(), 8);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let left = self.local.as_ref().map(Sandbox::clean).unwrap_or_default();
        if !left.is_empty() && !std::thread::panicking() {
            panic!("left behind: {}", left.join("; "));
        }
    }
}

/// A number that the environment may change.
///
/// # Panics
/// If it is none there.
pub fn count_from_env(name: &str, otherwise: usize) -> usize {
    env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}
