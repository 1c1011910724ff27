//! What another mount has just changed is looked up beside its directory's attributes. The kernel asks for those first, to see who may
//! search it: for the name it would be a further round trip.

use super::names::NameIn;
use super::{Ask, Ops};
use crate::call::{Asker, NodeId};
use crate::inode::Dentry;
use crate::run::{Bell, Map};
use leasefs_protocol::{Caller, Handle, Name, RawName, Refusal, query};
use std::future::Future;
use std::sync::Arc;

/// Names that are looked up so at a time.
const AT_A_TIME: usize = 16;

/// Names that are being looked up, and who waits for them.
pub(super) type Along = Map<(Handle, RawName), Bell>;

impl Ops {
    /// The kernel asks for a directory's attributes.
    pub(super) fn look_along(self: &Arc<Self>, ask: &Ask, parent: NodeId, dir: Handle) {
        let next = self.inodes().is_next(parent);
        let Some(name) = next.and_then(|name| Name::new(&name).ok()) else {
            return;
        };
        let (of, caller) = ((dir, name.to_raw()), self.caller(ask));
        if self.along.borrow().len() >= AT_A_TIME || self.along.borrow().contains_key(&of) {
            return;
        }
        self.along.borrow_mut().insert(of.clone(), Bell::default());
        let ops = Arc::clone(self);
        self.cx.spawn(async move {
            // Who looks for it asks himself then, and is told what stands against it.
            let _ = ops.look(caller, dir, of.1.clone()).await;
            let looked = ops.along.borrow_mut().remove(&of);
            looked.iter().for_each(Bell::ring_all);
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

    /// A name has to be looked up at the server. `Some`: it is being, until that resolves.
    pub(super) fn is_looked_for(
        &self,
        at: NameIn<'_>,
    ) -> Option<impl Future<Output = Result<(), Refusal>> + use<>> {
        self.inodes().is_looked_for(at.parent, at.name);
        let of = (at.dir, RawName(at.name.to_vec()));
        let looked = self.along.borrow().get(&of).map(Bell::listen)?;
        Some(async move {
            looked.await;
            Ok(())
        })
    }
}
