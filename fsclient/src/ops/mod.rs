//! What the kernel's requests mean: for each, from the cache where a lease allows it, else
//! from the server.
//!
//! Methods that aren't `async` answer from the cache, or not at all, and never wait: the
//! dispatcher threads call them. Everything that may wait is `async` and runs elsewhere.

pub mod attr;
mod buffered;
pub mod caller;
mod change;
pub mod data;
pub mod dir;
mod expect;
mod listing_room;
pub mod names;
pub mod open;
pub mod opens;
mod places;
pub mod xattr;

pub use attr::{KernelSide, Owner, Shown};
pub use caller::Asker;

use crate::cache::{Asked, Cache, Learned};
use crate::nodes::{Node, NodeId, Nodes};
use crate::recall::Engine;
use crate::rpc::{self, Abandon, Answer, CallOptions, Rpc};
use crate::uncommitted::Uncommitted;
use crate::writeback::Writeback;
use bytes::Bytes;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::limits::MAX_LISTED;
use leasefs_protocol::{BootId, Caller, FsStat, Grant, Refusal, Request, Response, Touched};
use listing_room::ListingRoom;
use opens::Opens;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// One request of the kernel, for as long as it is unanswered.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who waits for the answer.
    pub asker: Asker,
    /// Triggered when nobody does any more.
    pub abandon: Abandon,
}

impl Ask {
    /// A request of `asker`.
    pub fn new(asker: Asker) -> Self {
        Self {
            asker,
            abandon: Abandon::new(),
        }
    }

    /// Waits for something, unless the caller leaves before. What is waited for may be given up
    /// at any time.
    async fn unless_left<T>(
        &self,
        wait: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            result = wait => result,
            () = self.abandon.triggered() => Err(Refusal::Cancelled),
        }
    }

    fn options(&self) -> CallOptions<'_> {
        CallOptions {
            abandon: Some(&self.abandon),
            pid: Some(self.asker.pid),
            ..CallOptions::default()
        }
    }
}

/// What the server has told: a response that isn't a refusal, and what of it may be cached.
struct Told {
    response: Response,
    payload: Bytes,
    asked: Asked,
    grants: Vec<Grant>,
    touched: Vec<Touched>,
    host: BootId,
}

impl Told {
    fn new(asked: Asked, answer: Answer) -> Result<Self, Refusal> {
        let rpc::Answer {
            reply,
            payload,
            host,
        } = answer;
        Ok(Self {
            response: reply.result?,
            payload,
            asked,
            grants: reply.grants,
            touched: reply.touched,
            host,
        })
    }

    /// Takes in what may be cached. The guard is the cache's lock: not to be kept.
    fn learn<'a>(&'a self, cache: &'a Cache) -> Learned<'a> {
        cache.learn(self.asked, &self.grants)
    }
}

/// The operations of one mount.
pub struct Ops {
    rpc: Rpc,
    engine: Engine,
    kernel: Arc<dyn KernelSide>,
    nodes: Arc<Nodes>,
    opens: Opens,
    uncommitted: Arc<Uncommitted>,
    identity: IdentityPolicy,
    owner: Option<Owner>,
    writeback: Writeback,
    /// Whether writes are buffered.
    buffers: bool,
    /// READs of pages that were answered.
    filled: AtomicU64,
    listing_room: ListingRoom,
}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops").finish_non_exhaustive()
    }
}

impl Ops {
    /// The operations of a mount. Writes are buffered if told so. `owner` is shown as the owner of everything where the server's
    /// policy is squash.
    pub fn new(
        rpc: Rpc,
        engine: Engine,
        (writeback, buffers, uncommitted): (Writeback, bool, Arc<Uncommitted>),
        (nodes, kernel): (Arc<Nodes>, Arc<dyn KernelSide>),
        identity: IdentityPolicy,
        owner: Owner,
    ) -> Self {
        Self {
            rpc,
            engine,
            kernel,
            nodes,
            opens: Opens::default(),
            uncommitted,
            identity,
            owner: (identity == IdentityPolicy::Squash).then_some(owner),
            writeback,
            buffers,
            filled: AtomicU64::new(0),
            listing_room: ListingRoom::new(MAX_LISTED),
        }
    }

    /// The open files and directories.
    pub fn opens(&self) -> &Opens {
        &self.opens
    }

    /// The kernel gives back references to a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        if let Some(node) = self.nodes.forget(node, count) {
            let is_unknown = || {
                let unknown = self.nodes.id_of(&node.handle).is_none();
                if unknown {
                    self.uncommitted.forget(&node.handle);
                }
                unknown
            };
            self.engine.forgotten(&node.handle, is_unknown);
        }
    }

    /// State of the file system.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn statfs(&self, ask: &Ask, node: NodeId) -> Result<FsStat, Refusal> {
        let object = self.node(node)?.handle;
        match self.call(ask, Request::StatFs { object }).await?.response {
            Response::FsStat(stat) => Ok(stat),
            other => Err(expect::unexpected("the state of the file system", &other)),
        }
    }

    /// `access(2)`, where the kernel doesn't decide it itself.
    ///
    /// # Errors
    /// `Access`, or another refusal of the server.
    pub async fn access(&self, ask: &Ask, node: NodeId, mask: u32) -> Result<(), Refusal> {
        let object = self.node(node)?.handle;
        let told = self.call(ask, Request::Access { object, mask }).await?;
        expect::done(&told.response)
    }

    fn node(&self, id: NodeId) -> Result<Node, Refusal> {
        self.nodes.get(id).ok_or(Refusal::Stale)
    }

    fn caller(&self, ask: &Ask) -> Caller {
        ask.asker.caller(self.identity)
    }

    fn cache(&self) -> &Cache {
        self.engine.cache()
    }

    /// Asks something that changes nothing, under the caller's own identity.
    async fn call(&self, ask: &Ask, request: Request) -> Result<Told, Refusal> {
        self.call_as(ask, self.caller(ask), request).await
    }

    async fn call_as(&self, ask: &Ask, caller: Caller, request: Request) -> Result<Told, Refusal> {
        let (asked, answer) = self.ask_server(ask, caller, request).await?;
        Told::new(asked, answer)
    }

    /// As [`Ops::call`], where a refusal may be cached too.
    async fn call_raw(&self, ask: &Ask, request: Request) -> Result<(Asked, Answer), Refusal> {
        self.ask_server(ask, self.caller(ask), request).await
    }

    /// After a crash of the server's host nothing is shown before what is to be written again is there.
    async fn ask_server(
        &self,
        ask: &Ask,
        caller: Caller,
        request: Request,
    ) -> Result<(Asked, Answer), Refusal> {
        // An open that was made must not be made again.
        let opens = matches!(request, Request::Open { .. });
        loop {
            let (life, asked) = (self.writeback.life(), self.cache().ask());
            let (caller, request) = (caller.clone(), request.clone());
            let sent = self.rpc.call(caller, request, Bytes::new(), ask.options());
            let answer = sent.await?;
            if opens || life.host().is_none_or(|host| host == answer.host) {
                return Ok((asked, answer));
            }
            let flushed = self.engine.in_time(self.writeback.flush_all());
            ask.unless_left(flushed).await?;
        }
    }
}
