//! Users of the mount: their calls come to an end, with whatever they may come to.

use super::Shared;
use super::mount::{Mount, TIMEOUT};
use crate::forge::{Choices, Known, forge};
use bytes::Bytes;
use fsclient::nodes::NodeId;
use fsclient::ops::data::{At, Writing};
use fsclient::ops::names::{Entry, NewMode};
use fsclient::ops::opens::Fh;
use fsclient::ops::xattr::Room;
use fsclient::ops::{Ask, Asker, Ops};
use leasefs_protocol::{Refusal, SetAttr};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// When its caller has left a call ends at once, but for what it waits for regardless, and a busy
/// machine.
const ENDS: Duration = TIMEOUT
    .saturating_mul(8)
    .saturating_add(Duration::from_secs(8));
/// After so long a caller leaves.
const PATIENCE: Duration = Duration::from_millis(100);
/// So does one that is killed.
const HURRY: Duration = Duration::from_millis(5);

/// Users of one mount, one after the other.
pub struct Caller {
    mount: Mount,
    nodes: Vec<NodeId>,
    files: Vec<Fh>,
    dirs: Vec<Fh>,
}

/// What a call is made with.
struct Args {
    node: NodeId,
    other: NodeId,
    file: Fh,
    dir: Fh,
    name: &'static [u8],
    offset: u64,
    flags: u32,
    mode: NewMode,
    set: SetAttr,
    data: Bytes,
    len: u32,
}

/// What a call may leave the users with.
#[derive(Default)]
struct Gain {
    node: Option<NodeId>,
    file: Option<Fh>,
    dir: Option<Fh>,
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"user.x", b"security.capability"];

impl Caller {
    /// Users of this mount.
    pub fn new(mount: Mount) -> Self {
        Self {
            mount,
            nodes: vec![NodeId::ROOT],
            files: Vec::new(),
            dirs: Vec::new(),
        }
    }

    fn args(&self, choices: &mut Choices) -> Args {
        let known = Known::default();
        let number = |choices: &mut Choices| forge::<u64>(choices, &known).unwrap_or(0);
        Args {
            node: *choices.of(&self.nodes).unwrap_or(&NodeId::ROOT),
            other: *choices.of(&self.nodes).unwrap_or(&NodeId::ROOT),
            file: *choices.of(&self.files).unwrap_or(&Fh(0)),
            dir: *choices.of(&self.dirs).unwrap_or(&Fh(0)),
            name: choices.of(&NAMES).copied().unwrap_or(b"a"),
            offset: number(choices),
            flags: u32::from(choices.byte()) | u32::from(choices.byte() & 0x1f) << 8,
            mode: NewMode {
                mode: number(choices) as u32,
                umask: 0o22,
            },
            set: forge(choices, &known).unwrap_or_default(),
            data: Bytes::from(vec![choices.byte(); usize::from(choices.byte()) * 40]),
            len: number(choices).min(1 << 20) as u32,
        }
    }

