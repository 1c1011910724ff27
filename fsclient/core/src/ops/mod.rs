//! What the kernel's requests mean: for each, from the cache where a lease allows it, else
//! from the server.
//!
//! Methods that aren't `async` answer from the cache, or not at all.

mod ahead;
mod along;
mod answer;
mod attr;
mod buffered;
mod change;
mod data;
mod dir;
mod explain;
mod growing;
mod listing_room;
mod locks;
mod names;
mod open;
mod opens;
mod places;
mod plus;
mod reopen;
mod stale;
mod stream;
mod syncs;
mod walkers;
mod xattr;

pub use attr::Owner;

use crate::cache::{Asked, Cache, Learned};
use crate::call::{Asker, Node, NodeId};
use crate::inode::Inodes;
use crate::opens::ServerOpen;
use crate::outside::Outside;
use crate::recall::Engine;
use crate::run::{Cx, Part, Places, first};
use crate::session::{Abandon, Answered, CallOptions, Rpc};
use crate::writeback::Writeback;
use ahead::Ahead;
use along::Along;
use atomic_refcell::AtomicRefMut;
use bytes::Bytes;
use growing::Growing;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::limits::MAX_LISTED;
use leasefs_protocol::{
    BootId, Caller, Change, FsStat, Grant, Handle, Mode, Operation, Query, Refusal, Touched, query,
};
use listing_room::ListingRoom;
use opens::OpenTable;
use stale::Stale;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use walkers::Walkers;

/// One request of the kernel, for as long as it is unanswered.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Who waits for the answer.
    pub asker: Asker,
    /// Triggered when nobody does any more.
    pub abandon: Abandon,
    /// Triggered when the caller would wait no longer, if it [yields](Ask::yields).
    pub interrupt: Abandon,
    /// Set where a signal is looked for that doesn't end the caller.
    pub yields: Arc<AtomicBool>,
}

impl Ask {
    /// A request of `asker`.
    pub fn new(asker: Asker) -> Self {
        Self {
            asker,
            abandon: Abandon::default(),
            interrupt: Abandon::default(),
            yields: Arc::default(),
        }
    }

    /// From now on any signal interrupts the caller.
    fn yields(&self) {
        self.yields.store(true, Ordering::Relaxed);
    }

    /// Waits for something, unless the caller leaves before. What is waited for may be given up
    /// at any time.
    fn unless_left<T>(
        &self,
        wait: impl Future<Output = Result<T, Refusal>>,
    ) -> impl Future<Output = Result<T, Refusal>> {
        let left = async {
            self.abandon.triggered().await;
            Err(Refusal::Cancelled)
        };
        first(wait, left)
    }

    fn options(&self) -> CallOptions<'_> {
        CallOptions {
            abandon: Some(&self.abandon),
            pid: Some(self.asker.pid).filter(|pid| *pid != 0),
            ..CallOptions::default()
        }
    }
}

/// A query, which may have to be asked again.
trait Asks: Operation + Into<Query> + Clone {}

impl<Q: Operation + Into<Query> + Clone> Asks for Q {}

/// A change, which may have to be asked for again.
trait Changes: Operation + Into<Change> + Clone {}

impl<C: Operation + Into<Change> + Clone> Changes for C {}

/// What the server has told: an answer, and what of it may be cached.
struct Told<A> {
    answer: A,
    payload: Bytes,
    asked: Asked,
    grants: Vec<Grant>,
    touched: Vec<Touched>,
    host: BootId,
    open: Option<Arc<ServerOpen>>,
}

impl<A> Told<A> {
    fn new(asked: Asked, answer: Answered<A>) -> Result<Self, Refusal> {
        let Answered {
            reply,
            payload,
            host,
            open,
        } = answer;
        Ok(Self {
            answer: reply.result?,
            payload,
            asked,
            grants: reply.grants,
            touched: reply.touched,
            host,
            open: open.map(Arc::new),
        })
    }

    /// What was opened: an answer that opens nothing is none to what opens.
    fn opened(&self) -> Result<Arc<ServerOpen>, Refusal> {
        self.open.clone().ok_or(Refusal::Internal)
    }

    /// Whether an object is held exclusively by what was granted.
    fn is_exclusive(&self, object: &Handle) -> bool {
        let mut grants = self.grants.iter();
        grants.any(|grant| grant.object == *object && grant.mode == Mode::Write)
    }

    /// Takes in what may be cached. The guard is the cache's lock: not to be kept.
    fn learn<'a>(&'a self, cache: &'a Cache) -> Learned<'a> {
        cache.learn(self.asked, &self.grants)
    }
}

/// What the operations work on.
pub(crate) struct OpsParts {
    pub cx: Cx,
    pub rpc: Rpc,
    pub engine: Engine,
    pub outside: Outside,
    pub writeback: Writeback,
}

