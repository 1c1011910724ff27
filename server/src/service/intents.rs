//! What a change whose turn has come is about to do, given what it finds.

use super::Call;
use super::access::Targets;
use super::host::Order;
use crate::intent::{Intent, OpenAs, Place};
use leasefs_protocol::request::WriteAt;
use leasefs_protocol::{Handle, Name, RawName, Refusal, Request};

const XATTR_CREATE: u32 = libc::XATTR_CREATE as u32;
const NOREPLACE: u32 = libc::RENAME_NOREPLACE;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;
const COLLAPSE: u32 = libc::FALLOC_FL_COLLAPSE_RANGE as u32;
const INSERT: u32 = libc::FALLOC_FL_INSERT_RANGE as u32;

impl Order<'_> {
    /// The change's intent; `None` if it must fail, or succeed, without changing anything.
    ///
    /// # Errors
    /// If the state before can't be had; the change must not run then.
    pub fn intent(&self, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        match self.request {
            Request::Write { .. } | Request::Fallocate { .. } | Request::CopyRange { .. } => {
                self.of_data(targets)
            }
            Request::SetXattr { .. } | Request::RemoveXattr { .. } => Ok(self.of_xattr()),
            Request::SetAttr { object, .. } | Request::Open { object, .. } => {
                Ok(repeatable([*object]))
            }
            _ => Ok(self.of_names(targets)),
        }
    }

    fn of_data(&self, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let store = &self.call.server.store;
        let object = targets.opened.ok_or(Refusal::BadOpen)?;
        Ok(match self.request {
            Request::Write {
                at: WriteAt::Append,
                durability,
                ..
            } => Some(Intent::Append {
                object,
                size: store.getattr(&object)?.size,
                len: self.payload.len() as u64,
                durability: *durability,
            }),
            Request::Fallocate { mode, len, .. } if mode & (COLLAPSE | INSERT) != 0 => {
                let size = store.getattr(&object)?.size;
                let new_size = match mode & COLLAPSE != 0 {
                    true => size.checked_sub(*len),
                    false => size.checked_add(*len),
                };
                new_size.map(|new_size| Intent::Resize {
                    object,
                    size,
                    new_size,
                })
            }
            _ => repeatable([object].into_iter().chain(targets.copied)),
        })
    }

    fn of_xattr(&self) -> Option<Intent> {
        let has = |object: &Handle, name: &RawName| {
            let store = &self.call.server.store;
            store.has_xattr(object, &name.0)
        };
        match self.request {
            Request::SetXattr {
                object,
                name,
                flags,
            } if flags & XATTR_CREATE != 0 => match has(object, name) {
                Ok(false) => Some(Intent::AddXattr {
                    object: *object,
                    name: name.clone(),
                }),
                Ok(true) => None,
                Err(_) => repeatable([*object]),
            },
            Request::SetXattr { object, .. } => repeatable([*object]),
            Request::RemoveXattr { object, name } => match has(object, name) {
                Ok(true) => Some(Intent::RemoveXattr {
                    object: *object,
                    name: name.clone(),
                }),
                Ok(false) => None,
                Err(_) => repeatable([*object]),
            },
            _ => None,
        }
    }

    fn of_names(&self, targets: &Targets) -> Option<Intent> {
        let at = |dir: &Handle, name: &Option<Name>| {
            name.as_ref().map(|name| Place {
                dir: *dir,
                name: name.to_raw(),
            })
        };
        let names = &self.inputs.names;
        match self.request {
            // Else it was refused before its turn.
            Request::Make { dir, .. } | Request::Link { dir, .. } => Some(Intent::Make {
                at: at(dir, &names.name)?,
                open: None,
            }),
            Request::Create { dir, flags, .. } => match targets.named {
                Some(named) => repeatable([named]),
                None => Some(Intent::Make {
                    at: at(dir, &names.name)?,
                    open: Some(opened_as(self.call, *flags)),
                }),
            },
            Request::Unlink { dir, .. } | Request::Rmdir { dir, .. } => Some(Intent::Remove {
                at: at(dir, &names.name)?,
                object: targets.named?,
            }),
            Request::Rename {
                dir,
                new_dir,
                flags,
                ..
            } if rename_can_do(*flags, targets) => Some(Intent::Rename {
                from: at(dir, &names.name)?,
                to: at(new_dir, &names.new_name)?,
                object: targets.named?,
                replaced: targets.replaced,
                exchange: flags & EXCHANGE != 0,
            }),
            _ => None,
        }
    }
}

/// Whether the names denote what a rename with these flags changes anything of.
fn rename_can_do(flags: u32, targets: &Targets) -> bool {
    let (old, new) = (targets.named, targets.replaced);
    let allowed = match flags {
        NOREPLACE => new.is_none(),
        EXCHANGE => new.is_some(),
        _ => true,
    };
    allowed && old != new
}

fn repeatable(objects: impl IntoIterator<Item = Handle>) -> Option<Intent> {
    let objects = objects.into_iter().collect();
    Some(Intent::Repeatable { objects })
}

fn opened_as(call: &Call, flags: u32) -> OpenAs {
    OpenAs {
        flags,
        policy: call.client.identity,
        caller: call.caller.clone(),
    }
}
