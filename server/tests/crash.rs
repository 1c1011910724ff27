//! Changes of every kind take effect once and get one answer, wherever the server's process crashes.

mod support;

use leasefs_protocol::Durability;
use leasefs_protocol::change::{What, WriteAt, WriteKind};
use leasefs_protocol::control::{Reclaim, ReclaimOpen, Standing, ToClient, ToServer};
use leasefs_protocol::{
    Change, Handle, KeyHash, OpenId, OpenToken, Query, Refusal, RequestFrame, Response, Seq,
    SetAttr, answer, change, query,
};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use support::client::{Client, Who, flush, numbered, raw, write};
use support::process::{Estate, Process};

const NOBODY: u32 = 65534;
const POINTS: [&str; 3] = ["crash-begun:1", "crash-happened:1", "crash-answered:1"];
const BLOCK: u64 = 4096;

/// A client over several lives of its server.
struct Survivor {
    who: Who,
    key: KeyHash,
    client: Client,
}

impl Survivor {
    async fn enrol(server: &Process) -> Self {
        let ticket = server.ticket.as_ref().expect("the first start");
        let who = Who::new(1);
        let mut hello = who.hello();
        hello.ticket = Some(ticket.secret);
        let client = who.connect_to(server.address, ticket.key, hello).await;
        Self {
            client: client.expect("let in"),
            key: ticket.key,
            who,
        }
    }

    /// Connects to the server's next life and takes back what it had open.
    async fn come_back(&mut self, server: &Process, opens: &[(OpenId, OpenToken)]) {
        let hello = self.who.hello();
        let client = self.who.connect_to(server.address, self.key, hello).await;
        let mut client = client.expect("let in");
        client.take_over(&self.client);
        self.client = client;
        if self.client.welcome.standing != Standing::Reclaim {
            return;
        }
        let opens = opens.iter().map(|(open, token)| ReclaimOpen {
            open: *open,
            token: token.clone(),
        });
        let reclaim = Reclaim {
            leases: Vec::new(),
            opens: opens.collect(),
            ..Reclaim::default()
        };
        self.client.tell(ToServer::Reclaim(reclaim)).await;
        let ToClient::Reclaimed { lost_opens, .. } = self.client.told().await else {
            panic!("no answer to a reclaim");
        };
        assert_eq!(lost_opens, []);
        self.client.tell(ToServer::ReclaimDone).await;
    }
}

/// One change: where it happens, what it needs, what it must have come to.
struct Case<'a> {
    dir: PathBuf,
    handle: Handle,
    survivor: &'a mut Survivor,
    opens: Vec<(OpenId, OpenToken)>,
    /// Objects it may have leases of, and drops before the change.
    known: Vec<Handle>,
}

impl Case<'_> {
    async fn object(&mut self, name: &str) -> Handle {
        let found = self.survivor.client.lookup(self.handle, name).await;
        let object = found.expect("there").0;
        self.known.push(object);
        object
    }

    async fn open(&mut self, name: &str, flags: i32) -> OpenId {
        let object = self.object(name).await;
        let flags = (flags as u32).into();
        let reply = self.survivor.client.ask(Query::Open(query::Open {
            object,
            flags,
            with_data: false,
        }));
        match reply.await.result.expect("opened") {
            Response::Opened(answer::Opened { open, token, .. }) => {
                self.opens.push((open, token));
                open
            }
            other => panic!("no answer to an open: {other:?}"),
        }
    }
}

const KINDS: &[&str] = &[
    "create",
    "create-read-only-mode",
    "mkdir",
    "symlink",
    "fifo",
    "link",
    "unlink",
    "unlink-open",
    "rmdir",
    "rename",
    "rename-directory",
    "rename-noreplace",
    "rename-exchange",
    "rename-whiteout",
    "rename-replacing",
    "rename-replacing-open",
    "append",
    "append-synced",
    "xattr-create",
    "xattr-set",
    "xattr-remove",
    "collapse",
    "insert",
    "allocate",
    "write",
    "truncate",
    "open-truncating",
    "copy",
];

