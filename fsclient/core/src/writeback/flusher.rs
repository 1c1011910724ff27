//! The flusher of a dirty file: sends its bytes round by round, and says what became of them.

use super::{AGE, From, RETRY, TOGETHER, WritebackInner, undelivered};
use crate::api::WhyNot;
use crate::cache::{Asked, DirtyFile, Flushed, Round};
use crate::inode::{Covered, Durably, Hearers, Noted, Writer, Wrote};
use crate::run::{Bell, Place};
use crate::session::{Answered, CallOptions, Settlement};
use futures_util::future::join_all;
use leasefs_lease::client::{Batch, Run, Tenure};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::answer::Written;
use leasefs_protocol::change::{self, WriteKind};
use leasefs_protocol::control::SCATTERS;
use leasefs_protocol::{
    Attr, BootId, Durability, Handle, LockEpoch, OpenId, Refusal, Reply, SetAttr, Version,
};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How often who waits for a place looks whether it needs one still.
const LOOK: Duration = Duration::from_millis(20);

/// A request of a round that has ended.
struct RoundPart {
    asked: Asked,
    /// What it makes durable, and through which open, if it is to.
    covered: Option<(Covered, OpenId)>,
    sent: Sent,
}

/// How a request of a round has ended.
struct Sent {
    /// In which life of the server's host it was answered.
    host: Option<BootId>,
    flushed: Flushed,
    /// The number of the change, if it was one, of all that was asked for.
    number: Option<u64>,
}

impl Sent {
    fn unnumbered(host: Option<BootId>, flushed: Flushed) -> Self {
        Self {
            host,
            flushed,
            number: None,
        }
    }
}

/// Bytes on their way to the server.
struct Flush {
    object: Handle,
    batch: Batch,
    writer: Writer,
    hearers: Arc<Hearers>,
    kill_priv: bool,
    kind: WriteKind,
    /// Something is set with them.
    sets: bool,
    durability: Durability,
    /// The tenure of the locks under which it was written.
    locked: Option<LockEpoch>,
}

impl Flush {
    fn new(object: Handle, round: &Round, batch: Batch, set: SetAttr) -> Self {
        Self {
            object,
            batch,
            writer: round.writer.clone(),
            hearers: Arc::clone(&round.hearers),
            kill_priv: round.kill_priv,
            kind: WriteKind::Flush {
                base: match planted::is(Bug::FlushBaseless) {
                    true => Version::default(),
                    false => round.base,
                },
                late: false,
                written: round.date,
                repeated: round.repeated,
                set,
            },
            sets: !set.is_empty(),
            durability: Durability::None,
            locked: round.locked,
        }
    }

    fn request(&self) -> change::Write {
        change::Write {
            open: self.writer.open.id(),
            at: self.batch.at(),
            kill_priv: self.kill_priv,
            durability: match planted::is(Bug::SyncLeftOut) {
                true => Durability::None,
                false => self.durability,
            },
            kind: self.kind,
        }
    }
}

impl WritebackInner {
    pub(super) fn hurry_if_many(&self) {
        let many = self.cache.state().has_many_dirty();
        if many {
            self.hurry_all();
        }
    }

    pub(super) fn hurry_all(&self) {
        let state = self.cache.state();
        for object in state.inodes.dirty_files() {
            if let Some(hurry) = state.hurry(&object) {
                hurry.ring_one();
            }
        }
    }

    /// The flusher of one file.
    pub(super) async fn keep_flushing(self: Arc<Self>, object: Handle) {
        loop {
            let hurry = self.cache.state().hurry(&object);
            let Some(hurry) = hurry else {
                self.cache.inodes().nothing_to_flush(&object);
                return;
            };
            // Either is reason to flush.
            let _ = self.cx.timeout(self.age(), hurry.listen()).await;
            let scatters = self.rpc.has_feature(SCATTERS);
            let round = self.cache.state().begin_round(&object, scatters);
            if let Some(round) = round
                && !self.clone().send(object, round).await
            {
                self.cx.sleep(RETRY).await;
            }
        }
    }

    /// How old what is written now gets before it is sent.
    fn age(&self) -> Duration {
        let behind = self.cx.monotonic().as_nanos() % TOGETHER;
        AGE.saturating_sub(Duration::from_nanos(behind))
    }

