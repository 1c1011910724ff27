//! What a change asks of the host.

use super::access::{O_EXCL, Targets};
use super::inputs::Inputs;
use super::{Call, reads};
use crate::faults::within_quota;
use leasefs_lease::server::Touch;
use leasefs_protocol::request::{Durability, Make, WriteKind};
use leasefs_protocol::{Attr, Handle, Name, Refusal, Request, Response};
use leasefs_store::{Identity, Kind, Node};

/// What the host said to a change.
pub struct Done {
    /// The answer.
    pub response: Response,
    /// Attributes after the change, as far as the host told them along the way.
    pub known: Vec<(Handle, Attr)>,
}

/// A change whose turn has come.
pub struct Order<'a> {
    /// On whose behalf.
    pub call: &'a Call,
    /// What is asked.
    pub request: &'a Request,
    /// Its data.
    pub payload: &'a [u8],
    /// Its arguments.
    pub inputs: &'a Inputs,
}

impl Order<'_> {
    /// Reads are kept out while the host changes the objects, but not while it waits for a disk.
    pub async fn run(&self, touches: &[Touch], targets: &Targets) -> Result<Done, Refusal> {
        let server = &self.call.server;
        let done = {
            let objects: Vec<Handle> = touches.iter().map(|touch| touch.object).collect();
            let _latches = server.latches.change(&objects).await;
            self.ask_host(targets)?
        };
        if let (Request::Write { durability, .. }, Some(open)) = (&self.request, &self.inputs.open)
            && *durability != Durability::None
        {
            server.store.commit(open, *durability)?;
        }
        Ok(done)
    }

    fn ask_host(&self, targets: &Targets) -> Result<Done, Refusal> {
        match &self.request {
            Request::Write { .. } | Request::Fallocate { .. } | Request::CopyRange { .. } => {
                self.change_data()
            }
            Request::Make { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Create { .. } => self.change_names(targets),
            _ => self.change_attributes(),
        }
    }

    fn change_data(&self) -> Result<Done, Refusal> {
        let store = &self.call.server.store;
        let open = self.inputs.open.as_deref().ok_or(Refusal::BadOpen)?;
        let response = match &self.request {
            Request::Write {
                at,
                kill_priv,
                kind,
                ..
            } => {
                let data = self.payload;
                within_quota(data.len())?;
                let written = match kind {
                    WriteKind::Flush {
                        written: Some(when),
                        ..
                    } => store.write_late(open, *at, data, *kill_priv, *when)?,
                    _ => store.write(open, *at, data, *kill_priv)?,
                };
                Response::Written {
                    len: written.len,
                    offset: written.offset,
                }
            }
            Request::Fallocate {
                mode, offset, len, ..
            } => {
                store.fallocate(open, *mode, *offset, *len)?;
                Response::Done
            }
            Request::CopyRange {
                from_offset,
                to_offset,
                len,
                ..
            } => {
                let from = self.inputs.from.as_deref().ok_or(Refusal::BadOpen)?;
                let len = store.copy_range(from, *from_offset, open, *to_offset, *len)?;
                Response::Written {
                    len,
                    offset: *to_offset,
                }
            }
            _ => return Err(Refusal::Invalid),
        };
        Ok(Done::plain(response))
    }

    fn change_names(&self, targets: &Targets) -> Result<Done, Refusal> {
        let store = &self.call.server.store;
        let who = self.call.identity()?;
        let name = self.inputs.names.name.as_ref().ok_or(Refusal::Invalid)?;
        self.prepare_shelter(targets);
        match &self.request {
            Request::Make {
                dir,
                mode,
                umask,
                make,
                ..
            } => {
                let kind = kind_of(make);
                store.make(&who, dir, name, *mode, *umask, kind).map(made)
            }
            Request::Link { object, dir, .. } => store.link(&who, object, dir, name).map(made),
            Request::Unlink { dir, .. } => store
                .unlink(&who, dir, name)
                .map(|()| Done::plain(Response::Done)),
            Request::Rmdir { dir, .. } => store
                .rmdir(&who, dir, name)
                .map(|()| Done::plain(Response::Done)),
            Request::Rename {
                dir,
                new_dir,
                flags,
                ..
            } => {
                let new_name = self
                    .inputs
                    .names
                    .new_name
                    .as_ref()
                    .ok_or(Refusal::Invalid)?;
                store.rename(&who, (dir, name), (new_dir, new_name), *flags)?;
                Ok(Done::plain(Response::Done))
            }
            Request::Create { dir, flags, .. } => match targets.named {
                Some(handle) => opened(handle, open_existing(self.call, handle, *flags)?),
                None => self.create(&who, dir, name),
            },
            _ => Err(Refusal::Invalid),
        }
    }

    fn create(&self, who: &Identity, dir: &Handle, name: &Name) -> Result<Done, Refusal> {
        let Request::Create {
            mode, umask, flags, ..
        } = self.request
        else {
            return Err(Refusal::Invalid);
        };
        let store = &self.call.server.store;
        let place = self.call.session.opens.account().open()?;
        let created = store.create(who, dir, name, *mode, *umask, *flags)?;
        let Node { handle, attr } = created.node;
        let (open, token) = self.call.add_open(created.open, place)?;
        Ok(Done {
            known: vec![(handle, attr)],
            response: Response::Created {
                handle,
                attr,
                open,
                token,
            },
        })
    }

    /// Those who had the victim open may have closed it for this change's sake.
    fn prepare_shelter(&self, targets: &Targets) {
        let store = &self.call.server.store;
        if targets.shelter.is_some()
            && let Some(victim) = targets.victim(self.request)
            && store.needs_shelter(&victim).is_some()
        {
            store.make_shelter();
        }
    }

    fn change_attributes(&self) -> Result<Done, Refusal> {
        let (call, store) = (self.call, &self.call.server.store);
        match &self.request {
            Request::SetAttr { object, set, .. } => {
                let open = self.inputs.open.as_deref();
                let attr = store.setattr(&call.identity()?, object, open, set)?;
                Ok(Done {
                    known: vec![(*object, attr)],
                    response: Response::Attr(attr),
                })
            }
            Request::Open { object, flags } => opened(*object, reads::open(call, object, *flags)?),
            Request::SetXattr {
                object,
                name,
                flags,
            } => {
                let value = self.payload;
                store.setxattr(&call.identity()?, object, &name.0, value, *flags)?;
                Ok(Done::plain(Response::Done))
            }
            Request::RemoveXattr { object, name } => {
                store.removexattr(&call.identity()?, object, &name.0)?;
                Ok(Done::plain(Response::Done))
            }
            _ => Err(Refusal::Invalid),
        }
    }
}

