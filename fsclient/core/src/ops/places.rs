//! Room for another open at the server, which lets a client have so many: what is kept open there
//! for later use alone is given up before somebody here is refused a file.

use super::{Ask, Ops};

/// What to give up next.
#[derive(Clone, Copy, Debug)]
enum KeptOpens {
    /// What nobody has open any more and is kept to be opened again.
    Unused,
    /// What was written and could have to be written again.
    Uncommitted,
}

/// OpenPlaces that one open has asked for.
pub(super) struct OpenPlaces<'a> {
    ops: &'a Ops,
    ask: &'a Ask,
    /// Closes of which the server knew when it refused the open.
    told: u64,
    kept: std::array::IntoIter<KeptOpens, 2>,
}

impl Ops {
    /// To be asked for before the open is.
    pub(super) fn places<'a>(&'a self, ask: &'a Ask) -> OpenPlaces<'a> {
        OpenPlaces {
            ops: self,
            ask,
            told: self.rpc.closes_told(),
            kept: [KeptOpens::Unused, KeptOpens::Uncommitted].into_iter(),
        }
    }
}

impl OpenPlaces<'_> {
    /// The open was refused. True if something has been closed since it was asked for.
    pub(super) async fn further(&mut self) -> bool {
        let rpc = &self.ops.rpc;
        while let Some(kept) = self.kept.next() {
            match kept {
                KeptOpens::Unused => self.ops.inodes().give_up_unused_opens(),
                KeptOpens::Uncommitted => self.commit().await,
            }
            if rpc.further_closes(self.told, self.ask.options()).await {
                self.told = rpc.closes_told();
                return true;
            }
        }
        false
    }

    /// Whether that succeeds is seen by what is closed thereby.
    async fn commit(&self) {
        if self.ops.writeback.keeps_opens() {
            let committed = self.ops.engine.in_time(self.ops.writeback.sync_all());
            let committed = async { committed.await? };
            if let Err(error) = self.ask.unless_left(committed).await {
                tracing::debug!(%error, "written files stay open at the server");
            }
        }
    }
}
