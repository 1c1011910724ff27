//! What a session has open. In place of the shipped table, which holds files of a real host.

use crate::sim::model::Obj;
use crate::sim::net::LinkId;
use leasefs_protocol::{OpenId, OpenToken, RequestId, Seq, SessionId, Version};
use std::collections::BTreeMap;

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Of what.
    pub object: Obj,
    /// It may be read.
    pub reads: bool,
    /// It may be written.
    pub writes: bool,
    /// What flushes through it were made from, and what they have left.
    pub flushed: Option<(Version, Version)>,
    asked: Option<RequestId>,
}

impl Open {
    /// With the flags of `open(2)`.
    pub fn new(object: Obj, flags: u32) -> Self {
        let access = flags & 3;
        Self {
            object,
            reads: access != 1,
            writes: access != 0,
            flushed: None,
            asked: None,
        }
    }

    /// Proof of it.
    pub fn token(&self, open: OpenId, session: SessionId, birth: u64) -> OpenToken {
        let mut token = self.object.0.to_be_bytes().to_vec();
        token.push(u8::from(self.reads) | u8::from(self.writes) << 1);
        token.extend_from_slice(&open.0.to_be_bytes());
        token.extend_from_slice(&session.0);
        token.extend_from_slice(&birth.to_be_bytes());
        OpenToken(token)
    }

    /// What a token proves.
    pub fn of_token(
        token: &OpenToken,
        open: OpenId,
        session: SessionId,
        birth: u64,
    ) -> Option<Self> {
        let (object, _) = token.0.split_first_chunk::<4>()?;
        let rights = *token.0.get(4)?;
        let of = Self {
            object: Obj(u32::from_be_bytes(*object)),
            reads: rights & 1 != 0,
            writes: rights & 2 != 0,
            flushed: None,
            asked: None,
        };
        (of.token(open, session, birth) == *token).then_some(of)
    }
}

/// The opens of one session.
#[derive(Debug, Default)]
pub struct Opens {
    files: BTreeMap<OpenId, Open>,
    asked: BTreeMap<RequestId, (LinkId, OpenId)>,
    kept: BTreeMap<OpenId, (Seq, Open)>,
    first: u64,
    next: u64,
}

impl Opens {
    /// None yet; numbers differ between lives, and between sessions of one.
    pub fn new(life: u64, birth: u64) -> Self {
        let first = life << 40 | (birth & 0xfffff) << 20 | 1;
        Self {
            first,
            next: first,
            ..Self::default()
        }
    }

    /// A number for an open of this life.
    pub fn new_id(&mut self) -> OpenId {
        self.next += 1;
        OpenId(self.next - 1)
    }

    /// Whether the number was given in this life.
    pub fn is_of_this_life(&self, id: OpenId) -> bool {
        (self.first..self.next).contains(&id.0)
    }

    /// Numbers a new open. Asked for again on a later connection, the first is closed.
    pub fn add(&mut self, mut open: Open, asked: Option<(LinkId, RequestId)>) -> OpenId {
        let id = self.new_id();
        if let Some((link, request)) = asked {
            open.asked = Some(request);
            if let Some((before, of)) = self.asked.insert(request, (link, id))
                && before != link
            {
                self.files.remove(&of);
            }
        }
        self.files.insert(id, open);
        id
    }

    /// Keeps an open of an earlier life's change until it is claimed.
    pub fn keep(&mut self, id: OpenId, seq: Seq, open: Open) {
        self.kept.insert(id, (seq, open));
    }

    /// The client has or wants this open. Whether there is one.
    pub fn claim(&mut self, id: OpenId) -> bool {
        if let Some((_, open)) = self.kept.remove(&id) {
            self.files.insert(id, open);
        }
        self.files.contains_key(&id)
    }

    /// What was kept for changes below `low` and not claimed goes.
    pub fn drop_unclaimed(&mut self, low: Seq) {
        self.kept.retain(|_, (seq, _)| *seq >= low);
    }

    /// Takes an open back under its number.
    pub fn restore(&mut self, id: OpenId, open: Open) -> bool {
        let free = !self.files.contains_key(&id);
        if free {
            self.files.insert(id, open);
        }
        free
    }

    /// The open with this number.
    pub fn get(&self, id: OpenId) -> Option<Open> {
        self.files.get(&id).copied()
    }

    /// A flush through an open, made from `base`, has left this version.
    pub fn flushed(&mut self, id: OpenId, base: Version, version: Version) {
        if let Some(open) = self.files.get_mut(&id) {
            open.flushed = Some((base, version));
        }
    }

    /// Whether an open of the object may write to it.
    pub fn write_to(&self, object: Obj) -> bool {
        self.files
            .values()
            .any(|open| open.object == object && open.writes)
    }

    /// Whether the object is open.
    pub fn has(&self, object: Obj) -> bool {
        let kept = self.kept.values().map(|(_, open)| open);
        self.files
            .values()
            .chain(kept)
            .any(|open| open.object == object)
    }

    /// Takes opens out.
    pub fn close(&mut self, ids: &[OpenId]) {
        for id in ids {
            if let Some(open) = self.files.remove(id)
                && let Some(request) = open.asked
                && self.asked.get(&request).is_some_and(|(_, of)| of == id)
            {
                self.asked.remove(&request);
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }
}
