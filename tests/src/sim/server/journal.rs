//! What is journalled of changes, and what a restarted server makes of it, around the shipped
//! [`decide`]; and who waits for changes that its earlier life may have made, around the shipped
//! [`Interrupted`].

use super::durable::Record;
use super::opens::{Open, Opens};
use super::{Job, Server, ServerEv, Work, refused};
use crate::sim::cx::Cx;
use crate::sim::model::{CELL, Nanos, Obj};
use fsserver::intent::{Intent, Leaves, OpenAs, Place, Seen, Verdict, decide};
use fsserver::interrupted::{ChangeId, Interrupted};
use fsserver::service::access::Targets;
use fsserver::session::answers::Recovered;
use leasefs_lease::server::{OpId, Touch};
use leasefs_protocol::change::WriteAt;
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::{
    Attr, Change, Handle, RawName, Refusal, Reply, Response, Seq, SessionId, answer, change,
};
use std::sync::Arc;
use std::time::Duration;

fn place(dir: &Handle, name: &RawName) -> Place {
    Place {
        dir: *dir,
        name: name.clone(),
    }
}

fn repeatable(object: Handle) -> Option<Intent> {
    Some(Intent::Repeatable {
        objects: vec![object],
    })
}

impl Server {
    /// What a change is about to do; `None` if it must fail.
    pub(super) fn intent(&self, job: &Job, targets: &Targets) -> Option<Intent> {
        match &job.change {
            Change::Write(change::Write {
                at: WriteAt::Append,
                durability,
                ..
            }) => {
                let object = targets.opened?;
                Some(Intent::Append {
                    object,
                    size: self.host.attr(Obj::of(&object))?.size,
                    len: job.payload.len() as u64,
                    durability: *durability,
                })
            }
            Change::Write(_) => repeatable(targets.opened?),
            Change::SetAttr(change::SetAttr { object, .. })
            | Change::OpenTruncated(change::OpenTruncated { object, .. }) => repeatable(*object),
            Change::Make(change::Make { dir, name, .. })
            | Change::Link(change::Link { dir, name, .. }) => Some(Intent::Make {
                at: place(dir, name),
                open: None,
            }),
            Change::Create(change::Create {
                dir, name, flags, ..
            }) => match targets.named {
                Some(named) => repeatable(named),
                None => Some(Intent::Make {
                    at: place(dir, name),
                    open: Some(OpenAs {
                        flags: *flags,
                        policy: IdentityPolicy::Trust,
                        caller: job.caller.clone(),
                    }),
                }),
            },
            Change::Unlink(change::Unlink { dir, name })
            | Change::Rmdir(change::Rmdir { dir, name }) => Some(Intent::Remove {
                at: place(dir, name),
                object: targets.named?,
            }),
            Change::Rename(change::Rename {
                dir,
                name,
                new_dir,
                new_name,
                ..
            }) if targets.named != targets.replaced => Some(Intent::Rename {
                from: place(dir, name),
                to: place(new_dir, new_name),
                object: targets.named?,
                replaced: targets.replaced,
                leaves: Leaves::Nothing,
            }),
            _ => None,
        }
    }

    /// What became of a session's changes of an earlier life; those to be repeated are added to
    /// `repeats`.
    pub(super) fn recover(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        opens: &mut Opens,
        repeats: &mut Vec<(ChangeId, Vec<Handle>)>,
    ) -> Vec<(Seq, Recovered)> {
        let birth = self.durable.sessions.get(&session).map_or(0, |r| r.birth);
        let mut recovered = Vec::new();
        for (seq, record) in self.durable.journalled(session) {
            let intent = match record {
                Record::Answered(result) => {
                    self.keep_open(session, birth, opens, seq, &result);
                    recovered.push((seq, answered(result)));
                    continue;
                }
                Record::Intent(intent) => intent,
            };
            let verdict = decide(&intent, &self.look_at(&intent));
            cx.trace(None, || {
                format!("server: {session} {seq} {intent:?}: {verdict:?}")
            });
            match verdict {
                Verdict::NotHappened => self.durable.undone((session, seq)),
                Verdict::Repeat => {
                    let Intent::Repeatable { objects } = intent else {
                        continue;
                    };
                    repeats.push(((session, seq), objects));
                    recovered.push((seq, Recovered::Interrupted));
                }
                Verdict::Happened(response) => {
                    let response = self.complete((session, birth), opens, seq, &intent, *response);
                    self.durable
                        .note_answer((session, seq), Ok(response.clone()));
                    recovered.push((seq, answered(Ok(response))));
                }
                Verdict::Partly { size } => {
                    // The host was full.
                    if let Intent::Append { object, .. } = &intent {
                        self.host.cut_back(cx, Obj::of(object), size);
                    }
                    self.durable.undone((session, seq));
                }
                Verdict::Unknown => {
                    cx.judge.accuse(None, || {
                        format!("what {session} {seq} has come to can't be told: {intent:?}")
                    });
                }
            }
        }
        recovered
    }

