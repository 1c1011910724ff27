//! Extended attributes: `user.*`, `security.*` and POSIX ACLs; `trusted.*` for root alone, as on the host.

use crate::export::Store;
use crate::identity::Identity;
use crate::sys;
use leasefs_protocol::limits::{MAX_XATTR_NAME, MAX_XATTR_VALUE};
use leasefs_protocol::{Handle, Refusal};
use rustix::fd::AsFd;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// What a program that is run may do beyond its caller's rights.
pub(crate) const CAPABILITIES: &[u8] = b"security.capability";

/// What an xattr's name says about who may have it.
pub(crate) enum Space {
    /// Like the bytes of a file: `user.*`.
    User,
    /// Its owner's, or root's.
    System,
    /// Root's.
    Trusted,
}

fn space(name: &[u8]) -> Result<Space, Refusal> {
    if name.is_empty() || name.contains(&0) {
        return Err(Refusal::Invalid);
    }
    if name.len() > MAX_XATTR_NAME {
        // What the kernel says of an xattr's name, not ENAMETOOLONG.
        return Err(Refusal::from_io(&Errno::RANGE.into()));
    }
    let acl = matches!(
        name,
        b"system.posix_acl_access" | b"system.posix_acl_default"
    );
    if name.starts_with(b"trusted.") {
        Ok(Space::Trusted)
    } else if name.starts_with(b"user.") {
        Ok(Space::User)
    } else if acl || name.starts_with(b"security.") {
        Ok(Space::System)
    } else {
        Err(Refusal::Unsupported)
    }
}

impl Store {
    /// As `space`, refusing what the caller may never change. (The host would ask for a capability, which
    /// the server has.)
    pub(crate) fn changeable(&self, who: &Identity, name: &[u8]) -> Result<Space, Refusal> {
        match space(name)? {
            Space::Trusted if !self.rights.overrides(who) => Err(Refusal::NotPermitted),
            space => Ok(space),
        }
    }

    /// The value of an xattr.
    ///
    /// # Errors
    /// The host's, `ENODATA` above all.
    pub fn getxattr(
        &self,
        who: &Identity,
        object: &Handle,
        name: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        if matches!(space(name)?, Space::Trusted) && !self.rights.overrides(who) {
            return Err(Refusal::from_io(&Errno::NODATA.into()));
        }
        let target = self.target(object)?;
        let path = sys::proc_path(target.as_fd());
        let _assumed = self.assume(who)?;
        let mut value = Vec::with_capacity(MAX_XATTR_VALUE);
        rustix::fs::getxattr(path, name, rustix::buffer::spare_capacity(&mut value))
            .map_err(|e| self.refuse(e))?;
        value.shrink_to_fit();
        Ok(value)
    }

    /// The names of an object's xattrs that the caller may know, each with a NUL behind it.
    ///
    /// # Errors
    /// The host's.
    pub fn listxattr(&self, who: &Identity, object: &Handle) -> Result<Vec<u8>, Refusal> {
        let target = self.target(object)?;
        let path = sys::proc_path(target.as_fd());
        let _assumed = self.assume(who)?;
        let mut names = Vec::with_capacity(MAX_XATTR_VALUE);
        rustix::fs::listxattr(path, rustix::buffer::spare_capacity(&mut names))
            .map_err(|e| self.refuse(e))?;
        let all = self.rights.overrides(who);
        Ok(names
            .split_inclusive(|byte| *byte == 0)
            .filter(|name| all || !name.starts_with(b"trusted."))
            .flatten()
            .copied()
            .collect())
    }

    /// Sets an xattr; `flags` are `XATTR_CREATE` and `XATTR_REPLACE`.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] for `trusted.*` unless by root, or the host's.
    pub fn setxattr(
        &self,
        who: &Identity,
        object: &Handle,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Refusal> {
        self.changeable(who, name)?;
        let flags = XattrFlags::from_bits(flags)
            .filter(|flags| XattrFlags::all().contains(*flags))
            .ok_or(Refusal::Invalid)?;
        let target = self.target(object)?;
        let path = sys::proc_path(target.as_fd());
        let _assumed = self.assume(who)?;
        rustix::fs::setxattr(path, name, value, flags).map_err(|e| self.refuse(e))
    }

    /// Removes an xattr. The capabilities of a program by whoever may write to it: the client's kernel asks
    /// for that on behalf of who truncates it, and lets nobody else ask who may not set them.
    ///
    /// # Errors
    /// [`Refusal::NotPermitted`] for `trusted.*` unless by root, or the host's.
    pub fn removexattr(&self, who: &Identity, object: &Handle, name: &[u8]) -> Result<(), Refusal> {
        self.changeable(who, name)?;
        let target = self.target(object)?;
        let path = sys::proc_path(target.as_fd());
        let _assumed = match name == CAPABILITIES && self.may_write(who, target.as_fd())? {
            true => self.rights.assume_own()?,
            false => self.assume(who)?,
        };
        rustix::fs::removexattr(path, name).map_err(|e| self.refuse(e))
    }
}
