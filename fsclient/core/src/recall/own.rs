//! Changes of this mount: what they cover leaves the caches before they are sent.

use super::{Engine, Inner};
use crate::api::Noticed;
use crate::cache::{Asked, Outcome, Pages, State, Then};
use crate::session::{Changed, Settlement};
use futures_channel::oneshot;
use leasefs_lease::client::{ChangeOf, DropId, DropKind, Span, WriteId};
use leasefs_protocol::{Handle, Parts, RawName, Refusal, Reply, Stamp};
use std::sync::Arc;

/// What a change does to the pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageChange {
    /// Changes these bytes (an append: all of them).
    Drop(Span),
    /// Changes the size through SETATTR: until the answer the kernel holds back what it has to
    /// write, so dropping a dirty page would wait for that answer. Then it drops pages itself.
    Truncate {
        /// Whether a shared mapping of this mount may store into the file (it has a read-write
        /// open): then what is in the kernel is held exclusively, and may be dirty.
        stores: bool,
    },
    /// Writes back mapped pages, which the kernel keeps locked until the answer.
    WriteBack(Span),
}

/// What a change covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeScope {
    changes: Vec<ChangeOf>,
    pages: Option<(Handle, PageChange)>,
}

impl ChangeScope {
    /// Parts of an object, as a whole.
    #[must_use]
    pub fn object(mut self, object: Handle, parts: Parts) -> Self {
        self.of(object).parts |= parts;
        self
    }

    /// A name of a directory, and so its attributes and listing.
    #[must_use]
    pub fn name(mut self, dir: Handle, name: RawName) -> Self {
        let change = self.of(dir);
        change.parts |= Parts::ATTRS | Parts::LISTING;
        change.names.push(name);
        self
    }

    /// Bytes of a file (one file at most), and so its attributes.
    #[must_use]
    pub fn pages(mut self, file: Handle, pages: PageChange) -> Self {
        self.pages = Some((file, pages));
        self.object(file, Parts::ATTRS)
    }

    /// Bytes of a file alone: for what stays here for now.
    pub fn only_pages(file: Handle, span: Span) -> Self {
        Self {
            changes: Vec::new(),
            pages: Some((file, PageChange::Drop(span))),
        }
    }

    /// The file whose bytes are changed.
    pub fn content(&self) -> Option<Handle> {
        self.pages.map(|(file, _)| file)
    }

    /// The files that it changes at the server, but for mapped pages: what is buffered of them must
    /// be there before (a file that has changed doesn't take it when the lease has ended), and nothing
    /// be buffered until the answer.
    pub fn settles(&self) -> Vec<Handle> {
        let mapped = |(_, pages): &(Handle, PageChange)| matches!(pages, PageChange::WriteBack(_));
        let mapped = self.pages.filter(mapped).map(|(file, _)| file);
        let whole = self.changes.iter().filter(|change| change.names.is_empty());
        whole
            .map(|c| c.object)
            .filter(|object| Some(*object) != mapped)
            .collect()
    }

    /// From now on none of the bytes is cached here, nor any of a file that changes at the server
    /// buffered.
    fn begin(&self, state: &mut State) {
        if let Some(file) = self.content() {
            state.begin_content(file);
        }
        for file in self.settles() {
            state.dirty.change_begins(file);
        }
    }

    /// Takes back [`ChangeScope::begin`].
    fn end(&self, state: &mut State) {
        if let Some(file) = self.content() {
            state.end_content(&file);
        }
        for file in self.settles() {
            state.dirty.change_ends(&file);
        }
    }

    /// The objects covered.
    pub fn objects(&self) -> Vec<Handle> {
        self.changes.iter().map(|change| change.object).collect()
    }

    fn of(&mut self, object: Handle) -> &mut ChangeOf {
        let known = self.changes.iter().position(|c| c.object == object);
        let at = known.unwrap_or_else(|| {
            self.changes.push(ChangeOf {
                object,
                parts: Parts::NONE,
                names: Vec::new(),
            });
            self.changes.len() - 1
        });
        &mut self.changes[at]
    }
}

/// What is open at the page gate for a change.
#[derive(Clone, Copy, Debug)]
enum AtGate {
    Nothing,
    /// Dropped before the change was sent.
    Before(DropId),
    /// Dropped when it is answered.
    After(DropId),
    WriteBack(Handle, WriteId),
}

