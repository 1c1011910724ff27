//! After a server restart: what is alive by the own clock is claimed back.

use super::{Happened, Life, Over};
use crate::api::ConnectionId;
use crate::run::Set;
use crate::session::lock_messages;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::control::{Reclaim, ReclaimLease, ReclaimOpen, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_BATCH, MAX_HEADER};
use leasefs_protocol::{Handle, LockEpoch, OpenId};
use std::time::Duration;

/// How long the next answer of a reclaim may take. One that isn't complete is begun anew on another
/// connection: what is not known to be reclaimed is never used as if it were.
const STEP: Duration = Duration::from_secs(5);
/// Reclaim messages sent before the answer to the first; the server bounds them.
const AT_A_TIME: usize = 16;
/// Bytes of open tokens in one message.
const TOKENS: usize = MAX_HEADER / 2;

impl Life {
    /// After a server restart: what is alive by the own clock is claimed back.
    pub(super) async fn reclaim(&self, connection: ConnectionId) -> Result<(), Over> {
        let (leases, opens) = (self.engine.reclaim(), self.rpc.reclaim_opens());
        let (locks, epoch) = self.engine.reclaim_locks();
        tracing::info!(
            leases = leases.len(),
            opens = opens.len(),
            locks = locks.len(),
            "reclaiming from the restarted server"
        );
        let claimed: Set<Handle> = leases.iter().map(|lease| lease.object).collect();
        let (mut lost_leases, mut lost_opens) = (Set::default(), Set::default());
        let mut lost_locks = Vec::new();
        // A lock is of a file that is open.
        let mut locks = lock_messages(locks);
        let unlocked = locks.is_empty() && epoch != LockEpoch::default();
        if unlocked && !planted::is(Bug::TenureUnclaimed) {
            locks.push(Vec::new());
        }
        let locks = locks.into_iter().map(|locks| Reclaim {
            locks,
            epoch,
            ..Reclaim::default()
        });
        let batches: Vec<Reclaim> = batches(leases, opens).into_iter().chain(locks).collect();
        for batches in batches.chunks(AT_A_TIME) {
            for batch in batches {
                self.tell(connection, ToServer::Reclaim(batch.clone()));
            }
            let lost = self.answers(connection, batches.len()).await?;
            let (leases, opens) = (lost.leases, lost.opens);
            lost_locks.extend(lost.locks);
            // Of what was not claimed nothing is lost.
            lost_leases.extend(leases.into_iter().filter(|object| claimed.contains(object)));
            lost_opens.extend(opens.into_iter().filter(|open| self.rpc.is_open(*open)));
        }
        let leases: Vec<Handle> = lost_leases.into_iter().collect();
        let opens: Vec<OpenId> = lost_opens.into_iter().collect();
        if !leases.is_empty() || !opens.is_empty() {
            tracing::warn!(
                leases = leases.len(),
                opens = opens.len(),
                "not everything could be reclaimed"
            );
            self.rpc.lost_opens(&opens);
            self.dropped(self.engine.lost(&leases, &opens)).await;
        }
        if !lost_locks.is_empty() {
            tracing::warn!(files = lost_locks.len(), "not all locks could be reclaimed");
            self.engine.lost_locks(&lost_locks);
        }
        self.tell(connection, ToServer::ReclaimDone);
        Ok(())
    }

    async fn answers(&self, connection: ConnectionId, count: usize) -> Result<Lost, Over> {
        let mut lost = Lost::default();
        let mut answered = 0;
        let late = |_| Over::lost("the reclaim takes too long");
        // On a slow link they come one after the other.
        let mut since = self.cx.monotonic();
        while answered < count {
            let left = (since + STEP).since(self.cx.monotonic());
            match self.cx.timeout(left, self.next()).await.map_err(late)? {
                Happened::Control(
                    on,
                    ToClient::Reclaimed {
                        lost_leases,
                        lost_opens,
                        lost_locks,
                    },
                ) if on == connection => {
                    lost.leases.extend(lost_leases);
                    lost.opens.extend(lost_opens);
                    lost.locks.extend(lost_locks);
                    answered += 1;
                    since = self.cx.monotonic();
                }
                Happened::Control(on, _) if on == connection => {
                    return Err(Over::lost("the server said something else than Reclaimed"));
                }
                Happened::Lost(on, reason) if on == connection => return Err(Over::lost(reason)),
                _ => {}
            }
        }
        Ok(lost)
    }
}

/// What could not be reclaimed.
#[derive(Default)]
struct Lost {
    leases: Vec<Handle>,
    opens: Vec<OpenId>,
    locks: Vec<Handle>,
}

/// Messages within the bounds of the protocol.
fn batches(leases: Vec<ReclaimLease>, opens: Vec<ReclaimOpen>) -> Vec<Reclaim> {
    let mut batches: Vec<Reclaim> = leases
        .chunks(MAX_BATCH)
        .map(|leases| Reclaim {
            leases: leases.to_vec(),
            ..Reclaim::default()
        })
        .collect();
    let mut batch = Reclaim::default();
    let mut bytes = 0;
    for open in opens {
        bytes += open.token.0.len();
        if !batch.opens.is_empty() && (bytes > TOKENS || batch.opens.len() == MAX_BATCH) {
            bytes = open.token.0.len();
            batches.push(std::mem::take(&mut batch));
        }
        batch.opens.push(open);
    }
    if !batch.opens.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::OpenToken;
    use leasefs_protocol::codec::encode;

    #[test]
    fn batches_of_large_tokens_stay_within_the_bounds() {
        let opens: Vec<ReclaimOpen> = (0..100)
            .map(|n| ReclaimOpen {
                open: OpenId(n),
                token: OpenToken(vec![255; 8 * 1024]),
            })
            .collect();
        let batches = batches(Vec::new(), opens.clone());
        assert!(
            batches
                .iter()
                .all(|batch| encode(&ToServer::Reclaim(batch.clone()), 0).is_ok())
        );
        let all: Vec<ReclaimOpen> = batches.into_iter().flat_map(|b| b.opens).collect();
        assert_eq!(all, opens);
    }
}
