//! Pages of shared mappings on their way to the server.
//!
//! The kernel takes such a page for clean once its WRITE is answered, with an error too, and who has unmapped
//! it hears of none. So what can't be brought in is kept in the recovery folder, whatever the reason.

use super::{From, Writeback, WritebackInner, undelivered};
use crate::api::{Undelivered, WhyNot};
use leasefs_lease::client::Run;
use leasefs_protocol::{Caller, Handle, Refusal};
use std::path::PathBuf;
use std::sync::Arc;

/// Adjacent bytes of mapped pages.
#[derive(Clone, Debug)]
pub(crate) struct MappedPages {
    /// Of this file.
    pub object: Handle,
    /// Where it was found last, for people.
    pub path: Option<PathBuf>,
    /// Who has opened the file for it.
    pub writer: Caller,
    /// What the kernel believes to be the file's size.
    pub size: u64,
    /// The bytes.
    pub run: Run,
}

impl MappedPages {
    fn undelivered(self, reason: WhyNot) -> Undelivered {
        let size = self.size.max(self.run.end());
        let from = From(self.path, Some(self.writer));
        undelivered(self.object, from, size, vec![self.run], reason)
    }
}

/// Pages that neither the server nor the recovery folder has yet.
pub(crate) struct PagesUnderWay {
    inner: Arc<WritebackInner>,
    id: u64,
}

impl Drop for PagesUnderWay {
    fn drop(&mut self) {
        self.inner.pages.borrow_mut().remove(&self.id);
    }
}

impl Writeback {
    /// Pages are sent. While the guard lives they are among what the mount has to keep if it ends.
    pub fn pages_leave(&self, pages: MappedPages) -> PagesUnderWay {
        let id = self.0.cx.number();
        self.0.pages.borrow_mut().insert(id, pages);
        PagesUnderWay {
            inner: Arc::clone(&self.0),
            id,
        }
    }

    /// Keeps pages that could not be brought in.
    pub async fn keep_pages(&self, pages: MappedPages, refusal: Refusal) {
        let reason = match refusal {
            Refusal::Changed => WhyNot::ChangedElsewhere,
            Refusal::TimedOut | Refusal::Cancelled => WhyNot::Unreachable,
            refusal => WhyNot::Refused(refusal),
        };
        self.0.outside.keep(pages.undelivered(reason)).await;
    }

    pub(super) fn take_pages(&self) -> impl Iterator<Item = Undelivered> + use<> {
        let pages = std::mem::take(&mut *self.0.pages.borrow_mut());
        let kept = |pages: MappedPages| pages.undelivered(WhyNot::Unreachable);
        pages.into_values().map(kept)
    }
}
