//! After a server restart: what is alive by the own clock is claimed back.

use super::shared::{Shared, lock};
use super::types::Event;
use bytes::Bytes;
use leasefs_protocol::control::{Reclaim, ReclaimLease, ReclaimOpen, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_BATCH, MAX_HEADER};
use leasefs_protocol::{Handle, OpenId};
use leasefs_transport::{FrameError, FrameReader, Lost, OutFrame, Outbox};
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long each step may take. A reclaim that isn't complete is begun anew on another
/// connection: what is not known to be reclaimed is never used as if it were.
const STEP: Duration = Duration::from_secs(5);
/// How long what was cached may take to be dropped. What takes longer waits for the kernel's locked
/// pages to be written back, and that waits for the connection.
const DROP: Duration = Duration::from_millis(500);
/// Messages sent before the answer to the first; the server bounds them.
const AT_A_TIME: usize = 16;
/// Bytes of open tokens in one message.
const TOKENS: usize = MAX_HEADER / 2;

/// The server's host has crashed: nothing it says from now on may meet what was cached before.
pub(super) async fn host_crashed(shared: &Shared) {
    dropped(shared, |done| Event::HostCrashed { done }).await;
}

/// Has something dropped, and waits for it.
async fn dropped(shared: &Shared, event: impl FnOnce(oneshot::Sender<()>) -> Event) {
    let (done, is_done) = oneshot::channel();
    let _ = shared.config.events.send(event(done));
    if timeout(DROP, is_done).await.is_err() {
        tracing::info!("some cached pages can't be dropped before they are written back");
    }
}

/// Reclaims everything and says so.
pub(super) async fn reclaim(
    shared: &Shared,
    control: &Outbox,
    reader: &mut FrameReader,
) -> Result<(), FrameError> {
    let leases = ask(shared, |reply| Event::Reclaim { reply }).await?;
    let opens = lock(&shared.opens).reclaim();
    tracing::info!(
        leases = leases.len(),
        opens = opens.len(),
        "reclaiming from the restarted server"
    );
    let claimed: HashSet<Handle> = leases.iter().map(|lease| lease.object).collect();
    let (mut lost_leases, mut lost_opens) = (HashSet::new(), HashSet::new());
    for batches in batches(leases, opens).chunks(AT_A_TIME) {
        for batch in batches {
            send(control, &ToServer::Reclaim(batch.clone()))?;
        }
        let (leases, opens) = step(answers(reader, batches.len())).await??;
        // Of what was not claimed nothing is lost.
        lost_leases.extend(leases.into_iter().filter(|object| claimed.contains(object)));
        let held = lock(&shared.opens);
        lost_opens.extend(opens.into_iter().filter(|open| held.is_open(*open)));
    }
    let leases: Vec<Handle> = lost_leases.into_iter().collect();
    let opens: Vec<OpenId> = lost_opens.into_iter().collect();
    if !leases.is_empty() || !opens.is_empty() {
        tracing::warn!(
            leases = leases.len(),
            opens = opens.len(),
            "not everything could be reclaimed"
        );
        lock(&shared.opens).lost(&opens);
        dropped(shared, |done| Event::Lost {
            leases,
            opens,
            done,
        })
        .await;
    }
    send(control, &ToServer::ReclaimDone)
}

async fn step<T>(step: impl Future<Output = T>) -> Result<T, FrameError> {
    timeout(STEP, step)
        .await
        .map_err(|_| Lost::Broken("the reclaim takes too long".into()).into())
}

/// Asks the recall engine.
async fn ask<T>(
    shared: &Shared,
    question: impl FnOnce(oneshot::Sender<T>) -> Event,
) -> Result<T, FrameError> {
    let (reply, answer) = oneshot::channel();
    let _ = shared.config.events.send(question(reply));
    step(answer)
        .await?
        .map_err(|_| Lost::Broken("the recall engine has ended".into()).into())
}

fn send(control: &Outbox, message: &ToServer) -> Result<(), FrameError> {
    let frame = OutFrame::new(message, Bytes::new())?;
    // That the stream is gone is seen by its reader.
    let _ = control.push(frame);
    Ok(())
}

async fn answers(
    reader: &mut FrameReader,
    count: usize,
) -> Result<(Vec<Handle>, Vec<OpenId>), FrameError> {
    let (mut leases, mut opens) = (Vec::new(), Vec::new());
    let mut answered = 0;
    while answered < count {
        match reader.next::<ToClient>().await? {
            Some((
                ToClient::Reclaimed {
                    lost_leases,
                    lost_opens,
                },
                _,
            )) => {
                leases.extend(lost_leases);
                opens.extend(lost_opens);
                answered += 1;
            }
            _ => return Err(FrameError::Abandoned),
        }
    }
    Ok((leases, opens))
}

/// Messages within the bounds of the protocol.
fn batches(leases: Vec<ReclaimLease>, opens: Vec<ReclaimOpen>) -> Vec<Reclaim> {
    let mut batches: Vec<Reclaim> = leases
        .chunks(MAX_BATCH)
        .map(|leases| Reclaim {
            leases: leases.to_vec(),
            opens: Vec::new(),
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
