//! What is journalled of changes, and what a restarted server makes of it. Around the shipped
//! [`decide`].

use super::{Server, refused};
use crate::sim::cx::Cx;
use crate::sim::model::{Deed, Obj, name_of, raw_name};
use fsserver::intent::{Intent, Place, Seen, Verdict, decide};
use fsserver::interrupted::ChangeId;
use fsserver::session::answers::Recovered;
use leasefs_protocol::request::Durability;
use leasefs_protocol::{Attr, Handle, Refusal, Reply, Response, Seq, SessionId};
use std::sync::Arc;

/// What is on record of a change that had begun.
#[derive(Clone, Debug)]
pub(super) enum Record {
    Intent(Intent),
    Answered(Result<Response, Refusal>),
}

fn place((dir, name): (Obj, u8)) -> Place {
    Place {
        dir: dir.handle(),
        name: raw_name(name),
    }
}

fn repeatable(file: Obj) -> Intent {
    Intent::Repeatable {
        objects: vec![file.handle()],
    }
}

impl Server {
    /// What a change is about to do; `None` if it must fail.
    pub(super) fn intent(&self, deed: Deed) -> Option<Intent> {
        let denoted = self.store.denoted(deed);
        let named = denoted.named.map(Obj::handle);
        let make = |at| Intent::Make {
            at: place(at),
            open: None,
        };
        match deed {
            Deed::Write(file, ..)
            | Deed::WriteSync(file, ..)
            | Deed::Flush(file, ..)
            | Deed::Truncate(file, _)
            | Deed::Chmod(file) => Some(repeatable(file)),
            Deed::Append(file, _) => Some(Intent::Append {
                object: file.handle(),
                size: self.store.appends(file),
                len: 1,
                durability: Durability::None,
            }),
            Deed::Create(dir, name) => named.is_none().then(|| make((dir, name))),
            Deed::Link(_, at) => self.store.name(at.0, at.1).is_none().then(|| make(at)),
            Deed::Unlink(dir, name) => Some(Intent::Remove {
                at: place((dir, name)),
                object: named?,
            }),
            Deed::Rename(from, to) if denoted.named != denoted.replaced => Some(Intent::Rename {
                from: place(from),
                to: place(to),
                object: named?,
                replaced: denoted.replaced.map(Obj::handle),
                exchange: false,
            }),
            Deed::Rename(..) => None,
        }
    }

    /// What became of a session's changes of an earlier life; those to be repeated are added to
    /// `repeats`.
    pub(super) fn recover(
        &mut self,
        cx: &mut Cx,
        session: SessionId,
        repeats: &mut Vec<(ChangeId, Vec<Handle>)>,
    ) -> Vec<(Seq, Recovered)> {
        let mut recovered = Vec::new();
        for (seq, record) in self.durable.journalled(session) {
            let intent = match record {
                Record::Answered(result) => {
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
                    self.durable
                        .note_answer((session, seq), Ok((*response).clone()));
                    recovered.push((seq, answered(Ok(*response))));
                }
                Verdict::Partly { .. } | Verdict::Unknown => {
                    cx.judge.accuse(None, || {
                        format!("what {session} {seq} has come to can't be told: {intent:?}")
                    });
                }
            }
        }
        recovered
    }

    fn look_at(&self, intent: &Intent) -> Seen {
        let mut seen = Seen::default();
        match intent {
            Intent::Make { at, .. } | Intent::Remove { at, .. } => seen.name = self.named(at),
            Intent::Rename { from, to, .. } => {
                seen.name = self.named(from);
                seen.new_name = self.named(to).map(|(handle, _)| handle);
            }
            Intent::Append { object, .. } => seen.size = self.store.appends(Obj::of(object)),
            _ => {}
        }
        seen
    }

    fn named(&self, at: &Place) -> Option<(Handle, Attr)> {
        let found = self.store.name(Obj::of(&at.dir), name_of(&at.name.0))?;
        Some((found.handle(), self.store.attr(&found.handle())))
    }
}

/// An answer without grants and stamp: nothing of it is cached.
fn answered(result: Result<Response, Refusal>) -> Recovered {
    Recovered::Answered(Arc::new(Reply {
        result,
        ..refused(Refusal::Lost)
    }))
}
