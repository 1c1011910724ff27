//! What one request costs a server: CPU, task switches, wake-ups of its threads and, with `--syscalls` (strace), system
//! calls. Requests come one at a time, from a client without FUSE, over loopback.
//!
//! `cargo bench -p fsserver --bench cost -- [--syscalls] [--trust] [ROW…]`, as root, with a `TMPDIR` on tmpfs or on ext4 with
//! a journal: without one, ext4 looks for inodes that weren't freed in the last minutes, which takes it longer than
//! all the rest of a create.

#[path = "../tests/support/mod.rs"]
mod support;

use leasefs_protocol::change;
use leasefs_protocol::query::{self, Fill};
use leasefs_protocol::{
    Attr, Caller, Change, Durability, Handle, OpenId, Query, Response, Seq, answer,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::client::{Ask, Client, Who, flush, numbered, raw};
use support::process::{Estate, Process};

const ROWS: [&str; 8] = [
    "create", "write", "commit", "read", "getattr", "close", "lookup", "unlink",
];
const FILES: usize = 2000;
const TRACED: usize = 200;
const USER: u32 = 1000;
const BLOCK: usize = 4096;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let wanted = |row: &str| {
        let mut rows = args.iter().filter(|arg| !arg.starts_with("--")).peekable();
        rows.peek().is_none() || rows.any(|arg| arg == row)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let bench = async {
        let mut bench = Bench::begin(has("--trust")).await;
        let files = if has("--syscalls") { TRACED } else { FILES };
        println!(
            "{:>8}  {:>7} {:>7}  {:>8} {:>8}",
            "", "µs CPU", "µs", "switches", "threads"
        );
        for row in ROWS {
            let shown = wanted(row);
            let watch = Watch::begin(&bench.server, shown && has("--syscalls"));
            bench.row(row, files).await;
            watch.end(row, files, shown);
        }
    };
    runtime.expect("a runtime").block_on(bench);
}

struct Bench {
    _estate: Estate,
    server: Process,
    client: Client,
    dir: Handle,
    files: Vec<(Handle, OpenId, Attr)>,
}

impl Bench {
    /// A server whose export is the user's, who asks.
    async fn begin(trust: bool) -> Self {
        let estate = Estate::new();
        chown(estate.export(), Some(USER), Some(USER)).expect("root");
        let server = estate.serve_for(Duration::from_secs(60));
        let ticket = match trust {
            true => estate
                .command(&["ticket", "--trust"])
                .trim()
                .parse()
                .expect("a ticket"),
            false => estate.ticket(),
        };
        let who = Who::new(1);
        let mut hello = who.hello();
        hello.ticket = Some(ticket.secret);
        let client = who.connect_to(server.address, ticket.key, hello).await;
        let mut client = client.expect("let in");
        let id = if trust { 0 } else { USER };
        client.caller = Caller {
            uid: id,
            gid: id,
            groups: vec![id],
        };
        let made = client.mkdir("dir").await.result.expect("made");
        let Response::Object(answer::Object { handle: dir, .. }) = made else {
            panic!("no answer to a mkdir: {made:?}");
        };
        let root = client.root();
        let mut bench = Self {
            _estate: estate,
            server,
            client,
            dir: root,
            files: Vec::new(),
        };
        // From then on there is a folder of orphans, as on most servers.
        bench.create("gone").await;
        bench.unlink("gone", 0).await;
        bench.files.clear();
        Self { dir, ..bench }
    }

    async fn ask(&mut self, asked: impl Into<Ask>, payload: &[u8]) -> Response {
        self.ask_having_dropped(None, asked, payload).await
    }

    async fn ask_having_dropped(
        &mut self,
        dropped: Option<Handle>,
        asked: impl Into<Ask>,
        payload: &[u8],
    ) -> Response {
        let mut frame = self.client.frame(asked);
        if let Some(object) = dropped {
            numbered(&mut frame).dropped.push(object);
        }
        self.client.send(&frame, payload).await;
        let (reply, _) = self.client.reply().await;
        self.client.low_water = Seq(self.client.seq + 1);
        reply.result.expect("done")
    }

    async fn row(&mut self, row: &str, files: usize) {
        for at in 0..files {
            let name = format!("file-{at}");
            match row {
                "create" => self.create(&name).await,
                "unlink" => self.unlink(&name, at).await,
                _ => self.ask_of(row, &name, at).await,
            }
        }
    }

    async fn create(&mut self, name: &str) {
        let Change::Create(create) = self.client.create_request(name, libc::O_RDWR) else {
            unreachable!("it is a create");
        };
        let asked = Change::Create(change::Create {
            dir: self.dir,
            keep: true,
            ..create
        });
        let Response::Created(answer::Created {
            handle, open, attr, ..
        }) = self.ask(asked, b"").await
        else {
            panic!("no answer to a create");
        };
        self.client.opens.insert(open, handle);
        self.files.push((handle, open, attr));
    }

    async fn unlink(&mut self, name: &str, at: usize) {
        let unlink = change::Unlink {
            dir: self.dir,
            name: raw(name),
        };
        let victim = self.files[at].0;
        self.ask_having_dropped(Some(victim), Change::Unlink(unlink), b"")
            .await;
    }

    async fn ask_of(&mut self, row: &str, name: &str, at: usize) {
        let (object, open, attr) = self.files[at];
        let asked = match row {
            "write" => {
                self.ask(flush(open, attr.version(), Some(attr.mtime)), &[7; BLOCK])
                    .await;
                return;
            }
            "read" => Query::Read(query::Read {
                open,
                offset: 0,
                len: BLOCK as u32,
                fill: Fill::Pages,
            }),
            "commit" => Query::Commit(query::Commit {
                open,
                durability: Durability::All,
            }),
            "close" => Query::Close(query::Close { opens: vec![open] }),
            "lookup" => Query::Lookup(query::Lookup {
                dir: self.dir,
                name: raw(name),
            }),
            "getattr" => Query::GetAttr(query::GetAttr { object }),
            other => panic!("no such row: {other}"),
        };
        self.ask(asked, b"").await;
    }
}

/// What a process has used while something was asked of it.
struct Watch {
    process: u32,
    begun: Instant,
    before: Used,
    strace: Option<Child>,
}

#[derive(Default)]
struct Used {
    cpu: Duration,
    switches: u64,
    /// Of each thread.
    threads: BTreeMap<String, u64>,
}

impl Watch {
    fn begin(server: &Process, traced: bool) -> Self {
        let process = server.id();
        let strace = traced.then(|| {
            let mut command = Command::new("strace");
            let id = process.to_string();
            command.args(["-f", "-c", "-S", "calls", "-U", "calls,name", "-p", &id]);
            let child = command.stderr(Stdio::piped()).spawn().expect("strace");
            std::thread::sleep(Duration::from_millis(500));
            child
        });
        Self {
            process,
            before: used(process),
            begun: Instant::now(),
            strace,
        }
    }

    fn end(self, row: &str, requests: usize, shown: bool) {
        let (took, after) = (self.begun.elapsed(), used(self.process));
        if !shown {
            return;
        }
        let each = |sum: f64| sum / requests as f64;
        let micros = |time: Duration| each(time.as_secs_f64() * 1e6);
        let cpu = micros(after.cpu - self.before.cpu);
        let switches = each((after.switches - self.before.switches) as f64);
        let woken = |thread: (&String, &u64)| {
            let before = self.before.threads.get(thread.0).copied().unwrap_or(0);
            (thread.1 - before) as f64 > requests as f64 / 10.0
        };
        let threads = after.threads.iter().filter(|thread| woken(*thread)).count();
        println!(
            "{row:>8}  {cpu:7.1} {:7.1}  {switches:8.2} {threads:8}",
            micros(took)
        );
        if let Some(strace) = self.strace {
            print_calls(strace, requests);
        }
    }
}

fn print_calls(strace: Child, requests: usize) {
    let ends = Command::new("kill")
        .args(["-INT", &strace.id().to_string()])
        .status();
    assert!(ends.expect("kill").success());
    let output = strace.wait_with_output().expect("strace ends");
    let text = String::from_utf8_lossy(&output.stderr);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(Ok(calls)), Some(name)) = (words.next().map(str::parse::<f64>), words.next()) {
            println!("{:10.2} {name}", calls / requests as f64);
        }
    }
}

fn used(process: u32) -> Used {
    let mut used = Used::default();
    for task in fs::read_dir(format!("/proc/{process}/task")).expect("it runs") {
        let task = task.expect("an entry").path();
        let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
        let nanos = read("schedstat");
        let nanos = nanos.split_whitespace().next().and_then(|n| n.parse().ok());
        used.cpu += Duration::from_nanos(nanos.unwrap_or(0));
        let status = read("status");
        let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
        let switches =
            switches.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        let switches = switches.sum();
        used.switches += switches;
        used.threads.insert(task.display().to_string(), switches);
    }
    used
}
