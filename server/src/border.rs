//! A client that is confined to a directory, seen from the wire: its handles are exchanged at the
//! edge, so that everything behind it has one handle for an object.

use leasefs_protocol::{Handle, KeyHash, Recall, Refusal, Release, Reply, RequestFrame, Scope};
use leasefs_store::Store;
use std::fmt;
use std::sync::Arc;

/// The border of one client.
pub struct Border {
    store: Arc<Store>,
    border: leasefs_store::Border,
}

impl fmt::Debug for Border {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.border.fmt(f)
    }
}

impl Border {
    /// The border of the client with this key at this directory.
    ///
    /// # Errors
    /// As [`Store::border`].
    pub fn new(store: &Arc<Store>, dir: Handle, key: KeyHash) -> Result<Self, Refusal> {
        Ok(Self {
            border: store.border(dir, &key.0)?,
            store: Arc::clone(store),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Handle {
        self.border.dir()
    }

    /// Refuses a directory that has been moved out. May block.
    ///
    /// # Errors
    /// As [`Store::is_within`].
    pub fn encloses(&self, object: &Handle) -> Result<(), Refusal> {
        self.store.is_within(&self.border, object)
    }

    /// What the client calls this object.
    pub fn outward(&self, handle: &Handle) -> Handle {
        self.store.outward(&self.border, handle)
    }

    /// What the client calls so; for what it was never given, a handle of nothing.
    pub fn inward(&self, form: &Handle) -> Handle {
        let handle = self.store.inward(&self.border, form);
        handle.unwrap_or_else(|_| Handle::new(b"").expect("shorter than any bound"))
    }

    /// Takes in a request.
    pub fn take_request(&self, frame: &mut RequestFrame) {
        let request = &mut frame.request;
        request.each_handle(|handle| *handle = self.inward(handle));
    }

    /// Takes in leases given back.
    pub fn take_releases(&self, releases: &mut [Release]) {
        for release in releases {
            release.object = self.inward(&release.object);
        }
    }

    /// Gives out a reply.
    pub fn give_reply(&self, reply: &mut Reply) {
        reply.each_handle(|handle| *handle = self.outward(handle));
    }

    /// Gives out a recall.
    pub fn give_recall(&self, recall: &mut Recall) {
        match &mut recall.scope {
            Scope::Object { object, .. } => *object = self.outward(object),
            Scope::Everything => {}
        }
    }
}
