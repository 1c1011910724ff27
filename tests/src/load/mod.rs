//! Many sessions on one server, without a mount: what a lease, a keep-alive, a recall and a restart cost the
//! server. All members share one socket and one thread, so that it is the server that is measured; still
//! both have the same machine, so times are those of both together.

mod member;
mod report;

pub use report::{Report, Row};

use crate::mounted::{Sandbox, Server, ServerOptions};
use fsserver::admin::control::{Reply, Request, ServerStatus, ask};
use fsserver::state::{Location, Role};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use leasefs_protocol::attr::SetAttr;
use leasefs_protocol::query::{Close, GetAttr, Lookup, Open, ReadDir};
use leasefs_protocol::ticket::Ticket;
use leasefs_protocol::{Change, Handle, Query, RawName, Response, SessionId, answer, change};
use leasefs_transport::{Client, Identity};
use member::{Member, Site, Tally};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What comes of it, or why nothing does.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The file that many hold.
const SHARED: &str = "shared";
/// How often it is changed.
const RECALLS: u16 = 11;
/// Members that do something at a time.
const AT_ONCE: usize = 32;
/// How often one tries to connect: while many do, some have to give way.
const TRIES: u32 = 20;
/// Wait before the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Sessions.
    pub sessions: usize,
    /// Files that each lists, and holds a lease on.
    pub files: usize,
    /// Sessions of one client.
    pub of_one_client: usize,
    /// Sessions that hold the file that is changed.
    pub holders: usize,
    /// For how long keep-alives alone are sent.
    pub idle: Duration,
    /// Where the server listens. On the loopback QUIC is set up otherwise than on a network.
    pub address: IpAddr,
}

/// Does it, in a temporary folder of its own.
///
/// # Errors
/// If something goes wrong, or the server does.
///
/// # Panics
/// When the server doesn't start.
pub fn run(plan: Plan) -> Outcome<Report> {
    let sandbox = Sandbox::new("load");
    let measured = measure(plan, &sandbox);
    let tails = measured.is_err().then(|| sandbox.log_tails());
    let left = sandbox.clean();
    if let Some(tails) = tails {
        eprintln!("{tails}");
    }
    let report = measured?;
    match left.is_empty() {
        true => Ok(report),
        false => Err(left.join("\n").into()),
    }
}

fn measure(plan: Plan, sandbox: &Sandbox) -> Outcome<Report> {
    make_files(plan, &sandbox.folder("export"))?;
    let trust = rustix::process::geteuid().is_root();
    let options = ServerOptions {
        identity: trust.then(|| "trust".to_owned()),
        listen: Some(plan.address),
        ..ServerOptions::default()
    };
    let mut server = Server::start(sandbox, options);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let report = runtime.block_on(Load::begin(plan, &mut server)?.measure());
    runtime.shutdown_background();
    server.daemon.end_or_kill(Duration::from_secs(10));
    report
}

fn make_files(plan: Plan, export: &Path) -> Outcome<()> {
    fs::write(export.join(SHARED), b"")?;
    for member in 0..plan.sessions {
        let dir = export.join(dir_of(member));
        fs::create_dir(&dir)?;
        for file in 0..plan.files {
            fs::File::create(dir.join(format!("file-{file}")))?;
        }
    }
    Ok(())
}

fn dir_of(member: usize) -> String {
    format!("dir-{member}")
}

struct Load<'a> {
    plan: Plan,
    server: &'a mut Server,
    location: Location,
    members: Vec<Member>,
    tally: Arc<Tally>,
    report: Report,
}

impl<'a> Load<'a> {
    fn begin(plan: Plan, server: &'a mut Server) -> Outcome<Self> {
        let mut members = Vec::with_capacity(plan.sessions);
        let mut identity = Identity::generate()?;
        for number in 0..plan.sessions {
            if number.is_multiple_of(plan.of_one_client) {
                identity = Identity::generate()?;
            }
            let mut id = [0xa5; 16];
            id[..8].copy_from_slice(&(number as u64).to_be_bytes());
            let phase = number as f64 / plan.sessions as f64;
            members.push(Member::new(identity.clone(), SessionId(id), phase));
        }
        Ok(Self {
            plan,
            location: Location::find(Some(&server.state))?,
            server,
            members,
            tally: Arc::default(),
            report: Report::default(),
        })
    }

