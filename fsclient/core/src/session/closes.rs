//! What the server is told to close, approve, take back.

use super::request::{New, Outcome};
use super::requests::Rpc;
use super::types::CallOptions;
use bytes::Bytes;
use leasefs_protocol::control::ToServer;
use leasefs_protocol::limits::MAX_BATCH;
use leasefs_protocol::{Approval, Caller, OpenId, Release, Request};

impl Rpc {
    /// Of how many opens that were closed nobody has to tell the server any more.
    pub fn closes_told(&self) -> u64 {
        self.0.opens.borrow().told()
    }

    /// Waits until the server knows of every open that is closed by now. False if it knew when it knew
    /// of `told` of them, or isn't told in time.
    pub async fn further_closes(&self, told: u64, options: CallOptions<'_>) -> bool {
        let wait = self.wait();
        let closed = self.0.opens.borrow().closed();
        let all_told = async {
            loop {
                let next = self.0.closes_told.listen();
                if self.0.opens.borrow().told() >= closed {
                    return;
                }
                next.await;
            }
        };
        closed > told && self.patiently(wait, options, all_told).await.is_ok()
    }

    /// Forgets an open; the server is told in the background, many at a time.
    pub fn close(&self, open: OpenId) {
        let known = self.0.opens.borrow_mut().close(open);
        if known {
            self.0.closes.ring_one();
        }
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
            self.0.recalls.borrow_mut().approved(approval.recall);
            let beyond = approval.closes.len().min(MAX_BATCH);
            // More than one message takes (only a recall of everything has so many).
            for open in approval.closes.drain(beyond..) {
                self.close(open);
            }
            closes.extend_from_slice(&approval.closes);
        }
        for message in within_bounds(approvals) {
            self.control(ToServer::Approve(message));
        }
        // The next keep-alive is sent behind the approvals.
        let number = self.0.renewing.borrow().keep_alives + 1;
        self.0
            .opens
            .borrow_mut()
            .closed_by_approval(&closes, number);
    }

    /// Gives leases back. Best effort: a lease given back in vain is recalled one day.
    pub fn release(&self, releases: Vec<Release>) {
        for chunk in releases.chunks(MAX_BATCH) {
            self.control(ToServer::Release(chunk.to_vec()));
        }
    }

    /// Tells the server of closed opens, many at a time.
    pub(super) async fn run_closer(self) {
        loop {
            let closes = self.0.closes.listen();
            let opens = self.0.opens.borrow_mut().take_closing();
            self.0.closes_told.ring_all();
            if opens.is_empty() {
                closes.await;
                continue;
            }
            let close = New {
                caller: Caller::default(),
                request: Request::Close { opens },
                payload: Bytes::new(),
                change: None,
                wait: None,
                pid: None,
                permit: None,
            };
            if let Outcome::GaveUp { refusal, .. } = self.run(close, CallOptions::default()).await {
                tracing::debug!(%refusal, "closes were not delivered");
            }
        }
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
