//! Opening, creating and closing files.

use super::names::NameIn;
use super::opens::OpenFile;
use super::{Ask, Ops, Told, reopen};
use crate::cache::Cache;
use crate::call::{Asker, Caching, Entry, Fh, NewMode, NodeId, Opened};
use crate::inode::{Access, Fetch, HostLife};
use crate::opens::ServerOpen;
use crate::recall::{ChangeScope, Span};
use bytes::Bytes;
use leasefs_protocol::{Caller, Handle, Name, Refusal, answer, change, query};
use std::sync::Arc;

impl Caching {
    fn of(access: Access) -> Self {
        match access {
            Access::Read => Self::Pages,
            Access::Write | Access::ReadWrite => Self::Direct,
        }
    }
}

/// `open(2)` flags that mean something to the server; the others have been dealt with by the
/// kernel, or concern the descriptor. (`O_TRUNC` comes with CREATE alone.)
const SERVERS: i32 = libc::O_ACCMODE
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_DIRECTORY
    | libc::O_SYNC
    | libc::O_EXCL
    | libc::O_NOFOLLOW;

/// The kernel's mark of an open for execution (`__FMODE_EXEC`): it needs no right to read.
const FOR_EXEC: u32 = 0x20;

/// `O_ACCMODE` itself (3) asks for both rights and gives a descriptor that the kernel lets do
/// neither.
fn servers_flags(flags: u32) -> u32 {
    let kept = flags as i32 & SERVERS;
    let kept = match kept & libc::O_ACCMODE {
        libc::O_ACCMODE => kept & !libc::O_ACCMODE | libc::O_RDWR,
        _ => kept,
    };
    kept as u32
}

/// Counts an open, from before the server is asked for it; taken back unless it is kept.
struct Begun<'a> {
    cache: &'a Cache,
    object: Handle,
    access: Access,
    kept: bool,
}

impl<'a> Begun<'a> {
    fn new(cache: &'a Cache, access: Access, object: Handle) -> Self {
        cache.inodes().open_begins(object, access);
        Self {
            cache,
            object,
            access,
            kept: false,
        }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.cache.inodes().open_ends(&self.object, self.access);
        }
    }
}

/// An open for reading, with the file's bytes if they are worth having.
struct Wanted {
    life: HostLife,
    fetch: Option<Fetch>,
    open: query::Open,
}

impl Wanted {
    fn new(ops: &Ops, object: Handle, flags: u32) -> Self {
        let fetch = ops.cache().fetch_opened(&object);
        let open = query::Open {
            object,
            flags: flags.into(),
            with_data: fetch.is_some(),
        };
        Self {
            life: ops.writeback.life(),
            fetch,
            open,
        }
    }
}

impl Ops {
    /// Opens a file that this identity has open for reading already, or had until lately.
    pub fn open_cached(&self, asker: Asker, node: NodeId, flags: u32) -> Option<Opened> {
        if Access::of(flags) != Access::Read {
            return None;
        }
        let object = self.inodes().node(node)?.handle;
        let caller = self.caller_of(asker);
        let begun = Begun::new(self.cache(), Access::Read, object);
        let shared = self.cache().live()?.reuse_open(&object, &caller);
        let server = match shared {
            Some(server) => (server, Access::Read),
            None => self.open_of_writer(&object, &caller, Access::Read)?,
        };
        begun.keep();
        self.inodes().is_opened_to_read(&object);
        Some(self.add_file(node, object, server, Access::Read, caller, false))
    }

