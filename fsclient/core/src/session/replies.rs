//! What the server says, as the session takes it in.

use super::border::{self, Broken};
use super::requests::Rpc;
use super::server_time;
use super::table::Sent;
use crate::api::ConnectionId;
use crate::opens::ServerOpen;
use bytes::Bytes;
use leasefs_lease::planted::{self, Bug};
use leasefs_lease::time::BootTime;
use leasefs_protocol::answer::{Created, Opened};
use leasefs_protocol::control::Welcome;
use leasefs_protocol::{Recall, Refusal, Reply, Response, Stamp, Timestamp};
use std::time::Duration;

impl Rpc {
    /// The date, by the server's clock, of what is written now; not after what the server dates from
    /// now on. `None` before its first answer.
    pub fn date(&self) -> Option<Timestamp> {
        self.0.server_time.borrow().date(self.0.cx.boot())
    }

    /// Whether this date, by the server's clock, is as good as that of what is done now.
    pub fn is_of_now(&self, date: Timestamp) -> bool {
        self.0.server_time.borrow().is_of(self.0.cx.boot(), date)
    }

    /// Whether the session has changed anything.
    pub fn has_changed(&self) -> bool {
        self.0.renewing.borrow().changed
    }

    pub(crate) fn welcomed(&self, welcome: &Welcome) {
        let mut renewing = self.0.renewing.borrow_mut();
        renewing.term = Duration::from_millis(welcome.term_ms.into());
        renewing.drift_ppm = welcome.drift_ppm;
    }

    pub(crate) fn term(&self) -> Duration {
        self.0.renewing.borrow().term
    }

    /// The leases are valid for a term from `sent`.
    pub(crate) fn renewed(&self, sent: BootTime) {
        let (term, drift) = {
            let mut renewing = self.0.renewing.borrow_mut();
            renewing.renewed = renewing.renewed.max(sent);
            (renewing.term, renewing.drift_ppm)
        };
        self.0.cache.renew(sent, term, drift);
    }

    /// How long ago the newest renewing request was sent.
    pub(crate) fn since_renewal(&self) -> Duration {
        self.0.cx.boot().since(self.0.renewing.borrow().renewed)
    }

    /// A reply has come. What it says of the session is noted before its caller can use it.
    pub(crate) fn deliver(&self, connection: ConnectionId, mut reply: Reply, payload: Bytes) {
        let Some(sent) = self.0.table.borrow().sent(connection, reply.id) else {
            return;
        };
        let took = self.0.cx.monotonic().since(sent.since);
        self.0.took.add(sent.frame.request.kind(), took);
        self.check(&sent, &mut reply, payload.len());
        if reply.result == Err(Refusal::BadOpen) {
            // All opens are of the server's making: it has lost this one with the object.
            reply.result = Err(Refusal::Stale);
        }
        let open = self.note(&sent, &reply);
        let settled = self.0.table.borrow_mut().deliver(reply, payload, open);
        if settled {
            self.0.room.ring_all();
        }
    }

    /// Returns what it has opened.
    fn note(&self, sent: &Sent, reply: &Reply) -> Option<ServerOpen> {
        let opens = &self.0.opens;
        let opened = match &reply.result {
            Ok(Response::Opened(Opened { open, token, .. })) => {
                let object = sent.frame.request.handles().next();
                object.map(|object| opens.opened(*open, *object, token.clone()))
            }
            Ok(Response::Created(Created {
                open,
                token,
                handle,
                ..
            })) => Some(opens.opened(*open, *handle, token.clone())),
            _ => None,
        };
        if reply.stamp != Stamp::default() && reply.result.is_ok() {
            self.0.renewing.borrow_mut().changed = true;
        }
        if reply.renews {
            let late = planted::is(Bug::TermFromReply).then(|| self.0.cx.boot());
            self.renewed(late.unwrap_or(sent.at));
        }
        if let Some(date) = server_time::latest(reply) {
            let now = self.0.cx.boot();
            self.0.server_time.borrow_mut().heard(now, date);
        }
        opened
    }

    /// A reply that can't be the answer becomes EIO: nobody knows what has happened, and nothing of it
    /// is believed. What it may not grant is left out.
    fn check(&self, sent: &Sent, reply: &mut Reply, payload: usize) {
        let request = &sent.frame.request;
        let opens = &self.0.opens;
        let is_open = |open| opens.is_open(open);
        match border::reply((request, sent.bytes), (reply, payload), is_open) {
            Ok(()) => border::grants(request, reply, |open| opens.object(open)),
            Err(broken) => {
                tracing::error!(request = request.kind(), "{broken}");
                *reply = Reply {
                    id: reply.id,
                    renews: false,
                    stamp: Stamp::default(),
                    grants: Vec::new(),
                    touched: Vec::new(),
                    room: None,
                    result: Err(Refusal::Internal),
                };
            }
        }
    }

    /// Takes in a recall, which is acted on elsewhere.
    pub(crate) fn recalled(&self, recall: &mut Recall) -> Result<(), Broken> {
        let now = self.0.cx.monotonic();
        self.0.recalls.borrow_mut().come(now, recall)
    }

    /// No recall is left of what the server has said so far.
    pub(crate) fn recalls_ended(&self) {
        self.0.recalls.borrow_mut().ended();
    }
}
