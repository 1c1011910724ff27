//! Connections: found, lost, found again; what the server says of the session.

use super::{Client, ClientEv};
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::model::{Down, MS, Nanos, Obj, US, Up, Welcome};
use crate::sim::net::{LinkId, Stream};
use leasefs_lease::client::{DropKind, Span};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::Standing;
use leasefs_protocol::{Handle, Parts, Recall};
use std::time::Duration;

use super::cache::Dropped;
use super::pages::{Outcome, Then, Wake};

/// How the daemon stands with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conn {
    Down,
    /// `Hello` was sent.
    Greeting(LinkId, BootTime),
    /// The server has restarted.
    Reclaiming(LinkId),
    Up(LinkId),
}

impl Conn {
    pub fn link(self) -> Option<LinkId> {
        match self {
            Self::Down => None,
            Self::Greeting(link, _) | Self::Reclaiming(link) | Self::Up(link) => Some(link),
        }
    }
}

/// What the recall engine is told, in this order.
#[derive(Clone, Debug)]
pub(super) enum EngineEv {
    Connected(Welcome),
    Reclaim(LinkId),
    Lost(Vec<Handle>),
    Recall(Recall),
}

/// How long an attempt to connect may take beside the way.
const PATIENCE: Nanos = 250 * MS;

impl Client {
    pub(super) fn dial(&mut self, cx: &mut Cx) {
        if self.conn != Conn::Down {
            return;
        }
        let link = cx.net.connect(self.index, self.way);
        self.early.clear();
        self.conn = Conn::Greeting(link, self.now(cx));
        if self.apart.is_none() {
            let hello = Up::Hello {
                session: self.session,
                drift_ppm: self.drift_ppm,
            };
            cx.up(link, Stream::ControlUp, hello);
        }
        let patience = PATIENCE + 8 * self.way + cx.net.slowest();
        self.later(cx, patience, ClientEv::DialTimeout(link));
    }

    /// Without an answer another connection is tried.
    pub(super) fn dial_timeout(&mut self, cx: &mut Cx, link: LinkId) {
        let tries = matches!(self.conn, Conn::Greeting(tried, _) if tried == link);
        if tries {
            cx.net.cut(link, cx.now, cx.now);
            self.conn = Conn::Down;
            let pause = cx.rng.below(100 * MS as usize) as Nanos;
            self.later(cx, pause, ClientEv::Dial);
        }
    }

    pub(super) fn lost_link(&mut self, cx: &mut Cx, link: LinkId) {
        if self.conn.link() != Some(link) {
            return;
        }
        self.trace(cx, None, || format!("loses {link:?}"));
        cx.net.cut(link, cx.now, cx.now);
        self.conn = Conn::Down;
        self.rpc.disconnected();
        let pause = cx.rng.below(60 * MS as usize) as Nanos;
        self.later(cx, pause, ClientEv::Dial);
    }

    pub(super) fn message(&mut self, cx: &mut Cx, link: LinkId, stream: Stream, down: Down) {
        if self.conn.link() != Some(link) {
            return;
        }
        debug_assert!(stream.index() > 0);
        match down {
            Down::Welcome(welcome) => self.welcomed(cx, link, welcome),
            Down::KeepAlive { number, renews } => {
                if let Some(sent) = self.rpc.kept_alive(number)
                    && renews
                {
                    self.renewed(cx, sent);
                }
            }
            Down::Cancelled { seq, begun } => self.cancelled(cx, seq, begun),
            Down::Reclaimed(lost) => self.reclaimed(cx, link, lost),
            Down::Recall(recall) => match self.conn {
                Conn::Up(_) => self.tell_engine(cx, EngineEv::Recall(recall)),
                _ => self.early.push(recall),
            },
            Down::Reply(reply, payload) => self.deliver(cx, link, *reply, payload),
        }
    }

    fn tell_engine(&mut self, cx: &mut Cx, ev: EngineEv) {
        self.engine.push_back(ev);
        let wait = US + cx.short(MS);
        self.later(cx, wait, ClientEv::Engine);
    }

    fn welcomed(&mut self, cx: &mut Cx, link: LinkId, welcome: Welcome) {
        let Conn::Greeting(_, sent) = self.conn else {
            return;
        };
        self.term = welcome.term;
        self.agreed_drift = welcome.drift_ppm;
        self.host = welcome.host;
        self.trace(cx, None, || format!("is welcome on {link:?}: {welcome:?}"));
        if welcome.renews {
            self.renewed(cx, sent);
        }
        self.tell_engine(cx, EngineEv::Connected(welcome));
        if welcome.standing == Standing::Reclaim {
            self.conn = Conn::Reclaiming(link);
            self.tell_engine(cx, EngineEv::Reclaim(link));
            return;
        }
        let forgotten = welcome.standing == Standing::New && self.connected_before;
        self.serve(cx, link, forgotten);
    }

    fn serve(&mut self, cx: &mut Cx, link: LinkId, forgotten: bool) {
        self.connected_before = true;
        self.conn = Conn::Up(link);
        for recall in std::mem::take(&mut self.early) {
            self.tell_engine(cx, EngineEv::Recall(recall));
        }
        self.resume(cx, link, forgotten);
    }

