//! The state directory itself: where it is, that it is private, and that one process has it.

use super::error::StateError;
use super::files;
use super::registry::{Registry, Role, wall_clock};
use leasefs_host::files::{make_folder, replace};
use leasefs_host::{mounts, private};
use leasefs_protocol::ExportId;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_store::MacKey;
use leasefs_transport::{EndpointSecret, Identity};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SECRET: usize = 32;

/// Where a server's state is: the folder `server` of the state directory, so that a client may have
/// the same state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    state: PathBuf,
    own: PathBuf,
}

/// A state directory that this process has for itself.
#[derive(Debug)]
pub struct StateDir {
    location: Location,
    lock: OwnedFd,
}

/// How the server was run last: what other commands need when it isn't running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Where tickets say it is, as `HOST:PORT`.
    pub advertise: String,
    /// Whose rights clients have.
    pub identity: Policy,
}

/// [`IdentityPolicy`] in words, as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Policy {
    /// All callers are one user
    Squash,
    /// Callers' own ids, but root is nobody
    RootSquash,
    /// As root_squash, but for clients enrolled with --trust: callers' own ids, root's too
    Trust,
}

impl Policy {
    /// Whose rights clients have that nobody has said to trust.
    pub fn untrusted(self) -> IdentityPolicy {
        match self {
            Self::Squash => IdentityPolicy::Squash,
            Self::RootSquash | Self::Trust => IdentityPolicy::RootSquash,
        }
    }

    /// Refuses a role that a server can't give.
    ///
    /// # Errors
    /// A message for people.
    pub fn can_give(role: &Role) -> Result<(), String> {
        let own_rights = role.trust || role.acts_as.is_some();
        match own_rights && !rustix::process::geteuid().is_root() {
            true => Err(
                "only a server that runs as root can give a client other rights than its own"
                    .to_owned(),
            ),
            false => Ok(()),
        }
    }
}

/// The export that the state belongs to. Another directory gets another id, so that no handle of
/// the one is good for the other.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Export {
    id: String,
    path: PathBuf,
    ino: u64,
}

impl Location {
    /// The state directory at `path`, or this user's.
    ///
    /// # Errors
    /// [`StateError::NoPlace`] if there is none.
    pub fn find(path: Option<&Path>) -> Result<Self, StateError> {
        let state = match path {
            Some(path) => path.to_owned(),
            None => leasefs_host::paths::state()?,
        };
        let state = std::path::absolute(&state).map_err(StateError::file(&state))?;
        let own = state.join("server");
        Ok(Self { state, own })
    }

    /// Its path, as named on the command line.
    pub fn path(&self) -> &Path {
        &self.state
    }

    /// The folder that is the server's.
    pub fn own(&self) -> &Path {
        &self.own
    }

    /// Refuses a place inside what is to be served, and one on a leasefs mount.
    ///
    /// # Errors
    /// [`StateError::InsideExport`], [`StateError::OnLeasefs`], or the kernel's.
    pub fn must_be_outside(&self, export: &Path) -> Result<(), StateError> {
        let object = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
        let served = object(export).map_err(StateError::file(export))?;
        // The part of the path that exists; the rest will be made below it.
        let existing = self
            .own
            .ancestors()
            .find_map(|path| path.canonicalize().ok());
        let Some(existing) = existing else {
            return Ok(());
        };
        for above in existing.ancestors() {
            if object(above).map_err(StateError::file(above))? == served {
                return Err(StateError::InsideExport {
                    state: self.state.clone(),
                    export: export.to_owned(),
                });
            }
        }
        match is_leasefs(&existing) {
            true => Err(StateError::OnLeasefs(self.state.clone())),
            false => Ok(()),
        }
    }

    /// Takes the directory for this process, making it if there is none.
    ///
    /// # Errors
    /// [`StateError::InUse`] if another process has it, or the kernel's.
    pub fn take(self) -> Result<StateDir, StateError> {
        let failed = |source| StateError::File {
            path: self.own.clone(),
            source,
        };
        make_folder(&self.own).map_err(failed)?;
        let lock = private::own_folder_within(&self.state, &self.own).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StateError::InUse(self.state)),
            Err(e) => return Err(failed(e.into())),
        }
        Ok(StateDir {
            location: self,
            lock,
        })
    }
}

fn is_leasefs(path: &Path) -> bool {
    let table = mounts::table().unwrap_or_default();
    mounts::of(&table, path).is_some_and(|mount| mount.is_leasefs)
}

