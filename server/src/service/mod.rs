//! What a request means: its names, rights and opens, the leases it needs, the store call it becomes.

pub mod access;
pub mod changes;
mod inputs;
mod listing;
mod lookup;
mod ops;
pub mod pages;
pub mod reads;
mod replies;
pub mod rights;
mod told;

use crate::account::FilePlace;
use crate::records::Client;
use crate::server::Server;
use crate::session::{Origin, Session, Syncing};
use access::O_EXCL;
use leasefs_protocol::answer::{Created, Opened};
use leasefs_protocol::{Attr, Caller, Handle, OpenId, OpenToken, Refusal};
use leasefs_store::{Identity, OpenFile};
use std::fmt;
use std::sync::Arc;

/// On whose behalf a request is served.
pub struct Call {
    /// The server.
    pub server: Arc<Server>,
    /// The session.
    pub session: Arc<Session>,
    /// The session's client, as it was when the request came.
    pub client: Arc<Client>,
    /// The caller at the client.
    pub caller: Caller,
    /// Where an unnumbered request came from: asked again, it runs again.
    pub origin: Option<Origin>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({}, {:?})", self.session.id, self.caller)
    }
}

impl Call {
    /// Refuses what has been moved out of the client's border.
    fn within_border<'a>(
        &self,
        objects: impl IntoIterator<Item = &'a Handle>,
    ) -> Result<(), Refusal> {
        let Some(border) = self.session.border() else {
            return Ok(());
        };
        let mut objects = objects.into_iter();
        objects.try_for_each(|object| border.encloses(object))
    }

    /// Whose rights the request has on the host.
    fn identity(&self) -> Result<Identity, Refusal> {
        self.server
            .store
            .identity(self.client.identity, &self.caller)
    }

    /// The object's attributes, as they are between two changes.
    async fn attr(&self, object: &Handle) -> Result<Attr, Refusal> {
        let _latch = self.server.latches.read(object).await;
        self.server.store.getattr(object)
    }

    /// Something is to be made durable, once for all copies of the request.
    async fn syncs(&self) -> Result<Syncing<'_>, Refusal> {
        let request = self.origin.map(|origin| origin.request);
        self.session.syncs.begin(request).await
    }

    /// Opens an object that exists.
    fn open(&self, object: &Handle, flags: u32) -> Result<Opened, Refusal> {
        let place = self.session.opens.account().open()?;
        let store = &self.server.store;
        let (file, attr) = store.open_object(&self.identity()?, object, flags)?;
        let (open, token) = self.add_open(file, place)?;
        Ok(Opened { open, token, attr })
    }

    /// Opens what a name denotes that was to be created.
    fn open_existing(&self, handle: Handle, flags: u32) -> Result<Created, Refusal> {
        if flags & O_EXCL != 0 {
            return Err(Refusal::Host(libc::EEXIST as u16));
        }
        let flags = flags & !(libc::O_CREAT as u32);
        let Opened { open, token, attr } = self.open(&handle, flags)?;
        Ok(Created {
            handle,
            attr,
            open,
            token,
        })
    }

    /// Numbers an open and proves it.
    fn add_open(
        &self,
        file: Arc<OpenFile>,
        place: FilePlace,
    ) -> Result<(OpenId, OpenToken), Refusal> {
        let opens = &self.session.opens;
        let open = opens.add(Arc::clone(&file), place, self.origin)?;
        let holder = self.session.holder();
        let token = self.server.store.mint(&file, open, &holder);
        Ok((open, token))
    }
}
