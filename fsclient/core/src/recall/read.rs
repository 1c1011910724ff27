//! READs that leave pages in the kernel.

use super::{Engine, EngineInner, Span, Verdict};
use crate::cache::{Asked, Range};
use crate::inode::{Arrived, Outcome};
use bytes::Bytes;
use futures_channel::oneshot;
use leasefs_lease::client::{PageGate, ReadId, ReadReply};
use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::{Handle, Mode, Parts, Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before the server is asked a further time.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(100),
];

/// A READ that may be sent to the server. Its drop ends it, if it wasn't answered.
pub struct PageRead {
    inner: Arc<EngineInner>,
    object: Handle,
    id: ReadId,
    asked: Asked,
    mode: Mode,
    /// Tells when it may be asked again.
    parked: Option<oneshot::Receiver<()>>,
    tries: usize,
}

impl std::fmt::Debug for PageRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageRead")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// A READ of the kernel that fills pages (not one of a direct descriptor, which has a lock
    /// owner). Waits while it must not be sent: behind a recall's pass, or an own change of the
    /// range. `mode` is `Write` where shared mappings may store into the pages. Dropping the future
    /// abandons the READ, which must then be answered with an error.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub async fn page_read(
        &self,
        object: Handle,
        offset: u64,
        len: u32,
        mode: Mode,
    ) -> Result<PageRead, Refusal> {
        let inner = Arc::clone(&self.0);
        let span = Span::new(offset, u64::from(len.max(1)));
        let mut outcome = Outcome::default();
        let (id, told, asked) = {
            let mut state = inner.cache.state();
            let Arrived { id, told } = state.inodes.read_arrives(object, span, &mut outcome);
            (id, told, state.leases.ask())
        };
        inner.perform(outcome);
        let mut read = PageRead {
            inner,
            object,
            id,
            asked,
            mode,
            tries: 0,
            parked: None,
        };
        if let Some(told) = told {
            read.inner.wait(told).await?;
        }
        read.begin();
        Ok(read)
    }
}

impl PageRead {
    /// What to do with the server's reply, which isn't a refusal. To be called right before the
    /// kernel is answered. After [`Verdict::AskAgain`], [`PageRead::again`] and then another
    /// request.
    pub fn judge<A>(&mut self, reply: &Reply<A>) -> Verdict {
        let covers = |mode: Mode, parts: Parts| parts.contains(Parts::DATA) && mode >= self.mode;
        let mut grants = reply.grants.iter();
        let leased = grants.any(|g| g.object == self.object && covers(g.mode, g.parts));
        let (object, id, asked, mode) = (self.object, self.id, self.asked, self.mode);
        let parked = &mut self.parked;
        let cache = &self.inner.cache;
        self.inner.with(|state, out| {
            state.granted(asked, &reply.grants);
            let now = cache.look(state);
            // A lease counts from when nothing was lost since the request was made, and while it
            // lasts. No recall of the file is approved while the READ is in flight.
            let stands = asked == state.leases.ask() && state.session.witness(now).is_some()
                || planted::is(Bug::FillUnderEnded);
            let reply = match (stands, leased) {
                (true, true) => ReadReply::Leased,
                (true, false) => ReadReply::Bare,
                (false, _) => ReadReply::Void,
            };
            if reply != ReadReply::Leased && mode == Mode::Write {
                *parked = state.inodes.read_parks(object, id, out);
                if parked.is_some() {
                    return Verdict::AskAgain;
                }
            }
            let verdict = state
                .inodes
                .with_pages(object, out, |gate| gate.read_answered(id, reply));
            verdict.unwrap_or(Verdict::AskAgain)
        })
    }

    /// Answers the READ with what is here, under the lease that the session holds. To be called right before the kernel is
    /// answered.
    pub fn answered_here(&mut self, range: Range) -> Option<Bytes> {
        let (object, id, cache) = (self.object, self.id, &self.inner.cache);
        if self.mode == Mode::Write {
            return None;
        }
        self.inner.with(|state, out| {
            let now = cache.look(state);
            let data = state.read_pages(now, &object, range)?;
            let answered = |gate: &mut PageGate| gate.read_answered(id, ReadReply::Leased);
            let verdict = state.inodes.with_pages(object, out, answered);
            (verdict == Some(Verdict::Deliver)).then_some(data)
        })
    }

    /// The last open for writing has gone: a Read lease suffices for the pages.
    pub fn stores_no_more(&mut self) {
        self.mode = Mode::Read;
    }

    /// To be awaited before the server is asked again.
    ///
    /// # Errors
    /// [`Refusal::TimedOut`].
    pub async fn again(&mut self) -> Result<(), Refusal> {
        if let Some(told) = self.parked.take() {
            self.inner.wait(told).await?;
        } else {
            let pause = PAUSES.get(self.tries).or(PAUSES.last()).copied();
            self.tries += 1;
            self.inner.cx.sleep(pause.unwrap_or_default()).await;
        }
        self.begin();
        Ok(())
    }

    /// A request is about to be sent. (It doesn't wait for pages without a lease to be dropped:
    /// that drop may wait for this very READ. Readers have waited before, for their GETATTR.)
    fn begin(&mut self) {
        let (object, id) = (self.object, self.id);
        self.asked = self.inner.with(|state, out| {
            state
                .inodes
                .with_pages(object, out, |gate| gate.read_sent_again(id));
            state.leases.ask()
        });
    }
}

impl Drop for PageRead {
    fn drop(&mut self) {
        let (object, id) = (self.object, self.id);
        self.inner.with(|state, out| {
            state.inodes.read_ended(object, id, out);
        });
    }
}
