//! The control stream after `Hello`. Nothing here waits for anything, so a keep-alive doesn't either.

use super::end::End;
use crate::caught::caught_now;
use crate::records::Client;
use crate::server::Server;
use crate::service::changes;
use crate::service::rights::may_reclaim;
use crate::session::{Cancelled, Link, Pass, Session, close, refused};
use leasefs_lease::server::Reclaimed;
use leasefs_protocol::control::{Reclaim, ReclaimLease, ReclaimOpen, ToClient, ToServer};
use leasefs_protocol::limits::{MAX_BATCH, MAX_LOCKS_OF_FILE, MAX_RECLAIMS, MAX_UNREAD};
use leasefs_protocol::lock::FileLocks;
use leasefs_protocol::{Approval, Handle, LockEpoch, Mode, OpenId, Refusal, Seq};
use leasefs_transport::{CloseCode, FrameReader, OutFrame, Outbox};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long a client that leaves has to hear its farewell.
const LAST_WORDS: Duration = Duration::from_secs(2);

struct Control {
    server: Arc<Server>,
    session: Arc<Session>,
    link: Arc<Link>,
    out: Outbox,
    /// Reclaims run in order, on I/O threads.
    reclaiming: Option<JoinHandle<()>>,
    reclaims: Arc<tokio::sync::Semaphore>,
}

/// Serves the control stream to its end.
pub async fn serve(
    server: &Arc<Server>,
    session: &Arc<Session>,
    link: &Arc<Link>,
    out: Outbox,
    mut reader: FrameReader,
) -> End {
    let mut control = Control {
        server: Arc::clone(server),
        session: Arc::clone(session),
        link: Arc::clone(link),
        out,
        reclaiming: None,
        reclaims: Arc::new(tokio::sync::Semaphore::new(MAX_RECLAIMS)),
    };
    loop {
        match reader.next::<ToServer>().await {
            Ok(Some((message, payload))) if payload.is_empty() => {
                if let Err(end) = control.message(message).await {
                    return end;
                }
            }
            Ok(Some(_)) => return End::Breach("a payload on the control stream".to_owned()),
            Ok(None) => return End::Gone,
            Err(error) => return error.into(),
        }
    }
}

/// Whether as many locks may be told at a time.
fn bounded(files: &[FileLocks]) -> Result<(), End> {
    let locks = files.iter().map(|file| file.locks.len()).sum::<usize>();
    match locks > MAX_LOCKS_OF_FILE || files.len() > MAX_BATCH {
        true => Err(End::Breach("too many locks in one message".to_owned())),
        false => Ok(()),
    }
}

fn take_in(session: &Session, files: &mut [FileLocks]) {
    if let Some(border) = session.border() {
        for file in files {
            file.object = border.inward(&file.object);
        }
    }
}

fn batch(what: &str, len: usize) -> Result<(), End> {
    match len > MAX_BATCH {
        true => Err(End::Breach(format!(
            "{len} {what} in one message, at most {MAX_BATCH}"
        ))),
        false => Ok(()),
    }
}

impl Control {
    async fn message(&mut self, message: ToServer) -> Result<(), End> {
        let pass = self.session.gate.enter().ok_or(End::Gone)?;
        let id = self.session.id;
        self.session.is_heard(self.link.number);
        match message {
            ToServer::KeepAlive { number } => self.keep_alive(number),
            ToServer::Approve(approvals) => self.approve(approvals),
            ToServer::Release(mut releases) => {
                batch("releases", releases.len())?;
                if let Some(border) = self.session.border() {
                    border.take_releases(&mut releases);
                }
                self.server.leases.release(id, self.link.number, releases);
                Ok(())
            }
            ToServer::Held(files) => self.held(files),
            ToServer::Cancel { seq } => self.cancel(seq),
            ToServer::Reclaim(reclaim) => self.reclaim(reclaim),
            ToServer::ReclaimDone => {
                let (server, session) = (Arc::clone(&self.server), Arc::clone(&self.session));
                self.behind_reclaims(move || {
                    session.reclaims.store(false, Ordering::Relaxed);
                    server.leases.reclaim_done(id);
                    if server.sessions.have_reclaimed() {
                        server.store.remove_unclaimed();
                    }
                })
            }
            ToServer::Goodbye => self.goodbye(pass).await,
            ToServer::Hello(_) => Err(End::Breach("a second hello".to_owned())),
        }
    }

