//! What the kernel asks: answered from what is cached, else by the server.

use super::change::OwnChange;
use super::dirty::{Store, Waiter};
use super::pages::{Outcome, Wake};
use super::{Client, ClientEv};
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::kernel::{Told, Trouble, Unique, Want};
use crate::sim::model::{Ask, Deed, MS, Nanos, Obj, Payload, What, span, value_of};
use leasefs_lease::client::{Asked, DropId, ReadId, ReadReply, Run, Verdict};
use leasefs_protocol::request::Fill;
use leasefs_protocol::{Grant, Parts, Reply, Response, Stamp};
use std::time::Duration;

/// A request of the kernel under way.
#[derive(Debug)]
pub(super) enum Task {
    Attr {
        object: Obj,
        asked: Asked,
        /// The answer, while the file is unclean.
        held: Option<Box<Reply>>,
    },
    Name {
        dir: Obj,
        name: u8,
        asked: Asked,
    },
    List {
        dir: Obj,
        asked: Asked,
        /// The first half, and the stamp of its lease.
        first: Option<(u64, Option<Stamp>)>,
    },
    Read(PageRead),
    Direct,
    Change(OwnChange),
    /// Goes on when what is buffered of its file is flushed.
    Settles(Want),
    /// A write that may stay here once pages are dropped.
    Store(Store, DropId),
    Sync {
        process: usize,
        file: Obj,
        covered: u64,
    },
    /// Of a round that flushes a file.
    Flush {
        file: Obj,
        run: Run,
        asked: Asked,
    },
}

/// A READ that fills pages.
#[derive(Debug)]
pub(super) struct PageRead {
    file: Obj,
    first: u8,
    count: u8,
    asked: Asked,
    tries: usize,
    /// What is buffered has been waited for.
    settled: bool,
}

/// How long to wait before the server is asked a further time.
const PAUSES: [Nanos; 5] = [0, 0, 2 * MS, 20 * MS, 100 * MS];

impl Client {
    pub(super) fn asked(&mut self, cx: &mut Cx, unique: Unique, want: Want) {
        if let Some(told) = self.ask_cache(cx, want) {
            self.tell(cx, unique, told, true);
            return;
        }
        if let Want::Change(id, deed) = want
            && let Some(store) = Store::of(id, deed)
            && self.buffer(cx, unique, store)
        {
            return;
        }
        self.settle(cx, unique, want);
    }

    /// A write doesn't stay here.
    pub(super) fn write_through(&mut self, cx: &mut Cx, unique: Unique, store: Store) {
        self.settle(cx, unique, Want::Change(store.id, store.deed()));
    }

    fn settle(&mut self, cx: &mut Cx, unique: Unique, want: Want) {
        let file = settles(cx, want);
        if file.is_some_and(|file| self.wait_flushed(cx, file, Waiter::Task(unique))) {
            self.tasks.insert(unique, Task::Settles(want));
            return;
        }
        self.ask_server(cx, unique, want);
    }

    fn ask_server(&mut self, cx: &mut Cx, unique: Unique, want: Want) {
        // What has been waited for may be cached by now.
        if let Some(told) = self.ask_cache(cx, want) {
            self.tell(cx, unique, told, true);
            return;
        }
        let asked = self.leases.ask();
        let task = match want {
            Want::Attr(object) => Task::Attr {
                object,
                asked,
                held: None,
            },
            Want::Name(dir, name) => Task::Name { dir, name, asked },
            Want::List(dir) => Task::List {
                dir,
                asked,
                first: None,
            },
            Want::Pages(file, first, count) => {
                self.page_read(cx, unique, (file, first, count));
                return;
            }
            Want::Direct(..) => Task::Direct,
            Want::Sync(file, process) => return self.sync(cx, unique, process, file),
            Want::Change(id, deed) => {
                self.own_change(cx, unique, id, deed);
                return;
            }
        };
        self.tasks.insert(unique, task);
        let ask = match want {
            Want::Attr(object) => Ask::GetAttr(object),
            Want::Name(dir, name) => Ask::Lookup(dir, name),
            Want::List(dir) => Ask::List(dir, 0),
            Want::Direct(file, page) => Ask::Read(file, page, 1, Fill::Nothing),
            Want::Pages(..) | Want::Change(..) | Want::Sync(..) => return,
        };
        self.request(cx, unique, What::Ask(ask), Vec::new());
    }

