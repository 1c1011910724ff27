//! The flusher of a dirty file: sends its bytes round by round, and says what became of them.

use super::{AGE, Inner, MANY, RETRY};
use crate::cache::{Asked, Ended, Flushed, Round, Writer};
use crate::recovery::{Lost, Reason};
use crate::rpc::{Answer, CallOptions, Settlement};
use crate::uncommitted::Wrote;
use leasefs_lease::client::Run;
use leasefs_protocol::limits::MAX_PAYLOAD;
use leasefs_protocol::request::{Durability, WriteAt, WriteKind};
use leasefs_protocol::{Attr, Handle, Refusal, Reply, Request, Response};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A request of a round that has ended, and when it was asked.
type Sent = (Asked, Flushed);

impl Inner {
    pub(super) fn hurry_if_many(&self) {
        if self.cache.lock().dirty.bytes() > MANY {
            self.hurry_all();
        }
    }

    pub(super) fn hurry_all(&self) {
        let state = self.cache.lock();
        for object in state.dirty.objects() {
            if let Some(hurry) = state.hurry(&object) {
                hurry.notify_one();
            }
        }
    }

    /// The flusher of one file.
    pub(super) async fn keep_flushing(self: Arc<Self>, object: Handle) {
        loop {
            let Some(hurry) = self.cache.lock().hurry(&object) else {
                return;
            };
            let _ = tokio::time::timeout(AGE, hurry.notified()).await;
            let round = self.cache.lock().begin_round(&object, MAX_PAYLOAD);
            if let Some(round) = round
                && !self.clone().send(object, round).await
            {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Sends a round; false if some of it has to be sent again.
    async fn send(self: Arc<Self>, object: Handle, round: Round) -> bool {
        let Round {
            runs,
            writer,
            kill_priv,
            base,
            date,
        } = round;
        let request = Request::Write {
            open: writer.open,
            at: WriteAt::Offset(0),
            kill_priv,
            durability: Durability::None,
            kind: WriteKind::Flush {
                base,
                written: date,
            },
        };
        let bytes: usize = runs.iter().map(|run| run.data.len()).sum();
        let begun = self.cache.now();
        let mut under_way = JoinSet::new();
        // They take effect one after the other: what a crash leaves of them has no hole.
        let mut before = Arc::new(Notify::new());
        before.notify_one();
        for run in runs {
            let (inner, mut request) = (Arc::clone(&self), request.clone());
            if let Request::Write { at, .. } = &mut request {
                *at = WriteAt::Offset(run.offset);
            }
            let (writer, next) = (writer.clone(), Arc::new(Notify::new()));
            let before = std::mem::replace(&mut before, Arc::clone(&next));
            under_way.spawn(async move {
                before.notified().await;
                let asked = inner.cache.ask();
                let sent = inner.send_one(object, writer, (request, &next), run).await;
                next.notify_one();
                (asked, sent)
            });
        }
        let ends = under_way.join_all().await;
        self.keep_failed(object, &ends).await;
        let mut sent = true;
        if ends.iter().all(|(_, flushed)| flushed.is_answered()) {
            let took = self.cache.now().since(begun);
            self.cache.lock().measured(bytes, took);
        }
        for (asked, flushed) in ends {
            sent &= self.ended(asked, &object, flushed);
        }
        sent
    }

    /// Keeps the bytes that the server refuses in the recovery folder, before anybody is told. Where
    /// the file has changed elsewhere none of its bytes are sent any more.
    async fn keep_failed(self: &Arc<Self>, object: Handle, ends: &[Sent]) {
        let failed = ends.iter().filter_map(|(_, flushed)| match flushed {
            Flushed::Failed(run, refusal) => Some((run.clone(), *refusal)),
            Flushed::Answered(..) | Flushed::Again(_) => None,
        });
        let (mut runs, refusals): (Vec<Run>, Vec<Refusal>) = failed.unzip();
        let Some(refusal) = refusals.first().copied() else {
            return;
        };
        let (reason, file) = {
            let mut state = self.cache.lock();
            let file = state.dirty_file(&object);
            let reason = match refusal {
                Refusal::Changed => {
                    runs.append(&mut state.abandon(&object, refusal));
                    Reason::ChangedElsewhere
                }
                refusal => Reason::Refused {
                    errno: refusal.errno(),
                },
            };
            (reason, file)
        };
        let (path, size) = file.map_or((None, 0), |file| (file.path, file.size));
        self.keep(self.lost(object, path, size, runs, reason)).await;
    }

    pub(super) async fn keep(&self, lost: Lost) {
        let folder = self.refuge.folder.clone();
        // What becomes of it is logged there.
        let _ = tokio::task::spawn_blocking(move || folder.keep(&lost)).await;
    }

    pub(super) fn lost(
        &self,
        object: Handle,
        path: Option<PathBuf>,
        size: u64,
        runs: Vec<Run>,
        reason: Reason,
    ) -> Lost {
        Lost {
            source: self.refuge.source.clone(),
            path,
            object,
            reason,
            time: SystemTime::now(),
            size,
            extents: runs.into_iter().map(|run| (run.offset, run.data)).collect(),
        }
    }

    async fn send_one(
        &self,
        object: Handle,
        writer: Writer,
        (request, numbered): (Request, &Notify),
        run: Run,
    ) -> Flushed {
        // Never closed.
        let _place = self.window.acquire().await;
        let dropped = vec![object];
        let tenure = self.cache.tenure(&object);
        let (caller, data) = (writer.caller.clone(), run.data.clone());
        let options = CallOptions {
            numbered: Some(numbered),
            ..CallOptions::default()
        };
        let changed = self
            .rpc
            .change(caller, request, data, &[object], dropped, options)
            .await;
        let settled = match changed.unsettled {
            None => changed.result,
            Some(unsettled) => match unsettled.await {
                Settlement::Answered(answer) => Ok(*answer),
                Settlement::NeverHappens | Settlement::SessionLost => Err(Refusal::Lost),
            },
        };
        let host = settled.as_ref().ok().map(|answer| answer.host);
        match (outcome(settled, &object, run.clone()), host) {
            (Flushed::Answered(_, reply, Some(attr)), Some(host)) => {
                let path = self.cache.lock().dirty_path(&object);
                let now = self.cache.tenure(&object);
                let wrote = Wrote {
                    object,
                    run: run.clone(),
                    version: attr.version(),
                    writer,
                    path,
                    tenure: now.filter(|_| now == tenure),
                    durable: false,
                };
                match self.wrote(wrote, host) {
                    true => Flushed::Answered(run, reply, Some(attr)),
                    false => Flushed::Again(run),
                }
            }
            (flushed @ Flushed::Answered(..), Some(host)) => {
                // They were there before, nobody knows since when.
                let noted = self.uncommitted.changed(object, host, true);
                self.rpc.close_all(noted.closes);
                flushed
            }
            (flushed, _) => flushed,
        }
    }

    fn ended(&self, asked: Asked, object: &Handle, flushed: Flushed) -> bool {
        let again = matches!(flushed, Flushed::Again(_));
        let now = self.cache.now();
        let Ended { wake, closes } = self.cache.lock().flushed(now, asked, object, flushed);
        for open in closes {
            self.close(object, open);
        }
        for tell in wake {
            // Whoever waited may be gone.
            let _ = tell.send(());
        }
        self.room.notify_waiters();
        !again
    }
}

/// What an answer means for the bytes it is about.
fn outcome(result: Result<Answer, Refusal>, object: &Handle, run: Run) -> Flushed {
    let reply = match result {
        Ok(answer) => answer.reply,
        // It never happened, or may be done again: the lease keeps everybody else away.
        Err(_) => return Flushed::Again(run),
    };
    match &reply.result {
        Ok(Response::Written { len, .. }) if *len == run.data.len() as u64 => {
            let attr = attr_after(&reply, object);
            Flushed::Answered(run, Box::new(reply), attr)
        }
        Ok(_) | Err(Refusal::Lost) => Flushed::Again(run),
        Err(refusal) => Flushed::Failed(run, *refusal),
    }
}

fn attr_after(reply: &Reply, object: &Handle) -> Option<Attr> {
    let touched = reply.touched.iter().find(|t| t.object == *object);
    touched.map(|touched| touched.attr)
}
