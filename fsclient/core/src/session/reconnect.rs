//! What a session does when a connection begins or ends.

use super::requests::Rpc;
use crate::api::ConnectionId;
use leasefs_protocol::control::{ReclaimOpen, ToServer, Welcome};
use leasefs_protocol::{BootId, OpenId, Refusal, Seq};
use std::time::Duration;

impl Rpc {
    /// From here on requests are sent on this connection; what was sent on earlier ones is sent again.
    /// `forgotten`: the server knows nothing of those.
    pub(crate) fn connected(&self, connection: ConnectionId, welcome: Welcome, forgotten: bool) {
        let (now, heard) = (self.0.cx.boot(), self.0.cx.monotonic());
        let mut table = self.0.table.borrow_mut();
        table.judge_writeback(|object, kept| self.0.cache.is_late(object, kept));
        let resend = table.connected(connection, welcome.host, forgotten, now);
        drop(table);
        for seq in resend.cancels {
            self.control(ToServer::Cancel { seq });
        }
        self.send_all(resend.frames);
        self.0.opens.connected();
        self.0.room.ring_all();
        let mut contact = self.0.contact.borrow_mut();
        contact.connections += 1;
        contact.connected = true;
        contact.welcome = Some(welcome);
        contact.silent = Duration::ZERO;
        contact.heard = heard;
        contact.trouble = None;
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&self, reason: &str) {
        self.0.table.borrow_mut().disconnected();
        self.0.opens.disconnected();
        self.0.cache.state().locks.disconnected();
        self.0.contact.borrow_mut().lost(reason.to_owned());
    }

    /// Notes why there is no session, for people. True if it was another reason before.
    pub(crate) fn trouble(&self, trouble: &str) -> bool {
        let mut contact = self.0.contact.borrow_mut();
        let is_new = contact.trouble.as_deref() != Some(trouble);
        contact.trouble = Some(trouble.to_owned());
        is_new
    }

    /// The server has been silent for so long more, or not at all. Returns for how long by now.
    pub(crate) fn heard(&self, silent: Option<Duration>) -> Duration {
        let mut contact = self.0.contact.borrow_mut();
        match silent {
            Some(more) => contact.silent += more,
            None => (contact.silent, contact.heard) = (Duration::ZERO, self.0.cx.monotonic()),
        }
        contact.silent
    }

    /// A keep-alive was answered, and with it the approvals that were sent before it.
    pub(crate) fn acknowledged(&self, keep_alive: u64) {
        self.0.opens.acknowledged(keep_alive);
        self.0.cache.state().locks.acknowledged(keep_alive);
    }

    /// The server has answered a cancel.
    pub(crate) fn cancelled(&self, seq: Seq, begun: bool) {
        let now = self.0.cx.boot();
        let again = self.0.table.borrow_mut().cancelled(seq, begun, now);
        self.send_all(again.into_iter().collect());
        self.0.room.ring_all();
    }

    /// The server refuses the session for good: everybody is told, until it changes its mind.
    pub(crate) fn refused(&self, refusal: Refusal) {
        let waiting = self.0.table.borrow_mut().refused(refusal);
        for id in waiting {
            self.give_up(id, refusal);
        }
    }

    /// Ends what has waited too long, connection or not.
    pub(crate) fn end_overdue(&self) {
        let now = self.0.cx.monotonic();
        let overdue = self.0.table.borrow().overdue(now, self.progress());
        for id in overdue {
            self.give_up(id, Refusal::TimedOut);
        }
    }

    /// The opens to be reclaimed from a restarted server.
    pub(crate) fn reclaim_opens(&self) -> Vec<ReclaimOpen> {
        self.0.opens.reclaim()
    }

    /// Whether the open is one of ours.
    pub(crate) fn is_open(&self, open: OpenId) -> bool {
        self.0.opens.is_open(open)
    }

    /// The server has lost these opens.
    pub(crate) fn lost_opens(&self, opens: &[OpenId]) {
        self.0.opens.lost(opens);
    }

    /// The server has forgotten all opens. Returns them.
    pub(crate) fn forget_opens(&self) -> Vec<OpenId> {
        self.0.opens.forget()
    }

    /// The life of the server's host on the last connection.
    pub(crate) fn last_host(&self) -> Option<BootId> {
        let contact = self.0.contact.borrow();
        contact.welcome.as_ref().map(|welcome| welcome.host)
    }

    /// The server's process on the last connection.
    pub(crate) fn last_process(&self) -> Option<BootId> {
        let contact = self.0.contact.borrow();
        contact.welcome.as_ref().map(|welcome| welcome.process)
    }
}