    /// Sends a round; false if some of it has to be sent again.
    async fn send(self: Arc<Self>, object: Handle, round: Round) -> bool {
        let mut under_way = Vec::with_capacity(round.batches.len());
        // None of the bytes may be read by whom a `chmod` before them has shut out. Times go with all: the rest of
        // what the host takes a part of comes behind the others, and would date the file.
        let mut set = round.set;
        // They take effect one after the other: what a crash leaves of them has no hole.
        let mut before = Arc::new(Bell::default());
        before.ring_one();
        let last = round.batches.len().saturating_sub(1);
        for (place, batch) in round.batches.iter().enumerate() {
            let mut flush = Flush::new(object, &round, batch.clone(), set);
            if place == last {
                flush.durability = round.durability;
            }
            set = round.set.times();
            let (inner, next) = (&self, Arc::new(Bell::default()));
            let before = std::mem::replace(&mut before, Arc::clone(&next));
            under_way.push(async move {
                before.listen().await;
                let (asked, covered) = (inner.cache.ask(), inner.covered(&flush));
                let sent = inner.send_one(flush, &next).await;
                next.ring_one();
                RoundPart {
                    asked,
                    covered,
                    sent,
                }
            });
        }
        let ends = join_all(under_way).await;
        self.keep_failed(object, &ends).await;
        self.round_ended(&object, ends)
    }

    /// Bytes that were answered before a crash of the server's host, while others of their round were
    /// under way, were not restored with what it has lost: they are here still.
    fn round_ended(&self, object: &Handle, mut ends: Vec<RoundPart>) -> bool {
        let life = self.cache.inodes().host_life().host();
        for RoundPart { sent, .. } in &mut ends {
            if let Flushed::Answered(batch, ..) = &sent.flushed
                && life.is_some_and(|life| sent.host != Some(life))
            {
                *sent = Sent::unnumbered(sent.host, Flushed::Again(batch.clone()));
            }
        }
        let durably = self.made_durable(object, &mut ends);
        let mut sent = true;
        for end in ends {
            sent &= self.ended(end.asked, object, end.sent.flushed, durably);
        }
        sent
    }

    /// What a request covers that is to be durable.
    fn covered(&self, flush: &Flush) -> Option<(Covered, OpenId)> {
        let data_only = match flush.durability {
            Durability::None => return None,
            Durability::Data => true,
            Durability::All => false,
        };
        let inodes = self.cache.inodes();
        let covered = inodes.commit_covers(inodes.host_life(), data_only);
        Some((covered, flush.writer.open.id()))
    }

    /// Notes that a round is durable, if it is: its last request was to be, and came behind all the others.
    fn made_durable(&self, object: &Handle, ends: &mut [RoundPart]) -> Option<Durably> {
        let host = ends.last()?.sent.host?;
        let in_place = |end: &RoundPart| end.sent.number.filter(|_| end.sent.host == Some(host));
        let round: Option<Vec<u64>> = ends.iter().map(in_place).collect();
        let (covered, open) = ends.last_mut()?.covered.as_mut()?;
        let durably = covered.along_with(round?, *open, host);
        self.cache.inodes().written_durably(object, covered, host);
        Some(durably)
    }

    /// Keeps the bytes that the server refuses in the recovery folder, before anybody is told. Where
    /// the file has changed elsewhere none of its bytes are sent any more.
    async fn keep_failed(self: &Arc<Self>, object: Handle, ends: &[RoundPart]) {
        let failed = ends.iter().filter_map(|end| match &end.sent.flushed {
            Flushed::Failed(batch, refusal) => Some((batch.runs(), *refusal)),
            Flushed::Answered(..) | Flushed::Again(_) | Flushed::Apart(_) => None,
        });
        let (runs, refusals): (Vec<&[Run]>, Vec<Refusal>) = failed.unzip();
        let mut runs = runs.concat();
        let told = refusals
            .first()
            .filter(|_| !planted::is(Bug::RefusedDropped));
        let Some(refusal) = told.copied() else {
            return;
        };
        let (reason, file) = {
            let mut state = self.cache.state();
            let file = state.dirty_file(&object);
            if is_of_all(refusal) {
                runs.append(&mut state.abandon(&object, refusal));
            }
            let reason = match refusal {
                Refusal::Changed => WhyNot::ChangedElsewhere,
                refusal => WhyNot::Refused(refusal),
            };
            (reason, file)
        };
        let from = |file: DirtyFile| (From(file.path, file.owner), file.size);
        let (from, size) = file.map(from).unwrap_or_default();
        let lost = undelivered(object, from, size, runs, reason);
        self.outside.keep(lost).await;
    }

    /// Sends bytes until all are taken, or some are not.
    async fn send_one(&self, mut flush: Flush, numbered: &Bell) -> Sent {
        let whole = flush.batch.clone();
        loop {
            let tenure = self.cache.tenure(&flush.object);
            let settled = self.settled(&flush, numbered).await;
            let host = settled.as_ref().ok().map(|answer| answer.host);
            let possible = 1..=flush.batch.len();
            let Some(len) = taken(&settled).filter(|len| possible.contains(len)) else {
                return Sent::unnumbered(host, outcome(settled, flush.batch, whole));
            };
            let Ok(answer) = settled else {
                return Sent::unnumbered(host, Flushed::Again(whole));
            };
            let taken = flush.batch.split_to(len);
            let noted = self.noted(&flush, tenure, taken, &answer);
            if noted.undone {
                return Sent::unnumbered(host, Flushed::Again(whole));
            }
            // Else the host took no more: it says why when it is asked for the rest.
            if flush.batch.is_empty() {
                let attr = attr_after(&answer.reply, &flush.object);
                return Sent {
                    host,
                    number: noted.number.filter(|_| len == whole.len()),
                    flushed: Flushed::Answered(whole, Box::new(answer.reply), attr),
                };
            }
        }
    }

