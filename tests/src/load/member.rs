//! One session, as a mount has it: it keeps its leases alive, gives up what it is asked for, and claims back
//! what it holds when the server has restarted. It caches nothing, so an approval costs nothing here.

use super::Outcome;
use bytes::Bytes;
use leasefs_protocol::control::{
    Hello, Push, Reclaim, ReclaimLease, Standing, ToClient, ToServer, Welcome,
};
use leasefs_protocol::limits::{DEFAULT_DRIFT_PPM, MAX_BATCH, PROTOCOL_VERSION};
use leasefs_protocol::ticket::Ticket;
use leasefs_protocol::{
    Approval, BootId, Caller, Change, Grant, Handle, KeyHash, Numbered, Parts, Query, Recall,
    Reply, Request, RequestFrame, RequestId, Response, Scope, Seq, SessionId,
};
use leasefs_transport::{Client, Connection, FrameReader, FrameWriter, Identity};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval_at};

/// What all members have done together.
#[derive(Debug, Default)]
pub struct Tally {
    /// Keep-alives that were answered, and renewed the session.
    pub renewed: AtomicU64,
    /// Keep-alives that were answered, and did not.
    pub not_renewed: AtomicU64,
    /// Recalls approved.
    pub approved: AtomicU64,
    /// Connections lost that nobody here has closed.
    pub lost: AtomicU64,
}

/// Where the server is, by which socket it is reached, and what is counted.
#[derive(Debug, Clone)]
pub struct Site {
    /// The socket, which all members share.
    pub socket: Client,
    /// The server.
    pub address: SocketAddr,
    /// Its key.
    pub server: KeyHash,
    /// What is counted.
    pub tally: Arc<Tally>,
}

/// Wait before asking again for renewal.
const PAUSE: Duration = Duration::from_millis(1);

type Held = Arc<Mutex<BTreeMap<Handle, Parts>>>;

fn lock(held: &Held) -> MutexGuard<'_, BTreeMap<Handle, Parts>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session, connected or not.
#[derive(Debug)]
pub struct Member {
    identity: Identity,
    session: SessionId,
    /// At which part of the time between keep-alives it sends its own.
    phase: f64,
    held: Held,
    last_process: Option<BootId>,
    ids: u64,
    seqs: u64,
    line: Option<Line>,
}

/// Its connection.
#[derive(Debug)]
struct Line {
    connection: Connection,
    root: Handle,
    lane: Option<(FrameWriter, FrameReader)>,
    attended: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.attended.abort();
    }
}

async fn send(writer: &mut FrameWriter, message: &impl Serialize) -> Outcome<()> {
    Ok(writer.send(message, Bytes::new()).await?)
}

async fn told(reader: &mut FrameReader) -> Outcome<ToClient> {
    let (message, _) = reader.next().await?.ok_or("the control stream has ended")?;
    Ok(message)
}

/// That everything is reclaimed has no answer of its own: from then on the session is renewed.
async fn renewed(control: &mut FrameWriter, told_by: &mut FrameReader) -> Outcome<()> {
    loop {
        send(control, &ToServer::KeepAlive { number: 0 }).await?;
        match told(told_by).await? {
            ToClient::KeepAlive { renews: true, .. } => return Ok(()),
            ToClient::KeepAlive { .. } => tokio::time::sleep(PAUSE).await,
            other => return Err(format!("not renewed: {other:?}").into()),
        }
    }
}

impl Member {
    /// A member that has not been there.
    pub fn new(identity: Identity, session: SessionId, phase: f64) -> Self {
        Self {
            identity,
            session,
            phase,
            held: Held::default(),
            last_process: None,
            ids: 0,
            seqs: 0,
            line: None,
        }
    }

    /// Objects it holds a lease on.
    pub fn holds(&self) -> usize {
        lock(&self.held).len()
    }

    /// The directory it has mounted.
    pub fn root(&self) -> Outcome<Handle> {
        Ok(self.line.as_ref().ok_or("not connected")?.root)
    }

    /// Lets go of its connection, if it has one.
    pub fn hang_up(&mut self) {
        self.line = None;
    }

    /// Connects, and has all its leases again when this returns; from then on it keeps them alive.
    pub async fn join(&mut self, site: &Site, ticket: Option<&Ticket>) -> Outcome<()> {
        let connection = site
            .socket
            .connect(site.address, &self.identity, site.server);
        let connection = connection.await?;
        let (mut control, mut control_in) = connection.open().await?;
        let hello = Hello {
            version: PROTOCOL_VERSION,
            features: 0,
            session: self.session,
            ticket: ticket.map(|ticket| ticket.secret),
            name: "load:/mnt".to_owned(),
            subdir: Vec::new(),
            drift_ppm: DEFAULT_DRIFT_PPM,
            last_process: self.last_process,
        };
        send(&mut control, &ToServer::Hello(hello)).await?;
        let welcome = match told(&mut control_in).await? {
            ToClient::Welcome(welcome) => welcome,
            other => return Err(format!("no welcome: {other:?}").into()),
        };
        match welcome.standing {
            Standing::Reclaim => self.reclaim(&mut control, &mut control_in).await?,
            Standing::New | Standing::Resumed => {}
            Standing::Expired => lock(&self.held).clear(),
        }
        self.last_process = Some(welcome.process);
        let attended = tokio::spawn(attend(Attendance {
            connection: connection.clone(),
            control,
            control_in,
            held: Arc::clone(&self.held),
            tally: Arc::clone(&site.tally),
            rhythm: self.rhythm(&welcome),
        }));
        self.line = Some(Line {
            connection,
            root: welcome.root,
            lane: None,
            attended,
        });
        Ok(())
    }