    /// Of a create the open is still to be made.
    fn complete(
        &mut self,
        (session, birth): (SessionId, u64),
        opens: &mut Opens,
        seq: Seq,
        intent: &Intent,
        response: Response,
    ) -> Response {
        if let Intent::Append { object, .. } = intent {
            self.host.commit(Obj::of(object));
        }
        let (
            Intent::Make {
                open: Some(as_), ..
            },
            Response::Object(answer::Object { handle, attr }),
        ) = (intent, &response)
        else {
            return response;
        };
        let open = Open::new(Obj::of(handle), as_.flags);
        let id = opens.new_id();
        opens.keep(id, seq, open);
        Response::Created(answer::Created {
            handle: *handle,
            attr: *attr,
            open: id,
            token: open.token(id, session, birth),
        })
    }

    fn keep_open(
        &self,
        session: SessionId,
        birth: u64,
        opens: &mut Opens,
        seq: Seq,
        result: &Result<Response, Refusal>,
    ) {
        if let Some((open, token)) = result.as_ref().ok().and_then(Response::opened)
            && let Some(of) = Open::of_token(token, open, session, birth)
            && self.host.exists(of.object)
        {
            opens.keep(open, seq, of);
        }
    }

    fn look_at(&self, intent: &Intent) -> Seen {
        let mut seen = Seen::default();
        match intent {
            Intent::Make { at, .. } | Intent::Remove { at, .. } => seen.name = self.named(at),
            Intent::Rename { from, to, .. } => {
                seen.name = self.named(from);
                seen.new_name = self.named(to).map(|(handle, _)| handle);
            }
            Intent::Append { object, .. } => {
                seen.size = self.host.cells(Obj::of(object)).len() as u64 * CELL;
            }
            _ => {}
        }
        seen
    }

    fn named(&self, at: &Place) -> Option<(Handle, Attr)> {
        let found = self.host.name(Obj::of(&at.dir), &at.name.0)?;
        Some((found.handle(), self.host.attr(found)?))
    }

    /// These are to be repeated; others wait for the grace and a term at most.
    pub(super) fn begin_interrupted(&mut self, cx: &mut Cx, changes: Vec<(ChangeId, Vec<Handle>)>) {
        self.repeats = changes.iter().map(|(change, _)| *change).collect();
        // The time runs here.
        let patience = Duration::from_secs(1 << 30);
        let lost = Arc::clone(&self.lost);
        self.interrupted = Interrupted::new(changes, patience, move |change| {
            lost.lock().expect("alone").push(change);
        });
        let patience = 2 * self.durable.max_term.as_nanos() as Nanos;
        self.later(cx, patience + patience / 4, ServerEv::Impatient);
    }

    /// Whether a change has to wait for interrupted ones. One that goes past them makes them lost.
    pub(super) fn waits_for_interrupted(
        &mut self,
        op: OpId,
        own: ChangeId,
        (touches, has_turn, is_page): (&[Touch], bool, bool),
    ) -> bool {
        let waits = match (has_turn, is_page) {
            (true, _) => false,
            (false, true) => self.interrupted.is_own_before(own, touches),
            (false, false) => self.interrupted.is_before(own, touches),
        };
        if waits {
            self.parked.push(op);
        } else if has_turn || is_page {
            self.interrupted.overtake(own, touches);
            self.lose();
        }
        waits
    }

    /// Those that are lost by now are journalled.
    fn lose(&mut self) {
        let lost = std::mem::take(&mut *self.lost.lock().expect("alone"));
        for change in lost {
            self.durable.note_answer(change, Err(Refusal::Lost));
        }
    }

    /// Who waits looks again.
    pub(super) fn unpark(&mut self, cx: &mut Cx) {
        for op in std::mem::take(&mut self.parked) {
            match self.works.remove(&op) {
                Some(Work::Change(change)) => self.look(cx, op, change, false),
                Some(Work::Read(_) | Work::Lock(_)) | None => {}
            }
        }
    }

    /// Sessions that have not come back by the end of grace have lost theirs.
    pub(super) fn give_up_absent(&mut self, cx: &mut Cx) {
        let sessions = &self.sessions;
        let away = |id| sessions.get(&id).is_none_or(|s| s.reclaims);
        self.interrupted.give_up(away);
        self.lose();
        self.unpark(cx);
    }

    /// The patience is over.
    pub(super) fn go_past_interrupted(&mut self, cx: &mut Cx) {
        self.interrupted.give_up(|_| true);
        self.lose();
        self.unpark(cx);
    }
}

/// An answer without grants and stamp: nothing of it is cached.
fn answered(result: Result<Response, Refusal>) -> Recovered {
    Recovered::Answered(Arc::new(Reply {
        result,
        ..refused(Refusal::Lost)
    }))
}