    /// A place among the flushes under way, or none for what another mount waits for: that must not stand behind what nobody does.
    async fn place(&self, object: &Handle) -> Option<Place> {
        let mut place = pin!(self.window.next());
        loop {
            if self.cache.state().leases.is_waited_for(object) {
                return None;
            }
            if let Ok(place) = self.cx.timeout(LOOK, place.as_mut()).await {
                return place;
            }
        }
    }

    async fn settled(&self, flush: &Flush, numbered: &Bell) -> Result<Answered<Written>, Refusal> {
        let _place = self.place(&flush.object).await;
        let dropped = vec![flush.object];
        let (caller, data) = (flush.writer.caller.clone(), flush.batch.data());
        let options = CallOptions {
            numbered: Some(numbered),
            locked: flush.locked,
            ..CallOptions::default()
        };
        let objects = [flush.object];
        let changed = self
            .rpc
            .change(caller, flush.request(), data, &objects, dropped, options)
            .await;
        match changed.unsettled {
            None => changed.result,
            Some(unsettled) => match unsettled.await {
                Settlement::Answered(answer) => Ok(answer.typed()),
                Settlement::NeverHappens | Settlement::SessionLost => Err(Refusal::Lost),
            },
        }
    }

    /// These bytes of the flush are at the server.
    fn noted(
        &self,
        flush: &Flush,
        before: Option<Tenure>,
        taken: Batch,
        answer: &Answered<Written>,
    ) -> Noted {
        let mut noted = match attr_after(&answer.reply, &flush.object) {
            Some(attr) => self.noted_bytes(flush, before, taken, (attr, answer.host)),
            None => {
                // They were there before, nobody knows since when.
                let mut inodes = self.cache.inodes();
                inodes.unstable_change(flush.object, answer.host, true);
                Noted::default()
            }
        };
        if !noted.undone && flush.sets {
            let mut inodes = self.cache.inodes();
            inodes.unstable_change(flush.object, answer.host, false);
            // That is a further change.
            noted.number = None;
            let unset = answer.reply.result.as_ref().ok().and_then(|w| w.unset);
            if let Some(refusal) = unset {
                inodes.not_set(&flush.object, refusal);
            }
        }
        noted
    }

    fn noted_bytes(
        &self,
        flush: &Flush,
        before: Option<Tenure>,
        taken: Batch,
        (attr, host): (Attr, BootId),
    ) -> Noted {
        let now = self.cache.tenure(&flush.object);
        let wrote = Wrote {
            object: flush.object,
            batch: taken,
            version: attr.version(),
            writer: flush.writer.clone(),
            hearers: Arc::clone(&flush.hearers),
            path: self.cache.state().dirty_path(&flush.object),
            tenure: now.filter(|_| now == before),
            durable: false,
        };
        self.wrote(wrote, host)
    }

    fn ended(
        &self,
        asked: Asked,
        object: &Handle,
        flushed: Flushed,
        durably: Option<Durably>,
    ) -> bool {
        let again = matches!(flushed, Flushed::Again(_) | Flushed::Apart(_));
        let now = self.cache.now();
        let wake = self.cache.state().flushed(now, asked, object, flushed);
        for tell in wake {
            // Whoever waited may be gone.
            let _ = tell.send(durably);
        }
        self.room.ring_all();
        !again
    }
}

/// Whether none of the file's bytes will be taken any more, whichever they are.
fn is_of_all(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Changed | Refusal::LockLost)
}

/// How many bytes an answer says were taken.
fn taken(result: &Result<Answered<Written>, Refusal>) -> Option<usize> {
    let written = result.as_ref().ok()?.reply.result.as_ref().ok()?;
    usize::try_from(written.len).ok()
}

/// What it means that none of the `rest` of the bytes were taken.
fn outcome(result: Result<Answered<Written>, Refusal>, rest: Batch, whole: Batch) -> Flushed {
    match result.map(|answer| answer.reply.result) {
        // It never happened, or may be done again: the lease keeps everybody else away.
        Err(_) | Ok(Ok(_) | Err(Refusal::Lost)) => Flushed::Again(whole),
        // What the host has no room for may stand beside what it has already.
        Ok(Err(refusal)) if rest.runs().len() > 1 && !is_of_all(refusal) => Flushed::Apart(rest),
        Ok(Err(refusal)) => Flushed::Failed(rest, refusal),
    }
}

fn attr_after(reply: &Reply<Written>, object: &Handle) -> Option<Attr> {
    let touched = reply.touched.iter().find(|t| t.object == *object);
    touched.map(|touched| touched.attr)
}
