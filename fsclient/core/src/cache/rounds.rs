//! Rounds that bring what is buffered to the server.

use super::Asked;
use super::state::State;
use super::storing::attrs;
use crate::inode::{Dirty, Durably, Hearers, Tell, Writer};
use crate::run::Bell;
use futures_channel::oneshot;
use leasefs_lease::client::Batch;
use leasefs_lease::planted::{self, Bug};
use leasefs_lease::time::BootTime;
use leasefs_protocol::answer::Written;
use leasefs_protocol::limits::OPEN_DATA;
use leasefs_protocol::{
    Attr, Durability, Grant, Handle, LockEpoch, Parts, Refusal, Reply, SetAttr, Stamp, Timestamp,
    Version,
};
use std::sync::Arc;

/// Requests that bring bytes to the server.
#[derive(Debug)]
pub struct Round {
    /// What to write where, a request each.
    pub batches: Vec<Batch>,
    /// Through which open.
    pub writer: Writer,
    /// Who may have written it.
    pub hearers: Arc<Hearers>,
    /// Clear setuid and setgid bits.
    pub kill_priv: bool,
    /// What the file was before.
    pub base: Version,
    /// Some of it may have been written already.
    pub repeated: bool,
    /// When the last of it was written, by the server's clock.
    pub date: Option<Timestamp>,
    /// What is set with them: mode and owner before the first, times behind each.
    pub set: SetAttr,
    /// What must be on the server's disk when the last of them is answered.
    pub durability: Durability,
    /// The tenure of the locks under which some of it was written.
    pub locked: Option<LockEpoch>,
}

/// What became of a request of a round.
#[derive(Debug)]
pub enum Flushed {
    /// Carried out; the file's attributes after it.
    Answered(Batch, Box<Reply<Written>>, Option<Attr>),
    /// To be sent again.
    Again(Batch),
    /// Refused, some of its runs perhaps for others: to be sent again, each run alone.
    Apart(Batch),
    /// Never to be carried out.
    Failed(Batch, Refusal),
}

impl State {
    /// Waits for all bytes of the file that are here now; `None` if there are none. Told whether they are durable, which
    /// they are as `durability` says if that comes at no great cost.
    pub fn wait_flushed(
        &mut self,
        object: &Handle,
        durability: Durability,
    ) -> Option<oneshot::Receiver<Option<Durably>>> {
        self.inodes.with_dirty(object, |file| {
            let (tell, told) = oneshot::channel();
            file.durability = file.durability.max(durability);
            match file.buffer.is_flushing() && file.buffer.has_unsent() {
                true => file.next_round.push(tell),
                false => file.this_round.push(tell),
            }
            file.hurry.ring_one();
            told
        })
    }

    /// What wakes the flusher of a dirty file early.
    pub fn hurry(&self, object: &Handle) -> Option<Arc<Bell>> {
        Some(self.inodes.dirty(object)?.hurry.clone())
    }

    /// Begins a round. `None` if nothing waits to be sent. `scatters`: a request may bring bytes that lie apart.
    pub fn begin_round(&mut self, object: &Handle, scatters: bool) -> Option<Round> {
        let most = self.pace.request(self.session.term());
        let soon_durable = self.inodes.is_soon_durable(object);
        let round = |file: &mut Dirty| {
            let writer = file.writer.clone();
            let hearers = Arc::new(file.hearers.clone());
            let (base, kill_priv) = (file.buffer.base(), file.buffer.kill_priv());
            let scatters = scatters && !std::mem::take(&mut file.apart);
            let batches = file.buffer.begin_round(most, scatters);
            if batches.is_empty() {
                return None;
            }
            if planted::is(Bug::FlushedWhenSent) {
                file.this_round
                    .drain(..)
                    .for_each(|tell| tell.send(None).unwrap_or_default());
            }
            let durability = std::mem::replace(&mut file.durability, Durability::None);
            Some(Round {
                batches,
                writer,
                hearers,
                kill_priv,
                base,
                repeated: file.repeated,
                date: file.date,
                locked: file.locked,
                set: file.sets.begin_round(),
                durability: match soon_durable {
                    true => durability,
                    false => Durability::None,
                },
            })
        };
        self.inodes.with_dirty(object, round)?
    }

