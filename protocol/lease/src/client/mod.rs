//! The client's half of the lease protocol: what a session holds, until when, and which of the
//! kernel's pages are under way.
//!
//! - [`SessionClock`]: when the leases end by the client's own clock; [`Live`] proves that they
//!   haven't.
//! - [`Leases`]: what is held of each object, and whether what a reply says may be cached.
//! - [`Buffer`]: what was written to one file under a Write lease and not yet brought to the server; it goes in
//!   [`Batch`]es.
//! - [`PageGate`]: one per file; brings the READs of the kernel and the dropping of its pages into
//!   an order that neither deadlocks nor leaves a page behind.

mod batch;
mod buffer;
mod clock;
mod extents;
mod gate;
mod leases;
mod object;
mod spans;

pub use batch::Batch;
pub use buffer::Buffer;
pub use clock::{Live, Renewal, SessionClock};
pub use extents::{Extents, Known, Run};
pub use gate::{Arrival, DropId, DropKind, PageGate, ReadId, ReadReply, Step, Verdict, WriteId};
pub use leases::{Asked, ChangeOf, Leases};
pub use object::Tenure;
pub use spans::{Span, Spans};
