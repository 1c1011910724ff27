//! The session as its users see it.

use super::request::{New, NewChange, Outcome};
use super::session;
use super::shared::{Shared, lock};
use super::status::Status;
use super::types::{Answer, CallOptions, Changed, Config, ConnectError};
use bytes::Bytes;
use leasefs_protocol::control::{ToServer, Welcome};
use leasefs_protocol::limits::MAX_BATCH;
use leasefs_protocol::{Approval, Caller, Handle, OpenId, Refusal, Release, Request, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A session with its server. Cheap to clone.
#[derive(Clone)]
pub struct Rpc(Arc<Shared>);

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rpc({})", self.0.config.session)
    }
}

impl Rpc {
    /// Opens the session. Must be called within a tokio runtime. Tries again until
    /// [`Config::connect_timeout`] unless the server refuses it.
    ///
    /// # Errors
    /// Why the session doesn't stand.
    pub async fn connect(config: Config) -> Result<(Self, Welcome), ConnectError> {
        let shared = Arc::new(Shared::new(config));
        let link = session::first(&shared.config).await?;
        let welcome = link.welcome.clone();
        let ready = session::start(shared.clone(), link).await;
        ready.map_err(|lost| ConnectError::Broken {
            server: shared.config.server.clone(),
            reason: lost.to_string(),
        })?;
        tokio::spawn(shared.clone().run_closer());
        Ok((Self(shared), welcome))
    }

    /// Asks something that changes nothing. Dropping the future abandons it.
    ///
    /// # Errors
    /// `TimedOut`, `Cancelled` (abandoned), or `Invalid` for a request over the protocol's bounds.
    /// What the server refuses stands in the answer.
    pub async fn call(
        &self,
        caller: Caller,
        request: Request,
        payload: Bytes,
        options: CallOptions<'_>,
    ) -> Result<Answer, Refusal> {
        let wait = self.0.wait();
        let permit = self.0.permit(wait, options).await?;
        let new = New {
            caller,
            request,
            payload,
            change: None,
            wait,
            pid: options.pid,
            permit,
        };
        match self.0.run(new, options).await {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::GaveUp { refusal, .. } => Err(refusal),
            Outcome::Overtaken => Err(Refusal::Cancelled),
        }
    }

    /// Asks for a change. It takes effect after the unanswered changes of the same session to the
    /// objects in `touches`; `dropped` is sent with it. The future must not be dropped before it is
    /// resolved (use [`CallOptions::abandon`]): nobody would know what is unsettled.
    ///
    /// Opens are closed in the background, though `close` of the last open of an unlinked file makes
    /// room at once on a local file system: who finds none asks again once the server knows of them.
    pub async fn change(
        &self,
        caller: Caller,
        request: Request,
        payload: Bytes,
        touches: &[Handle],
        dropped: Vec<Handle>,
        options: CallOptions<'_>,
    ) -> Changed {
        let wait = self.0.wait();
        let told = self.closes_told();
        let new = || New {
            caller: caller.clone(),
            request: request.clone(),
            payload: payload.clone(),
            change: Some(NewChange {
                touches: touches.to_vec(),
                dropped: dropped.clone(),
                life: options.life,
            }),
            wait,
            pid: options.pid,
            permit: None,
        };
        let changed = self.change_once(new(), options).await;
        match changed.finds_no_room() && self.further_closes(told, options).await {
            true => self.change_once(new(), options).await,
            false => changed,
        }
    }

    async fn change_once(&self, mut new: New, options: CallOptions<'_>) -> Changed {
        match self.0.permit(new.wait, options).await {
            Ok(permit) => new.permit = permit,
            Err(refusal) => return Changed::never(refusal),
        }
        match self.0.run(new, options).await {
            Outcome::Answered(answer) => Changed {
                result: Ok(answer),
                unsettled: None,
                overtaken: false,
            },
            Outcome::GaveUp { refusal, unsettled } => Changed {
                result: Err(refusal),
                unsettled,
                overtaken: false,
            },
            Outcome::Overtaken => Changed {
                overtaken: true,
                ..Changed::never(Refusal::Cancelled)
            },
        }
    }

    /// Of how many opens that were closed nobody has to tell the server any more.
    pub fn closes_told(&self) -> u64 {
        lock(&self.0.opens).told()
    }

    /// Waits until the server knows of every open that is closed by now. False if it knew when it knew
    /// of `told` of them, or isn't told in time.
    pub async fn further_closes(&self, told: u64, options: CallOptions<'_>) -> bool {
        self.0.further_closes(told, options).await
    }

    /// Forgets an open; the server is told in the background, many at a time.
    pub fn close(&self, open: OpenId) {
        self.0.close(open);
    }

    /// As [`Rpc::close`], of several.
    pub fn close_all(&self, opens: Vec<OpenId>) {
        opens.into_iter().for_each(|open| self.close(open));
    }

    /// Approves recalls. Without connection nothing is sent: the server repeats the recalls on the
    /// next. The opens given up are forgotten in any case.
    pub fn approve(&self, mut approvals: Vec<Approval>) {
        let mut closes = Vec::new();
        for approval in &mut approvals {
            lock(&self.0.recalls).approved(approval.recall);
            let beyond = approval.closes.len().min(MAX_BATCH);
            // More than one message takes (only a recall of everything has so many).
            for open in approval.closes.drain(beyond..) {
                self.0.close(open);
            }
            closes.extend_from_slice(&approval.closes);
        }
        for message in within_bounds(approvals) {
            self.0.control(&ToServer::Approve(message));
        }
        // A keep-alive of this number or a later one is sent behind the approvals.
        let number = self.0.keep_alives.load(Ordering::SeqCst);
        lock(&self.0.opens).closed_by_approval(&closes, number);
    }

    /// Gives leases back. Best effort: a lease given back in vain is recalled one day.
    pub fn release(&self, releases: Vec<Release>) {
        for chunk in releases.chunks(MAX_BATCH) {
            self.0.control(&ToServer::Release(chunk.to_vec()));
        }
    }

    /// The date, by the server's clock, of what is written now; not after what the server dates from
    /// now on. `None` before its first answer.
    pub fn date(&self) -> Option<Timestamp> {
        self.0.date()
    }

    /// Whether the session has changed anything.
    pub fn has_changed(&self) -> bool {
        self.0.changed.load(Ordering::Relaxed)
    }

    /// The state of the session, for people.
    pub fn status(&self) -> Status {
        Status::of(&self.0)
    }

    /// Ends the session: the server is told that nothing is held any more, if that is possible
    /// within two seconds. Requests that still wait are never answered.
    pub async fn goodbye(&self) {
        self.0.ending.send_replace(true);
        let mut ended = self.0.ended.subscribe();
        // The sender lives in `shared`.
        let _ = tokio::time::timeout(session::FAREWELL, ended.wait_for(|ended| *ended)).await;
    }
}

/// Messages of at most [`MAX_BATCH`] approvals and closes.
fn within_bounds(approvals: Vec<Approval>) -> Vec<Vec<Approval>> {
    let mut messages = vec![Vec::new()];
    let mut closes = 0;
    for approval in approvals {
        let full = messages.last().map_or(0, Vec::len) == MAX_BATCH;
        if full || closes + approval.closes.len() > MAX_BATCH {
            messages.push(Vec::new());
            closes = 0;
        }
        closes += approval.closes.len();
        if let Some(message) = messages.last_mut() {
            message.push(approval);
        }
    }
    messages.retain(|message| !message.is_empty());
    messages
}