/// As what the mount shows itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The server's policy.
    pub identity: IdentityPolicy,
    /// Shown as the owner of everything where that is squash.
    pub owner: Owner,
    /// Whether writes are buffered.
    pub buffers: bool,
    /// Supplementary groups of a process.
    pub groups: fn(u32) -> Vec<u32>,
}

/// The operations of one mount.
pub(crate) struct Ops {
    cx: Cx,
    rpc: Rpc,
    engine: Engine,
    outside: Outside,
    opens: OpenTable,
    writeback: Writeback,
    manner: Manner,
    /// Present where all callers are one user.
    owner: Option<Owner>,
    /// READs of pages that were answered.
    filled: Part<u64>,
    stale: Stale,
    growing: Growing,
    listing_room: ListingRoom,
    ahead: Part<Ahead>,
    along: Part<Along>,
    walkers: Part<Walkers>,
    /// Who tells the server that locks are lost.
    resetting: Places,
}

impl Ops {
    /// The operations of a mount.
    pub fn new(on: OpsParts, manner: Manner) -> Self {
        let squash = manner.identity == IdentityPolicy::Squash;
        Self {
            cx: on.cx,
            rpc: on.rpc,
            engine: on.engine,
            outside: on.outside,
            opens: OpenTable::default(),
            writeback: on.writeback,
            manner,
            owner: squash.then_some(manner.owner),
            filled: Part::default(),
            stale: Stale::default(),
            growing: Growing::default(),
            listing_room: ListingRoom::new(MAX_LISTED),
            ahead: Part::default(),
            along: Part::default(),
            walkers: Part::default(),
            resetting: Places::new(1),
        }
    }

    /// The kernel gives back references to a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        let forgotten = self.inodes().forget(node, count);
        if let Some(node) = forgotten {
            self.engine.forgotten(&node.handle);
        }
    }

    /// Brings everything that is buffered to the server.
    pub async fn flush_all(&self) {
        self.writeback.flush_all().await;
    }

    /// Brings everything to the server's disk.
    ///
    /// # Errors
    /// As [`Writeback::sync_all`].
    pub async fn sync_all(&self) -> Result<(), Refusal> {
        self.writeback.sync_all().await
    }

    /// State of the file system.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn statfs(&self, ask: &Ask, node: NodeId) -> Result<FsStat, Refusal> {
        let object = self.node(node)?.handle;
        Ok(self.call(ask, query::StatFs { object }).await?.answer)
    }

    /// `access(2)`, where the kernel doesn't decide it itself.
    ///
    /// # Errors
    /// `Access`, or another refusal of the server.
    pub async fn access(&self, ask: &Ask, node: NodeId, mask: u32) -> Result<(), Refusal> {
        let object = self.node(node)?.handle;
        self.call(ask, query::Access { object, mask }).await?;
        Ok(())
    }

    fn node(&self, id: NodeId) -> Result<Node, Refusal> {
        self.inodes().node(id).ok_or(Refusal::Stale)
    }

    fn caller(&self, ask: &Ask) -> Caller {
        self.caller_of(ask.asker)
    }

    fn caller_of(&self, asker: Asker) -> Caller {
        asker.caller(self.manner.identity, self.manner.groups)
    }

    /// All inodes. Not to be kept.
    fn inodes(&self) -> AtomicRefMut<'_, Inodes> {
        self.cache().inodes()
    }

    fn cache(&self) -> &Cache {
        self.engine.cache()
    }

    /// Asks something that changes nothing, under the caller's own identity.
    async fn call<Q: Asks>(&self, ask: &Ask, query: Q) -> Result<Told<Q::Answer>, Refusal> {
        self.call_as(ask, self.caller(ask), query).await
    }

    async fn call_as<Q: Asks>(
        &self,
        ask: &Ask,
        caller: Caller,
        query: Q,
    ) -> Result<Told<Q::Answer>, Refusal> {
        let (asked, answer) = self.ask_server(ask, caller, query).await?;
        Told::new(asked, answer)
    }

    /// The answer may be a refusal, which may be cached too.
    ///
    /// After a crash of the server's host nothing is
    /// shown before what is to be written again is there.
    async fn ask_server<Q: Asks>(
        &self,
        ask: &Ask,
        caller: Caller,
        query: Q,
    ) -> Result<(Asked, Answered<Q::Answer>), Refusal> {
        loop {
            let (life, asked) = (self.writeback.life(), self.cache().ask());
            let sent = self.rpc.call(caller.clone(), query.clone(), ask.options());
            let answer = sent.await?;
            if life.host().is_none_or(|host| host == answer.host) {
                return Ok((asked, answer));
            }
            let flushed = self.engine.in_time(self.writeback.flush_all());
            ask.unless_left(flushed).await?;
        }
    }
}