    /// When the next keep-alive is due, and then in which time each.
    fn rhythm(&self, welcome: &Welcome) -> (Duration, Duration) {
        let each = Duration::from_millis(u64::from(welcome.term_ms)) / 3;
        (each.mul_f64(self.phase), each)
    }

    async fn reclaim(&self, control: &mut FrameWriter, told_by: &mut FrameReader) -> Outcome<()> {
        let lease = |(object, parts): (&Handle, &Parts)| ReclaimLease {
            object: *object,
            parts: *parts,
            mode: leasefs_protocol::Mode::Read,
        };
        let leases: Vec<ReclaimLease> = lock(&self.held).iter().map(lease).collect();
        for leases in leases.chunks(MAX_BATCH) {
            let (leases, opens) = (leases.to_vec(), Vec::new());
            send(
                control,
                &ToServer::Reclaim(Reclaim {
                    leases,
                    opens,
                    ..Reclaim::default()
                }),
            )
            .await?;
        }
        send(control, &ToServer::ReclaimDone).await?;
        let mut batches = leases.chunks(MAX_BATCH).len();
        while batches > 0 {
            match told(told_by).await? {
                ToClient::Reclaimed { lost_leases, .. } if lost_leases.is_empty() => batches -= 1,
                other => return Err(format!("not reclaimed: {other:?}").into()),
            }
        }
        renewed(control, told_by).await
    }

    /// Asks something on the lane of small requests; what is granted it holds from then on.
    pub async fn ask(&mut self, query: Query) -> Outcome<Response> {
        self.request(Request::Query(query)).await
    }

    /// Changes something of an object, of which it has nothing cached then.
    pub async fn change(&mut self, object: Handle, change: Change) -> Outcome<Response> {
        self.seqs += 1;
        lock(&self.held).remove(&object);
        let numbered = Numbered {
            seq: Seq(self.seqs),
            after: Vec::new(),
            resent: false,
            dropped: vec![object],
            closed: Vec::new(),
            locked: None,
        };
        self.request(Request::Change(numbered, change)).await
    }

    async fn request(&mut self, request: Request) -> Outcome<Response> {
        self.ids += 1;
        let frame = RequestFrame {
            id: RequestId(self.ids),
            low_water: Seq(self.seqs),
            caller: Caller::default(),
            request,
        };
        let line = self.line.as_mut().ok_or("not connected")?;
        if line.lane.is_none() {
            line.lane = Some(line.connection.open().await?);
        }
        let (lane, lane_in) = line.lane.as_mut().ok_or("no lane")?;
        send(lane, &frame).await?;
        let (reply, _): (Reply, _) = lane_in.next().await?.ok_or("the lane has ended")?;
        let mut held = lock(&self.held);
        for Grant { object, parts, .. } in reply.grants {
            *held.entry(object).or_default() |= parts;
        }
        reply
            .result
            .map_err(|refusal| format!("{}: {refusal}", frame.request.kind()).into())
    }
}

/// What the task of a connection needs.
struct Attendance {
    connection: Connection,
    control: FrameWriter,
    control_in: FrameReader,
    held: Held,
    tally: Arc<Tally>,
    rhythm: (Duration, Duration),
}

/// Renews the session and approves what is recalled, until the connection is lost.
async fn attend(mut of: Attendance) {
    // However it ends.
    let _ = of.serve().await;
    of.tally.lost.fetch_add(1, Ordering::Relaxed);
}

impl Attendance {
    async fn serve(&mut self) -> Outcome<()> {
        let (first, each) = self.rhythm;
        let mut due = interval_at(Instant::now() + first, each);
        let mut push: Option<FrameReader> = None;
        let mut number = 0;
        loop {
            tokio::select! {
                message = told(&mut self.control_in) => self.answered(&message?),
                _ = due.tick() => {
                    number += 1;
                    send(&mut self.control, &ToServer::KeepAlive { number }).await?;
                }
                stream = self.connection.accept_push(), if push.is_none() => push = Some(stream?),
                first = recalled(&mut push) => {
                    let recalls = std::iter::once(first?).chain(ready(&mut push)?);
                    self.approve(recalls.collect()).await?;
                }
            }
        }
    }

    fn answered(&self, message: &ToClient) {
        if let ToClient::KeepAlive { renews, .. } = message {
            let count = match renews {
                true => &self.tally.renewed,
                false => &self.tally.not_renewed,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn approve(&mut self, recalls: Vec<Recall>) -> Outcome<()> {
        let count = recalls.len() as u64;
        let give_up = |recall: Recall| {
            let mut held = lock(&self.held);
            match recall.scope {
                Scope::Everything => held.clear(),
                Scope::Object { object, parts, .. } => {
                    let left = held.remove(&object).unwrap_or_default() - parts;
                    if !left.is_empty() {
                        held.insert(object, left);
                    }
                }
            }
            Approval {
                recall: recall.id,
                closes: Vec::new(),
            }
        };
        let approvals = recalls.into_iter().map(give_up).collect();
        send(&mut self.control, &ToServer::Approve(approvals)).await?;
        self.tally.approved.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }
}

async fn recalled(push: &mut Option<FrameReader>) -> Outcome<Recall> {
    match push {
        Some(push) => {
            loop {
                let (push, _) = push.next().await?.ok_or("no more recalls")?;
                // Nobody here waits for locks.
                if let Push::Recall(recall) = push {
                    return Ok(recall);
                }
            }
        }
        None => std::future::pending().await,
    }
}

/// Recalls that have come along with another.
fn ready(push: &mut Option<FrameReader>) -> Outcome<Vec<Recall>> {
    let mut recalls = Vec::new();
    if let Some(push) = push {
        while let Some((Push::Recall(recall), _)) = push.ready()? {
            recalls.push(recall);
        }
    }
    Ok(recalls)
}
