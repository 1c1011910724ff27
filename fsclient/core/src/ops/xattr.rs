//! Extended attributes.

use super::locks::LockXattr;
use super::{Ask, Ops};
use crate::call::{Asker, Fitted, NodeId, Room};
use crate::recall::ChangeScope;
use bytes::Bytes;
use leasefs_protocol::limits::{MAX_XATTR_NAME, MAX_XATTR_VALUE};
use leasefs_protocol::{Parts, RawName, Refusal, change, query};

impl Room {
    fn fit(self, value: Bytes) -> Result<Fitted, Refusal> {
        let size = u32::try_from(value.len()).map_err(|_| Refusal::Internal)?;
        match self {
            Room(0) => Ok(Fitted::Size(size)),
            Room(room) if size > room => Err(Refusal::Host(libc::ERANGE as u16)),
            Room(_) => Ok(Fitted::Whole(value)),
        }
    }
}

/// What is told of locks is nobody's to set.
fn settable(name: &[u8]) -> Result<RawName, Refusal> {
    match LockXattr::of(name) {
        Some(_) => Err(Refusal::NotPermitted),
        None => xattr_name(name),
    }
}

fn xattr_name(name: &[u8]) -> Result<RawName, Refusal> {
    if name.is_empty() || name.len() > MAX_XATTR_NAME {
        return Err(Refusal::Host(libc::ERANGE as u16));
    }
    Ok(RawName(name.to_vec()))
}

/// There is no such xattr.
const NO_DATA: Refusal = Refusal::Host(libc::ENODATA as u16);

/// Who may see these depends on rights that are not the file's: their values aren't shared.
const PRIVILEGED: &[u8] = b"trusted.";

/// Root is told of more.
fn is_root(asker: Asker) -> bool {
    asker.uid == 0
}

impl Ops {
    /// Value of an xattr, or that it has none, if that is cached.
    pub fn getxattr_cached(
        &self,
        node: NodeId,
        name: &[u8],
        room: Room,
    ) -> Option<Result<Fitted, Refusal>> {
        if let Some(of) = LockXattr::of(name) {
            let told = self.lock_xattr(node, of);
            return Some(told.and_then(|told| room.fit(told.ok_or(NO_DATA)?.into())));
        }
        let object = self.inodes().node(node)?.handle;
        let value = self.cache().live()?.xattr(&object, name)?;
        Some(value.ok_or(NO_DATA).and_then(|value| room.fit(value)))
    }

    /// Value of an xattr, from the server.
    ///
    /// # Errors
    /// The server's refusal (`ENODATA`: it has none of that name); `ERANGE` if it doesn't fit.
    pub async fn getxattr(
        &self,
        ask: &Ask,
        node: NodeId,
        name: &[u8],
        room: Room,
    ) -> Result<Fitted, Refusal> {
        let object = self.node(node)?.handle;
        let raw = xattr_name(name)?;
        self.settle_sets(ask, &object).await?;
        let request = query::GetXattr { object, name: raw };
        let (asked, answer) = self.ask_server(ask, self.caller(ask), request).await?;
        let value = match answer.reply.result {
            Ok(_) => Some(answer.payload),
            Err(NO_DATA) => None,
            Err(refusal) => return Err(refusal),
        };
        if !name.starts_with(PRIVILEGED) {
            let mut learned = self.cache().learn(asked, &answer.reply.grants);
            learned.xattr(&object, name, value.clone());
        }
        room.fit(value.ok_or(NO_DATA)?)
    }

    /// Names of all xattrs, each with its NUL, if they are cached.
    pub fn listxattr_cached(
        &self,
        asker: Asker,
        node: NodeId,
        room: Room,
    ) -> Option<Result<Fitted, Refusal>> {
        let object = self.inodes().node(node)?.handle;
        let names = self.cache().live()?.xattr_names(&object, is_root(asker))?;
        Some(room.fit(names))
    }

    /// Names of all xattrs, from the server.
    ///
    /// # Errors
    /// The server's refusal; `ERANGE` if they don't fit.
    pub async fn listxattr(&self, ask: &Ask, node: NodeId, room: Room) -> Result<Fitted, Refusal> {
        let object = self.node(node)?.handle;
        self.settle_sets(ask, &object).await?;
        let told = self.call(ask, query::ListXattr { object }).await?;
        let names = told.payload.clone();
        told.learn(self.cache())
            .xattr_names(&object, is_root(ask.asker), names);
        room.fit(told.payload)
    }

    /// Sets an xattr.
    ///
    /// # Errors
    /// The server's refusal; `E2BIG` for a value over 64 KiB.
    pub async fn setxattr(
        &self,
        ask: &Ask,
        node: NodeId,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> Result<(), Refusal> {
        if value.len() > MAX_XATTR_VALUE {
            return Err(Refusal::Host(libc::E2BIG as u16));
        }
        let object = self.node(node)?.handle;
        self.inodes().listings_are_taken_up(node);
        let name = settable(name)?;
        let request = change::SetXattr {
            object,
            name,
            flags,
        };
        let scope = ChangeScope::default().object(object, Parts::ATTRS);
        self.change(ask, scope, request, value).await?;
        Ok(())
    }

    /// Removes an xattr.
    ///
    /// # Errors
    /// The server's refusal (`ENODATA`: it has none of that name).
    pub async fn removexattr(&self, ask: &Ask, node: NodeId, name: &[u8]) -> Result<(), Refusal> {
        let object = self.node(node)?.handle;
        self.inodes().listings_are_taken_up(node);
        let name = settable(name)?;
        let request = change::RemoveXattr { object, name };
        let scope = ChangeScope::default().object(object, Parts::ATTRS);
        self.change(ask, scope, request, Bytes::new()).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_does_not_fit_is_erange_and_no_room_asks_for_the_size() {
        let value = Bytes::from_static(b"four");
        assert_eq!(Room(0).fit(value.clone()), Ok(Fitted::Size(4)));
        assert_eq!(Room(4).fit(value.clone()), Ok(Fitted::Whole(value.clone())));
        let refusal = Room(3).fit(value).expect_err("too small");
        assert_eq!(refusal.errno(), libc::ERANGE);
    }
}