    /// Opens a file at the server.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn open(&self, ask: &Ask, node: NodeId, flags: u32) -> Result<Opened, Refusal> {
        let object = self.node(node)?.handle;
        let access = Access::of(flags);
        let flags = flags & !(libc::O_TRUNC as u32);
        let caller = self.caller(ask);
        let begun = Begun::new(self.cache(), access, object);
        let server = match access {
            Access::Read => (
                self.open_reading(ask, &caller, object, flags).await?,
                access,
            ),
            Access::Write | Access::ReadWrite => {
                self.open_writing(ask, &caller, object, flags).await?
            }
        };
        self.prepare(ask, access, object).await?;
        begun.keep();
        Ok(self.add_file(node, object, server, access, caller, false))
    }

    /// An open for reading, shared with others of this identity while the verdict holds.
    async fn open_reading(
        &self,
        ask: &Ask,
        caller: &Caller,
        object: Handle,
        flags: u32,
    ) -> Result<Arc<ServerOpen>, Refusal> {
        let readable = self
            .open_shared(ask, caller, object, servers_flags(flags))
            .await;
        match readable {
            // A right to execute alone is no verdict that those who read could share.
            Err(refusal) if refusal.errno() == libc::EACCES && flags & FOR_EXEC != 0 => {
                let flags = servers_flags(flags) | FOR_EXEC;
                self.open_alone(ask, caller, object, flags).await
            }
            result => result.inspect(|_| self.inodes().is_opened_to_read(&object)),
        }
    }

    /// An open for writing, and what it allows.
    async fn open_writing(
        &self,
        ask: &Ask,
        caller: &Caller,
        object: Handle,
        flags: u32,
    ) -> Result<(Arc<ServerOpen>, Access), Refusal> {
        let access = Access::of(flags);
        if let Some(open) = self.open_of_writer(&object, caller, access) {
            return Ok(open);
        }
        let flags = servers_flags(flags);
        let server = self.open_alone(ask, caller, object, flags).await?;
        Ok((server, access))
    }

    pub(super) async fn open_shared(
        &self,
        ask: &Ask,
        caller: &Caller,
        object: Handle,
        flags: u32,
    ) -> Result<Arc<ServerOpen>, Refusal> {
        let wanted = Wanted::new(self, object, flags);
        let told = self.open_in_place(ask, caller, wanted.open.clone()).await;
        self.learn_opened(caller, wanted, told)
    }

    /// Opens a file of which the kernel wants attributes, if that is what came next the last time: they come along.
    /// Whether the server was asked.
    ///
    /// # Errors
    /// If there is no use in asking for the attributes alone: the server hasn't answered, or the caller has left.
    pub(super) async fn open_along(&self, ask: &Ask, object: &Handle) -> Result<bool, Refusal> {
        if !self.inodes().is_opened_next(object) {
            return Ok(false);
        }
        let caller = self.caller(ask);
        let wanted = Wanted::new(self, *object, libc::O_RDONLY as u32);
        // No place is made for it.
        let told = self.open_once(ask, &caller, wanted.open.clone()).await;
        match self.learn_opened(&caller, wanted, told) {
            Ok(open) => self.inodes().open_is_left(object, &open),
            Err(refusal @ (Refusal::TimedOut | Refusal::Cancelled)) => return Err(refusal),
            Err(_) => {}
        }
        Ok(true)
    }

    fn learn_opened(
        &self,
        caller: &Caller,
        wanted: Wanted,
        told: Result<Told<answer::Opened>, Refusal>,
    ) -> Result<Arc<ServerOpen>, Refusal> {
        let Wanted { life, fetch, open } = wanted;
        let object = open.object;
        let told = told.inspect_err(|_| self.inodes().drop_unfetched(&object))?;
        let open = told.opened()?;
        let mut learned = told.learn(self.cache());
        learned.attr(&object, &told.answer.attr);
        learned.opened(&object, caller, &open);
        if let Some(fetch) = fetch {
            // What the server's host has lost is to be written again first.
            let whole = life.host().is_none_or(|host| host == told.host);
            learned.bytes(&object, fetch, Some(&told.payload).filter(|_| whole));
        }
        Ok(open)
    }

    async fn open_alone(
        &self,
        ask: &Ask,
        caller: &Caller,
        object: Handle,
        flags: u32,
    ) -> Result<Arc<ServerOpen>, Refusal> {
        let open = query::Open {
            object,
            flags: flags.into(),
            with_data: false,
        };
        let told = self.open_in_place(ask, caller, open).await?;
        told.opened()
    }

    async fn open_in_place(
        &self,
        ask: &Ask,
        caller: &Caller,
        open: query::Open,
    ) -> Result<Told<answer::Opened>, Refusal> {
        let mut places = self.places(ask);
        loop {
            match self.open_once(ask, caller, open.clone()).await {
                Err(Refusal::TooMany) if places.further().await => {}
                result => return result,
            }
        }
    }

    /// Whatever crashes meanwhile: an open that was made must not be made again.
    async fn open_once(
        &self,
        ask: &Ask,
        caller: &Caller,
        open: query::Open,
    ) -> Result<Told<answer::Opened>, Refusal> {
        let asked = self.cache().ask();
        let answer = self.rpc.call(caller.clone(), open, ask.options()).await?;
        Told::new(asked, answer)
    }

    /// Before an open is answered: no page is left in the kernel that it must not find there.
    async fn prepare(&self, ask: &Ask, access: Access, object: Handle) -> Result<(), Refusal> {
        ask.unless_left(async {
            self.engine.clean(&object).await?;
            match access {
                Access::ReadWrite => self.engine.drop_pages(&object, Span::ALL).await,
                Access::Read | Access::Write => Ok(()),
            }
        })
        .await
    }

    fn add_file(
        &self,
        node: NodeId,
        object: Handle,
        (server, allows): (Arc<ServerOpen>, Access),
        access: Access,
        caller: Caller,
        looked_for: bool,
    ) -> Opened {
        let told = self.inodes().losses_told(&object);
        let fh = self.opens.add_file(OpenFile {
            node,
            object,
            server,
            allows,
            access,
            caller,
            written: Arc::default(),
            told,
            looked_for,
        });
        Opened {
            fh,
            caching: Caching::of(access),
        }
    }

    /// Creates and opens a file; opens it if it exists and `O_EXCL` isn't set.
    ///
    /// # Errors
    /// The server's refusal, or the name's.
    pub async fn create(
        &self,
        ask: &Ask,
        parent: NodeId,
        name: &[u8],
        NewMode { mode, umask }: NewMode,
        flags: u32,
    ) -> Result<(Entry, Opened), Refusal> {
        let dir = self.changing(parent)?;
        let name = Name::new(name)?;
        let keep = self.manner.buffers && Access::of(flags).writes();
        let request = change::Create {
            dir,
            name: name.to_raw(),
            mode: self.mode_of_new(mode),
            umask,
            flags: match keep {
                true => reopen::flags_of_new(servers_flags(flags), mode & !umask),
                false => servers_flags(flags),
            },
            keep,
        };
        let scope = ChangeScope::default().name(dir, name.to_raw());
        let caller = self.caller(ask);
        let mut places = self.places(ask);
        let told = loop {
            let (scope, request) = (scope.clone(), request.clone());
            let created = self.change_as(ask, caller.clone(), scope, request, Bytes::new());
            match created.await {
                Err(Refusal::TooMany) if places.further().await => {}
                result => break result?,
            }
        };
        let open = told.opened()?;
        let (object, attr) = (told.answer.handle, told.answer.attr);
        let access = Access::of(flags);
        let begun = Begun::new(self.cache(), access, object);
        self.prepare(ask, access, object).await?;
        begun.keep();
        let attr = self.newest(ask, &object, attr, None).await;
        let name = name.as_bytes();
        let at = NameIn { parent, dir, name };
        let entry = self.made(&told, at, object, attr);
        self.inodes().is_newest(parent, object);
        let looked_for = keep && !told.is_exclusive(&object);
        let open = (open, Access::of(request.flags));
        let opened = self.add_file(entry.node.id, object, open, access, caller, looked_for);
        Ok((entry, opened))
    }

    /// Ends an open. The server is told in the background, if it must be.
    pub fn release(self: &Arc<Self>, fh: Fh) {
        let Some(open) = self.opens.remove_file(fh) else {
            return;
        };
        self.release_locks(open.object, fh);
        let out_of_reach = self.inodes().open_ends(&open.object, open.access);
        if out_of_reach {
            self.writeback.out_of_reach(&open.object);
        }
        self.inodes().open_is_left(&open.object, &open.server);
        if open.looked_for {
            self.engine.leave(open.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_opens_are_cached_by_the_kernel() {
        assert_eq!(Caching::of(Access::Read), Caching::Pages);
        assert_eq!(Caching::of(Access::Write), Caching::Direct);
        assert_eq!(Caching::of(Access::ReadWrite), Caching::Direct);
    }

    #[test]
    fn flags_of_the_descriptor_stay_here() {
        let flags = libc::O_RDWR | libc::O_TRUNC | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let expected = libc::O_RDWR | libc::O_TRUNC;
        assert_eq!(servers_flags(flags as u32), expected as u32);
        assert_eq!(servers_flags(libc::O_ACCMODE as u32), libc::O_RDWR as u32);
    }
}
