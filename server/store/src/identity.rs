//! Whose rights an operation has: policies, and taking on an identity in the calling thread.

use crate::error::OpenError;
use crate::sys;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::limits::MAX_GROUPS;
use leasefs_protocol::{Caller, Refusal};
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, Mode, OFlags, fchmod, memfd_create, open};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::cell::{Cell, RefCell};
use std::io;

/// The user and group that stand for nobody in particular.
pub(crate) const NOBODY: u32 = 65534;

/// Whose rights an operation has on the host. Made by [`crate::Store::identity`] and by tokens only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Box<[u32]>,
}

impl Identity {
    /// The user alone: its group and no others.
    pub(crate) fn alone(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Box::default(),
        }
    }

    /// User id on the host.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Group id on the host.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    fn of_process() -> io::Result<Self> {
        let groups = rustix::process::getgroups()?;
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        })
    }
}

/// Ids as they are, or with root's replaced.
fn raw(caller: &Caller, replace_root: bool) -> Result<Identity, Refusal> {
    if caller.groups.len() > MAX_GROUPS {
        return Err(Refusal::NotPermitted);
    }
    let map = |id: u32| if replace_root && id == 0 { NOBODY } else { id };
    Ok(Identity {
        uid: map(caller.uid),
        gid: map(caller.gid),
        groups: caller.groups.iter().copied().map(map).collect(),
    })
}

/// What a caller that isn't root leaves the thread besides its ids. Its user id takes the file
/// system capabilities away; without the others it couldn't take on the next caller's ids.
const LEAN: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
/// What goes and comes with the file system user id (`CAP_FS_SET`).
const OF_FSUID: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_OVERRIDE);

/// What makes the kernel pass over modes and owners.
const OVERRIDES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER);

/// What a thread has been given that its next caller may well need again: each change of it costs
/// the kernel a copy of the thread's credentials. It gives nothing to anyone: the server's own
/// work between callers is done as root, with the file system capabilities.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// Supplementary groups; `None` as long as nothing is known.
    groups: Option<Box<[u32]>>,
    /// Effective capabilities outside callers; `None` as long as nothing is known.
    effective: Option<CapabilitySet>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// What this process may do about identities.
#[derive(Debug)]
pub(crate) struct Rights {
    own: Identity,
    squash: Identity,
    capabilities: CapabilitySets,
    switches: bool,
}

impl Rights {
    /// Finds out what the process may do. `squash` is who `squash` maps to if the server is root.
    pub fn probe(squash: Identity) -> Result<Self, OpenError> {
        let host = |what| move |source| OpenError::Host { what, source };
        let own = Identity::of_process().map_err(host("reading the server's own ids"))?;
        let sets = capabilities(None)
            .map_err(io::Error::from)
            .map_err(host("reading the server's capabilities"))?;
        let switches = own.uid == 0;
        let squash = if switches { squash } else { own.clone() };
        let rights = Self {
            own,
            squash,
            capabilities: sets,
            switches,
        };
        if switches {
            rights.try_switch()?;
        }
        Ok(rights)
    }

    fn try_switch(&self) -> Result<(), OpenError> {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        if !self.capabilities.permitted.contains(needed) {
            return Err(OpenError::NoSwitch);
        }
        // On a thread of its own, of which nothing is kept.
        let switched = std::thread::scope(|scope| {
            let nobody = scope.spawn(|| self.has_rights_as_nobody());
            nobody.join().unwrap_or(Err(Refusal::Internal))
        });
        if switched.map_err(|_| OpenError::NoSwitch)? {
            return Err(OpenError::KeepsRights);
        }
        self.keep_effective(self.capabilities.permitted)
            .map_err(|_| OpenError::NoSwitch)
    }

    /// Whether the calling thread has root's rights over files still when it has taken on nobody's: the
    /// kernel is believed by what it does.
    fn has_rights_as_nobody(&self) -> Result<bool, Refusal> {
        let failed = |e: Errno| Refusal::from_io(&e.into());
        let private = memfd_create("leasefs-probe", MemfdFlags::CLOEXEC).map_err(failed)?;
        fchmod(&private, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let again = format!("/proc/self/fd/{}", private.as_raw_fd());
        let nobody = self.assume(&Identity::alone(NOBODY, NOBODY))?;
        let sets = capabilities(None).map_err(failed)?;
        let opened = open(again, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        drop(nobody);
        let refused = opened.is_err_and(|e| e == Errno::ACCESS);
        Ok(sets.effective.intersects(OF_FSUID) || !refused)
    }

    /// Whether callers can have rights of their own.
    pub fn switches(&self) -> bool {
        self.switches
    }

    /// Whether the kernel lets the caller pass all checks of modes and owners.
    pub fn overrides(&self, who: &Identity) -> bool {
        let (held, is_root) = match self.switches {
            true => (self.capabilities.permitted, who.uid == 0),
            false => (self.capabilities.effective, true),
        };
        is_root && held.contains(OVERRIDES)
    }

    /// The identity of a caller under a policy.
    pub fn identity(&self, policy: IdentityPolicy, caller: &Caller) -> Result<Identity, Refusal> {
        match policy {
            IdentityPolicy::Squash => Ok(self.squash.clone()),
            _ if !self.switches => Ok(self.own.clone()),
            IdentityPolicy::RootSquash => raw(caller, true),
            IdentityPolicy::Trust => raw(caller, false),
        }
    }

    /// Takes on an identity in the calling thread until the guard is dropped.
    pub fn assume(&self, who: &Identity) -> Result<Assumed<'_>, Refusal> {
        self.take_on(who, CapabilitySet::empty())
    }

    /// Takes on the server's own identity, with all that it may do.
    pub fn assume_own(&self) -> Result<Assumed<'_>, Refusal> {
        self.assume(&self.own)
    }