    /// Makes one call.
    pub async fn call(&mut self, choices: &Shared) {
        let (which, patient, args) = {
            let mut choices = choices.lock().expect("choices");
            (choices.byte(), choices.byte(), self.args(&mut choices))
        };
        let ask = Ask::new(Asker {
            uid: 0,
            gid: 0,
            pid: 0,
        });
        let ops = Arc::clone(&self.mount.ops);
        let abandon = ask.abandon.clone();
        let call = tokio::spawn(async move { made(&ops, &ask, which, args).await });
        tokio::pin!(call);
        let patience = match patient {
            0..0xc0 => PATIENCE,
            _ => HURRY,
        };
        let ended = match timeout(patience, &mut call).await {
            Ok(ended) => Ok(ended),
            Err(_) => {
                abandon.trigger();
                timeout(ENDS, &mut call).await
            }
        };
        match ended {
            Ok(Ok(gain)) => {
                self.nodes.extend(gain.node);
                self.files.extend(gain.file);
                self.dirs.extend(gain.dir);
            }
            Ok(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            Err(_) => panic!("call {which} didn't end"),
        }
    }

    /// The mount ends.
    pub async fn leave(self) {
        let ops = &self.mount.ops;
        self.files.iter().for_each(|fh| ops.release(*fh));
        self.dirs.iter().for_each(|fh| ops.releasedir(*fh));
        let status = serde_json::to_string(&self.mount.rpc.status());
        assert!(status.is_ok(), "the status can't be told");
        timeout(ENDS, self.mount.rpc.goodbye())
            .await
            .expect("a farewell takes no longer");
    }
}

async fn found(entry: impl Future<Output = Result<Entry, Refusal>>) -> Gain {
    Gain {
        node: entry.await.ok().map(|entry| entry.node.id),
        ..Gain::default()
    }
}

async fn done<T>(call: impl Future<Output = Result<T, Refusal>>) -> Gain {
    let _ = call.await.map_err(|refusal| refusal.errno());
    Gain::default()
}

async fn made(ops: &Ops, ask: &Ask, which: u8, args: Args) -> Gain {
    let Args {
        node,
        other,
        file,
        dir,
        name,
        offset,
        flags,
        mode,
        set,
        data,
        len,
    } = args;
    let at = At { fh: file, offset };
    match which % 34 {
        0 | 1 => {
            let cached = ops.lookup_cached(node, name).flatten();
            let entry = match cached {
                Some(entry) => Some(entry),
                None => ops.lookup(ask, node, name).await.ok().flatten(),
            };
            Gain {
                node: entry.map(|entry| entry.node.id),
                ..Gain::default()
            }
        }
        2 => match ops.getattr_cached(node) {
            Some(_) => Gain::default(),
            None => done(ops.getattr(ask, node)).await,
        },
        3 => done(ops.setattr(ask, node, Some(file), set)).await,
        4 => match ops.readlink_cached(node) {
            Some(_) => Gain::default(),
            None => done(ops.readlink(ask, node)).await,
        },
        5 => found(ops.mknod(ask, node, name, mode, (1, 2))).await,
        6 => found(ops.mkdir(ask, node, name, mode)).await,
        7 => found(ops.symlink(ask, node, name, &data)).await,
        8 => found(ops.link(ask, other, node, name)).await,
        9 => done(ops.unlink(ask, node, name)).await,
        10 => done(ops.rmdir(ask, node, name)).await,
        11 => done(ops.rename(ask, (node, name), (other, b"b"), flags & 3)).await,
        12..15 => {
            let asker = ask.asker;
            let open = match ops.open_cached(asker, node, flags) {
                Some(open) => Some(open),
                None => ops.open(ask, node, flags).await.ok(),
            };
            Gain {
                file: open.map(|open| open.fh),
                ..Gain::default()
            }
        }
        15..17 => match ops.create(ask, node, name, mode, flags).await {
            Ok((entry, open)) => Gain {
                node: Some(entry.node.id),
                file: Some(open.fh),
                dir: None,
            },
            Err(_) => Gain::default(),
        },
        17 | 18 => done(ops.read(ask, at, len)).await,
        19 => done(ops.read_pages(ask, at, len)).await,
        20..23 => {
            let writing = Writing {
                offset: offset.min(i64::MAX as u64 - data.len() as u64),
                data,
                flags,
                writeback: which & 0x40 != 0,
                kill_priv: which & 0x80 != 0,
            };
            match ops.write_at_once(file, &writing) {
                Some(_) => Gain::default(),
                None => done(ops.write(ask, file, writing)).await,
            }
        }
        23 => done(ops.fallocate(ask, at, u64::from(len), flags & 0x3f)).await,
        24 => done(ops.seek(ask, at, flags & 7)).await,
        25 => {
            done(ops.copy_range(
                ask,
                at,
                At {
                    fh: file,
                    offset: 0,
                },
                offset,
            ))
            .await
        }
        26 => {
            let open = match ops.opendir_cached(ask.asker, node) {
                Some(open) => Some(open),
                None => ops.opendir(ask, node).await.ok(),
            };
            Gain {
                dir: open,
                ..Gain::default()
            }
        }
        27 | 28 => {
            let mut room = 500;
            let take = |_: fsclient::ops::dir::Listed<'_>| {
                room -= 1;
                room > 0
            };
            done(ops.readdir(ask, dir, offset, take)).await
        }
        29 => match ops.getxattr_cached(node, name, Room(len)) {
            Some(_) => Gain::default(),
            None => done(ops.getxattr(ask, node, name, Room(len))).await,
        },
        30 => match ops.listxattr_cached(node, Room(len)) {
            Some(_) => Gain::default(),
            None => done(ops.listxattr(ask, node, Room(len))).await,
        },
        31 => done(ops.setxattr(ask, node, name, data, flags & 3)).await,
        32 => done(ops.fsync(ask, file, flags & 1 == 1)).await,
        _ => match flags & 7 {
            0 => done(ops.removexattr(ask, node, name)).await,
            1 => done(ops.statfs(ask, node)).await,
            2 => done(ops.access(ask, node, len & 7)).await,
            3 => done(async { ops.flush(file) }).await,
            4 => {
                ops.release(file);
                Gain::default()
            }
            5 => {
                ops.releasedir(dir);
                Gain::default()
            }
            _ => {
                ops.forget(other, 1);
                Gain::default()
            }
        },
    }
}
