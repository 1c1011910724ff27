//! After a crash of the server's process: what had begun is decided before anyone is served.

use crate::intent::{Intent, OpenAs, Place, Seen, Verdict, decide};
use crate::interrupted::ChangeId;
use crate::records::{Recorded, Records};
use crate::seqs::SeqSet;
use crate::session::answers::Recovered;
use crate::session::{Session, refused};
use leasefs_protocol::answer::{Created, Object};
use leasefs_protocol::{Handle, Name, Refusal, Reply, Response, Seq};
use leasefs_store::Store;
use std::sync::Arc;

/// Gives a session its changes of the server's earlier life. Returns those that are to be repeated
/// and the objects of each.
pub fn recover(
    store: &Store,
    records: &dyn Records,
    session: &Session,
    changes: Vec<(Seq, Recorded)>,
    lost: SeqSet,
) -> Vec<(ChangeId, Vec<Handle>)> {
    let recovery = Recovery {
        store,
        records,
        session,
    };
    let mut repeats = Vec::new();
    let mut recovered = Vec::new();
    for (seq, change) in changes {
        let became = match change {
            Recorded::Answered(result) => Some(recovery.answered(seq, result)),
            Recorded::Intent(Intent::Repeatable { objects }) => {
                repeats.push(((session.id, seq), objects));
                Some(Recovered::Interrupted)
            }
            Recorded::Intent(intent) => recovery.finish(seq, &intent),
        };
        recovered.extend(became.map(|became| (seq, became)));
    }
    session.recover(recovered, lost);
    repeats
}

struct Recovery<'a> {
    store: &'a Store,
    records: &'a dyn Records,
    session: &'a Session,
}

impl Recovery<'_> {
    /// Completes or undoes a change. `None` if it has not happened.
    fn finish(&self, seq: Seq, intent: &Intent) -> Option<Recovered> {
        let result = match self.decided(seq, intent) {
            Ok(None) => {
                self.records.change_undone(self.session.id, seq);
                return None;
            }
            Ok(Some(response)) => Ok(response),
            Err(refusal) => {
                tracing::warn!(session = %self.session.id, %seq, ?intent, %refusal, "what a change has come to can't be told");
                Err(Refusal::Lost)
            }
        };
        self.records
            .change_ends(self.session.id, seq, &result, None);
        Some(answer(result))
    }

    /// The answer of a change that has happened.
    fn decided(&self, seq: Seq, intent: &Intent) -> Result<Option<Response>, Refusal> {
        match decide(intent, &self.look(intent)?) {
            Verdict::NotHappened => Ok(None),
            Verdict::Partly { size } => {
                if let Intent::Append { object, .. } = intent {
                    self.store.cut(object, size)?;
                }
                Ok(None)
            }
            Verdict::Happened(response) => self.complete(seq, intent, *response).map(Some),
            Verdict::Repeat | Verdict::Unknown => Err(Refusal::Lost),
        }
    }

    fn look(&self, intent: &Intent) -> Result<Seen, Refusal> {
        let mut seen = Seen::default();
        match intent {
            Intent::Repeatable { .. } => {}
            Intent::Make { at, .. } | Intent::Remove { at, .. } => {
                seen.name = self.denoted(at)?;
            }
            Intent::Rename { from, to, .. } => {
                seen.name = self.denoted(from)?;
                seen.new_name = self.denoted(to)?.map(|(handle, _)| handle);
            }
            Intent::Append { object, .. } | Intent::Resize { object, .. } => {
                seen.size = self.store.getattr(object)?.size;
            }
            Intent::AddXattr { object, name } | Intent::RemoveXattr { object, name } => {
                seen.has_xattr = self.store.has_xattr(object, &name.0)?;
            }
        }
        Ok(seen)
    }

    fn denoted(&self, at: &Place) -> Result<Option<(Handle, leasefs_protocol::Attr)>, Refusal> {
        let found = self.store.peek(&at.dir, &Name::try_from(&at.name)?)?;
        let attr = |(handle, _)| self.store.getattr(&handle).map(|attr| (handle, attr));
        found.map(attr).transpose()
    }

    /// Does what is still to be done of a change that has happened.
    fn complete(&self, seq: Seq, intent: &Intent, response: Response) -> Result<Response, Refusal> {
        match (intent, &response) {
            (
                Intent::Append {
                    object, durability, ..
                },
                _,
            ) => self.store.commit_file(object, *durability)?,
            (
                Intent::Make {
                    open: Some(as_), ..
                },
                Response::Object(Object { handle, .. }),
            ) => {
                return self.open_created(seq, *handle, as_);
            }
            _ => (),
        }
        Ok(response)
    }

    fn open_created(&self, seq: Seq, handle: Handle, asked: &OpenAs) -> Result<Response, Refusal> {
        let (store, session) = (self.store, self.session);
        let who = store.identity(asked.policy, &asked.caller)?;
        let place = session.opens.account().open_again()?;
        let file = store.open_created(&who, &handle, asked.flags)?;
        let open = session.opens.new_id();
        let token = store.mint(&file, open, &session.holder());
        let attr = store.getattr(&handle)?;
        session.opens.keep(open, seq, file, place);
        Ok(Response::Created(Created {
            handle,
            attr,
            open,
            token,
        }))
    }

    /// An answer that may not have come. The open in it is kept until it is asked for.
    fn answered(&self, seq: Seq, result: Result<Response, Refusal>) -> Recovered {
        if let Some((open, token)) = result.as_ref().ok().and_then(Response::opened) {
            let opens = &self.session.opens;
            let reopened = opens.account().open_again().and_then(|place| {
                let file = self.store.reopen(token, open, &self.session.holder())?;
                Ok((file, place))
            });
            match reopened {
                Ok((file, place)) => opens.keep(open, seq, file, place),
                // It was closed and has gone, or its user finds it stale.
                Err(refusal) => {
                    tracing::debug!(session = %self.session.id, %seq, %refusal, "an open can't be kept");
                }
            }
        }
        answer(result)
    }
}

/// An answer without grants and stamp: nothing of it is cached.
fn answer(result: Result<Response, Refusal>) -> Recovered {
    Recovered::Answered(Arc::new(Reply {
        result,
        ..refused(Refusal::Lost)
    }))
}
