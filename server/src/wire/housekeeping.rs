//! What concerns sessions as a whole: leases that end, clients that don't come back.

use crate::runtime::Notice;
use crate::server::{Server, hang_up};
use crate::session::Session;
use leasefs_protocol::SessionId;
use leasefs_protocol::limits::MAX_RECALLS_OPEN;
use leasefs_transport::CloseCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often sessions are looked over.
const SWEEP: Duration = Duration::from_secs(5);
/// How often leases on what is gone are recalled: nobody waits for that, and recalls of many cost less than of each.
const GONE: Duration = Duration::from_millis(500);
/// On how many objects at a time: a client owes a bounded number of approvals.
const MOST_GONE: usize = MAX_RECALLS_OPEN / 4;

/// Acts on what the lease core has to say about whole sessions.
pub async fn notices(server: Arc<Server>, mut notices: mpsc::UnboundedReceiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        match notice {
            Notice::Expired(session) => {
                close(&server, session, "its leases have expired: connect again")
            }
            Notice::Choked(session) => close(&server, session, "recalls are not read"),
            Notice::GraceEnded => {
                tracing::info!("the grace after the restart has ended");
                let task_server = Arc::clone(&server);
                server.spawn_io(async move {
                    give_up_absent(&task_server);
                    task_server.records.grace_ended();
                });
            }
        }
    }
}

fn close(server: &Server, session: SessionId, reason: &str) {
    let Some(session) = server.sessions.get(session) else {
        return;
    };
    tracing::warn!(session = %session.id, client = %session.key, mount = ?session.mount(), reason, "session cut off");
    hang_up(&session, CloseCode::TooSlow, reason);
}

/// What sessions that have not come back in the grace were doing is lost.
fn give_up_absent(server: &Server) {
    let away = |session| {
        let session = server.sessions.get(session);
        session.is_none_or(|session| session.reclaims.load(Ordering::Relaxed))
    };
    server.interrupted.give_up(away);
}

/// After so many sweeps the journal is rid of Write leases that have ended.
const SWEEPS_PER_JOURNAL: u32 = 12;

/// Ends sessions whose client doesn't come back, and notes which leases have ended. Never ends.
pub async fn sweep(server: Arc<Server>) {
    let mut unclaimed = true;
    for sweeps in 1_u32.. {
        tokio::time::sleep(SWEEP).await;
        if sweeps.is_multiple_of(SWEEPS_PER_JOURNAL) {
            let task_server = Arc::clone(&server);
            server.spawn_io(async move { forget_ended_writes(&task_server) });
        }
        if unclaimed && server.sessions.have_reclaimed() {
            unclaimed = false;
            let store = Arc::clone(&server.store);
            server.spawn_io(async move { store.remove_unclaimed() });
        }
        for session in server.sessions.overdue(server.now()) {
            tracing::info!(session = %session.id, client = %session.key, "session ended: its client hasn't come back");
            server.end_absent(&session);
        }
        for session in server.sessions.over() {
            let task_server = Arc::clone(&server);
            server.spawn_io(async move { task_server.end_if_lapsed(&session) });
        }
        note_ended_leases(&server).await;
    }
}

/// Recalls the leases on objects that are gone. Never ends.
pub async fn forget_gone(server: Arc<Server>) {
    loop {
        tokio::time::sleep(GONE).await;
        for object in server.store.take_gone(MOST_GONE) {
            server.leases.gone(object);
        }
    }
}

/// In grace the leases of the earlier life stay on record: the server may crash again.
fn forget_ended_writes(server: &Server) {
    if server.leases.in_grace() {
        return;
    }
    for (session, object) in server.records.idle_writes() {
        if !server.leases.holds_write(session, &object) {
            server.records.write_ended(session, &object);
        }
    }
}

async fn note_ended_leases(server: &Arc<Server>) {
    // In grace, sessions on record must stay there.
    if server.leases.in_grace() {
        return;
    }
    for session in server.sessions.all() {
        if session.leased.load(Ordering::Relaxed) && is_without_leases(server, &session) {
            note(server, &session).await;
        }
    }
}

fn is_without_leases(server: &Server, session: &Session) -> bool {
    let connected = session.link().is_some();
    !connected && !server.leases.may_hold(session.id) && !server.leases.in_grace()
}

/// A session that isn't connected gets no lease, and none connects while this lock is held. It may have
/// come, been granted leases and gone again before.
async fn note(server: &Arc<Server>, session: &Arc<Session>) {
    // One that is being greeted is not without leases for long.
    let Ok(_no_hello) = session.hello.try_lock() else {
        return;
    };
    if !is_without_leases(server, session) {
        return;
    }
    session.leased.store(false, Ordering::Relaxed);
    let (task_server, id) = (Arc::clone(server), session.id);
    let task = server.spawn_io(async move { task_server.records.leases_ended(id) });
    // Fails only when the server ends.
    let _ = task.await;
}