    async fn measure(mut self) -> Outcome<Report> {
        let site = self.connect_all().await?;
        self.take_leases().await?;
        self.keep_alive().await?;
        self.recall().await?;
        self.restart(&site).await?;
        let refused = self.tally.not_renewed.load(Ordering::Relaxed);
        // Of who approves later than a recall may take.
        self.report
            .add("keep-alives that renewed nothing", refused as f64, "");
        match self.tally.lost.load(Ordering::Relaxed) {
            0 => Ok(self.report),
            lost => Err(format!("{lost} connections lost:\n{}", self.report).into()),
        }
    }

    fn status(&self) -> Outcome<Box<ServerStatus>> {
        match ask(&self.location, &Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(format!("no status: {other:?}").into()),
        }
    }

    fn leases(&self) -> Outcome<usize> {
        Ok(self
            .status()?
            .status
            .sessions
            .iter()
            .map(|s| s.leases)
            .sum())
    }

    fn resident(&self) -> Outcome<f64> {
        report::resident(self.server.daemon.pid())
    }

    fn cpu(&self) -> Outcome<f64> {
        Ok(report::cpu(self.server.daemon.pid())?.as_secs_f64())
    }

    /// Enrols all and connects them. Each asks for the names in its directory, so that what a connection needs
    /// to carry a listing is there already, which is no lease's.
    async fn connect_all(&mut self) -> Outcome<Site> {
        let before = self.resident()?;
        let first = ticket(&self.location)?;
        let site = Site {
            socket: Client::bind(self.server.address)?,
            address: self.server.address,
            server: first.key,
            tally: Arc::clone(&self.tally),
        };
        let mut fresh = Some(first);
        for (number, member) in self.members.iter_mut().enumerate() {
            if number.is_multiple_of(self.plan.of_one_client) && fresh.is_none() {
                fresh = Some(ticket(&self.location)?);
            }
            member.join(&site, fresh.take().as_ref()).await?;
            list(number, member, false).await?;
        }
        let each = (self.resident()? - before) / 1024.0 / self.plan.sessions as f64;
        self.report.add("memory of a session", each, "KiB");
        Ok(site)
    }

    /// Each lists a directory of its own.
    async fn take_leases(&mut self) -> Outcome<()> {
        let (memory, leases) = (self.resident()?, self.leases()?);
        let (begun, cpu) = (Instant::now(), self.cpu()?);
        let members = self.members.iter_mut().enumerate();
        let listing = stream::iter(members.map(Ok));
        listing
            .try_for_each_concurrent(AT_ONCE, |(number, member)| list(number, member, true))
            .await?;
        let (took, cpu) = (begun.elapsed().as_secs_f64(), self.cpu()? - cpu);
        let leases = (self.leases()? - leases) as f64;
        let memory = self.resident()? - memory;
        let held: usize = self.members.iter().map(Member::holds).sum();
        let report = &mut self.report;
        report.add("leases", held as f64, "");
        report.add("leases taken by listings, a second", leases / took, "");
        report.add("time of the server for each", cpu / leases * 1e6, "µs");
        report.judge("memory of a lease", memory / leases, "bytes", 200.0);
        Ok(())
    }

    async fn keep_alive(&mut self) -> Outcome<()> {
        let renewed = || self.tally.renewed.load(Ordering::Relaxed);
        let (before, cpu, begun) = (renewed(), self.cpu()?, Instant::now());
        tokio::time::sleep(self.plan.idle).await;
        let (count, cpu) = (renewed() - before, self.cpu()? - cpu);
        let share = 100.0 * cpu / begun.elapsed().as_secs_f64();
        let each = 1e6 * cpu / count as f64;
        self.report
            .add("time of the server for a keep-alive", each, "µs");
        self.report
            .judge("keep-alives, of one core", share, "%", 5.0);
        Ok(())
    }

