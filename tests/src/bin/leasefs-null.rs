//! A file system that answers every write at once and keeps nothing: what the kernel's FUSE, and
//! fuser, can do at best on the session that a client's mount has.

use clap::Parser;
use fsclient::fuse::{Allowed, MountConfig, configure, session_options};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyWrite,
    ReplyXattr, Request, Session, WriteFlags,
};
use leasefs_protocol::control::IdentityPolicy;
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

/// Mounts a file system whose files are gone when they are written.
#[derive(Parser)]
#[command(name = "leasefs-null", version)]
struct Arguments {
    /// Where.
    dir: PathBuf,
}

/// No name is ever found; whatever is created is this file.
const FILE: INodeNo = INodeNo(2);
const NO_TIME: Duration = Duration::ZERO;

struct Null;

fn attr(ino: INodeNo) -> FileAttr {
    let (kind, perm) = match ino {
        FILE => (FileType::RegularFile, 0o644),
        _ => (FileType::Directory, 0o755),
    };
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Null {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config, true)
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NO_TIME, &attr(ino));
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        let (generation, handle) = (Generation(0), FileHandle(1));
        reply.created(&NO_TIME, &attr(FILE), generation, handle, flags);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn serve(dir: PathBuf) -> io::Result<()> {
    let config = MountConfig {
        source: "null".to_owned(),
        mountpoint: dir,
        read_only: false,
        identity: IdentityPolicy::Trust,
        allow: Allowed::default(),
    };
    let session = Session::new(Null, &config.mountpoint, &session_options(&config))?;
    let served = session.spawn()?;
    println!("ready {}", config.mountpoint.display());
    served.join()
}

fn main() -> ExitCode {
    match serve(Arguments::parse().dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasefs-null: {error}");
            ExitCode::FAILURE
        }
    }
}
