//! Changes of this mount: what they cover leaves the caches before they are sent.

use super::Client;
use super::cache::Dropped;
use super::dirty::Waiter;
use super::pages::{Then, Wake};
use super::rpc::{Settled, names_after};
use super::tasks::Task;
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::judge::End;
use crate::sim::kernel::{Told, Trouble, Unique};
use crate::sim::model::{Deed, DeedId, Item, Obj, What, name_of, raw_name, span, value_of};
use leasefs_lease::client::{Asked, ChangeOf, DropId, DropKind, Span};
use leasefs_protocol::{BootId, Parts, Refusal, Reply, Response, Stamp};

/// A change that has begun.
#[derive(Debug)]
pub(super) struct OwnChange {
    id: DeedId,
    deed: Deed,
    changes: Vec<ChangeOf>,
    asked: Asked,
    gate: Option<DropId>,
    /// The request was made.
    sent: bool,
    /// Its answer, while pages that are older are still to be dropped.
    reply: Option<Box<Reply>>,
    /// The host's life in which it was answered.
    host: BootId,
    /// The kernel was told that nobody knows.
    left: bool,
}

impl Client {
    pub(super) fn own_change(&mut self, cx: &mut Cx, unique: Unique, id: DeedId, deed: Deed) {
        let changes = covers(deed);
        self.leases.begin_change(&changes);
        self.dirty.change_begins(&settled(deed));
        let mut dropped = Dropped::default();
        for change in &changes {
            let object = Obj::of(&change.object);
            let names: Vec<u8> = change.names.iter().map(|name| name_of(&name.0)).collect();
            self.cache
                .drop_parts(object, change.parts, &names, &mut dropped);
        }
        let change = OwnChange {
            id,
            deed,
            changes,
            asked: self.leases.ask(),
            gate: None,
            sent: false,
            reply: None,
            host: self.host,
            left: false,
        };
        self.tasks.insert(unique, Task::Change(change));
        self.drop_at_once(cx, &dropped);
        let truncates = matches!(deed, Deed::Truncate(..));
        let file = match pages_of(deed) {
            // Then nobody is told of the file before its pages are gone.
            Some((file, _)) if truncates && self.pages.is_unclean(file) => {
                return self.send_change(cx, unique);
            }
            Some(file) if !cx.has(Bug::KeepOwnPages) => file,
            _ => return self.send_change(cx, unique),
        };
        let then = Then::Wake(Wake::Task(unique));
        let gate = self.with(cx, |pages, out| {
            pages.drop_pages(&[file], DropKind::Change, then, out)
        });
        if let Some(change) = self.change(unique) {
            change.gate = Some(gate);
        }
    }

    fn change(&mut self, unique: Unique) -> Option<&mut OwnChange> {
        match self.tasks.get_mut(&unique) {
            Some(Task::Change(change)) => Some(change),
            _ => None,
        }
    }

    /// Its pages are gone: it is sent, or (again) its caller answered.
    pub(super) fn gate_is_clear(&mut self, cx: &mut Cx, unique: Unique) {
        let Some(change) = self.change(unique) else {
            return;
        };
        match change.reply.take() {
            Some(reply) => self.finish_answered(cx, unique, &reply),
            None if !change.sent => self.send_change(cx, unique),
            None => {}
        }
    }

    fn send_change(&mut self, cx: &mut Cx, unique: Unique) {
        let Some(change) = self.change(unique) else {
            return;
        };
        if let Some((file, _)) = pages_of(change.deed)
            && !cx.has(Bug::BufferUnderChange)
            && self.wait_flushed(cx, file, Waiter::Task(unique))
        {
            return;
        }
        let Some(change) = self.change(unique) else {
            return;
        };
        change.sent = true;
        let what = What::Deed(change.id, change.deed);
        let dropped = change.changes.iter().map(|c| c.object).collect();
        self.request(cx, unique, what, dropped);
    }

    pub(super) fn change_answered(&mut self, cx: &mut Cx, unique: Unique, reply: Reply) {
        if let Some(Task::Flush { .. }) = self.tasks.get(&unique) {
            return self.flush_ended(cx, unique, Ok(reply));
        }
        let host = self.host;
        let Some(change) = self.change(unique) else {
            return;
        };
        change.host = host;
        let gate = change.gate;
        let waits = gate.is_some_and(|gate| self.pages.rearm(gate, unique));
        match self.change(unique) {
            Some(change) if waits => change.reply = Some(Box::new(reply)),
            _ => self.finish_answered(cx, unique, &reply),
        }
    }

