//! Users of the mount: their calls come to an end, with whatever they may come to.

use super::mount::Mount;
use crate::forge::{Choices, Known, forge};
use bytes::Bytes;
use leasefs_client::call::{At, Fh, LockCall, NewMode, Room, Writing};
use leasefs_client::{Answer, Call, Event, NodeId};
use leasefs_protocol::{LockKind, LockMode, LockOwner, LockRange, SetAttr};

/// The kernel asks for nothing beyond the largest file.
const FARTHEST: u64 = i64::MAX as u64 - (2 << 20);
/// A caller that is looked at so often leaves; one that is killed, at once.
const PATIENT: u32 = 2;

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

    /// Whether there is nothing left to choose from.
    pub fn is_out_of_ideas(&self) -> bool {
        self.mount.choices.is_empty()
    }

    fn args(&mut self) -> Args {
        let known = Known::default();
        let choices = &mut self.mount.choices;
        let number = |choices: &mut Choices| forge::<u64>(choices, &known).unwrap_or(0);
        Args {
            node: *choices.of(&self.nodes).unwrap_or(&NodeId::ROOT),
            other: *choices.of(&self.nodes).unwrap_or(&NodeId::ROOT),
            file: *choices.of(&self.files).unwrap_or(&Fh(0)),
            dir: *choices.of(&self.dirs).unwrap_or(&Fh(0)),
            name: choices.of(&NAMES).copied().unwrap_or(b"a"),
            offset: number(choices).min(FARTHEST),
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

    /// Makes one call, beside which the server says what it likes.
    pub fn call(&mut self) {
        self.mount.say_something();
        let (which, patient) = (self.mount.choices.byte(), self.mount.choices.byte());
        let args = self.args();
        let looks = match patient {
            0..0xc0 => PATIENT,
            _ => 1,
        };
        if let Some(call) = self.meant(which, args) {
            match self.mount.call(call, looks) {
                Ok(answer) => self.has(answer),
                Err(refusal) => drop(refusal.errno()),
            }
        }
    }

    fn has(&mut self, answer: Answer) {
        match answer {
            Answer::Found(Some(entry)) | Answer::Made(entry) => self.nodes.push(entry.node.id),
            Answer::Opened(open) => self.files.push(open.fh),
            Answer::Created(entry, open) => {
                self.nodes.push(entry.node.id);
                self.files.push(open.fh);
            }
            Answer::OpenedDir(dir) => self.dirs.push(dir),
            Answer::Listing(listing) => {
                let mut room = 500;
                listing.hand_on(|_| {
                    room -= 1;
                    room == 0
                });
            }
            Answer::Entries(entries) => {
                let told = entries.told().iter().flatten();
                let told = told.map(|entry| entry.node.id);
                self.nodes.extend(told);
            }
            _ => {}
        }
    }

    /// The mount ends.
    pub fn leave(mut self) {
        let files = self.files.drain(..).map(|fh| Call::Release { fh });
        let dirs = self.dirs.drain(..).map(|fh| Call::ReleaseDir { fh });
        for call in files.chain(dirs) {
            let _ = self.mount.call(call, 1);
        }
        self.mount.leave();
    }

    /// `None` is a FORGET, which has no answer.
    fn meant(&mut self, which: u8, args: Args) -> Option<Call> {
        let Args {
            node,
            other,
            file,
            dir,
            offset,
            flags,
            mode,
            set,
            data,
            len,
            ..
        } = args;
        let (parent, name): (NodeId, Box<[u8]>) = (node, args.name.into());
        let at = At { fh: file, offset };
        let (owner, first) = (LockOwner(u64::from(len & 3)), offset & 0xf);
        let lock = LockCall {
            owner,
            kind: match flags & 0x10 {
                0 => LockKind::Posix,
                _ => LockKind::Flock,
            },
            range: LockRange::new(first, first + u64::from(len & 0xf)).unwrap_or(LockRange::ALL),
            mode: match flags & 0x60 {
                0 => None,
                0x20 => Some(LockMode::Shared),
                _ => Some(LockMode::Exclusive),
            },
            pid: 7,
            wait: flags & 0x80 != 0,
        };
        Some(match which % 34 {
            0 | 1 => Call::Lookup { parent, name },
            2 => Call::GetAttr { node },
            3 => Call::SetAttr {
                node,
                fh: Some(file),
                set,
                owner: Some(owner),
            },
            4 => Call::ReadLink { node },
            5 => Call::MakeNode {
                parent,
                name,
                mode,
                rdev: (1, 2),
            },
            6 => Call::MakeDir { parent, name, mode },
            7 => Call::Symlink {
                parent,
                name,
                target: data[..].into(),
            },
            8 => Call::Link {
                node: other,
                parent,
                name,
            },
            9 => Call::Unlink { parent, name },
            10 => Call::RemoveDir { parent, name },
            11 => Call::Rename {
                parent,
                name,
                new_parent: other,
                new_name: b"b"[..].into(),
                flags: flags & 3,
            },
            12..15 => Call::Open { node, flags },
            15..17 => Call::Create {
                parent,
                name,
                mode,
                flags,
            },
            17 | 18 => Call::Read { at, len, owner },
            19 => Call::ReadPages { at, len },
            20..23 => Call::Write {
                fh: file,
                writing: Writing {
                    offset,
                    data,
                    flags,
                    writeback: which & 0x40 != 0,
                    kill_priv: which & 0x80 != 0,
                    owner: Some(owner),
                },
            },
            23 => Call::Allocate {
                at,
                len: u64::from(len),
                mode: flags & 0x3f,
            },
            24 => Call::Seek {
                at,
                whence: flags & 7,
            },
            25 => Call::CopyRange {
                from: at,
                to: At {
                    fh: file,
                    offset: 0,
                },
                len: offset,
            },
            26 => Call::OpenDir { node },
            27 | 28 => Call::ReadDir {
                fh: dir,
                offset,
                plus: (flags & 1 > 0).then_some(len),
            },
            29 => Call::GetXattr {
                node,
                name,
                room: Room(len),
            },
            30 => Call::ListXattr {
                node,
                room: Room(len),
            },
            31 => Call::SetXattr {
                node,
                name,
                value: data,
                flags: flags & 3,
            },
            32 => Call::Sync {
                fh: file,
                data_only: flags & 1 == 1,
            },
            _ => match flags & 7 {
                0 => Call::RemoveXattr { node, name },
                1 => match flags & 8 {
                    0 => Call::StatFs { node },
                    _ => Call::Explain { path: vec![name] },
                },
                2 => Call::Access {
                    node,
                    mask: len & 7,
                },
                3 => Call::Flush { fh: file, owner },
                4 => Call::Release { fh: file },
                5 => Call::ReleaseDir { fh: dir },
                6 => match flags & 8 {
                    0 => Call::Lock { fh: file, lock },
                    _ => Call::TestLock { fh: file, lock },
                },
                _ => {
                    let (node, count) = (other, 1);
                    self.mount.handle(Event::Forget { node, count });
                    return None;
                }
            },
        })
    }
}