    fn ask_cache(&mut self, cx: &Cx, want: Want) -> Option<Told> {
        let now = self.now(cx);
        self.lease_clock.witness(now)?;
        match want {
            Want::Attr(object) => {
                if self.is_unclean(cx, object) {
                    return None;
                }
                let value = self.cache.attr(object)?;
                Some(Told::Attr(value, self.tell_attr(cx, object)))
            }
            Want::Name(dir, name) => {
                let known = self.cache.name((dir, name))?;
                let valid = self.tell_name(cx, (dir, name), known);
                Some(Told::Name(known, valid))
            }
            Want::List(dir) => self.cache.listing(dir).map(Told::List),
            Want::Direct(file, page) => {
                let value = self.read_stored(cx, file, page)?;
                Some(Told::Pages(vec![value]))
            }
            Want::Pages(..) | Want::Change(..) | Want::Sync(..) => None,
        }
    }

    fn is_unclean(&self, cx: &Cx, object: Obj) -> bool {
        self.pages.is_unclean(object) && !cx.has(Bug::AnswerUnclean)
    }

    /// The timeout that the kernel may be given now.
    fn timeout(&self, cx: &Cx) -> Duration {
        let live = self.lease_clock.witness(self.now(cx));
        let timeout = live.map_or(Duration::ZERO, |live| live.kernel_timeout());
        match cx.has(Bug::WholeTermTimeout) && !timeout.is_zero() {
            true => self.term,
            false => timeout,
        }
    }

    fn tell_attr(&mut self, cx: &Cx, object: Obj) -> Duration {
        let timeout = self.timeout(cx);
        if !timeout.is_zero() {
            self.cache.tell_attr(object);
        }
        timeout
    }

    fn tell_name(&mut self, cx: &Cx, at: (Obj, u8), known: Option<Obj>) -> Duration {
        let timeout = self.timeout(cx);
        if known.is_none() || timeout.is_zero() {
            return Duration::ZERO;
        }
        self.cache.tell_name(at);
        timeout
    }

    pub(super) fn granted(&mut self, cx: &Cx, asked: Asked, grants: &[Grant]) {
        for grant in grants {
            match cx.has(Bug::StaleStamp) {
                true => {
                    let stamp = Stamp(u64::MAX / 2);
                    let asked = self.leases.ask();
                    self.leases.granted(asked, &Grant { stamp, ..*grant });
                }
                false => drop(self.leases.granted(asked, grant)),
            }
        }
    }

    /// Whether what a reply with these grants says of a part may be cached now.
    pub(super) fn covered(
        &self,
        cx: &Cx,
        asked: Asked,
        grants: &[Grant],
        object: Obj,
        part: Parts,
    ) -> bool {
        let handle = object.handle();
        let of_it = |g: &&Grant| g.object == handle && g.parts.contains(part);
        let mut grants = grants.iter().filter(of_it);
        grants.any(|grant| {
            let cacheable = self.leases.cacheable(asked, &handle, part, grant.stamp);
            cacheable.contains(part) || cx.has(Bug::StaleStamp)
        })
    }

    /// Caches what a reply says of a name, if it may be.
    pub(super) fn learn_name(
        &mut self,
        cx: &Cx,
        asked: Asked,
        grants: &[Grant],
        at: (Obj, u8),
        known: Option<Obj>,
    ) -> bool {
        let dir = at.0.handle();
        let name = crate::sim::model::raw_name(at.1);
        let of_it = |g: &&Grant| g.object == dir && g.parts.contains(Parts::NAMES);
        let mut grants = grants.iter().filter(of_it);
        let cacheable = grants.any(|grant| {
            let leases = &self.leases;
            leases.name_cacheable(asked, &dir, &name.0, grant.stamp) || cx.has(Bug::StaleStamp)
        });
        if cacheable {
            self.cache.put_name(at, known);
        }
        cacheable
    }

    /// Caches attributes that a reply says, if they may be.
    pub(super) fn learn_attr(
        &mut self,
        cx: &Cx,
        asked: Asked,
        grants: &[Grant],
        object: Obj,
        value: u64,
    ) -> bool {
        let covered = self.covered(cx, asked, grants, object, Parts::ATTRS);
        if covered {
            self.cache.put_attr(object, value);
        }
        covered
    }

    /// The server has answered a request that changes nothing.
    pub(super) fn answered(&mut self, cx: &mut Cx, unique: Unique, reply: Reply, payload: Payload) {
        match self.tasks.get(&unique) {
            None
            | Some(Task::Change(_) | Task::Settles(_) | Task::Store(..) | Task::Flush { .. }) => {}
            Some(Task::Sync {
                process,
                file,
                covered,
            }) => {
                let (of, covered, host) = ((*process, *file), *covered, self.host);
                let kept = self.uncommitted.committed(of, covered, host);
                let kept = kept || cx.has(Bug::ForgetHostCrash);
                self.tell(cx, unique, synced(kept), false);
            }
            Some(Task::Attr { object, .. }) => {
                let object = *object;
                if self.is_unclean(cx, object) && self.pages.wait_clean(object, unique) {
                    if let Some(Task::Attr { held, .. }) = self.tasks.get_mut(&unique) {
                        *held = Some(Box::new(reply));
                    }
                    return;
                }
                self.attr_answered(cx, unique, &reply);
            }
            Some(Task::Name { dir, name, asked }) => {
                let (at, asked) = ((*dir, *name), *asked);
                self.name_answered(cx, unique, asked, at, &reply);
            }
            Some(Task::List { .. }) => self.half_answered(cx, unique, &reply, &payload),
            Some(Task::Direct) => {
                if let Payload::Pages(values) = payload {
                    self.tell(cx, unique, Told::Pages(values), false);
                }
            }
            Some(Task::Read(_)) => self.page_answered(cx, unique, &reply, payload),
        }
    }

