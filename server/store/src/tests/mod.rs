//! Tests on real directories of the host. They need root, as the server does to take on rights.

mod attributes;
mod confinement;
mod content;
mod identities;
mod naming;
mod opening;
mod orphans;
mod unprivileged;

use crate::{Created, Holder, Identity, Kind, MacKey, Node, Options, Store};
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{Caller, ExportId, Handle, KeyHash, Name, OpenId, Refusal, SessionId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) const ALICE: u32 = 41001;
pub(super) const BOB: u32 = 41002;

/// Of an open that a token proves.
pub(super) const NUMBER: OpenId = OpenId(7);

pub(super) fn holder(session: SessionId) -> Holder {
    Holder {
        client: KeyHash([3; 32]),
        session,
        birth: [5; 16],
    }
}

/// A scratch folder, removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasefs-store-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("export")).expect("scratch folder");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn export(&self) -> PathBuf {
        self.0.join("export")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// An export in a scratch folder.
pub(super) struct World {
    pub scratch: Scratch,
    pub store: Store,
}

pub(super) fn open_store(scratch: &Scratch) -> Store {
    let key = MacKey::new([7; 32]);
    Store::open(
        &scratch.export(),
        &key,
        ExportId([1; 8]),
        Options::default(),
    )
    .expect("store")
}

pub(super) fn world() -> World {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests take on other users' rights: run them as root"
    );
    let scratch = Scratch::new();
    let store = open_store(&scratch);
    World { scratch, store }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("name")
}

pub(super) fn errno(errno: i32) -> Refusal {
    Refusal::Host(u16::try_from(errno).expect("errno"))
}

pub(super) fn caller(uid: u32) -> Caller {
    Caller {
        uid,
        gid: uid,
        groups: Vec::new(),
    }
}

impl World {
    pub fn root(&self) -> Handle {
        self.store.root().expect("root").handle
    }

    pub fn who(&self, uid: u32) -> Identity {
        self.store
            .identity(IdentityPolicy::Trust, &caller(uid))
            .expect("identity")
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.scratch.export().join(below)
    }

    pub fn look(&self, at: &str) -> Handle {
        let root = self.root();
        let who = self.who(0);
        at.split('/').fold(root, |dir, part| {
            let node = self.store.lookup(&who, &dir, &name(part));
            node.expect("lookup").expect("exists").handle
        })
    }

    pub fn mkdir(&self, dir: &Handle, text: &str) -> Node {
        self.store
            .make(&self.who(0), dir, &name(text), 0o777, 0, Kind::Directory)
            .expect("mkdir")
    }

    pub fn create(&self, uid: u32, text: &str, mode: u32) -> Created {
        let flags = (libc::O_RDWR | libc::O_EXCL) as u32;
        self.store
            .create(&self.who(uid), &self.root(), &name(text), mode, 0, flags)
            .expect("create")
    }

    /// Lets everybody make names in the export's root.
    pub fn open_to_all(&self) {
        use std::os::unix::fs::PermissionsExt;
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(self.scratch.export(), all).expect("chmod");
    }
}
