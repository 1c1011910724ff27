//! What the server says unasked.

use super::faults::LATE;
use super::{Engine, Fault, Inner};
use crate::cache::{Cache, Dropped, Then, Work};
use crate::rpc::{Event, Renewals};
use leasefs_lease::client::{DropKind, Span};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{ReclaimLease, Standing, Welcome};
use leasefs_protocol::{Approval, Handle, OpenId, Recall, Scope};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

impl Renewals for Cache {
    fn renewed(&self, sent: BootTime, term: Duration, drift_ppm: u32) {
        self.renew(sent, term, drift_ppm);
    }
}

impl Engine {
    /// Handles what the server says, until the session ends.
    pub async fn run(self, mut events: mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            match event {
                Event::Connected { welcome } => self.0.connected(&welcome),
                Event::HostCrashed { done } => self.0.host_crashed(done),
                Event::Reclaim { reply } => {
                    // Nobody listens if the connection is lost again: the next asks anew.
                    let _ = reply.send(self.0.reclaim());
                }
                Event::Lost {
                    leases,
                    opens,
                    done,
                } => self.0.lost(&leases, &opens, done),
                Event::Recall(recall) => self.recalled(recall),
                Event::Disconnected => {}
            }
        }
    }

    /// Acts on a recall. Doesn't wait: the approval follows when the kernel holds nothing any more.
    pub fn recalled(&self, recall: Recall) {
        if self.0.fault == Some(Fault::ApproveEarly) {
            self.0.server.approve(vec![Approval {
                recall: recall.id,
                closes: Vec::new(),
            }]);
            let inner = Arc::clone(&self.0);
            self.0.threads.run(move || {
                std::thread::sleep(LATE);
                inner.recalled(&recall);
            });
            return;
        }
        let inner = Arc::clone(&self.0);
        match recall.scope {
            Scope::Everything => self.0.threads.run(move || inner.recalled(&recall)),
            Scope::Object { .. } => inner.recalled(&recall),
        }
    }
}

impl Inner {
    fn recalled(self: &Arc<Self>, recall: &Recall) {
        let dropping = self.dropping();
        let Some(dropped) = self.cache.lock().recall(recall) else {
            return;
        };
        let (singly, at_once) = self.split(dropped);
        let done = self.drop_at_once(&at_once);
        drop(dropping);
        if !done {
            return;
        }
        let inner = Arc::clone(self);
        let owned = recall.clone();
        let then = move || inner.drop_recalled(owned, singly, at_once.closes);
        let dirty = self.cache.lock().recalled_dirty(recall);
        match dirty.is_empty() {
            true => then(),
            false => self.server.flush(dirty, Box::new(then)),
        }
    }

    /// The part of a recall that may block.
    fn drop_recalled(self: Arc<Self>, recall: Recall, singly: Dropped, closes: Vec<OpenId>) {
        if singly.names.is_empty() {
            self.drop_recalled_pages(&recall, closes);
            return;
        }
        let inner = Arc::clone(&self);
        self.threads.run(move || {
            if inner.drop_names(&singly) {
                inner.drop_recalled_pages(&recall, closes);
            }
        });
    }

    /// Names that must be dropped one by one, because something is mounted inside our mount and
    /// came after they were told; and all that can be dropped at once.
    fn split(&self, dropped: Dropped) -> (Dropped, Dropped) {
        if dropped.names.is_empty() || self.kernel.can_forget_names() {
            return (Dropped::default(), dropped);
        }
        let names = Dropped {
            names: dropped.names,
            ..Dropped::default()
        };
        let rest = Dropped {
            names: Vec::new(),
            ..dropped
        };
        (names, rest)
    }

    fn drop_recalled_pages(self: &Arc<Self>, recall: &Recall, closes: Vec<OpenId>) {
        let approval = Approval {
            recall: recall.id,
            closes,
        };
        self.with(|state, out| {
            // Void meanwhile: everything expired, or the server is another one.
            if !state.leases.open_recalls().any(|open| open == recall) {
                return;
            }
            let files = state.recalled_files(recall);
            let then = Then::Approve(approval);
            state.pages.drop_pages(&files, DropKind::Recall, then, out);
        });
    }

    fn connected(self: &Arc<Self>, welcome: &Welcome) {
        let now = self.cache.now();
        // First: what is to be written again keeps its lease.
        self.server.host_is(welcome.host);
        self.with(|state, out| {
            let lost = matches!(welcome.standing, Standing::New | Standing::Expired);
            // A renewal that came with it has dropped everything already if it began anew.
            if lost && !state.leases.is_empty() {
                state.expire(now);
            }
            state.restarted(welcome.process, out);
            state.host_is(welcome.host);
        });
        self.cache.call_keeper();
    }

    /// Tells when what was cached before a crash of the server's host has left the kernel.
    pub(super) fn host_crashed(self: &Arc<Self>, done: oneshot::Sender<()>) {
        let work = {
            let mut state = self.cache.lock();
            let mut work = state.swept.take().unwrap_or_default();
            let filled = state.pages.filled();
            let (pages, then) = (&mut state.pages, Then::Wake(done));
            pages.drop_pages(&filled, DropKind::Sweep, then, &mut work.outcome);
            work
        };
        let inner = Arc::clone(self);
        self.threads.run(move || inner.sweep(work));
    }

    /// The leases alive by the own clock. There is no use of the others any more. Without any the
    /// session begins anew: the server's new life may promise less than is left of the old promise.
    fn reclaim(self: &Arc<Self>) -> Vec<ReclaimLease> {
        let mut state = self.cache.lock();
        let now = self.cache.look(&mut state);
        if state.leases.is_empty() || state.session.witness(now).is_none() {
            state.expire(now);
            self.cache.call_keeper();
        }
        state.leases.reclaim_list().collect()
    }

    /// Drops what was cached under leases that could not be reclaimed, then says so.
    pub(super) fn lost(
        self: &Arc<Self>,
        leases: &[Handle],
        opens: &[OpenId],
        done: oneshot::Sender<()>,
    ) {
        let mut work = Work::default();
        {
            let mut state = self.cache.lock();
            state.tables.opens_lost(opens);
            for object in leases {
                state.lost(object, &mut work.dropped);
            }
            let files: Vec<(Handle, Span)> =
                leases.iter().map(|object| (*object, Span::ALL)).collect();
            let then = Then::Wake(done);
            let pages = &mut state.pages;
            pages.drop_pages(&files, DropKind::Sweep, then, &mut work.outcome);
        }
        let inner = Arc::clone(self);
        self.threads.run(move || inner.sweep(work));
    }

    /// Drops what a loss of leases has left in the kernel. May block (where names go singly).
    pub(super) fn sweep(self: &Arc<Self>, work: Work) {
        let Work { dropped, outcome } = work;
        for open in &dropped.closes {
            self.server.close(*open);
        }
        let (singly, at_once) = self.split(dropped);
        let done = self.drop_at_once(&at_once) & self.drop_names(&singly);
        if !done {
            tracing::error!("the kernel keeps what is no longer leased, until its timeouts end");
        }
        self.perform(outcome);
    }
}
