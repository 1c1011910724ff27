//! Recalls: the caches are emptied, the kernel's too, then they are approved.

use super::cache::Dropped;
use super::pages::Then;
use super::{Client, ClientEv};
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::model::{MS, Nanos, Obj, US, name_of, pages};
use leasefs_lease::client::{DropKind, PageGate, Span, Step};
use leasefs_protocol::{Parts, Recall, Scope};

/// A drop that lasts longer waits for something in flight.
const STUCK: Nanos = 3 * MS;
/// How often that is looked at.
const LOOK: Nanos = 2 * MS;

impl Client {
    /// A recall is taken up.
    pub(super) fn engine_recall(&mut self, cx: &mut Cx, recall: Recall) {
        if cx.has(Bug::ApproveBeforeDrop) {
            self.approve(cx, vec![recall.id]);
            let wait = cx.rng.below(100 * MS as usize) as Nanos;
            self.later(cx, wait, ClientEv::Late(recall));
            return;
        }
        self.recalled(cx, &recall);
    }

    pub(super) fn recalled(&mut self, cx: &mut Cx, recall: &Recall) {
        let object = match &recall.scope {
            Scope::Object { object, .. } => Some(Obj::of(object)),
            Scope::Everything => None,
        };
        self.trace(cx, object, || format!("is asked: {recall:?}"));
        if !self.leases.recall(recall) {
            return;
        }
        cx.stats.recalls += 1;
        let mut dropped = Dropped::default();
        match &recall.scope {
            Scope::Everything => self.cache.drop_all(&mut dropped),
            Scope::Object {
                object,
                parts,
                names,
            } => {
                let names: Vec<u8> = names.iter().map(|name| name_of(&name.0)).collect();
                let object = Obj::of(object);
                self.cache.drop_parts(object, *parts, &names, &mut dropped);
            }
        }
        self.drop_at_once(cx, &dropped);
        let dirty = self.recalled_dirty(recall);
        self.flush_for(cx, recall.clone(), dirty);
    }

    /// The part of a recall that may block.
    pub(super) fn drop_recalled_pages(&mut self, cx: &mut Cx, recall: &Recall) {
        // Void meanwhile: everything expired, or the server is another one.
        if !self.leases.open_recalls().any(|open| open == recall) {
            return;
        }
        let files = match &recall.scope {
            Scope::Everything => self.pages.filled(),
            Scope::Object { object, parts, .. } if parts.contains(Parts::DATA) => {
                vec![(Obj::of(object), Span::ALL)]
            }
            Scope::Object { .. } => Vec::new(),
        };
        let then = match cx.has(Bug::NeverApprove) {
            true => Then::Nothing,
            false => Then::Approve(recall.id),
        };
        self.with(cx, |pages, out| {
            pages.drop_pages(&files, DropKind::Recall, then, out)
        });
    }

    /// Drops from the kernel what never blocks.
    pub(super) fn drop_at_once(&mut self, cx: &mut Cx, dropped: &Dropped) {
        for object in &dropped.attrs {
            self.kernel.drop_attrs(*object);
            self.trace(cx, Some(*object), || "the kernel drops attributes".into());
        }
        if dropped.names && !cx.has(Bug::KeepNames) {
            self.cache.next_epoch();
            self.kernel.inc_epoch();
        }
    }

    /// Drops the pages of a file, range by range.
    pub(super) fn pass(&mut self, cx: &mut Cx, file: Obj) {
        if cx.now < self.stalled_until {
            let wait = self.stalled_until - cx.now + US;
            self.later(cx, wait, ClientEv::Pass(file));
            return;
        }
        let now = cx.now;
        let step = self.with(cx, |pages, out| pages.next_step(file, now, out));
        let Step::Drop(span) = step else { return };
        self.trace(cx, Some(file), || format!("drops pages {:?}", pages(span)));
        self.kernel.drop_pages(cx, file, pages(span));
        self.later(cx, STUCK + LOOK, ClientEv::Stuck(file, now));
    }

    pub(super) fn pages_dropped(&mut self, cx: &mut Cx, file: Obj) {
        self.with(cx, |pages, out| pages.dropped(file, out));
        self.pass(cx, file);
    }

    pub(super) fn look_whether_stuck(&mut self, cx: &mut Cx, file: Obj, since: Nanos) {
        if self.pages.dropping_since(file) != Some(since) {
            return;
        }
        self.with(cx, |pages, out| pages.with(file, out, PageGate::stuck));
        self.later(cx, LOOK, ClientEv::Stuck(file, since));
    }
}
