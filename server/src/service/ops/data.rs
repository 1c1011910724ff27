//! Changes of files' bytes. An open is the verdict that they may be made.

use super::{Done, Lateness, Order, Perform, repeatable};
use crate::faults::within_quota;
use crate::intent::Intent;
use crate::service::access::Targets;
use crate::service::inputs::{Inputs, range, readable, writable};
use crate::service::pages::within_file;
use crate::session::Opens;
use leasefs_protocol::answer::Written;
use leasefs_protocol::change::{CopyRange, Fallocate, Place, Write, WriteAt, WriteKind};
use leasefs_protocol::limits::MAX_PLACES;
use leasefs_protocol::{Durability, Handle, OpenId, Refusal, Reply, Response, SetAttr};
use leasefs_store::OpenFile;

const COLLAPSE: u32 = libc::FALLOC_FL_COLLAPSE_RANGE as u32;
const INSERT: u32 = libc::FALLOC_FL_INSERT_RANGE as u32;

fn written_by(open: OpenId, opens: &Opens) -> Result<Inputs, Refusal> {
    Ok(Inputs {
        open: Some(writable(opens.get(open)?)?),
        ..Inputs::default()
    })
}

/// A WRITE that goes to several places has bytes for each, and none twice.
fn are_apart(places: &[Place], payload: u64) -> Result<(), Refusal> {
    let mut free = 0;
    let mut bytes = 0_u64;
    for place in places {
        if place.len == 0 || place.offset < free {
            return Err(Refusal::Invalid);
        }
        free = place.offset.saturating_add(place.len);
        bytes = bytes.saturating_add(place.len);
    }
    match (1..=MAX_PLACES).contains(&places.len()) && bytes == payload {
        true => Ok(()),
        false => Err(Refusal::Invalid),
    }
}

fn opened(targets: &Targets) -> Result<Handle, Refusal> {
    targets.opened.ok_or(Refusal::BadOpen)
}

/// What is set with the bytes.
fn set_by(write: &Write) -> Option<SetAttr> {
    match write.kind {
        WriteKind::Flush { set, .. } => Some(set).filter(|set| !set.is_empty()),
        WriteKind::Through { .. } | WriteKind::Page { .. } => None,
    }
}

/// Sets what comes with bytes. That they are written doesn't depend on it: the open says that they may be.
fn set_with(order: &Order<'_>, open: &OpenFile, set: SetAttr) -> Result<(), Refusal> {
    if set.is_empty() {
        return Ok(());
    }
    let (who, set) = (order.call.identity()?, order.may_set(open.handle(), set)?);
    order.store().setattr(&who, open.handle(), None, &set)?;
    Ok(())
}

impl Perform for Write {
    fn bounds(&self, payload: usize) -> Result<(), Refusal> {
        let sets = |set: SetAttr| set.size.is_some() || set.kill_priv || self.at == WriteAt::Append;
        if set_by(self).is_some_and(sets) {
            return Err(Refusal::Invalid);
        }
        let payload = payload as u64;
        if let WriteAt::Places(places) = &self.at {
            are_apart(places, payload)?;
        }
        let mut places = self.at.places(payload);
        places.try_for_each(|place| range(place.offset, place.len))
    }