    /// A file is changed that many hold, a few times.
    async fn recall(&mut self) -> Outcome<()> {
        let holders = self.plan.holders;
        let (changer, others) = self.members.split_last_mut().ok_or("no members")?;
        let others = others
            .get_mut(..holders)
            .ok_or("more holders than members")?;
        let object = look_up(changer, SHARED).await?;
        let mut took = Vec::new();
        let pid = self.server.daemon.pid();
        let mut cpu = Duration::ZERO;
        for round in 0..RECALLS {
            let asked = others.iter_mut().map(|member| member.ask(getattr(object)));
            stream::iter(asked)
                .buffer_unordered(AT_ONCE)
                .try_for_each(|_| async { Ok(()) })
                .await?;
            let before = self.tally.approved.load(Ordering::Relaxed);
            let (begun, ran) = (Instant::now(), report::cpu(pid)?);
            changer
                .change(object, chmod(object, 0o600 + (round & 0o77)))
                .await?;
            took.push(begun.elapsed().as_secs_f64() * 1e3);
            cpu += report::cpu(pid)? - ran;
            let approved = self.tally.approved.load(Ordering::Relaxed) - before;
            if approved < holders as u64 {
                return Err(format!("changed when {approved} of {holders} had approved").into());
            }
        }
        took.sort_by(f64::total_cmp);
        let what = format!("a recall from {holders} that hold a file");
        let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
        self.report.judge(what.clone(), median, "ms", 100.0);
        self.report.add(what + ", longest", most, "ms");
        let cpu = cpu.as_secs_f64() * 1e3 / f64::from(RECALLS);
        self.report.add("time of the server for it", cpu, "ms");
        Ok(())
    }

    /// The server is killed and started again, and all come back at once.
    async fn restart(&mut self, site: &Site) -> Outcome<()> {
        let held: usize = self.members.iter().map(Member::holds).sum();
        self.server.daemon.kill();
        self.members.iter_mut().for_each(Member::hang_up);
        let begun = Instant::now();
        self.server.start_again();
        let started = begun.elapsed().as_secs_f64();
        let cpu = self.cpu()?;
        let begun = Instant::now();
        stream::iter(self.members.iter_mut().map(Ok))
            .try_for_each_concurrent(AT_ONCE, |member| rejoin(member, site))
            .await?;
        let took = begun.elapsed().as_secs_f64();
        let cpu = self.cpu()? - cpu;
        let status = self.status()?.status;
        let leases: usize = status.sessions.iter().map(|session| session.leases).sum();
        if leases != held || status.grace_ms.is_some() {
            let grace = status.grace_ms;
            return Err(format!("{leases} of {held} leases reclaimed, grace {grace:?}").into());
        }
        self.report.add("a start of the server", started, "s");
        self.report
            .add("time of the server for all to reclaim", cpu, "s");
        self.report
            .judge("until all have reclaimed", took, "s", 2.0);
        Ok(())
    }
}

fn ticket(location: &Location) -> Outcome<Ticket> {
    let role = Role {
        trust: rustix::process::geteuid().is_root(),
        ..Role::default()
    };
    let subdir = None;
    match ask(location, &Request::Ticket { role, subdir })? {
        Reply::Ticket(ticket) => Ok(ticket.parse()?),
        other => Err(format!("no ticket: {other:?}").into()),
    }
}

async fn rejoin(member: &mut Member, site: &Site) -> Outcome<()> {
    let mut tries = 0;
    loop {
        match member.join(site, None).await {
            Err(_) if tries < TRIES => tries += 1,
            outcome => return outcome,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn lookup(dir: Handle, name: &str) -> Query {
    let name = RawName(name.as_bytes().to_vec());
    Query::Lookup(Lookup { dir, name })
}

fn getattr(object: Handle) -> Query {
    Query::GetAttr(GetAttr { object })
}

fn chmod(object: Handle, mode: u16) -> Change {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let open = None;
    Change::SetAttr(change::SetAttr { object, open, set })
}

async fn look_up(member: &mut Member, name: &str) -> Outcome<Handle> {
    let root = member.root()?;
    match member.ask(lookup(root, name)).await? {
        Response::Object(answer::Object { handle, .. }) => Ok(handle),
        other => Err(format!("no answer to a lookup: {other:?}").into()),
    }
}

/// Lists a directory as a whole, with what its entries denote if `nodes`.
async fn list(number: usize, member: &mut Member, nodes: bool) -> Outcome<()> {
    let object = look_up(member, &dir_of(number)).await?;
    let flags = (rustix::fs::OFlags::DIRECTORY.bits()).into();
    let open = match member
        .ask(Query::Open(Open {
            object,
            flags,
            with_data: false,
        }))
        .await?
    {
        Response::Opened(opened) => opened.open,
        other => return Err(format!("no answer to an open: {other:?}").into()),
    };
    let mut cookie = 0;
    loop {
        let asked = Query::ReadDir(ReadDir {
            open,
            cookie,
            nodes,
        });
        let Response::Entries(page) = member.ask(asked).await? else {
            return Err("no answer to a listing".into());
        };
        match page.entries.last() {
            Some(last) if !page.end => cookie = last.cookie,
            _ => break,
        }
    }
    let opens = vec![open];
    member.ask(Query::Close(Close { opens })).await?;
    Ok(())
}
