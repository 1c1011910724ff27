//! A sample of each variant of the enums in all other messages. No two fields of one type are
//! equal in a sample, so that exchanging them shows.

use crate::control::{
    Hello, HelloRefusal, IdentityPolicy, Push, Reclaim, ReclaimLease, ReclaimOpen, Standing,
    ToClient, ToServer, Welcome,
};
use crate::explain::{Explained, Holding, Recalled};
use crate::lock::{
    Delegation, FileLocks, LockFound, LockGranted, LockHolder, LockOutcome, Locked, Unlocked,
};
use crate::*;

pub fn handle() -> Handle {
    Handle::new(&[0xab, 0xcd]).expect("two bytes")
}

pub fn object() -> Handle {
    Handle::new(&[0xef]).expect("one byte")
}

pub fn name(text: &str) -> RawName {
    RawName(text.into())
}

pub fn timestamp(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 7 }
}

fn token() -> OpenToken {
    OpenToken(vec![5, 250])
}

pub fn attr() -> Attr {
    Attr {
        ino: 12,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: (0, 0),
        size: 4096,
        blocks: 8,
        blksize: 4096,
        atime: Timestamp::default(),
        mtime: Timestamp {
            seconds: -1,
            nanos: 5,
        },
        ctime: Timestamp {
            seconds: 300,
            nanos: 6,
        },
        xattrs: true,
    }
}

fn device_attr() -> Attr {
    Attr {
        ino: u64::MAX,
        kind: FileKind::CharDevice,
        mode: 0o4755,
        nlink: 2,
        uid: 1001,
        gid: 101,
        rdev: (10, 229),
        size: 1 << 32,
        blocks: 1 << 16,
        blksize: 512,
        atime: timestamp(i64::MIN),
        mtime: timestamp(1),
        ctime: timestamp(2),
        xattrs: false,
    }
}

pub fn responses() -> Vec<Response> {
    let (handle, attr) = (handle(), device_attr());
    let (open, token) = (OpenId(3), token());
    vec![
        Response::Done,
        Response::Object(answer::Object { handle, attr }),
        Response::NoEntry,
        Response::Attr(attr),
        Response::Opened(answer::Opened {
            open,
            token: token.clone(),
            attr,
        }),
        Response::Created(answer::Created {
            handle,
            attr,
            open,
            token,
        }),
        Response::Written(answer::Written {
            len: 4096,
            offset: 8192,
            unset: Some(Refusal::NotPermitted),
            version: Some(Version {
                ctime: timestamp(400),
                size: 4100,
            }),
        }),
        Response::Offset(answer::Offset(300)),
        entries(),
        Response::FsStat(fs_stat()),
        Response::Locked(locked()),
        Response::LockFound(Some(LockFound {
            mode: LockMode::Exclusive,
            range: range(3, 9),
            pid: Some(77),
        })),
        Response::Unlocked(Unlocked {
            stamp: Stamp(21),
            epoch: LockEpoch(22),
            any: true,
        }),
        Response::Explained(explained()),
    ]
}

fn explained() -> Explained {
    Explained {
        object: object(),
        ino: 48,
        kind: FileKind::File,
        holders: vec![Holding {
            own: false,
            mount: Some("h:/m".into()),
            parts: Parts::DATA | Parts::ATTRS,
            write: Parts::DATA,
            granted_ms: Some(63),
            ends_ms: 49,
            silent: true,
            recall: Some(Recalled {
                since_ms: 50,
                until_ms: 51,
            }),
            locks: 52,
            lock_waits: 53,
        }],
        more: 54,
        waiting: 55,
        bounces_ms: Some(56),
        grace_ms: None,
    }
}

pub fn range(first: u64, last: u64) -> LockRange {
    LockRange::new(first, last).expect("a range")
}

fn held() -> HeldLock {
    HeldLock {
        owner: LockOwner(31),
        kind: LockKind::Flock,
        mode: LockMode::Exclusive,
        range: LockRange::ALL,
        pid: 32,
        fence: Fence(33),
    }
}

fn file_locks() -> FileLocks {
    FileLocks {
        object: object(),
        delegation: Stamp(34),
        locks: vec![held()],
    }
}

fn locked() -> Locked {
    Locked {
        stamp: Stamp(35),
        epoch: LockEpoch(36),
        outcome: LockOutcome::Waits,
        holder: Some(LockHolder {
            session: SessionId([2; 16]),
            pid: 46,
            mount: "h:/m".into(),
            ends_ms: 47,
        }),
    }
}

pub fn lock_outcomes() -> Vec<LockOutcome> {
    vec![
        LockOutcome::Granted {
            fence: Fence(37),
            delegation: Some(Delegation {
                stamp: Stamp(38),
                first: Fence(39),
                count: 40,
            }),
            held: vec![held()],
        },
        LockOutcome::Waits,
        LockOutcome::Conflicts,
        LockOutcome::Deadlock,
    ]
}

pub fn lock_kinds() -> Vec<LockKind> {
    vec![LockKind::Posix, LockKind::Flock]
}

pub fn lock_modes() -> Vec<LockMode> {
    vec![LockMode::Shared, LockMode::Exclusive]
}

