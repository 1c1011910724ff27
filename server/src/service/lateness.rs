//! Bytes that were kept back under a lease, and may come too late.

use super::access::Targets;
use super::change::Change;
use leasefs_protocol::Request;
use leasefs_protocol::request::{WriteAt, WriteKind};

/// How bytes come that were kept back under a lease.
pub(super) enum Lateness {
    InTime,
    /// The lease has ended, and they may be older than what others have written since.
    TooLate,
    /// So it is, but the file holds them: the server's process crashed before it could answer. Others
    /// may have written since, so nothing is said of what the file is, and no lease is granted.
    Repeated(u64),
}

impl Change<'_> {
    pub(super) fn flushes(&self) -> bool {
        let Request::Write { kind, .. } = &self.job.request else {
            return false;
        };
        matches!(kind, WriteKind::Flush { .. })
    }

    /// Of a mapped page it isn't known what it was made from.
    pub(super) fn lateness(&self, targets: &Targets) -> Lateness {
        let (Request::Write { kind, at, .. }, Some(object)) = (&self.job.request, &targets.opened)
        else {
            return Lateness::InTime;
        };
        let (server, session) = (&self.call.server, self.call.session.id);
        let (in_time, repeated) = match kind {
            WriteKind::Through { .. } => (true, false),
            // Read in while a recall was open, it was stored into under what is being recalled.
            WriteKind::Page => (server.leases.holds_data(session, object), true),
            WriteKind::Flush { base, repeated, .. } => {
                let found = || server.store.getattr(object).map(|attr| attr.version());
                let holds = server.leases.holds_write(session, object);
                let repeated = *repeated || self.job.resent;
                (holds || found() == Ok(*base), repeated)
            }
        };
        match at {
            _ if in_time => Lateness::InTime,
            WriteAt::Offset(offset) if repeated && self.is_there(*offset) => {
                Lateness::Repeated(*offset)
            }
            _ => Lateness::TooLate,
        }
    }

    /// Whether the file holds the bytes to be written already.
    fn is_there(&self, offset: u64) -> bool {
        let open = self.inputs.open.as_deref();
        open.is_some_and(|open| {
            self.call
                .server
                .store
                .holds(open, offset, &self.job.payload)
        })
    }
}