    pub(super) fn run_engine(&mut self, cx: &mut Cx) {
        match self.engine.pop_front() {
            None => {}
            Some(EngineEv::Connected(welcome)) => self.connected(cx, &welcome),
            Some(EngineEv::Reclaim(link)) => self.reclaim(cx, link),
            Some(EngineEv::Lost(lost)) => self.lost_leases(cx, &lost),
            Some(EngineEv::Recall(recall)) => self.engine_recall(cx, recall),
        }
    }

    fn connected(&mut self, cx: &mut Cx, welcome: &Welcome) {
        let lost = matches!(welcome.standing, Standing::New | Standing::Expired);
        if lost && !self.leases.is_empty() {
            let now = self.now(cx);
            self.expire(cx, now);
        }
        if welcome.standing != Standing::Reclaim {
            self.cached_of = Some(welcome.host);
        }
        if self.process.replace(welcome.process) != Some(welcome.process) {
            self.leases.restarted();
            self.with(cx, |pages, out| pages.void_recalls(out));
        }
    }

    /// The leases alive by the own clock.
    fn reclaim(&mut self, cx: &mut Cx, link: LinkId) {
        let now = self.now(cx);
        if self.leases.is_empty() || self.lease_clock.witness(now).is_none() {
            self.expire(cx, now);
        }
        let same = self.cached_of == Some(self.host) || cx.has(Bug::KeepAfterHostCrash);
        match same {
            true => self.claim(cx, link),
            false => self.drop_clean(cx, link),
        }
    }

    /// What is cached may never have reached the disk of the server's host.
    fn drop_clean(&mut self, cx: &mut Cx, link: LinkId) {
        let mut dropped = Dropped::default();
        let held = self.leases.reclaim_list().map(|lease| lease.object);
        let clean = held.filter(|handle| !self.dirty.contains(Obj::of(handle)));
        let clean: Vec<Handle> = clean.collect();
        clean.iter().for_each(|handle| self.leases.lost(handle));
        self.cache.drop_all(&mut dropped);
        self.drop_at_once(cx, &dropped);
        let filled = self.pages.filled();
        let then = Then::Wake(Wake::Claim(link));
        self.with(cx, |pages, out| {
            pages.drop_pages(&filled, DropKind::Sweep, then, out)
        });
    }

    /// Claims the leases back.
    pub(super) fn claim(&mut self, cx: &mut Cx, link: LinkId) {
        self.cached_of = Some(self.host);
        let leases: Vec<_> = self.leases.reclaim_list().collect();
        if self.conn != Conn::Reclaiming(link) {
            return;
        }
        match leases.is_empty() {
            true => self.reclaim_done(cx, link),
            false => cx.up(link, Stream::ControlUp, Up::Reclaim(leases)),
        }
    }

    fn reclaimed(&mut self, cx: &mut Cx, link: LinkId, lost: Vec<Handle>) {
        match lost.is_empty() {
            true => self.reclaim_done(cx, link),
            false => self.tell_engine(cx, EngineEv::Lost(lost)),
        }
    }

    /// Drops what was cached under leases that could not be reclaimed, then says so.
    fn lost_leases(&mut self, cx: &mut Cx, lost: &[Handle]) {
        let mut dropped = Dropped::default();
        let mut outcome = Outcome::default();
        for handle in lost {
            self.leases.lost(handle);
            let object = Obj::of(handle);
            self.cache.drop_parts(object, Parts::ALL, &[], &mut dropped);
        }
        let files: Vec<(Obj, Span)> = lost.iter().map(|h| (Obj::of(h), Span::ALL)).collect();
        let then = Then::Wake(Wake::Reclaim);
        self.pages
            .drop_pages(&files, DropKind::Sweep, then, &mut outcome);
        self.drop_at_once(cx, &dropped);
        self.perform(cx, outcome);
    }

    /// What was lost is dropped.
    pub(super) fn lost_are_dropped(&mut self, cx: &mut Cx) {
        if let Conn::Reclaiming(link) = self.conn {
            self.reclaim_done(cx, link);
        }
    }

    fn reclaim_done(&mut self, cx: &mut Cx, link: LinkId) {
        cx.up(link, Stream::ControlUp, Up::ReclaimDone);
        self.serve(cx, link, false);
    }

    /// The mount ends and says so, if it can.
    pub fn goodbye(&mut self, cx: &mut Cx) {
        if let (Conn::Up(link), None) = (self.conn, self.frozen) {
            cx.up(link, Stream::ControlUp, Up::Goodbye);
        }
        self.trace(cx, None, || "says goodbye".into());
        self.alive = false;
        // What it can't flush goes into its recovery folder.
        cx.judge.gone(self.session);
    }

    /// Its connection.
    pub fn link(&self) -> Option<LinkId> {
        self.conn.link()
    }

    /// How long ago the newest renewing request was sent.
    pub(super) fn since_renewal(&self, cx: &Cx) -> Duration {
        self.now(cx).since(self.rpc.renewed)
    }
}