fn entries() -> Response {
    let named = DirEntry {
        name: name("a"),
        ino: 13,
        kind: FileKind::Directory,
        cookie: 14,
        node: None,
    };
    let with_node = DirEntry {
        name: name("b"),
        node: Some((handle(), device_attr())),
        ..named.clone()
    };
    Response::Entries(answer::Entries {
        entries: vec![named, with_node],
        end: true,
    })
}

fn fs_stat() -> FsStat {
    FsStat {
        blocks: 1000,
        bfree: 900,
        bavail: 800,
        files: 700,
        ffree: 600,
        bsize: 4096,
        frsize: 512,
        namelen: 255,
    }
}

pub fn file_kinds() -> Vec<FileKind> {
    vec![
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ]
}

pub fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::Host(28),
        Refusal::Invalid,
        Refusal::NameTooLong,
        Refusal::TooBig,
        Refusal::Stale,
        Refusal::BadOpen,
        Refusal::ReadOnly,
        Refusal::NotPermitted,
        Refusal::Access,
        Refusal::CrossesFileSystem,
        Refusal::Unsupported,
        Refusal::TooMany,
        Refusal::Lost,
        Refusal::LockLost,
        Refusal::Changed,
        Refusal::Cancelled,
        Refusal::TimedOut,
        Refusal::Internal,
    ]
}

pub fn to_server() -> Vec<ToServer> {
    vec![
        ToServer::Hello(hello()),
        ToServer::KeepAlive { number: 300 },
        ToServer::Approve(vec![Approval {
            recall: RecallId(1),
            closes: vec![OpenId(2)],
        }]),
        ToServer::Held(vec![file_locks()]),
        ToServer::Release(vec![Release {
            object: object(),
            parts: Parts::ALL,
            seen: Stamp(9),
        }]),
        ToServer::Cancel { seq: Seq(4) },
        ToServer::Reclaim(reclaim()),
        ToServer::ReclaimDone,
        ToServer::Goodbye,
    ]
}

fn hello() -> Hello {
    Hello {
        version: 2,
        features: 3,
        session: SessionId([1; 16]),
        ticket: Some([5; 32]),
        name: "h\u{f6}st:/mnt".into(),
        subdir: vec![name("d"), name("e")],
        drift_ppm: 1000,
        last_process: None,
    }
}

fn reclaim() -> Reclaim {
    Reclaim {
        leases: vec![ReclaimLease {
            object: object(),
            parts: Parts::DATA,
            mode: Mode::Write,
        }],
        opens: vec![ReclaimOpen {
            open: OpenId(3),
            token: token(),
        }],
        locks: vec![file_locks()],
        epoch: LockEpoch(41),
    }
}

pub fn to_client() -> Vec<ToClient> {
    vec![
        ToClient::Welcome(welcome()),
        ToClient::Refused(HelloRefusal::ForeignSession),
        ToClient::KeepAlive {
            number: 300,
            renews: true,
        },
        ToClient::Cancelled {
            seq: Seq(4),
            begun: true,
        },
        ToClient::Reclaimed {
            lost_leases: vec![object()],
            lost_opens: vec![OpenId(3)],
            lost_locks: vec![handle()],
        },
        ToClient::Farewell,
    ]
}

fn welcome() -> Welcome {
    Welcome {
        features: 3,
        term_ms: 10_000,
        drift_ppm: 1000,
        process: BootId([3; 16]),
        host: BootId([4; 16]),
        standing: Standing::Resumed,
        renews: true,
        root: handle(),
        root_attr: device_attr(),
        read_only: false,
        identity: IdentityPolicy::RootSquash,
    }
}

pub fn standings() -> Vec<Standing> {
    vec![
        Standing::New,
        Standing::Resumed,
        Standing::Expired,
        Standing::Reclaim,
    ]
}

pub fn identity_policies() -> Vec<IdentityPolicy> {
    vec![
        IdentityPolicy::Squash,
        IdentityPolicy::RootSquash,
        IdentityPolicy::Trust,
    ]
}

pub fn hello_refusals() -> Vec<HelloRefusal> {
    let key = KeyHash([6; 32]);
    let text = || "why".to_owned();
    vec![
        HelloRefusal::Version {
            expected: 1,
            found: 2,
        },
        HelloRefusal::NotHello(text()),
        HelloRefusal::UnknownClient(key),
        HelloRefusal::Revoked(key),
        HelloRefusal::TicketUnknown,
        HelloRefusal::TicketUsed,
        HelloRefusal::TicketExpired,
        HelloRefusal::ForeignSession,
        HelloRefusal::NoDirectory(text()),
        HelloRefusal::TooMany(text()),
        HelloRefusal::Internal(text()),
    ]
}

pub fn pushes() -> Vec<Push> {
    vec![
        Push::Recall(Recall {
            id: RecallId(8),
            stamp: Stamp(6),
            scope: Scope::Everything,
        }),
        Push::LockGranted(LockGranted {
            wait: LockWait(42),
            stamp: Stamp(43),
            epoch: LockEpoch(44),
            fence: Fence(45),
        }),
        Push::Unlinked(object()),
    ]
}

pub fn scopes() -> Vec<Scope> {
    vec![
        Scope::Object {
            object: object(),
            parts: Parts::NAMES,
            names: vec![name("a"), name("b")],
        },
        Scope::Everything,
    ]
}

pub fn modes() -> Vec<Mode> {
    vec![Mode::Read, Mode::Write]
}
