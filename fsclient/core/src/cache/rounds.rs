//! Rounds that bring what is buffered to the server.

use super::Asked;
use super::dirty::{Ended, Flushed, Round, attrs};
use super::state::State;
use crate::run::Bell;
use futures_channel::oneshot;
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Grant, Handle, Parts, Stamp};
use std::sync::Arc;
use std::time::Duration;

impl State {
    /// Waits for all bytes of the file that are here now; `None` if there are none.
    pub fn wait_flushed(&mut self, object: &Handle) -> Option<oneshot::Receiver<()>> {
        let file = self.dirty.files.get_mut(object)?;
        let (tell, told) = oneshot::channel();
        match file.buffer.is_flushing() && file.buffer.has_unsent() {
            true => file.next_round.push(tell),
            false => file.this_round.push(tell),
        }
        file.hurry.ring_one();
        Some(told)
    }

    /// What wakes the flusher of a dirty file early.
    pub fn hurry(&self, object: &Handle) -> Option<Arc<Bell>> {
        Some(self.dirty.files.get(object)?.hurry.clone())
    }

    /// Begins a round. `None` if nothing waits to be sent.
    pub fn begin_round(&mut self, object: &Handle, most: usize) -> Option<Round> {
        let file = self.dirty.files.get_mut(object)?;
        let writer = file.writers.last()?.clone();
        let writers = file.writers.as_slice().into();
        let (base, kill_priv) = (file.buffer.base(), file.buffer.kill_priv());
        let runs = file.buffer.begin_round(most);
        if runs.is_empty() {
            return None;
        }
        file.ending.append(&mut file.closing);
        Some(Round {
            runs,
            writer,
            writers,
            kill_priv,
            base,
            repeated: file.repeated,
            date: file.date,
        })
    }

    /// A request of a round has ended. A file that is clean then is forgotten.
    pub fn flushed(
        &mut self,
        now: BootTime,
        asked: Asked,
        object: &Handle,
        flushed: Flushed,
    ) -> Ended {
        let (mut grants, mut after) = (Vec::<Grant>::new(), None);
        match flushed {
            Flushed::Answered(run, reply, attr) => {
                if self.leases.held(object).contains(Parts::DATA) {
                    self.content.flushed(object, run.offset, run.data);
                }
                let version = attr.map(|attr| attr.version());
                self.dirty.count(object, |f| f.buffer.answered(version));
                self.dirty.told_room(now, reply.room);
                (grants, after) = (reply.grants, attr);
                self.granted(asked, &grants);
                self.leases.changed(object, Parts::ATTRS, reply.stamp);
            }
            Flushed::Again(run) => self.dirty.count(object, |file| {
                file.buffer.again(&run);
                file.again = true;
            }),
            Flushed::Failed(_, refusal) => {
                // Some of it may have been taken.
                self.content.drop_file(object);
                self.dirty.count(object, |file| {
                    file.buffer.given_up();
                    file.writers.iter().for_each(|w| w.written.failed(refusal));
                });
            }
        }
        let ended = self.end_of_round(object);
        if !self.dirty.contains(object)
            && let Some(attr) = after
        {
            self.put_attr(asked, &grants, object, &attr);
        }
        ended
    }

    /// A round of so many bytes took so long.
    pub fn measured(&mut self, bytes: usize, took: Duration) {
        let term = self.session.term();
        self.dirty.measured(bytes, took, term);
    }

    fn end_of_round(&mut self, object: &Handle) -> Ended {
        let Some(file) = self.dirty.files.get_mut(object) else {
            return Ended::default();
        };
        if file.buffer.is_flushing() {
            return Ended::default();
        }
        file.repeated = std::mem::take(&mut file.again);
        if file.repeated {
            file.this_round.append(&mut file.next_round);
            return Ended::default();
        }
        let mut ended = Ended {
            wake: std::mem::take(&mut file.this_round),
            closes: std::mem::take(&mut file.ending),
        };
        file.writers.retain(|w| !ended.closes.contains(&w.open));
        file.this_round = std::mem::take(&mut file.next_round);
        if file.buffer.is_clean() {
            ended.wake.append(&mut file.this_round);
            ended.closes.append(&mut file.closing);
            self.dirty.files.remove(object);
            self.leases
                .end_change(&attrs(*object), Some(Stamp::default()));
        }
        ended
    }
}