    /// A request of a round has ended. A file that is clean then is forgotten. Returns who goes on.
    pub fn flushed(
        &mut self,
        now: BootTime,
        asked: Asked,
        object: &Handle,
        flushed: Flushed,
    ) -> Vec<Tell> {
        let (mut grants, mut after) = (Vec::<Grant>::new(), None);
        match flushed {
            Flushed::Answered(batch, reply, attr) => {
                if self.is_read_back(object) {
                    self.inodes.keeps_flushed(*object);
                }
                if self.leases.held(object).contains(Parts::DATA) {
                    for run in batch.into_runs() {
                        self.inodes.flushed_clean(object, run.offset, run.data);
                    }
                }
                let told = reply.result.as_ref().ok().and_then(|w| w.version);
                let version = attr.map(|attr| attr.version()).or(told);
                self.inodes
                    .with_dirty(object, |f| f.buffer.answered(version));
                self.inodes.told_room(now, reply.room);
                (grants, after) = (reply.grants, attr);
                self.granted(asked, &grants);
                self.leases.changed(object, Parts::ATTRS, reply.stamp);
            }
            Flushed::Again(batch) => self.again(object, &batch, false),
            Flushed::Apart(batch) => self.again(object, &batch, true),
            Flushed::Failed(_, refusal) => {
                // Some of it may have been taken.
                self.inodes.drop_clean(object);
                self.inodes.with_dirty(object, |file| {
                    file.buffer.given_up();
                    file.round_failed();
                });
                if !planted::is(Bug::ForgetRefused) {
                    self.inodes.bytes_failed(object, refusal);
                }
                let sets = |file: &Dirty| file.sets.are_under_way();
                if self.inodes.dirty(object).is_some_and(sets) {
                    self.inodes.not_set(object, refusal);
                }
            }
        }
        let wake = self.end_of_round(object);
        if !self.inodes.is_dirty(object)
            && let Some(attr) = after
        {
            self.put_attr(asked, &grants, object, &attr);
        }
        wake
    }

    /// Whether the bytes of a file that is being flushed are there to be read, too, since they are kept: they are all that it has, are few, and
    /// nobody else wants them.
    fn is_read_back(&self, object: &Handle) -> bool {
        let file = self.inodes.dirty(object);
        let whole =
            file.is_some_and(|file| file.was_empty() && file.buffer.size() <= OPEN_DATA as u64);
        whole && self.inodes.keeps_written(object) && self.leases.may_buffer(object)
    }

    fn again(&mut self, object: &Handle, batch: &Batch, apart: bool) {
        self.inodes.with_dirty(object, |file| {
            file.buffer.again(batch);
            file.again = true;
            file.apart |= apart;
        });
    }

    fn end_of_round(&mut self, object: &Handle) -> Vec<Tell> {
        let wake = self.inodes.with_dirty(object, end_of_round);
        let clean = |file: &Dirty| file.buffer.is_clean();
        if self.inodes.dirty(object).is_some_and(clean) {
            self.inodes.becomes_clean(object);
            let changes = attrs(*object);
            self.leases.end_change(&changes, Some(Stamp::default()));
        }
        wake.unwrap_or_default()
    }
}

/// Who goes on, if the round under way has ended.
fn end_of_round(file: &mut Dirty) -> Vec<Tell> {
    if file.buffer.is_flushing() {
        return Vec::new();
    }
    file.repeated = std::mem::take(&mut file.again);
    file.round_ended(file.repeated);
    if file.repeated {
        file.this_round.append(&mut file.next_round);
        return Vec::new();
    }
    file.hearers.forget_closed();
    let mut wake = std::mem::take(&mut file.this_round);
    file.this_round = std::mem::take(&mut file.next_round);
    if file.buffer.is_clean() {
        wake.append(&mut file.this_round);
    }
    wake
}