    fn answer(&self, message: &ToClient) -> Result<(), End> {
        if self.out.queued() > MAX_UNREAD {
            return Err(End::TooSlow);
        }
        let frame = OutFrame::new(message, bytes::Bytes::new());
        let frame = frame.map_err(|error| End::Breach(error.to_string()))?;
        self.out.push(frame).map_err(|_| End::Gone)
    }

    fn keep_alive(&self, number: u64) -> Result<(), End> {
        let (leases, id) = (&self.server.leases, self.session.id);
        leases.round_trip(id, self.link.connection().rtt());
        let renews = leases.renew(id);
        self.session.counters.renewed();
        self.server.meters.renewals.fetch_add(1, Ordering::Relaxed);
        self.answer(&ToClient::KeepAlive { number, renews })
    }

    /// Opens given up with a lease are closed first: a change that waits for the approval must
    /// not find them.
    fn approve(&self, approvals: Vec<Approval>) -> Result<(), End> {
        batch("approvals", approvals.len())?;
        let closes: Vec<OpenId> = approvals.iter().flat_map(|a| a.closes.clone()).collect();
        batch("closes", closes.len())?;
        let recalls = approvals.into_iter().map(|approval| approval.recall);
        let files = self.session.opens.take(&closes);
        let (id, link) = (self.session.id, self.link.number);
        if files.is_empty() {
            self.server.leases.approve(id, link, recalls);
            return Ok(());
        }
        let (server, recalls) = (Arc::clone(&self.server), recalls.collect::<Vec<_>>());
        let gate = Arc::clone(&self.session.gate);
        self.server.spawn_io(async move {
            close(files);
            if let Some(_pass) = gate.enter() {
                server.leases.approve(id, link, recalls);
            }
        });
        Ok(())
    }

    fn held(&self, mut files: Vec<FileLocks>) -> Result<(), End> {
        bounded(&files)?;
        take_in(&self.session, &mut files);
        self.server
            .leases
            .held(self.session.id, self.link.number, files);
        Ok(())
    }

    fn cancel(&self, seq: Seq) -> Result<(), End> {
        let cancelled = self.session.give_up(seq);
        let cancelled = cancelled.map_err(|violation| End::Breach(violation.to_string()))?;
        let Cancelled { begun, sink, ready } = cancelled;
        for (seq, job) in ready {
            changes::start(&self.server, &self.session, seq, job, Vec::new());
        }
        if let Some(sink) = sink {
            let reply = refused(Refusal::Cancelled);
            tokio::spawn(sink.send(reply, bytes::Bytes::new()));
        }
        self.answer(&ToClient::Cancelled { seq, begun })
    }

    fn reclaim(&mut self, reclaim: Reclaim) -> Result<(), End> {
        batch("leases", reclaim.leases.len())?;
        batch("opens", reclaim.opens.len())?;
        bounded(&reclaim.locks)?;
        let (server, session) = (Arc::clone(&self.server), Arc::clone(&self.session));
        let (client, out) = (Arc::clone(&self.link.client), self.out.clone());
        self.behind_reclaims(move || {
            let answer = take_back(&server, &session, &client, reclaim);
            match OutFrame::new(&answer, bytes::Bytes::new()) {
                // Without its connection the client asks again.
                Ok(frame) => drop(out.push(frame)),
                Err(error) => tracing::error!(%error, "a reclaim can't be answered"),
            }
        })
    }

    /// Runs `work` on an I/O thread, behind the reclaims before it.
    fn behind_reclaims(&mut self, work: impl FnOnce() + Send + 'static) -> Result<(), End> {
        let place = Arc::clone(&self.reclaims).try_acquire_owned();
        let place = place.map_err(|_| End::Breach("too many reclaims at once".to_owned()))?;
        let before = self.reclaiming.take();
        let (session, link) = (Arc::clone(&self.session), Arc::clone(&self.link));
        self.reclaiming = Some(self.server.spawn_io(async move {
            if let Some(before) = before {
                // Fails only when the server ends.
                let _ = before.await;
            }
            if let Some(_pass) = session.gate.enter()
                && caught_now(work).is_none()
            {
                tracing::error!(session = %session.id, "a reclaim failed inside");
                link.close(CloseCode::Goodbye, "the server failed: connect again");
            }
            drop(place);
        }));
        Ok(())
    }