    /// Like [`Rights::assume`], without the right to keep setuid and setgid bits on what is
    /// written: the kernel clears them, whoever it is. By root's descriptor it isn't root that writes, who would keep
    /// them: nor is it taken for one of his groups, whose members keep the setgid bit where the group may not execute.
    pub fn assume_killing_priv(&self, who: &Identity) -> Result<Assumed<'_>, Refusal> {
        let of_no_group = Identity::alone(who.uid, NOBODY);
        let who = if who.uid == 0 { &of_no_group } else { who };
        self.take_on(who, CapabilitySet::FSETID)
    }

    fn take_on(&self, who: &Identity, without: CapabilitySet) -> Result<Assumed<'_>, Refusal> {
        if !self.switches {
            let same = who.uid == self.own.uid;
            return same.then_some(Assumed(None)).ok_or(Refusal::NotPermitted);
        }
        // From here on the guard restores whatever was reached.
        let mut guard = Assumed(Some(self));
        keep_groups(&who.groups).map_err(|e| Refusal::from_io(&e))?;
        // A caller with the server's other capabilities could set security xattrs, or use space
        // that is reserved for root.
        let full = self.capabilities.permitted;
        let wanted = match who.uid {
            0 => full - without,
            _ => (LEAN | OF_FSUID) & full,
        };
        self.keep_effective(wanted)
            .map_err(|e| Refusal::from_io(&e))?;
        if who.uid == self.own.uid && who.gid == self.own.gid {
            // The ids that the thread has between callers.
            guard.0 = None;
        } else if !sys::set_fsgid(who.gid) || !sys::set_fsuid(who.uid) {
            return Err(Refusal::Invalid);
        }
        Ok(guard)
    }

    fn restore(&self) -> bool {
        sys::set_fsuid(self.own.uid) && sys::set_fsgid(self.own.gid)
    }

    /// Sets the effective capabilities that the thread has outside callers.
    fn keep_effective(&self, effective: CapabilitySet) -> io::Result<()> {
        KEPT.with_borrow_mut(|kept| {
            if kept.effective != Some(effective) {
                kept.effective = None;
                let sets = CapabilitySets {
                    effective,
                    ..self.capabilities
                };
                set_capabilities(None, sets)?;
                kept.effective = Some(effective);
            }
            Ok(())
        })
    }
}

fn keep_groups(groups: &[u32]) -> io::Result<()> {
    KEPT.with_borrow_mut(|kept| {
        if kept.groups.as_deref() != Some(groups) {
            kept.groups = None;
            sys::set_groups(groups)?;
            kept.groups = Some(groups.into());
        }
        Ok(())
    })
}

/// The calling thread has another user and group until this is dropped, also by a panic. (Groups
/// and capabilities are set anew for the next caller, see [`Kept`].)
#[must_use]
pub(crate) struct Assumed<'a>(Option<&'a Rights>);

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        if self.0.is_some_and(|rights| !rights.restore()) {
            // A worker thread with someone's rights must not serve anyone else.
            tracing::error!("can't restore the server's own rights in a worker thread");
            std::process::abort();
        }
    }
}

thread_local! {
    static UMASK_IS_PRIVATE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread has this umask until the guard is dropped.
#[must_use]
pub(crate) struct Umask(rustix::fs::Mode);

impl Umask {
    pub fn set(mask: u32) -> io::Result<Self> {
        if !UMASK_IS_PRIVATE.get() {
            sys::unshare_fs()?;
            UMASK_IS_PRIVATE.set(true);
        }
        let mask = rustix::fs::Mode::from_raw_mode(mask & 0o777);
        Ok(Self(rustix::process::umask(mask)))
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn root_squash_replaces_root_everywhere_and_nobody_else() {
        let squashed = raw(&caller(0, 0, &[0, 5]), true).expect("identity");
        assert_eq!((squashed.uid, squashed.gid), (NOBODY, NOBODY));
        assert_eq!(squashed.groups[..], [NOBODY, 5]);
        let kept = raw(&caller(7, 8, &[9]), true).expect("identity");
        assert_eq!((kept.uid, kept.gid, &kept.groups[..]), (7, 8, &[9][..]));
    }

    #[test]
    fn a_host_that_keeps_capabilities_on_a_switch_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let probe = || Rights::probe(Identity::alone(1, 1)).map(drop);
        assert!(probe().is_ok());
        // On a thread of its own: they are the thread's, and can't be taken back without a capability.
        let kept = std::thread::spawn(move || {
            let bits = rustix::thread::CapabilitiesSecureBits::NO_SETUID_FIXUP;
            rustix::thread::set_capabilities_secure_bits(bits).expect("root may");
            probe()
        });
        let refused = kept.join().expect("it ends").expect_err("refused");
        assert!(matches!(refused, OpenError::KeepsRights), "{refused}");
    }

    #[test]
    fn too_many_groups_are_refused_not_dropped() {
        let groups = vec![1; MAX_GROUPS + 1];
        let refused = raw(&caller(1, 1, &groups), false);
        assert_eq!(refused, Err(Refusal::NotPermitted));
    }
}