impl StateDir {
    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// A descriptor of the server's folder.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.location.own.join(name)
    }

    /// The files in it that are named as `file` but for the version at their end, or have none.
    pub(super) fn other_versions_of(&self, file: &Path) -> Result<Vec<PathBuf>, StateError> {
        let own = &self.location.own;
        let stem = file.file_stem();
        let is_one = |other: &PathBuf| {
            let version = other.extension().map(OsStr::to_string_lossy);
            other != file
                && other.file_stem() == stem
                && version.is_none_or(|version| version.parse::<u32>().is_ok())
        };
        let mut all = paths_in(own).map_err(StateError::file(own))?;
        all.retain(is_one);
        Ok(all)
    }

    /// The server's key, made on first use.
    ///
    /// # Errors
    /// If it can't be read or made.
    pub fn identity(&self) -> Result<Identity, StateError> {
        Ok(Identity::load_or_create(&self.file("server.key"))?)
    }

    /// Clients and tickets.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn registry(&self) -> Result<Registry, StateError> {
        let (list, spent) = (self.file("clients.json"), self.file("spent"));
        Registry::open(&list, &spent, wall_clock())
    }

    /// How the server was run last; `None` if it never was.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn served(&self) -> Result<Option<Served>, StateError> {
        files::read_json(&self.file("served.json"))
    }

    /// Notes how the server is run.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn note_served(&self, served: &Served) -> Result<(), StateError> {
        let path = self.file("served.json");
        files::write_json(&path, served).map_err(StateError::file(&path))
    }

    /// The secret of the server's connections and the key of its handles, made on first use.
    ///
    /// # Errors
    /// If they can't be read or made.
    pub fn secrets(&self) -> Result<(EndpointSecret, MacKey), StateError> {
        let path = self.file("secrets");
        let content = match files::read(&path)? {
            Some(content) => content,
            None => {
                let fresh = files::random::<{ 2 * SECRET }>()?.to_vec();
                replace(&path, &fresh).map_err(StateError::file(&path))?;
                fresh
            }
        };
        match content.as_chunks::<SECRET>() {
            ([endpoint, mac], []) => Ok((EndpointSecret::new(*endpoint), MacKey::new(*mac))),
            _ => Err(StateError::Damaged {
                path,
                why: format!("expected {} bytes, found {}", 2 * SECRET, content.len()),
            }),
        }
    }

    /// The id of the export of a directory.
    ///
    /// # Errors
    /// [`StateError::Replaced`] if another directory is in the place of the one that had it; or it can't be read or written.
    pub fn export_id(&self, export: &Path) -> Result<ExportId, StateError> {
        let failed = || StateError::file(export);
        let real = export.canonicalize().map_err(failed())?;
        let ino = fs::metadata(&real).map_err(failed())?.ino();
        let path = self.file("export.json");
        let known: Option<Export> = files::read_json(&path)?;
        match known {
            Some(known) if known.path != real => tracing::warn!(
                before = %known.path.display(), now = %real.display(),
                "another directory is served than before: what clients have mounted is stale, and has to be mounted anew"
            ),
            Some(known) if known.ino != ino => {
                let (export, record) = (real, path);
                return Err(StateError::Replaced { export, record });
            }
            Some(known) => {
                if let Ok(id) = known.id.parse() {
                    return Ok(id);
                }
            }
            None => (),
        }
        let id = ExportId(files::random()?);
        let export = Export {
            id: id.to_string(),
            path: real,
            ino,
        };
        files::write_json(&path, &export).map_err(StateError::file(&path))?;
        Ok(id)
    }
}

fn paths_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    #[test]
    fn the_directory_is_private_and_one_process_has_it() {
        let scratch = Scratch::new();
        let place = Location::find(Some(&scratch.path("state"))).expect("place");
        let taken = place.clone().take().expect("take");
        let mode = fs::metadata(place.own()).expect("made").mode();
        assert_eq!(mode & 0o7777, 0o700);
        assert!(matches!(place.clone().take(), Err(StateError::InUse(_))));
        taken.secrets().expect("secrets");
        let mode = fs::metadata(taken.file("secrets")).expect("made").mode();
        assert_eq!(mode & 0o7777, 0o600);
        drop(taken);
        assert!(place.take().is_ok());
    }

    #[test]
    fn a_state_directory_inside_the_export_is_refused_before_it_is_made() {
        let scratch = Scratch::new();
        let inside = scratch.path("deep/state");
        let place = Location::find(Some(&inside)).expect("place");
        let refused = place.must_be_outside(&scratch.path("."));
        assert!(matches!(refused, Err(StateError::InsideExport { .. })));
        assert!(!inside.exists());
        fs::create_dir(scratch.path("export")).expect("mkdir");
        assert!(place.must_be_outside(&scratch.path("export")).is_ok());
    }

    /// A state, and beside it directories "a" and "b" to be served.
    fn beside_two_directories() -> (Scratch, StateDir) {
        let scratch = Scratch::new();
        for name in ["a", "b"] {
            fs::create_dir(scratch.path(name)).expect("mkdir");
        }
        let place = Location::find(Some(&scratch.path("state"))).expect("place");
        (scratch, place.take().expect("take"))
    }

    #[test]
    fn an_export_keeps_its_id_and_another_directory_gets_another() {
        let (scratch, state) = beside_two_directories();
        let id = |name| state.export_id(&scratch.path(name)).expect("id");
        let a = id("a");
        assert_eq!(id("a"), a);
        assert_ne!(id("b"), a);
    }

    /// As an empty mount point, where a disk is not mounted.
    #[test]
    fn another_directory_in_the_place_of_the_one_that_was_served_is_refused() {
        let (scratch, state) = beside_two_directories();
        let id = || state.export_id(&scratch.path("a"));
        let first = id().expect("id");
        let move_to = |from: &str, to: &str| fs::rename(scratch.path(from), scratch.path(to));
        move_to("a", "c").and(move_to("b", "a")).expect("moved");
        assert!(matches!(id(), Err(StateError::Replaced { .. })));
        move_to("a", "b").and(move_to("c", "a")).expect("moved");
        assert_eq!(id().expect("id"), first);
    }
}
