//! What another mount has just changed is looked up beside its directory's attributes. The kernel asks for those first, to see who may
//! search it: for the name it would be a further round trip.

use super::names::NameIn;
use super::{Ask, Ops};
use crate::call::{Asker, NodeId};
use crate::inode::Dentry;
use crate::run::Map;
use futures_channel::oneshot;
use leasefs_protocol::{Caller, Handle, Name, RawName, Refusal, query};
use std::future::Future;
use std::sync::Arc;

/// Names that are looked up so at a time.
const AT_A_TIME: usize = 16;

/// Names that are being looked up, and who waits for them: they are told whether that took too long.
pub(super) type Along = Map<(Handle, RawName), Vec<oneshot::Sender<bool>>>;

impl Ops {
    /// The kernel asks for a directory's attributes.
    pub(super) fn look_along(self: &Arc<Self>, ask: &Ask, parent: NodeId, dir: Handle) {
        if self.along.borrow().len() >= AT_A_TIME {
            return;
        }
        let next = self.inodes().is_next(parent);
        let Some(name) = next.and_then(|name| Name::new(&name).ok()) else {
            return;
        };
        let tier = self.cache().live();
        if tier.is_some_and(|mut tier| tier.name(&dir, name.as_bytes()).is_some()) {
            self.inodes().next_is_known(parent);
            return;
        }
        let (of, caller) = ((dir, name.to_raw()), self.caller(ask));
        if self.along.borrow().contains_key(&of) {
            return;
        }
        self.along.borrow_mut().insert(of.clone(), Vec::new());
        let ops = Arc::clone(self);
        self.cx.spawn(async move {
            let looked = ops.look(caller, dir, of.1.clone()).await;
            let waiting = ops.along.borrow_mut().remove(&of);
            for tell in waiting.into_iter().flatten() {
                // Of what else stands against it who looks for it is told when he asks himself.
                let _ = tell.send(looked == Err(Refusal::TimedOut));
            }
        });
    }

    async fn look(&self, caller: Caller, dir: Handle, name: RawName) -> Result<(), Refusal> {
        let (nobody, raw) = (Ask::new(Asker::default()), name.clone());
        let request = query::Lookup { dir, name };
        let told = self.call_as(&nobody, caller, request).await?;
        let mut learned = told.learn(self.cache());
        let denotes = match &told.answer {
            Some(found) => {
                learned.attr(&found.handle, &found.attr);
                Dentry::Object(found.handle)
            }
            None => Dentry::Absent,
        };
        learned.name(&dir, &raw.0, denotes);
        Ok(())
    }

    /// A name has to be looked up at the server. `Some`: it is being, until that resolves; refused if that took as long as a request may.
    pub(super) fn is_looked_for(
        &self,
        at: NameIn<'_>,
    ) -> Option<impl Future<Output = Result<(), Refusal>> + use<>> {
        self.inodes().is_looked_for(at.parent, at.name);
        let of = (at.dir, RawName(at.name.to_vec()));
        let (tell, told) = oneshot::channel();
        self.along.borrow_mut().get_mut(&of)?.push(tell);
        Some(async move {
            match told.await {
                Ok(true) => Err(Refusal::TimedOut),
                Ok(false) | Err(oneshot::Canceled) => Ok(()),
            }
        })
    }
}
