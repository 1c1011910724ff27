//! Acting as another user. Root reads and restores what is a user's with that user's rights alone: he may have put
//! something else in its place, and on a mount under root_squash root could do less.

use nix::unistd::{Gid, Uid, getgrouplist, setfsgid, setfsuid};
use rustix::thread::set_thread_groups;
use serde::{Deserialize, Serialize};
use std::io;

/// A user of this machine, with the group that new files of his get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// His id.
    pub uid: u32,
    /// His group's.
    pub gid: u32,
}

/// Until dropped this thread finds and makes files with the rights of a user.
struct Acting {
    uid: Uid,
    gid: Gid,
    groups: Vec<rustix::process::Gid>,
}

impl Acting {
    fn begin(user: User) -> io::Result<Self> {
        let groups = rustix::process::getgroups()?;
        // Of this thread alone. First of all: afterwards none of it may be changed any more.
        set_thread_groups(&[rustix::process::Gid::from_raw(user.gid)])?;
        let acting = Self {
            gid: setfsgid(Gid::from_raw(user.gid)),
            uid: setfsuid(Uid::from_raw(user.uid)),
            groups,
        };
        // Neither call says whether it has worked; what it would change from does.
        match setfsuid(Uid::from_raw(user.uid)).as_raw() == user.uid {
            true => Ok(acting),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        setfsuid(self.uid);
        setfsgid(self.gid);
        // They were this thread's before.
        let _ = set_thread_groups(&self.groups);
    }
}

impl User {
    /// Does something with the user's rights on files, by his own group alone.
    ///
    /// # Errors
    /// If this process may not.
    pub(super) fn act<T>(self, act: impl FnOnce() -> T) -> io::Result<T> {
        let _acting = Acting::begin(self)?;
        Ok(act())
    }

    /// From now on this thread acts as the user, with his groups.
    ///
    /// # Errors
    /// If this process may not.
    pub fn become_for_good(self) -> io::Result<()> {
        let groups = self.groups();
        std::mem::forget(Acting::begin(self)?);
        Ok(set_thread_groups(&groups)?)
    }

    fn groups(self) -> Vec<rustix::process::Gid> {
        let gid = Gid::from_raw(self.gid);
        let entry = nix::unistd::User::from_uid(Uid::from_raw(self.uid));
        let name = entry.ok().flatten().map(|entry| entry.name);
        let name = name.and_then(|name| std::ffi::CString::new(name).ok());
        // A user without a name has no others.
        let groups = name.and_then(|name| getgrouplist(&name, gid).ok());
        let groups = groups.unwrap_or_else(|| vec![gid]).into_iter();
        groups
            .map(|gid| rustix::process::Gid::from_raw(gid.as_raw()))
            .collect()
    }
}