/// What is there before: files `a` and `b` (two blocks each), an empty directory `d`.
fn prepare(dir: &Path) {
    fs::create_dir(dir).expect("a directory");
    fs::create_dir(dir.join("d")).expect("a directory");
    for name in ["a", "b"] {
        fs::write(dir.join(name), name.repeat(2 * BLOCK as usize)).expect("a file");
    }
    let file = fs::File::open(dir.join("b")).expect("the file");
    rustix::fs::fsetxattr(&file, c"user.old", b"x", rustix::fs::XattrFlags::empty())
        .expect("an xattr");
    for path in [dir.to_owned(), dir.join("a"), dir.join("b"), dir.join("d")] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("an owner");
    }
}

async fn request(case: &mut Case<'_>, kind: &str) -> (Change, &'static [u8]) {
    let dir = case.handle;
    let name = raw("new");
    let make = |mode, make| {
        Change::Make(change::Make {
            dir,
            name: raw("new"),
            mode,
            umask: 0,
            make,
        })
    };
    let rename = |old: &str, new: &str, flags| {
        Change::Rename(change::Rename {
            dir,
            name: raw(old),
            new_dir: dir,
            new_name: raw(new),
            flags,
        })
    };
    let create = |mode| {
        Change::Create(change::Create {
            dir,
            name: raw("new"),
            mode,
            umask: 0,
            flags: (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR) as u32,
            keep: false,
        })
    };
    let append = |open, durability| {
        Change::Write(change::Write {
            open,
            at: WriteAt::Append,
            kill_priv: false,
            durability,
            kind: WriteKind::Through { keep: false },
        })
    };
    let request = match kind {
        "create" => create(0o100_644),
        // Its owner could not open it again.
        "create-read-only-mode" => create(0o100_000),
        "mkdir" => make(0o40_755, What::Directory),
        "symlink" => make(0, What::Symlink { target: raw("a") }),
        "fifo" => make(libc::S_IFIFO | 0o644, What::Node { rdev: (0, 0) }),
        "link" => Change::Link(change::Link {
            object: case.object("a").await,
            dir,
            name,
        }),
        "unlink" => Change::Unlink(change::Unlink {
            dir,
            name: raw("a"),
        }),
        "unlink-open" => {
            case.open("a", libc::O_RDWR).await;
            Change::Unlink(change::Unlink {
                dir,
                name: raw("a"),
            })
        }
        "rmdir" => Change::Rmdir(change::Rmdir {
            dir,
            name: raw("d"),
        }),
        "rename" => rename("a", "new", 0),
        "rename-directory" => rename("d", "new", 0),
        "rename-noreplace" => rename("a", "new", libc::RENAME_NOREPLACE),
        "rename-exchange" => rename("a", "b", libc::RENAME_EXCHANGE),
        "rename-whiteout" => rename("a", "new", libc::RENAME_WHITEOUT),
        "rename-replacing" => rename("a", "b", 0),
        "rename-replacing-open" => {
            case.open("b", libc::O_RDWR).await;
            rename("a", "b", 0)
        }
        "append" => append(case.open("a", libc::O_WRONLY).await, Durability::None),
        "append-synced" => append(case.open("a", libc::O_WRONLY).await, Durability::All),
        "xattr-create" => Change::SetXattr(change::SetXattr {
            object: case.object("a").await,
            name: raw("user.new"),
            flags: libc::XATTR_CREATE as u32,
        }),
        "xattr-set" => Change::SetXattr(change::SetXattr {
            object: case.object("b").await,
            name: raw("user.old"),
            flags: 0,
        }),
        "xattr-remove" => Change::RemoveXattr(change::RemoveXattr {
            object: case.object("b").await,
            name: raw("user.old"),
        }),
        "collapse" | "insert" | "allocate" => Change::Fallocate(change::Fallocate {
            open: case.open("a", libc::O_RDWR).await,
            mode: match kind {
                "collapse" => libc::FALLOC_FL_COLLAPSE_RANGE as u32,
                "insert" => libc::FALLOC_FL_INSERT_RANGE as u32,
                _ => 0,
            },
            offset: if kind == "allocate" { 2 * BLOCK } else { 0 },
            len: BLOCK,
        }),
        "write" => write(case.open("a", libc::O_RDWR).await, 1),
        "truncate" => Change::SetAttr(change::SetAttr {
            object: case.object("a").await,
            open: None,
            set: SetAttr {
                size: Some(1),
                ..SetAttr::default()
            },
        }),
        "open-truncating" => Change::OpenTruncated(change::OpenTruncated {
            object: case.object("a").await,
            flags: (libc::O_RDWR as u32).into(),
        }),
        "copy" => Change::CopyRange(change::CopyRange {
            from: case.open("b", libc::O_RDONLY).await,
            from_offset: 0,
            to: case.open("a", libc::O_RDWR).await,
            to_offset: 2 * BLOCK,
            len: BLOCK,
        }),
        other => panic!("no such kind: {other}"),
    };
    let takes_data = matches!(request, Change::Write(_) | Change::SetXattr(_));
    (request, if takes_data { b"DATA" } else { b"" })
}