    async fn goodbye(&self, pass: Pass) -> Result<(), End> {
        tracing::info!(session = %self.session.id, "client leaves");
        self.server.end_session(&self.session);
        drop(pass);
        self.answer(&ToClient::Farewell)?;
        let connection = self.link.connection();
        let _ = tokio::time::timeout(LAST_WORDS, connection.closed()).await;
        Err(End::Gone)
    }
}

/// Whether a lease that was claimed back is on record as it must be: a crash of the host has left
/// nothing there of Write leases.
fn is_logged(server: &Server, session: &Session, claim: Reclaimed) -> bool {
    if claim.mode == Mode::Read {
        return true;
    }
    let logged = server.records.write_lease(session.id, claim.object);
    if let Err(error) = &logged {
        tracing::error!(%error, "a write lease can't be journalled");
    }
    logged.is_ok()
}

/// Whether the session has this open, or has it again. Opened again is only what an earlier life of the
/// server opened, and only until the session has said that it has reclaimed everything.
fn opens_again(server: &Server, session: &Session, asked: &ReclaimOpen) -> bool {
    let ReclaimOpen { open, token } = asked;
    if session.opens.claim(*open) {
        return true;
    }
    if !session.reclaims.load(Ordering::Relaxed) || session.opens.is_of_this_life(*open) {
        return false;
    }
    let reopened = session.opens.account().open_again().and_then(|place| {
        let file = server.store.reopen(token, *open, &session.holder())?;
        Ok(session.opens.restore(*open, file, place))
    });
    reopened == Ok(true)
}

/// Takes over what a client had from the server's earlier life, or still has.
fn take_back(server: &Server, session: &Session, client: &Client, reclaim: Reclaim) -> ToClient {
    let opens = reclaim.opens.iter();
    let lost_opens = opens
        .filter(|asked| !opens_again(server, session, asked))
        .map(|asked| asked.open)
        .collect();
    ToClient::Reclaimed {
        lost_leases: lost_leases(server, session, client, &reclaim.leases),
        lost_opens,
        lost_locks: lost_locks(server, session, reclaim.locks, reclaim.epoch),
    }
}

/// Files whose locks can't be taken over. A lock is of a file that the session has open.
fn lost_locks(
    server: &Server,
    session: &Session,
    files: Vec<FileLocks>,
    epoch: LockEpoch,
) -> Vec<Handle> {
    if epoch == LockEpoch::default() {
        return files.into_iter().map(|file| file.object).collect();
    }
    let named: Vec<Handle> = files.iter().map(|file| file.object).collect();
    let mut known = files;
    take_in(session, &mut known);
    let mut names: HashMap<Handle, Handle> = known.iter().map(|f| f.object).zip(named).collect();
    let opened = session.opens.objects();
    let (open, unknown): (Vec<_>, Vec<_>) = known
        .into_iter()
        .partition(|file| opened.contains(&file.object));
    let lost = server.leases.reclaim_locks(session.id, epoch, open);
    let unknown = unknown.into_iter().map(|file| file.object);
    let lost = unknown.chain(lost);
    lost.filter_map(|object| names.remove(&object)).collect()
}

/// Those that can't be taken over.
fn lost_leases(
    server: &Server,
    session: &Session,
    client: &Client,
    asked: &[ReclaimLease],
) -> Vec<Handle> {
    let claim = |asked: &ReclaimLease| Reclaimed {
        object: match session.border() {
            Some(border) => border.inward(&asked.object),
            None => asked.object,
        },
        parts: asked.parts,
        mode: asked.mode,
    };
    let claims = asked.iter().map(|asked| (asked.object, claim(asked)));
    let (known, unknown): (Vec<_>, Vec<_>) =
        claims.partition(|(_, claim)| may_reclaim(server, client, claim));
    let (objects, claims): (Vec<Handle>, Vec<Reclaimed>) = known.into_iter().unzip();
    let stand = server.leases.reclaim(session.id, &claims);
    let claimed = objects.into_iter().zip(claims).zip(stand);
    let lost =
        claimed.filter(|((_, claim), stands)| !stands || !is_logged(server, session, *claim));
    let lost = lost.map(|((object, _), _)| object);
    let unknown = unknown.into_iter().map(|(object, _)| object);
    unknown.chain(lost).collect()
}
