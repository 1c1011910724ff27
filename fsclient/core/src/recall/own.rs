//! Changes of this mount: what they cover leaves the caches before they are sent.

use super::{Engine, EngineInner};
use crate::api::Noticed;
use crate::cache::{Asked, ChangeScope, ChangedPages, PageChange};
use crate::inode::{Inodes, Outcome, PagesOf, Then};
use crate::session::{Answered, Changed, Settlement};
use futures_channel::oneshot;
use leasefs_lease::client::{DropId, DropKind, Span, WriteId};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{Handle, Refusal, Reply, Stamp};
use std::sync::Arc;

/// What is open at the page gate for a change.
#[derive(Clone, Copy, Debug)]
enum AtGate {
    Nothing,
    /// Dropped before the change was sent.
    Dropped(DropId),
    WriteBack(Handle, WriteId),
}

/// A change that may be sent: what it covers has left the caches, and nothing of it comes in before
/// [`OwnChange::finish`].
///
/// Dropped without being finished it counts as a change of which nobody knows whether it happened.
pub struct OwnChange {
    inner: Arc<EngineInner>,
    scope: ChangeScope,
    asked: Asked,
    gate: AtGate,
    ended: bool,
}

impl std::fmt::Debug for OwnChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnChange")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Drops what a change covers. Names and attributes go at once; for pages it may have to wait
    /// for READs in flight.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`] if pages could not be dropped in time; [`Refusal::Internal`] if the
    /// kernel refuses. The change must not be sent.
    pub async fn own_change(&self, scope: ChangeScope) -> Result<OwnChange, Refusal> {
        let (mut change, dropped) = self.0.begin_change(scope).await;
        if !dropped {
            change.never_sent();
            return Err(Refusal::Internal);
        }
        match change.open_gate().await {
            Ok(()) => Ok(change),
            Err(refusal) => {
                change.never_sent();
                Err(refusal)
            }
        }
    }
}

impl EngineInner {
    /// Marks and drops what never blocks; false if the kernel may still hold something.
    async fn begin_change(self: &Arc<Self>, scope: ChangeScope) -> (OwnChange, bool) {
        let dropping = self.dropping().await;
        let (mut dropped, asked) = {
            let mut state = self.cache.state();
            let dropped = state.begin_change(&scope);
            let inodes = &state.inodes;
            if dropped
                .names
                .iter()
                .any(|told| inodes.denotes_directory(told))
            {
                *self.changed_directory.borrow_mut() = Some(self.cx.monotonic());
            }
            (dropped, state.leases.ask())
        };
        let change = OwnChange {
            inner: Arc::clone(self),
            scope,
            asked,
            gate: AtGate::Nothing,
            ended: false,
        };
        dropped.opens.clear();
        self.are_restless(dropped.told_names());
        // Unable: something is mounted inside our mount, and came after these names were told. The change
        // holds their directory's lock, so they can't be dropped singly either: they end with their
        // timeout.
        if dropped.is_empty() {
            return (change, true);
        }
        // What has left the tables leaves the kernel, whether its caller waits for it or not.
        let (inner, (tell, told)) = (Arc::clone(self), oneshot::channel());
        self.cx.spawn(async move {
            let noticed = inner.drop_at_once(&dropped).await;
            drop(dropping);
            if noticed == Noticed::Unable {
                inner.pays(&dropped);
            }
            let ends = !inner.cache.names_in_kernel();
            let done = noticed != Noticed::Failed
                && inner.unseen_has_left(&dropped.attrs).await
                && (ends || inner.owed_has_left(&dropped.owing).await);
            // Its caller may have left.
            let _ = tell.send(done);
        });
        (change, told.await.unwrap_or(false))
    }
}

impl OwnChange {
    /// The objects whose covered parts have been dropped, as the server is told.
    pub fn dropped(&self) -> Vec<Handle> {
        self.scope.objects()
    }

    /// To be shown to [`crate::cache::Cache::learn`] with the change's reply, after
    /// [`OwnChange::finish`].
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// The change has been answered, or given up. To be awaited before its caller is answered. What
    /// the reply says of the objects it touched is cached where it may be.
    ///
    /// A change that may still happen is followed in the background: until it is settled nothing of
    /// what it covers is cached.
    pub async fn finish<A>(mut self, changed: &mut Changed<A>) {
        if let Some(unsettled) = changed.unsettled.take() {
            self.kernel_hears_nothing();
            let cx = self.inner.cx.clone();
            cx.spawn(async move { self.settled(unsettled.await).await });
            return;
        }
        match &changed.result {
            Ok(answer) => {
                if answer.reply.result.is_err() {
                    self.may_have_happened(answer);
                }
                self.answered(&answer.reply).await;
            }
            Err(Refusal::Cancelled | Refusal::TimedOut) => self.never_sent(),
            Err(_) => self.end(None),
        }
    }

    /// The change will not be sent.
    pub fn never_sent(self) {
        self.end(Some(Stamp::default()));
    }

    /// The kernel cuts the pages off that a truncation cuts off when it is answered. It won't be.
    fn kernel_hears_nothing(&mut self) {
        if let (AtGate::Nothing, Some(file)) = (self.gate, self.scope.content()) {
            let pages = [PagesOf::all(file)];
            self.gate = self.inner.with(|state, out| {
                let inodes = &mut state.inodes;
                AtGate::Dropped(inodes.drop_pages(&pages, DropKind::Change, Then::Nothing, out))
            });
        }
    }

