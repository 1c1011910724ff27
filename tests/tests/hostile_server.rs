//! A server that answers what no server may, to a real mount.

use bytes::Bytes;
use leasefs_protocol::control::{IdentityPolicy, Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::ticket::{ServerAddr, Ticket};
use leasefs_protocol::{
    Attr, BootId, DirEntry, FileKind, Handle, OpenId, OpenToken, Query, RawName, Refusal, Reply,
    Request, RequestFrame, Response, Stamp, Timestamp, answer, query,
};
use leasefs_tests::mounted::{Mount, MountOptions, Sandbox, within};
use leasefs_transport::{Connection, EndpointSecret, FrameReader, FrameWriter, Identity, Server};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Nothing here takes long, unless it never ends.
const SOON: Duration = Duration::from_secs(20);

const ROOT: u8 = 0;
/// A directory whose listing stays where it is.
const STAYS: u8 = 1;
/// A file that is larger than any.
const HUGE: u8 = 2;
/// A file that is read with more bytes than were asked for.
const LONG: u8 = 3;

fn handle(byte: u8) -> Handle {
    Handle::new(&[byte]).expect("one byte")
}

fn attr(object: &Handle) -> Attr {
    let byte = object.as_bytes().first().copied().unwrap_or_default();
    let directory = matches!(byte, ROOT | STAYS);
    Attr {
        ino: u64::from(byte) + 100,
        kind: match directory {
            true => FileKind::Directory,
            false => FileKind::File,
        },
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size: match byte {
            HUGE => u64::MAX,
            _ => 10,
        },
        blocks: 1,
        blksize: 4096,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        xattrs: true,
    }
}

fn lookup(name: &RawName) -> Result<Response, Refusal> {
    let name = String::from_utf8_lossy(&name.0).into_owned();
    let object = match name.as_str() {
        "stays" => handle(STAYS),
        "huge" => handle(HUGE),
        "long" => handle(LONG),
        other => match other.strip_prefix("errno-") {
            Some(errno) => return Err(Refusal::Host(errno.parse().expect("a number"))),
            None => return Ok(Response::NoEntry),
        },
    };
    let attr = attr(&object);
    Ok(Response::Object(answer::Object {
        handle: object,
        attr,
    }))
}

fn answer(request: &Request, opens: u64) -> (Result<Response, Refusal>, Bytes) {
    let Request::Query(query) = request else {
        return (Err(Refusal::Unsupported), Bytes::new());
    };
    let result = match query {
        Query::Lookup(query::Lookup { name, .. }) => lookup(name),
        Query::GetAttr(query::GetAttr { object }) => Ok(Response::Attr(attr(object))),
        Query::Open(query::Open { object, .. }) => Ok(Response::Opened(answer::Opened {
            open: OpenId(opens),
            token: OpenToken(vec![1]),
            attr: attr(object),
        })),
        Query::ReadDir(_) => Ok(Response::Entries(answer::Entries {
            entries: vec![DirEntry {
                name: RawName(b"a".to_vec()),
                ino: 7,
                kind: FileKind::File,
                cookie: 1,
                node: None,
            }],
            end: false,
        })),
        Query::Read(query::Read { len, .. }) => {
            return (Ok(Response::Done), vec![1; *len as usize + 1].into());
        }
        Query::Commit(_) => Err(Refusal::Host(libc::ENOSYS as u16)),
        Query::Close(_) => Ok(Response::Done),
        _ => Err(Refusal::Unsupported),
    };
    (result, Bytes::new())
}

async fn lane(mut reader: FrameReader, mut writer: FrameWriter, lane: u64) {
    let mut opens = lane << 32;
    while let Ok(Some((RequestFrame { id, request, .. }, _))) = reader.next().await {
        opens += 1;
        let (result, payload) = answer(&request, opens);
        let reply = Reply {
            id,
            renews: true,
            stamp: Stamp::default(),
            grants: Vec::new(),
            touched: Vec::new(),
            room: None,
            result,
        };
        if writer.send(&reply, payload).await.is_err() {
            return;
        }
    }
}

async fn control(mut reader: FrameReader, mut writer: FrameWriter) {
    while let Ok(Some((said, _))) = reader.next::<ToServer>().await {
        let reply = match said {
            ToServer::Hello(_) => ToClient::Welcome(Welcome {
                features: 0,
                term_ms: 10_000,
                drift_ppm: 1_000,
                process: BootId([1; 16]),
                host: BootId([1; 16]),
                standing: Standing::New,
                renews: true,
                root: handle(ROOT),
                root_attr: attr(&handle(ROOT)),
                read_only: false,
                identity: IdentityPolicy::Trust,
            }),
            ToServer::KeepAlive { number } => ToClient::KeepAlive {
                number,
                renews: true,
            },
            ToServer::Goodbye => ToClient::Farewell,
            _ => continue,
        };
        if writer.send(&reply, Bytes::new()).await.is_err() {
            return;
        }
    }
}

async fn serve(connection: Connection) {
    connection.let_in();
    let Ok(_push) = connection.open_push().await else {
        return;
    };
    while let Ok((index, writer, reader)) = connection.accept().await {
        match index {
            0 => tokio::spawn(control(reader, writer)),
            index => tokio::spawn(lane(reader, writer, index)),
        };
    }
}

/// A mount from such a server.
struct Hostile {
    mount: Mount,
    sandbox: Sandbox,
    _runtime: Runtime,
}

impl Hostile {
    fn start(name: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let identity = Identity::generate().expect("a key");
        let secret = EndpointSecret::generate().expect("a secret");
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let entered = runtime.enter();
        let server = Server::bind(any, &identity, &secret).expect("bound");
        drop(entered);
        let address = server.local_addr();
        runtime.spawn(async move {
            while let Some(incoming) = server.accept().await {
                if let Ok(connection) = incoming.handshake().await {
                    tokio::spawn(serve(connection));
                }
            }
        });
        let ticket = Ticket {
            servers: ServerAddr {
                host: address.ip().to_string(),
                port: address.port(),
            }
            .into(),
            key: identity.key_hash(),
            secret: [1; 32],
        };
        let sandbox = Sandbox::new(name);
        let options = MountOptions::default();
        let mount = Mount::start(&sandbox, "mount", &ticket.to_string(), &options);
        Self {
            mount,
            sandbox,
            _runtime: runtime,
        }
    }

    /// Does something below the mount in bounded time; the mount is usable afterwards.
    fn within<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(PathBuf) -> T + Send + 'static,
    ) -> T {
        let dir = self.mount.path("");
        let done = within(what, SOON, move || work(dir)).0;
        let root = self.mount.path("");
        within("the mount", SOON, move || {
            fs::metadata(root).expect("it stands")
        });
        done
    }

    fn end(mut self) {
        assert!(self.mount.daemon.end_or_kill(SOON), "it ends when asked to");
        assert!(self.sandbox.clean().is_empty());
    }
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn no_errno_of_a_server_leaves_a_caller_waiting() {
    let hostile = Hostile::start("errno");
    for sent in [0, 134, 511, 512, 513, 529, 4096, 65_535] {
        let what = format!("errno {sent}");
        let seen = hostile.within(&what, move |dir| {
            errno(fs::metadata(dir.join(format!("errno-{sent}"))))
        });
        assert_eq!(seen, Some(libc::EIO), "{sent}");
    }
    hostile.end();
}

#[test]
fn a_server_that_does_not_know_how_to_commit_does_not_make_fsync_succeed() {
    let hostile = Hostile::start("enosys");
    let seen = hostile.within("fsync", |dir| {
        let file = File::open(dir.join("long")).expect("an open");
        [(); 3].map(|()| errno(file.sync_all()))
    });
    assert_eq!(seen, [Some(libc::EOPNOTSUPP); 3]);
    hostile.end();
}

#[test]
fn a_listing_that_stays_where_it_is_ends() {
    let hostile = Hostile::start("stays");
    let refused = hostile.within("a listing", |dir| {
        let listing = fs::read_dir(dir.join("stays")).expect("an open");
        let mut names = listing.map(|entry| entry.map(drop));
        names.find_map(errno)
    });
    assert_eq!(refused, Some(libc::EIO));
    hostile.end();
}

#[test]
fn sizes_and_bytes_that_cannot_be_are_io_errors() {
    let hostile = Hostile::start("huge");
    let seen = hostile.within("a file that can't be", |dir| {
        [
            errno(fs::metadata(dir.join("huge"))),
            errno(fs::read(dir.join("long"))),
        ]
    });
    assert_eq!(seen, [Some(libc::EIO); 2]);
    hostile.end();
}