/// A change that may be sent: what it covers has left the caches, and nothing of it comes in before
/// [`OwnChange::finish`].
///
/// Dropped without being finished it counts as a change of which nobody knows whether it happened.
pub struct OwnChange {
    inner: Arc<Inner>,
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

impl Inner {
    /// Marks and drops what never blocks; false if the kernel may still hold something.
    async fn begin_change(self: &Arc<Self>, scope: ChangeScope) -> (OwnChange, bool) {
        let _dropping = self.dropping().await;
        let (mut dropped, asked) = {
            let mut state = self.cache.state();
            scope.begin(&mut state);
            (state.begin_change(&scope.changes), state.leases.ask())
        };
        let change = OwnChange {
            inner: Arc::clone(self),
            scope,
            asked,
            gate: AtGate::Nothing,
            ended: false,
        };
        self.close_all(&mut dropped);
        // Unable: something is mounted inside our mount, and came after these names were told. The change
        // holds their directory's lock, so they can't be dropped singly either: they end with their
        // timeout.
        let done = self.drop_at_once(&dropped).await != Noticed::Failed;
        (change, done)
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
    pub async fn finish(self, changed: &mut Changed) {
        if let Some(unsettled) = changed.unsettled.take() {
            let cx = self.inner.cx.clone();
            cx.spawn(async move { self.settled(unsettled.await).await });
            return;
        }
        match &changed.result {
            Ok(answer) => self.answered(&answer.reply).await,
            Err(Refusal::Cancelled | Refusal::TimedOut) => self.never_sent(),
            Err(_) => self.end(None),
        }
    }

    /// The change will not be sent.
    pub fn never_sent(self) {
        self.end(Some(Stamp::default()));
    }

    async fn settled(self, settlement: Settlement) {
        match settlement {
            Settlement::Answered(answer) => self.answered(&answer.reply).await,
            Settlement::NeverHappens => self.never_sent(),
            Settlement::SessionLost => self.end(None),
        }
    }

    async fn answered(mut self, reply: &Reply) {
        self.close_gate().await;
        // A refusal without a stamp came before the change had its turn: nothing has changed, unless
        // nobody knows.
        let unknown = matches!(reply.result, Ok(_) | Err(Refusal::Lost | Refusal::Internal));
        let known = reply.stamp != Stamp::default() || !unknown;
        let stamp = known.then_some(reply.stamp);
        let mut outcome = Outcome::default();
        {
            let mut state = self.inner.cache.state();
            state.leases.end_change(&self.scope.changes, stamp);
            state.granted(self.asked, &reply.grants);
            let now = self.inner.cache.now();
            state.dirty.told_room(now, reply.room);
            for touched in &reply.touched {
                state.put_attr(self.asked, &reply.grants, &touched.object, &touched.attr);
            }
            self.scope.end(&mut state);
            self.ended = true;
            self.gate.close(&mut state.pages, &mut outcome);
            if let (Err(_), AtGate::WriteBack(file, _)) = (&reply.result, self.gate) {
                // The kernel keeps as clean what the server doesn't have.
                let file = [(file, Span::ALL)];
                let pages = &mut state.pages;
                pages.drop_pages(&file, DropKind::Sweep, Then::Nothing, &mut outcome);
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
        let (gate, changes) = (self.gate, &self.scope.changes);
        let unknown = stamp.is_none();
        self.inner.with(|state, out| {
            self.scope.end(state);
            state.leases.end_change(changes, stamp);
            let outdated = match gate {
                // The pages still there may be older than the change.
                AtGate::After(_) => unknown,
                // The kernel keeps as clean what the server doesn't have.
                AtGate::WriteBack(..) => true,
                AtGate::Nothing | AtGate::Before(_) => false,
            };
            if let (true, Some((file, _))) = (outdated, self.scope.pages) {
                let file = [(file, Span::ALL)];
                state
                    .pages
                    .drop_pages(&file, DropKind::Sweep, Then::Nothing, out);
            }
            gate.close(&mut state.pages, out);
        });
    }

    async fn open_gate(&mut self) -> Result<(), Refusal> {
        let Some((file, pages)) = self.scope.pages else {
            return Ok(());
        };
        let inner = Arc::clone(&self.inner);
        let (tell, told) = oneshot::channel();
        self.gate = inner.with(|state, out| {
            let exclusive = state.leases.is_exclusive(&file);
            let unclean = state.pages.is_unclean(&file);
            let open = &mut state.pages;
            let before = |open: &mut Pages, span, out: &mut Outcome| {
                let then = Then::Wake(tell);
                AtGate::Before(open.drop_pages(&[(file, span)], DropKind::Change, then, out))
            };
            match pages {
                PageChange::WriteBack(span) => {
                    AtGate::WriteBack(file, open.write_arrives(file, span))
                }
                // There may be dirty pages. They are held exclusively, until a recall is approved;
                // or they are unclean, and nobody is told of the file before they are gone.
                PageChange::Truncate { stores } if stores || exclusive || unclean => {
                    AtGate::Nothing
                }
                PageChange::Drop(span) if exclusive => {
                    AtGate::After(open.open_later(file, span, out))
                }
                PageChange::Drop(span) => before(open, span, out),
                PageChange::Truncate { .. } => before(open, Span::ALL, out),
            }
        });
        match self.gate {
            AtGate::Before(_) => self.inner.wait(told).await,
            AtGate::Nothing | AtGate::After(_) | AtGate::WriteBack(..) => Ok(()),
        }
    }

    /// Waits until no page older than the change is left in its range.
    pub(super) async fn close_gate(&mut self) {
        let (AtGate::Before(id) | AtGate::After(id)) = self.gate else {
            return;
        };
        let after = matches!(self.gate, AtGate::After(_));
        let told = self.inner.with(|state, out| {
            if after {
                state.pages.drop_now(id, out);
            }
            state.pages.rearm(id)
        });
        let Some(told) = told else { return };
        if self.inner.wait(told).await.is_ok() {
            return;
        }
        tracing::warn!("pages older than an own change could not be dropped in time");
        if let Some((file, _)) = self.scope.pages {
            let file = [(file, Span::ALL)];
            self.inner.with(|state, out| {
                let pages = &mut state.pages;
                pages.drop_pages(&file, DropKind::Sweep, Then::Nothing, out)
            });
        }
    }
}

impl AtGate {
    fn close(self, pages: &mut Pages, out: &mut Outcome) {
        match self {
            Self::Nothing => {}
            Self::Before(id) | Self::After(id) => pages.close(id, out),
            Self::WriteBack(file, id) => {
                pages.with(file, out, |gate| gate.write_ended(id));
            }
        }
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        self.end_now(None);
    }
}
