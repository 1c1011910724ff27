//! What time brings: keep-alives, leases that end, memory that is short.

use super::cache::Dropped;
use super::link::Conn;
use super::pages::{Outcome, Then};
use super::{Client, ClientEv};
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::model::{MS, Nanos, Obj, Up};
use crate::sim::net::Stream;
use leasefs_lease::client::{ChangeOf, DropKind, PageGate};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Parts, Release, Stamp};

impl Client {
    pub(super) fn tick(&mut self, cx: &mut Cx) {
        let now = self.now(cx);
        if self.lease_clock.sweep_at().is_some_and(|due| due <= now) {
            self.trace(cx, None, || "drops everything: no contact".into());
            self.expire(cx, now);
        }
        let third = self.term / 3;
        let due = now.since(self.rpc.last_asked) >= third / 2;
        if due && self.since_renewal(cx) >= third {
            self.keep_alive(cx);
        }
        self.release_idle(cx);
        let unclean = |(file, _): &(Obj, _)| self.pages.is_unclean(*file);
        if self.swept.is_none() && !self.pages.filled().iter().any(unclean) {
            self.kernel.mapped_may_be_stale = self.stalled_until > cx.now;
        }
        let wait = 40 * MS + cx.rng.below(40 * MS as usize) as Nanos;
        self.later(cx, wait, ClientEv::Tick);
    }

    /// All leases are gone at `now`.
    pub(super) fn expire(&mut self, cx: &mut Cx, now: BootTime) {
        self.lease_clock.end(now);
        self.drop_everything(cx);
    }

    /// Drops what can be dropped here and leaves the kernel's part to a thread.
    pub(super) fn drop_everything(&mut self, cx: &mut Cx) {
        let nothing = self.leases.is_empty() && self.swept.is_none();
        self.leases.expire();
        if nothing && self.pages.filled().is_empty() {
            return;
        }
        self.trace(cx, None, || "has lost all leases".into());
        let waiting = self.swept.take();
        if waiting.is_none() {
            let wait = cx.short(5 * MS);
            self.later(cx, wait, ClientEv::Sweep);
        }
        let (mut dropped, mut outcome) = waiting.unwrap_or_default();
        self.cache.drop_all(&mut dropped);
        self.cache.next_epoch();
        self.pages.void_recalls(&mut outcome);
        let filled = self.pages.filled();
        self.pages
            .drop_pages(&filled, DropKind::Sweep, Then::Nothing, &mut outcome);
        self.swept = Some((dropped, outcome));
    }

    /// Drops what a loss of leases has left in the kernel.
    pub(super) fn sweep(&mut self, cx: &mut Cx) {
        if let Some((dropped, outcome)) = self.swept.take() {
            self.drop_at_once(cx, &dropped);
            self.perform(cx, outcome);
        }
    }

    /// Evicts something and gives its leases back.
    pub(super) fn evict(&mut self, cx: &mut Cx) {
        let wait = (100 + cx.rng.below(900) as u64) * MS;
        self.later(cx, wait, ClientEv::Evict);
        let pick = cx.rng.below(64);
        let victim = self.cache.victim(pick);
        let Some(object) = victim else { return };
        let change = [ChangeOf {
            object: object.handle(),
            parts: Parts::ALL,
            names: Vec::new(),
        }];
        let mut dropped = Dropped::default();
        self.cache.drop_parts(object, Parts::ALL, &[], &mut dropped);
        self.leases.begin_change(&change);
        self.drop_at_once(cx, &dropped);
        self.leases.end_change(&change, Some(Stamp::default()));
        let parts = match self.pages.may_hold(object) {
            true => Parts::ALL - Parts::DATA,
            false => Parts::ALL,
        };
        let released = self.leases.release(&object.handle(), parts);
        self.release(cx, released.into_iter().collect());
    }

    fn release(&mut self, cx: &mut Cx, releases: Vec<Release>) {
        if let (Conn::Up(link), false) = (self.conn, releases.is_empty()) {
            cx.up(link, Stream::ControlUp, Up::Release(releases));
        }
    }

    /// The kernel has forgotten a file.
    pub(super) fn forget(&mut self, cx: &mut Cx, object: Obj) {
        if self.kernel.knows(object) {
            return;
        }
        self.cache.forgotten(object);
        let mut outcome = Outcome::default();
        self.pages.with(object, &mut outcome, PageGate::forgotten);
        self.perform(cx, outcome);
        if self.leases.held(&object.handle()).contains(Parts::DATA) {
            self.idle.push(object);
        }
    }

    fn release_idle(&mut self, cx: &mut Cx) {
        let idle = std::mem::take(&mut self.idle);
        // Dirty ones when they are clean.
        let dirty = |o: &Obj| self.dirty.contains(*o) && !cx.has(Bug::ReleaseDirty);
        let (dirty, idle): (Vec<Obj>, Vec<Obj>) = idle.into_iter().partition(dirty);
        self.idle = dirty;
        let unused = idle.into_iter().filter(|o| !self.pages.may_hold(*o));
        let unused: Vec<Obj> = unused.collect();
        let leases = &mut self.leases;
        let releases = unused
            .iter()
            .filter_map(|object| leases.release(&object.handle(), Parts::DATA))
            .collect();
        self.release(cx, releases);
    }
}
