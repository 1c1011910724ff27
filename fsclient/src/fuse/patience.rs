//! Callers that are killed while they wait.
//!
//! fuser has no FUSE_INTERRUPT: a caller in the kernel can't leave before it is answered. So
//! whoever has waited for a while is looked at now and then; if a fatal signal waits for it, its
//! request is abandoned.

use crate::ops::Ask;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;

/// How long a caller waits before it is looked at, and between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// Runs `operation`, telling it when its caller is about to die. It ends soon after that by
/// itself; what it has begun is followed up elsewhere.
pub async fn patiently<T>(ask: &Ask, operation: impl Future<Output = T>) -> T {
    let mut operation = Box::pin(operation);
    while !ask.abandon.is_triggered() {
        match timeout(LOOK, &mut operation).await {
            Ok(result) => return result,
            Err(_) if ask.asker.is_dying() => ask.abandon.trigger(),
            Err(_) => {}
        }
    }
    operation.await
}