    fn attr_answered(&mut self, cx: &mut Cx, unique: Unique, reply: &Reply) {
        let (Some(Task::Attr { object, asked, .. }), Ok(Response::Attr(attr))) =
            (self.tasks.get(&unique), &reply.result)
        else {
            return;
        };
        let (object, asked) = (*object, *asked);
        self.granted(cx, asked, &reply.grants);
        let learned = self.learn_attr(cx, asked, &reply.grants, object, value_of(attr));
        let clean = !self.is_unclean(cx, object);
        let valid = match learned && clean {
            true => self.tell_attr(cx, object),
            false => Duration::ZERO,
        };
        self.tell(cx, unique, Told::Attr(value_of(attr), valid), false);
    }

    fn name_answered(
        &mut self,
        cx: &mut Cx,
        unique: Unique,
        asked: Asked,
        at: (Obj, u8),
        reply: &Reply,
    ) {
        self.granted(cx, asked, &reply.grants);
        let known = match &reply.result {
            Ok(Response::Object { handle, attr }) => {
                let object = Obj::of(handle);
                self.learn_attr(cx, asked, &reply.grants, object, value_of(attr));
                Some(object)
            }
            _ => None,
        };
        let valid = match self.learn_name(cx, asked, &reply.grants, at, known) {
            true => self.tell_name(cx, at, known),
            false => Duration::ZERO,
        };
        self.tell(cx, unique, Told::Name(known, valid), false);
    }

    /// Half of a listing has come: the whole is cached if the first half's lease still stands.
    fn half_answered(&mut self, cx: &mut Cx, unique: Unique, reply: &Reply, payload: &Payload) {
        let (Some(Task::List { dir, asked, first }), Payload::Listing(half)) =
            (self.tasks.get(&unique), payload)
        else {
            return;
        };
        let (dir, asked, first, half) = (*dir, *asked, *first, *half);
        self.granted(cx, asked, &reply.grants);
        let Some((before, stamp)) = first else {
            let listing = reply
                .grants
                .iter()
                .find(|g| g.parts.contains(Parts::LISTING));
            let first = Some((half, listing.map(|g| g.stamp)));
            self.tasks.insert(unique, Task::List { dir, asked, first });
            self.request(cx, unique, What::Ask(Ask::List(dir, 1)), Vec::new());
            return;
        };
        if let Some(stamp) = stamp {
            let handle = dir.handle();
            let cacheable = self.leases.cacheable(asked, &handle, Parts::LISTING, stamp);
            if cacheable.contains(Parts::LISTING) {
                self.cache.put_listing(dir, [before, half]);
            }
        }
        self.tell(cx, unique, Told::List([before, half]), false);
    }

    fn page_read(&mut self, cx: &mut Cx, unique: Unique, (file, first, count): (Obj, u8, u8)) {
        let mut outcome = Outcome::default();
        let goes = self
            .pages
            .read_arrives(unique, file, span(first, count), &mut outcome);
        let read = PageRead {
            file,
            first,
            count,
            asked: self.leases.ask(),
            tries: 0,
            settled: false,
        };
        self.tasks.insert(unique, Task::Read(read));
        self.perform(cx, outcome);
        if goes {
            self.begin_page_read(cx, unique);
        }
    }

    /// A READ is sent, for the first time or again. (It doesn't wait for pages without a lease to be
    /// dropped: that drop may wait for this very READ.)
    pub(super) fn begin_page_read(&mut self, cx: &mut Cx, unique: Unique) {
        let Some(Task::Read(read)) = self.tasks.get_mut(&unique) else {
            return;
        };
        let (file, first, count) = (read.file, read.first, read.count);
        // Behind the gate: a write that comes later waits for this READ to be gone.
        if !std::mem::replace(&mut read.settled, true)
            && self.wait_flushed(cx, file, Waiter::Task(unique))
        {
            return;
        }
        self.with(cx, |pages, out| {
            pages.with(file, out, |gate| gate.read_sent_again(ReadId(unique.0)))
        });
        let asked = self.leases.ask();
        if let Some(Task::Read(read)) = self.tasks.get_mut(&unique) {
            read.asked = asked;
        }
        let ask = Ask::Read(file, first, count, Fill::Pages);
        self.trace(cx, Some(file), || format!("{unique:?} asks {ask:?}"));
        self.request(cx, unique, What::Ask(ask), Vec::new());
    }