/// That it has taken effect, and once.
fn check_effect(dir: &Path, kind: &str) {
    let content = |name: &str| fs::read(dir.join(name)).expect("a file");
    let there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    let meta = |name: &str| dir.join(name).symlink_metadata().expect("there");
    let a = "a".repeat(2 * BLOCK as usize).into_bytes();
    let b = "b".repeat(2 * BLOCK as usize).into_bytes();
    let block = |byte: u8| vec![byte; BLOCK as usize];
    match kind {
        "create" => assert_eq!(content("new"), b""),
        "create-read-only-mode" => assert_eq!(meta("new").mode() & 0o7777, 0),
        "mkdir" => assert!(meta("new").is_dir()),
        "symlink" => assert!(meta("new").is_symlink()),
        "fifo" => assert!(meta("new").file_type().is_fifo()),
        "link" => {
            assert_eq!(meta("new").ino(), meta("a").ino());
            assert_eq!(meta("a").nlink(), 2);
        }
        "unlink" | "unlink-open" => assert!(!there("a")),
        "rmdir" => assert!(!there("d")),
        "rename" | "rename-noreplace" => assert!(!there("a") && content("new") == a),
        "rename-whiteout" => {
            assert!(meta("a").file_type().is_char_device() && content("new") == a);
        }
        "rename-directory" => assert!(!there("d") && meta("new").is_dir()),
        "rename-exchange" => assert!(content("a") == b && content("b") == a),
        "rename-replacing" | "rename-replacing-open" => {
            assert!(!there("a") && content("b") == a);
        }
        "append" | "append-synced" => assert!(content("a") == [&a[..], b"DATA"].concat()),
        "collapse" => assert!(content("a") == block(b'a')),
        "insert" => assert!(content("a") == [block(0), a].concat()),
        "allocate" => assert!(content("a") == [a, block(0)].concat()),
        "write" => assert!(content("a") == [&b"aDATA"[..], &a[5..]].concat()),
        "truncate" => assert_eq!(content("a"), b"a"),
        "open-truncating" => assert_eq!(content("a"), b""),
        "copy" => assert!(content("a") == [a, block(b'b')].concat()),
        "xattr-create" => assert_eq!(xattr(&dir.join("a"), "user.new"), Some(4)),
        "xattr-set" => assert_eq!(xattr(&dir.join("b"), "user.old"), Some(4)),
        "xattr-remove" => assert_eq!(xattr(&dir.join("b"), "user.old"), None),
        other => panic!("no such kind: {other}"),
    }
}