    fn finish_answered(&mut self, cx: &mut Cx, unique: Unique, reply: &Reply) {
        // A refusal without a stamp came before the change had its turn: nothing has changed.
        let known = reply.stamp != Stamp::default() || reply.result.is_err();
        let stamp = known.then_some(reply.stamp);
        let Some(Task::Change(change)) = self.tasks.remove(&unique) else {
            return;
        };
        let (asked, grants) = (change.asked, &reply.grants);
        self.leases.end_change(&change.changes, stamp);
        self.dirty.change_ends(&settled(change.deed));
        self.granted(cx, asked, grants);
        for touched in &reply.touched {
            let object = Obj::of(&touched.object);
            self.learn_attr(cx, asked, grants, object, value_of(&touched.attr));
        }
        let made = match &reply.result {
            Ok(Response::Created { handle, attr, .. } | Response::Object { handle, attr }) => {
                let object = Obj::of(handle);
                self.learn_attr(cx, asked, grants, object, value_of(attr));
                Some(object)
            }
            _ => None,
        };
        if reply.result.is_ok() {
            for (at, known) in names_after(change.deed, made) {
                self.learn_name(cx, asked, grants, at, known);
            }
        }
        self.close_gate(cx, change.gate);
        if change.left {
            return;
        }
        if reply.result.is_ok() && !matches!(change.deed, Deed::WriteSync(..)) {
            let touches = change.deed.touches().into_iter();
            touches.for_each(|file| self.uncommitted.changed(file, change.host));
        }
        let told = match &reply.result {
            Ok(_) => Told::Done(made),
            Err(Refusal::Host(errno)) => Told::Not(Trouble::Errno(*errno)),
            Err(Refusal::Cancelled) => Told::Not(Trouble::Never),
            Err(_) => {
                cx.stats.lost += 1;
                Told::Not(Trouble::Unknown)
            }
        };
        self.tell(cx, unique, told, false);
    }

    fn close_gate(&mut self, cx: &mut Cx, gate: Option<DropId>) {
        if let Some(gate) = gate {
            self.with(cx, |pages, out| pages.close(gate, out));
        }
    }

    /// The change has no answer: it never happens, or nobody knows.
    pub(super) fn change_refused(&mut self, cx: &mut Cx, unique: Unique, refusal: Refusal) {
        if let Some(Task::Flush { .. }) = self.tasks.get(&unique) {
            return self.flush_ended(cx, unique, Err(refusal));
        }
        let (stamp, trouble) = match refusal {
            Refusal::Cancelled => (Some(Stamp::default()), Trouble::Never),
            _ => (None, Trouble::Unknown),
        };
        self.end_change(cx, unique, stamp);
        self.tell(cx, unique, Told::Not(trouble), false);
    }

    fn end_change(&mut self, cx: &mut Cx, unique: Unique, stamp: Option<Stamp>) -> Option<DeedId> {
        let Some(Task::Change(change)) = self.tasks.remove(&unique) else {
            return None;
        };
        self.leases.end_change(&change.changes, stamp);
        self.dirty.change_ends(&settled(change.deed));
        self.close_gate(cx, change.gate);
        Some(change.id)
    }

    /// The caller of a change has left; it may still happen.
    pub(super) fn change_unsettled(&mut self, cx: &mut Cx, unique: Unique) {
        let Some(Task::Change(mut change)) = self.tasks.remove(&unique) else {
            return;
        };
        change.left = true;
        self.tell(cx, unique, Told::Not(Trouble::Unknown), false);
        self.tasks.insert(unique, Task::Change(change));
    }

    /// It is known what became of a change whose caller has left.
    pub(super) fn change_settled(&mut self, cx: &mut Cx, unique: Unique, settled: Settled) {
        match settled {
            Settled::Answered(reply) => self.change_answered(cx, unique, *reply),
            Settled::Never => {
                if let Some(id) = self.end_change(cx, unique, Some(Stamp::default())) {
                    cx.judge.ended(id, End::Not, None::<Item>);
                }
            }
            Settled::SessionLost => drop(self.end_change(cx, unique, None)),
        }
    }
}

/// Files of which nothing may be buffered while it is under way.
fn settled(deed: Deed) -> Vec<Obj> {
    pages_of(deed).into_iter().map(|(file, _)| file).collect()
}

/// What a change covers, as the shipped client says it.
fn covers(deed: Deed) -> Vec<ChangeOf> {
    let of = |object: Obj, parts: Parts, names: Vec<u8>| ChangeOf {
        object: object.handle(),
        parts,
        names: names.into_iter().map(raw_name).collect(),
    };
    let dir = Parts::ATTRS | Parts::LISTING;
    match deed {
        // Pages are the gate's.
        Deed::Write(o, ..)
        | Deed::WriteSync(o, ..)
        | Deed::Flush(o, ..)
        | Deed::Append(o, _)
        | Deed::Truncate(o, _)
        | Deed::Chmod(o) => vec![of(o, Parts::ATTRS, Vec::new())],
        Deed::Create(d, name) | Deed::Unlink(d, name) => vec![of(d, dir, vec![name])],
        Deed::Rename((from, name), (to, new)) if from == to => {
            vec![of(from, dir, vec![name, new])]
        }
        Deed::Rename((from, name), (to, new)) => {
            vec![of(from, dir, vec![name]), of(to, dir, vec![new])]
        }
        Deed::Link(object, (d, name)) => {
            vec![of(d, dir, vec![name]), of(object, Parts::ATTRS, Vec::new())]
        }
    }
}

fn pages_of(deed: Deed) -> Option<(Obj, Span)> {
    match deed {
        Deed::Write(file, page, _) | Deed::WriteSync(file, page, _) => Some((file, span(page, 1))),
        Deed::Append(file, _) | Deed::Truncate(file, _) => Some((file, Span::ALL)),
        Deed::Chmod(_)
        | Deed::Flush(..)
        | Deed::Create(..)
        | Deed::Unlink(..)
        | Deed::Rename(..)
        | Deed::Link(..) => None,
    }
}