    fn inputs(&self, opens: &Opens) -> Result<Inputs, Refusal> {
        written_by(self.open, opens)
    }

    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        if let Some(set) = set_by(self) {
            let (who, object) = (order.call.identity()?, opened(&of_opens)?);
            order.store().may_set(&who, &object, None, &set)?;
        }
        Ok(of_opens)
    }

    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let object = opened(targets)?;
        Ok(Some(match self.at {
            WriteAt::Offset(_) | WriteAt::Places(_) => repeatable([object]),
            WriteAt::Append => Intent::Append {
                object,
                size: order.store().getattr(&object)?.size,
                len: order.payload.len() as u64,
                durability: self.durability,
            },
        }))
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let (store, open, data) = (order.store(), order.open()?, order.payload);
        within_quota(data.len())?;
        let data = match self.kind {
            WriteKind::Page { .. } => {
                let size = store.getattr(open.handle())?.size;
                within_file(&self.at, size, data)
            }
            WriteKind::Through { .. } | WriteKind::Flush { .. } => data,
        };
        let set = set_by(self).unwrap_or_default();
        let unset = set_with(order, open, set.rights()).err();
        let written = match self.kind {
            WriteKind::Flush {
                written: Some(when),
                ..
            } => store.write_late(open, &self.at, data, self.kill_priv, when)?,
            _ => store.write(open, &self.at, data, self.kill_priv)?,
        };
        // What the host didn't take comes again, and what is set behind it.
        let all = written.len == data.len() as u64;
        let undated = match all {
            true => set_with(order, open, set.times()).err(),
            false => None,
        };
        let answer = Written {
            len: if all {
                order.payload.len() as u64
            } else {
                written.len
            },
            offset: written.offset,
            unset: unset.or(undated),
            version: match self.kind {
                WriteKind::Flush { .. } => store.version(open),
                WriteKind::Through { .. } | WriteKind::Page { .. } => None,
            },
        };
        let keeps = matches!(
            self.kind,
            WriteKind::Through { keep: true } | WriteKind::Flush { .. }
        );
        Ok(Done {
            keeps: keeps.then(|| *open.handle()),
            ..Done::of(self, answer)
        })
    }

    fn commit(&self, order: &Order<'_>) -> Result<(), Refusal> {
        match self.durability {
            Durability::None => Ok(()),
            durability => {
                let open = order.open()?;
                let server = &order.call.server;
                server.durably(|| server.store.commit(open, durability))
            }
        }
    }

    fn is_slow(&self) -> bool {
        self.durability != Durability::None
    }

    fn is_writeback(&self) -> bool {
        self.kind.is_writeback()
    }

    fn answered(&self, order: &Order<'_>, targets: &Targets, reply: &Reply) {
        let WriteKind::Flush { base, .. } = self.kind else {
            return;
        };
        let (Some(object), Ok(Response::Written(written))) = (targets.opened, &reply.result) else {
            return;
        };
        let call = order.call;
        call.server
            .leases
            .flushed(call.session.id, object, written.len);
        if let (Some(version), Ok(open)) = (written.version, order.open()) {
            open.flushed(base, version);
        }
    }

    /// Of a mapped page it isn't known what it was made from.
    fn lateness(&self, order: &Order<'_>, targets: &Targets) -> Lateness {
        let Some(object) = &targets.opened else {
            return Lateness::InTime;
        };
        let (server, session) = (&order.call.server, order.call.session.id);
        let (in_time, repeated) = match &self.kind {
            WriteKind::Through { .. } => (true, false),
            // Read in while a recall was open, it was stored into under what is being recalled.
            WriteKind::Page { late } => {
                let holds = server.leases.holds_data(session, object);
                (!late && holds, true)
            }
            WriteKind::Flush {
                base,
                late,
                repeated,
                ..
            } => {
                let holds = !late && server.leases.holds_write(session, object);
                let is_alone = || {
                    let found = server.store.getattr(object).map(|attr| attr.version());
                    let ours = |found| {
                        order
                            .open()
                            .is_ok_and(|open| open.has_flushed(*base, found))
                    };
                    found.is_ok_and(|found| found == *base || ours(found))
                };
                (holds || is_alone(), *repeated || order.resent)
            }
        };
        let is_set = || {
            let found = server.store.getattr(object);
            set_by(self).is_none_or(|set| found.is_ok_and(|attr| set.applied(attr) == Some(attr)))
        };
        let is_there = || {
            let open = order.open();
            open.is_ok_and(|open| server.store.holds(open, &self.at, order.payload)) && is_set()
        };
        match self.at.first() {
            _ if in_time => Lateness::InTime,
            Some(offset) if repeated && is_there() => Lateness::Repeated(offset),
            _ => Lateness::TooLate,
        }
    }
}

impl Perform for Fallocate {
    fn bounds(&self, _: usize) -> Result<(), Refusal> {
        range(self.offset, self.len)
    }

    fn inputs(&self, opens: &Opens) -> Result<Inputs, Refusal> {
        written_by(self.open, opens)
    }

    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        order.kills_priv()?;
        Ok(of_opens)
    }

    fn intent(&self, order: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let object = opened(targets)?;
        if self.mode & (COLLAPSE | INSERT) == 0 {
            return Ok(Some(repeatable([object])));
        }
        let size = order.store().getattr(&object)?.size;
        let new_size = match self.mode & COLLAPSE != 0 {
            true => size.checked_sub(self.len),
            false => size.checked_add(self.len),
        };
        Ok(new_size.map(|new_size| Intent::Resize {
            object,
            size,
            new_size,
        }))
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let store = order.store();
        let range = (self.offset, self.len);
        store.fallocate(order.open()?, self.mode, range, order.kills_priv()?)?;
        Ok(Done::of(self, ()))
    }

    fn is_slow(&self) -> bool {
        true
    }
}

impl Perform for CopyRange {
    fn bounds(&self, _: usize) -> Result<(), Refusal> {
        range(self.from_offset, self.len)?;
        range(self.to_offset, self.len)
    }

    fn inputs(&self, opens: &Opens) -> Result<Inputs, Refusal> {
        Ok(Inputs {
            from: Some(readable(opens.get(self.from)?)?),
            ..written_by(self.to, opens)?
        })
    }

    fn judge(&self, order: &Order<'_>, of_opens: Targets) -> Result<Targets, Refusal> {
        order.kills_priv()?;
        Ok(of_opens)
    }

    fn intent(&self, _: &Order<'_>, targets: &Targets) -> Result<Option<Intent>, Refusal> {
        let objects = [opened(targets)?].into_iter().chain(targets.copied);
        Ok(Some(repeatable(objects)))
    }

    fn run(&self, order: &Order<'_>, _: &Targets) -> Result<Done, Refusal> {
        let to = order.open()?;
        let from = order.inputs.from.as_deref().ok_or(Refusal::BadOpen)?;
        let (from_offset, offset) = (self.from_offset, self.to_offset);
        let (from, to) = ((from, from_offset), (to, offset));
        let kills = order.kills_priv()?;
        let len = order.store().copy_range(from, to, self.len, kills)?;
        let copied = Written::plain(len, offset);
        Ok(Done::of(self, copied))
    }

    fn is_slow(&self) -> bool {
        true
    }
}