fn xattr(path: &Path, name: &str) -> Option<usize> {
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(path, name, &mut value[..]).ok()
}

/// That the answer is what the change's first run would have answered.
fn check_answer(kind: &str, result: &Result<Response, Refusal>) {
    let response = result.as_ref();
    let response = response.unwrap_or_else(|refusal| panic!("{kind}: {refusal}"));
    let fits = match kind {
        "create" | "create-read-only-mode" => matches!(response, Response::Created(_)),
        "mkdir" | "symlink" | "fifo" | "link" => matches!(response, Response::Object(_)),
        "append" | "append-synced" => {
            let (len, offset) = (4, 2 * BLOCK);
            *response == Response::Written(answer::Written::plain(len, offset))
        }
        "write" => *response == Response::Written(answer::Written::plain(4, 1)),
        "copy" => {
            let (len, offset) = (BLOCK, 2 * BLOCK);
            *response == Response::Written(answer::Written::plain(len, offset))
        }
        "truncate" => matches!(response, Response::Attr(attr) if attr.size == 1),
        "open-truncating" => matches!(response, Response::Opened(_)),
        _ => *response == Response::Done,
    };
    assert!(fits, "{kind}: {response:?}");
}

async fn send_again(client: &mut Client, frame: &mut RequestFrame, data: &[u8]) -> Answer {
    numbered(frame).resent = true;
    client.send(frame, data).await;
    client.reply().await.0.result
}

type Answer = Result<Response, Refusal>;

/// Sends a change again to a server that crashes if the change runs again, and is killed otherwise.
/// Returns its answer, if there is one.
async fn crash_again(
    estate: &Estate,
    point: &str,
    case: &mut Case<'_>,
    sent: Sent<'_>,
) -> Option<Answer> {
    let mut server = estate.serve(Some(point));
    case.survivor.come_back(&server, &case.opens).await;
    tokio::select! {
        answer = send_again(&mut case.survivor.client, sent.0, sent.1) => Some(answer),
        () = server.has_crashed() => None,
    }
}

/// A change and its data.
type Sent<'a> = (&'a mut RequestFrame, &'a [u8]);

/// Sends a change of this kind to a server that crashes over it, to another that perhaps does so once
/// more, and to the next one.
async fn run(
    estate: &Estate,
    survivor: &mut Survivor,
    kind: &str,
    (point, second): (&str, Option<&str>),
) {
    let mut server = estate.serve(Some(point));
    survivor.come_back(&server, &[]).await;
    let root = survivor.client.root();
    let found = survivor.client.lookup(root, kind).await;
    let mut case = Case {
        dir: estate.export().join(kind),
        handle: found.expect("its directory").0,
        survivor,
        opens: Vec::new(),
        known: Vec::new(),
    };
    let (request, data) = request(&mut case, kind).await;
    let mut frame = case.survivor.client.frame(request);
    let change = numbered(&mut frame);
    change.dropped.extend(&case.known);
    change.dropped.sort_unstable();
    change.dropped.dedup();
    frame.low_water = Seq(case.survivor.client.seq);
    case.survivor.client.low_water = frame.low_water;
    case.survivor.client.send(&frame, data).await;
    server.has_crashed().await;
    let mut earlier = None;
    if let Some(second) = second {
        earlier = crash_again(estate, second, &mut case, (&mut frame, data)).await;
    }
    let server = estate.serve(None);
    case.survivor.come_back(&server, &case.opens).await;
    let client = &mut case.survivor.client;
    let answer = send_again(client, &mut frame, data).await;
    check_answer(kind, &answer);
    check_effect(&case.dir, kind);
    assert!(
        earlier.is_none_or(|earlier| earlier == answer),
        "{kind}: another answer"
    );
    assert_eq!(send_again(client, &mut frame, data).await, answer);
    check_effect(&case.dir, kind);
    let opened = match answer {
        Ok(Response::Created(answer::Created { handle, open, .. })) => Some((handle, open)),
        Ok(Response::Opened(answer::Opened { open, .. })) => {
            case.known.first().map(|object| (*object, open))
        }
        _ => None,
    };
    if let Some((object, open)) = opened {
        client.opens.insert(open, object);
        let written = client.write(open, 0, b"open").await;
        assert!(written.result.is_ok(), "{kind}: {written:?}");
    }
    for (open, _) in &case.opens {
        let read = Query::Seek(query::Seek {
            open: *open,
            offset: 0,
            whence: libc::SEEK_DATA as u32,
        });
        let found = client.ask(read).await.result;
        assert!(found.is_ok(), "{kind}: an open is lost: {found:?}");
    }
    // What nobody has open any more leaves no orphan.
    let opens = case.opens.iter().map(|(open, _)| *open).collect();
    client.ask(Query::Close(query::Close { opens })).await;
}