impl Done {
    fn plain(response: Response) -> Self {
        Self {
            response,
            known: Vec::new(),
        }
    }
}

fn made(node: Node) -> Done {
    let Node { handle, attr } = node;
    Done {
        response: Response::Object { handle, attr },
        known: vec![(handle, attr)],
    }
}

fn opened(handle: Handle, response: Response) -> Result<Done, Refusal> {
    let known = match &response {
        Response::Opened { attr, .. } | Response::Created { attr, .. } => vec![(handle, *attr)],
        _ => Vec::new(),
    };
    Ok(Done { response, known })
}

/// Opens what a name denotes that was to be created.
pub fn open_existing(call: &Call, handle: Handle, flags: u32) -> Result<Response, Refusal> {
    if flags & O_EXCL != 0 {
        return Err(Refusal::Host(libc::EEXIST as u16));
    }
    match reads::open(call, &handle, flags & !(libc::O_CREAT as u32))? {
        Response::Opened { open, token, attr } => Ok(Response::Created {
            handle,
            attr,
            open,
            token,
        }),
        other => Ok(other),
    }
}

fn kind_of(make: &Make) -> Kind<'_> {
    match make {
        Make::Directory => Kind::Directory,
        Make::Node { rdev } => Kind::Node { rdev: *rdev },
        Make::Symlink { target } => Kind::Symlink { target: &target.0 },
    }
}
