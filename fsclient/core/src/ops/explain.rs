//! What an access to an object would wait for, as the server knows it.

use super::{Ask, Ops};
use crate::call::NodeId;
use leasefs_protocol::control::EXPLAINS;
use leasefs_protocol::explain::Explained;
use leasefs_protocol::{RawName, Refusal, query};
use std::time::Duration;

/// Who asks why nothing gets on must not wait for the same.
const PATIENCE: Duration = Duration::from_secs(3);

impl Ops {
    /// Who holds what of the object of a path below the mount's root. Takes no lease.
    ///
    /// # Errors
    /// `Unsupported` if the server can't tell, `TimedOut` if it doesn't in time, or its refusal.
    pub async fn explain(&self, ask: &Ask, path: Vec<Box<[u8]>>) -> Result<Explained, Refusal> {
        if !self.rpc.has_feature(EXPLAINS) {
            return Err(Refusal::Unsupported);
        }
        let dir = self.node(NodeId::ROOT)?.handle;
        let path = path.into_iter().map(|name| RawName(name.into())).collect();
        let asked = self.call(ask, query::Explain { dir, path });
        let told = self.cx.timeout(PATIENCE, asked).await;
        Ok(told.unwrap_or(Err(Refusal::TimedOut))?.answer)
    }
}
