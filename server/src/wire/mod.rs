//! Connections: from the first packet to the last, and what a client may not do on them.

mod control;
mod crowd;
mod end;
mod entrance;
mod hello;
mod housekeeping;
mod lane;
mod root;
mod weight;

use crate::runtime::Notice;
use crate::server::Server;
use crate::session::{Link, Session};
use end::End;
use entrance::{Entrance, Place};
use hello::Greeted;
use leasefs_protocol::limits::{MAX_LANES, SHUTDOWN_RECALL};
use leasefs_transport::{CloseCode, Connection, Incoming};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How often an orderly end looks whether everything has been given back.
const QUIET_POLL: Duration = Duration::from_millis(5);
/// How long answers may take to be on their way.
const LAST_ANSWERS: Duration = Duration::from_millis(50);
/// How long an orderly end waits for clients to hear of it.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Serves until `stop`, then ends in an orderly way. Returns whether that was complete: no lease
/// is alive, and the mark is left that spares the next life its grace.
pub async fn serve(
    server: Arc<Server>,
    notices: mpsc::UnboundedReceiver<Notice>,
    endpoint: leasefs_transport::Server,
    stop: impl Future<Output = ()>,
) -> bool {
    let mut tasks = JoinSet::new();
    let keeper = Arc::clone(&server.leases);
    tasks.spawn(async move { keeper.keep_time().await });
    tasks.spawn(housekeeping::notices(Arc::clone(&server), notices));
    tasks.spawn(housekeeping::sweep(Arc::clone(&server)));
    tasks.spawn(housekeeping::forget_gone(Arc::clone(&server)));
    let entrance = Arc::new(Entrance::default());
    tokio::pin!(stop);
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            () = &mut stop => break,
        };
        match incoming {
            Some(incoming) => welcome(&server, &entrance, incoming),
            None => break,
        }
    }
    let orderly = end(&server).await;
    // Answers on their way would be lost with their connections.
    tokio::time::sleep(LAST_ANSWERS).await;
    endpoint.close(CloseCode::ShuttingDown, "the server is shutting down");
    let _ = tokio::time::timeout(LAST_WORDS, endpoint.wait_idle()).await;
    orderly
}

fn welcome(server: &Arc<Server>, entrance: &Arc<Entrance>, incoming: Incoming) {
    let place = entrance.handshake(incoming.remote_address().ip());
    let (server, entrance) = (Arc::clone(server), Arc::clone(entrance));
    tokio::spawn(async move {
        if let Some((connection, place)) = meet(&server, &entrance, incoming, place).await
            && let Some(greeted) = hello::greet(&server, &connection, place).await
        {
            attend(&server, greeted).await;
        }
    });
}

/// Finishes the handshake. Then the key tells in which room the client waits to be greeted.
async fn meet(
    server: &Arc<Server>,
    entrance: &Entrance,
    incoming: Incoming,
    mut place: Place,
) -> Option<(Connection, Place)> {
    let address = incoming.remote_address();
    let connection = match place.wait(incoming.handshake()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "connection failed");
            return None;
        }
        Err(leave) => {
            tracing::debug!(%address, %leave, "handshake ended");
            return None;
        }
    };
    let (task_server, key) = (Arc::clone(server), connection.peer());
    let known = server.spawn_io(async move { task_server.records.knows(key) });
    let enrolled = known.await.unwrap_or(false);
    let place = entrance.greeting(&place, key, enrolled, address.ip());
    Some((connection, place))
}

/// Everything a connection does after its `Hello`.
async fn attend(server: &Arc<Server>, greeted: Greeted) {
    let Greeted {
        session,
        link,
        control,
        reader,
    } = greeted;
    let connection = link.connection().clone();
    let end = tokio::select! {
        end = control::serve(server, &session, &link, control, reader) => end,
        end = lanes(server, &session, &link, &connection) => end,
        lost = connection.closed() => {
            tracing::info!(session = %session.id, reason = %lost, "connection ended");
            End::Gone
        }
    };
    match end {
        End::Gone => link.close(CloseCode::Goodbye, ""),
        End::TooSlow => {
            tracing::warn!(session = %session.id, "connection closed: its client reads too slowly");
            link.close(CloseCode::TooSlow, "answers are not read");
        }
        End::Breach(what) => {
            server.meters.violations.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(session = %session.id, client = %session.key, %what, "connection closed: protocol broken");
            link.close(CloseCode::Protocol, &what);
        }
    }
    if session.disconnect(link.number, server.now()) {
        server.leases.disconnect(session.id, link.number);
    }
}

async fn lanes(
    server: &Arc<Server>,
    session: &Arc<Session>,
    link: &Arc<Link>,
    connection: &Connection,
) -> End {
    let mut lanes: JoinSet<Result<(), End>> = JoinSet::new();
    loop {
        tokio::select! {
            stream = connection.accept() => {
                let Ok((_, writer, reader)) = stream else {
                    return End::Gone;
                };
                if lanes.len() >= MAX_LANES {
                    return End::Breach(format!("more than {MAX_LANES} request streams"));
                }
                let lane = lane::Lane::new(server, session, link, writer.into_outbox());
                lanes.spawn(lane.serve(reader));
            }
            Some(ended) = lanes.join_next() => {
                match ended {
                    Ok(Ok(())) => (),
                    Ok(Err(end)) => return end,
                    Err(error) => {
                        tracing::error!(%error, "a request stream failed inside");
                        return End::Gone;
                    }
                }
            }
        }
    }
}

/// Recalls everything, and takes no further requests once it is given back, with what was buffered under it; waits for those that it
/// has taken.
async fn end(server: &Arc<Server>) -> bool {
    server.leases.shut_down();
    let until = Instant::now() + SHUTDOWN_RECALL;
    let given_back = comes_by(until, || server.leases.all_given_back()).await;
    server.stop();
    if !given_back || !comes_by(until, || server.leases.all_quiet()).await {
        tracing::warn!("not every client has given its leases back: the next start waits for them");
        return false;
    }
    if server.leases.holds_locks() {
        tracing::info!(
            "locks are held: at the next start nobody else is given any until they are reclaimed"
        );
        return true;
    }
    let records = Arc::clone(&server.records);
    match server.spawn_io(async move { records.end_life() }).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::error!(%error, "the mark of an orderly end can't be left");
            false
        }
        Err(_) => false,
    }
}

/// Whether something comes to be so until then.
async fn comes_by(until: Instant, is_so: impl Fn() -> bool) -> bool {
    while !is_so() {
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(QUIET_POLL).await;
    }
    true
}