async fn all_kinds_at(point: &str, second: Option<&str>) {
    let estate = Estate::new();
    std::os::unix::fs::chown(estate.export(), Some(NOBODY), Some(NOBODY)).expect("an owner");
    for kind in KINDS {
        prepare(&estate.export().join(kind));
    }
    let server = estate.serve(None);
    let mut survivor = Survivor::enrol(&server).await;
    drop(server);
    for kind in KINDS {
        run(&estate, &mut survivor, kind, (point, second)).await;
    }
    let orphans = fs::read_dir(estate.export().join(".leasefs-orphans"));
    assert_eq!(orphans.map_or(0, Iterator::count), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_a_crash_kept_from_happening_runs_once_when_it_is_sent_again() {
    all_kinds_at(POINTS[0], None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_happened_before_a_crash_gets_its_answer_and_does_not_run_again() {
    all_kinds_at(POINTS[1], None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_answered_before_a_crash_gets_that_answer_again() {
    all_kinds_at(POINTS[2], None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_second_run_is_cut_off_by_a_crash_too_takes_effect_once() {
    for second in POINTS {
        all_kinds_at(POINTS[0], Some(second)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_happened_before_two_crashes_gets_one_answer_and_does_not_run_again() {
    for first in &POINTS[1..] {
        all_kinds_at(first, Some(POINTS[1])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_a_crash_has_interrupted_is_in_time_when_it_is_sent_again() {
    let estate = Estate::new();
    std::os::unix::fs::chown(estate.export(), Some(NOBODY), Some(NOBODY)).expect("an owner");
    prepare(&estate.export().join("flush"));
    let server = estate.serve(None);
    let mut survivor = Survivor::enrol(&server).await;
    drop(server);
    let mut server = estate.serve(Some(POINTS[1]));
    survivor.come_back(&server, &[]).await;
    let root = survivor.client.root();
    let found = survivor.client.lookup(root, "flush").await;
    let mut case = Case {
        dir: estate.export().join("flush"),
        handle: found.expect("its directory").0,
        survivor: &mut survivor,
        opens: Vec::new(),
        known: Vec::new(),
    };
    let (dir, open) = (case.handle, case.open("a", libc::O_RDWR).await);
    let base = case.survivor.client.lookup(dir, "a").await;
    let flush = flush(open, base.expect("there").1.version(), None);
    let mut frame = case.survivor.client.frame(flush);
    numbered(&mut frame).dropped.extend(&case.known);
    case.survivor.client.send(&frame, b"late").await;
    server.has_crashed().await;
    let server = estate.serve(None);
    case.survivor.come_back(&server, &case.opens).await;
    numbered(&mut frame).resent = true;
    case.survivor.client.send(&frame, b"late").await;
    let reply = case.survivor.client.reply().await.0;
    assert!(reply.result.is_ok(), "{reply:?}");
    let touched: Vec<Handle> = reply.touched.iter().map(|t| t.object).collect();
    assert_eq!(touched, case.known, "what follows it is in time, too");
}
