//! What the server is told to close, approve, take back.

use super::request::Patience;
use super::request::{Asked, New, RequestOutcome};
use super::requests::Rpc;
use super::types::CallOptions;
use crate::inode::Approvable;
use crate::opens::Closing;
use bytes::Bytes;
use futures_util::FutureExt;
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::control::ToServer;
use leasefs_protocol::limits::{MAX_BATCH, MAX_LOCKS_OF_FILE};
use leasefs_protocol::lock::FileLocks;
use leasefs_protocol::{Approval, Caller, Handle, Parts, Release, Stamp};
use std::time::Duration;

/// How long the server is not told of a close, if nobody waits for that: further ones are told with it.
const GATHER: Duration = Duration::from_millis(10);

impl Rpc {
    /// Of how many opens that were closed nobody has to tell the server any more.
    pub fn closes_told(&self) -> u64 {
        self.0.opens.told()
    }

    /// Waits until the server knows of every open that is closed by now. False if it knew when it knew
    /// of `told` of them, or isn't told in time.
    pub async fn further_closes(&self, told: u64, options: CallOptions<'_>) -> bool {
        let wait = self.wait(Patience::Usual);
        let closed = self.0.opens.closed();
        if closed == told {
            return false;
        }
        let _awaited = self.0.opens.are_awaited();
        self.0.opens.hurry();
        let again = self.clone().close(self.0.opens.closing_again());
        self.0.cx.spawn(again.map(drop));
        let all_told = async {
            loop {
                let next = self.0.opens.further_told();
                if self.0.opens.told() >= closed {
                    return;
                }
                next.await;
            }
        };
        self.patiently(wait, options, all_told).await.is_ok()
    }

    /// Approves recalls. Without connection nothing is sent: the server repeats the recalls on the
    /// next. The opens given up are forgotten in any case.
    pub fn approve(&self, approvable: Vec<Approvable>) {
        let behind = self.keep_alive_behind();
        let deciding = approvable.iter().flat_map(|approvable| &approvable.locks);
        self.say_held(&deciding.copied().collect::<Vec<_>>(), behind);
        let approve = |Approvable { recall, opens, .. }| {
            let come = self.0.recalls.borrow_mut().approved(recall);
            if let Some(come) = come {
                self.0.approved.add(self.0.cx.monotonic().since(come));
            }
            // More than one message takes (only a recall of everything has so many) are closed like others.
            let named = opens.into_iter().take(MAX_BATCH);
            let closes = behind.map(|number| self.0.opens.close_by_approval(named, number));
            let closes = closes.unwrap_or_default();
            Approval { recall, closes }
        };
        let approvals = approvable.into_iter().map(approve).collect();
        for message in within_bounds(approvals) {
            self.control(ToServer::Approve(message));
        }
    }

    /// The number of the keep-alive that will be sent behind what is said now: once that is answered, it has come. `None`
    /// without a connection: nothing is said.
    fn keep_alive_behind(&self) -> Option<u64> {
        let stands = self.0.table.borrow().stands().is_some();
        stands.then(|| self.0.renewing.borrow().keep_alives + 1)
    }

    /// Tells the server what is held of these files' locks.
    fn say_held(&self, files: &[Handle], behind: Option<u64>) {
        let Some(number) = behind else { return };
        if files.is_empty() || planted::is(Bug::HeldUnsaid) {
            return;
        }
        let held = self.0.cache.state().locks.say(files, number);
        for message in lock_messages(held) {
            self.control(ToServer::Held(message));
        }
    }

    /// Gives back the right to decide files' locks, of these grants, behind what is held of them.
    pub fn release_locks(&self, rights: &[(Handle, Stamp)]) {
        let files: Vec<Handle> = rights.iter().map(|(object, _)| *object).collect();
        self.say_held(&files, self.keep_alive_behind());
        let release = |&(object, seen): &(Handle, Stamp)| Release {
            object,
            parts: Parts::LOCKS,
            seen,
        };
        self.release(rights.iter().map(release).collect());
    }

    /// Gives leases back. Best effort: a lease given back in vain is recalled one day.
    pub fn release(&self, releases: Vec<Release>) {
        for chunk in releases.chunks(MAX_BATCH) {
            self.control(ToServer::Release(chunk.to_vec()));
        }
    }

    /// Tells the server of closed opens, many at a time, where no change takes them along.
    pub(super) async fn run_closer(self) {
        let mut delivers = true;
        loop {
            let closes = self.0.opens.further_closes();
            if !delivers || !self.0.opens.has_closing() {
                closes.await;
            }
            // A program that closes one file mostly goes on to the next.
            if !self.0.opens.fills_a_request() {
                let hurried = self.0.opens.hurried();
                let _ = self.0.cx.timeout(GATHER, hurried).await;
            }
            let closing = self.0.opens.take_closing(false);
            delivers = self.clone().close(closing).await;
        }
    }

    /// Tells the server of these. False if it can't be told now.
    async fn close(self, closing: Closing) -> bool {
        if closing.ids().is_empty() {
            return true;
        }
        let close = New {
            caller: Caller::default(),
            asked: Asked::Close(closing),
            payload: Bytes::new(),
            wait: None,
            pid: None,
            places: Default::default(),
        };
        let outcome = self.run(close, CallOptions::default()).await;
        if let RequestOutcome::GaveUp { refusal, .. } = &outcome {
            tracing::debug!(%refusal, "closes were not delivered");
        }
        matches!(outcome, RequestOutcome::Answered(_))
    }
}

/// Messages of at most [`MAX_LOCKS_OF_FILE`] locks.
pub(crate) fn lock_messages(files: Vec<FileLocks>) -> Vec<Vec<FileLocks>> {
    let mut messages = vec![Vec::new()];
    let mut locks = 0;
    for file in files {
        let full = messages.last().map_or(0, Vec::len) == MAX_BATCH;
        if full || locks + file.locks.len() > MAX_LOCKS_OF_FILE {
            messages.push(Vec::new());
            locks = 0;
        }
        locks += file.locks.len();
        if let Some(message) = messages.last_mut() {
            message.push(file);
        }
    }
    messages.retain(|message| !message.is_empty());
    messages
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