    async fn settled(self, settlement: Settlement) {
        match settlement {
            Settlement::Answered(answer) => {
                self.may_have_happened(&answer);
                self.answered(&answer.reply).await;
            }
            Settlement::NeverHappens => self.never_sent(),
            Settlement::SessionLost => self.end(None),
        }
    }

    /// The change was answered, and its caller isn't told that it is done: what was written before it must not come back over it
    /// after a crash of the server's host.
    fn may_have_happened<A>(&self, answer: &Answered<A>) {
        if leaves_open(&answer.reply) {
            let (objects, content) = (self.scope.objects(), self.scope.content());
            let mut state = self.inner.cache.state();
            state
                .inodes
                .unstable_changes(&objects, content, answer.host);
        }
    }

    async fn answered<A>(mut self, reply: &Reply<A>) {
        self.close_gate().await;
        // A refusal without a stamp came before the change had its turn: nothing has changed, unless
        // nobody knows.
        let known = reply.stamp != Stamp::default() || !leaves_open(reply);
        let stamp = known.then_some(reply.stamp);
        let mut outcome = Outcome::default();
        {
            let mut state = self.inner.cache.state();
            state.end_change(&self.scope, stamp);
            state.granted(self.asked, &reply.grants);
            let now = self.inner.cache.now();
            state.inodes.told_room(now, reply.room);
            for touched in &reply.touched {
                state.put_attr(self.asked, &reply.grants, &touched.object, &touched.attr);
            }
            self.ended = true;
            self.gate.close(&mut state.inodes, &mut outcome);
            if let (Err(_), AtGate::WriteBack(file, _)) = (&reply.result, self.gate) {
                // The kernel keeps as clean what the server doesn't have.
                state.inodes.sweep_pages(file, &mut outcome);
            }
        }
        self.inner.perform(outcome);
    }

    fn end(mut self, stamp: Option<Stamp>) {
        self.end_now(stamp);
    }

    fn end_now(&mut self, stamp: Option<Stamp>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let gate = self.gate;
        self.inner.with(|state, out| {
            state.end_change(&self.scope, stamp);
            if let AtGate::WriteBack(file, _) = gate {
                // The kernel keeps as clean what the server doesn't have.
                state.inodes.sweep_pages(file, out);
            }
            gate.close(&mut state.inodes, out);
        });
    }

    async fn open_gate(&mut self) -> Result<(), Refusal> {
        let keeps = planted::is(Bug::KeepOwnPages);
        let pages = self.scope.changed_pages().filter(|_| !keeps);
        let Some(ChangedPages { file, change }) = pages else {
            return Ok(());
        };
        let inner = Arc::clone(&self.inner);
        let (tell, told) = oneshot::channel();
        let (gate, waits) = inner.with(|state, out| {
            let exclusive = state.leases.is_exclusive(&file);
            let unclean = state.inodes.is_unclean(&file);
            let inodes = &mut state.inodes;
            // Dirty ones among them are written back before: a page has the state before the change in
            // all of its bytes but those that were stored.
            let dropped = |inodes: &mut Inodes, span, out: &mut Outcome| {
                let (pages, then) = ([PagesOf { file, span }], Then::Wake(tell));
                AtGate::Dropped(inodes.drop_pages(&pages, DropKind::Change, then, out))
            };
            let gate = match change {
                PageChange::WriteBack(span) => {
                    AtGate::WriteBack(file, inodes.write_arrives(file, span, out))
                }
                // There may be dirty pages. They are held exclusively, until a recall is approved;
                // or they are unclean, and nobody is told of the file before they are gone.
                PageChange::Truncate { stores } if stores || exclusive || unclean => {
                    AtGate::Nothing
                }
                PageChange::Drop(span) => dropped(inodes, span, out),
                PageChange::Truncate { .. } => dropped(inodes, Span::ALL, out),
            };
            let drops = matches!(gate, AtGate::Dropped(_));
            (gate, drops && !inodes.sweep_unseen(file, out))
        });
        self.gate = gate;
        match waits {
            true => self.inner.wait(told).await,
            false => Ok(()),
        }
    }

    /// Waits until no page older than the change is left in its range.
    pub(super) async fn close_gate(&mut self) {
        let AtGate::Dropped(id) = self.gate else {
            return;
        };
        let told = self.inner.with(|state, _| state.inodes.rearm(id));
        let Some(told) = told else { return };
        if self.inner.wait(told).await.is_ok() {
            return;
        }
        tracing::warn!("pages older than an own change could not be dropped in time");
        if let Some(file) = self.scope.content() {
            self.inner
                .with(|state, out| state.inodes.sweep_pages(file, out));
        }
    }
}

/// Whether a change with this answer has happened, or may have.
fn leaves_open<A>(reply: &Reply<A>) -> bool {
    matches!(reply.result, Ok(_) | Err(Refusal::Lost | Refusal::Internal))
}

impl AtGate {
    fn close(self, inodes: &mut Inodes, out: &mut Outcome) {
        match self {
            Self::Nothing => {}
            Self::Dropped(id) => inodes.end_drop(id, out),
            Self::WriteBack(file, id) => {
                inodes.with_pages(file, out, |gate| gate.write_ended(id));
            }
        }
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        self.end_now(None);
    }
}