    fn page_answered(&mut self, cx: &mut Cx, unique: Unique, reply: &Reply, payload: Payload) {
        let Some(Task::Read(read)) = self.tasks.get(&unique) else {
            return;
        };
        let (file, asked) = (read.file, read.asked);
        let handle = file.handle();
        let of_it = |g: &Grant| g.object == handle && g.parts.contains(Parts::DATA);
        let leased = reply.grants.iter().any(of_it);
        self.granted(cx, asked, &reply.grants);
        let live = self.lease_clock.witness(self.now(cx)).is_some();
        let stands = asked == self.leases.ask() && live;
        let kind = match (leased && stands) || cx.has(Bug::BareFill) {
            true => ReadReply::Leased,
            false => ReadReply::Bare,
        };
        let verdict = self.with(cx, |pages, out| {
            pages.with(file, out, |gate| gate.read_answered(ReadId(unique.0), kind))
        });
        self.trace(cx, Some(file), || {
            format!("{unique:?} brings {payload:?} {kind:?} -> {verdict:?}")
        });
        match (verdict, payload) {
            (Some(Verdict::Deliver), Payload::Pages(values)) => {
                cx.stats.fills += 1;
                cx.stats.owed_fills += u64::from(kind == ReadReply::Bare);
                self.tell(cx, unique, Told::Pages(values), false);
            }
            _ => self.ask_again(cx, unique),
        }
    }

    fn ask_again(&mut self, cx: &mut Cx, unique: Unique) {
        let Some(Task::Read(read)) = self.tasks.get_mut(&unique) else {
            return;
        };
        let last = PAUSES[PAUSES.len() - 1];
        let pause = PAUSES.get(read.tries).copied().unwrap_or(last);
        read.tries += 1;
        self.later(cx, pause, ClientEv::Again(unique));
    }

    /// Someone who has waited goes on.
    pub(super) fn woken(&mut self, cx: &mut Cx, wake: Wake) {
        let unique = match wake {
            Wake::Reclaim => return self.lost_are_dropped(cx),
            Wake::Claim(link) => return self.claim(cx, link),
            Wake::Task(unique) => unique,
        };
        match self.tasks.get_mut(&unique) {
            Some(Task::Attr { held, .. }) => {
                if let Some(reply) = held.take() {
                    self.attr_answered(cx, unique, &reply);
                }
            }
            Some(Task::Read(_)) => self.begin_page_read(cx, unique),
            Some(Task::Change(_)) => self.gate_is_clear(cx, unique),
            Some(Task::Settles(want)) => {
                let want = *want;
                self.tasks.remove(&unique);
                self.ask_server(cx, unique, want);
            }
            Some(Task::Store(store, gate)) => {
                let waits = (*store, *gate);
                self.pages_are_gone(cx, unique, waits);
            }
            Some(
                Task::Name { .. }
                | Task::List { .. }
                | Task::Direct
                | Task::Sync { .. }
                | Task::Flush { .. },
            )
            | None => {}
        }
    }
}

impl Client {
    /// Makes durable what a process has written; what is buffered is at the server.
    fn sync(&mut self, cx: &mut Cx, unique: Unique, process: usize, file: Obj) {
        if self.dirty.failed.remove(&(process, file)) {
            self.tell(cx, unique, synced(false), false);
            return;
        }
        let covered = self.uncommitted.commits(file);
        let sync = Task::Sync {
            process,
            file,
            covered,
        };
        self.tasks.insert(unique, sync);
        let what = What::Ask(Ask::Commit(file, process));
        self.request(cx, unique, what, Vec::new());
    }
}

const EIO: u16 = 5;

fn synced(kept: bool) -> Told {
    match kept {
        true => Told::Done(None),
        false => Told::Not(Trouble::Errno(EIO)),
    }
}

/// The file whose buffered bytes must be at the server before.
fn settles(cx: &Cx, want: Want) -> Option<Obj> {
    match want {
        Want::Attr(_) if cx.has(Bug::StatUnflushed) => None,
        Want::Sync(..) if cx.has(Bug::SyncUnflushed) => None,
        Want::Attr(file) | Want::Direct(file, _) | Want::Sync(file, _) => Some(file),
        // A READ of pages takes its place before.
        Want::Pages(..) | Want::Name(..) | Want::List(_) => None,
        Want::Change(_, deed) => match deed {
            Deed::Create(..) | Deed::Unlink(..) | Deed::Rename(..) => None,
            deed => deed.touches().last().copied(),
        },
    }
}
