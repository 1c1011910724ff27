//! Descriptors that write, and what they are told.

use super::Access;
use crate::opens::ServerOpen;
use crate::run::Part;
use leasefs_protocol::{Caller, Refusal};
use std::sync::{Arc, Weak};

/// What a descriptor must be told: bytes it wrote could not be brought to the server.
#[derive(Debug, Default)]
pub(crate) struct Written(Part<Option<Refusal>>);

impl Written {
    /// Bytes can't be brought to the server. The first failure counts.
    pub fn failed(&self, refusal: Refusal) {
        self.0.borrow_mut().get_or_insert(refusal);
    }

    /// Fails if bytes were lost that [`Written::check`] hasn't told of.
    ///
    /// # Errors
    /// Why they were.
    pub fn known(&self) -> Result<(), Refusal> {
        self.0.borrow().map_or(Ok(()), Err)
    }

    /// Fails, once, if bytes were lost since it was asked last.
    ///
    /// # Errors
    /// Why they were.
    pub fn check(&self) -> Result<(), Refusal> {
        self.0.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// A descriptor that writes.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    /// Its open at the server.
    pub open: Arc<ServerOpen>,
    /// What that allows.
    pub allows: Access,
    /// Whose verdict allowed it.
    pub caller: Caller,
    /// Hears what became of its bytes.
    pub written: Arc<Written>,
}

/// The descriptors that have written, as long as they are open: they hear what becomes of their bytes when they are closed or
/// write again, too. (Of mapped pages nobody knows whose they are.)
#[derive(Clone, Debug, Default)]
pub(crate) struct Hearers {
    writers: Vec<Weak<Written>>,
}

impl Hearers {
    /// The descriptor that has written alone.
    pub fn of(writer: &Writer) -> Self {
        Self {
            writers: vec![Arc::downgrade(&writer.written)],
        }
    }

    /// Counts a descriptor among them.
    pub fn add(&mut self, written: &Arc<Written>) {
        self.add_weak(&Arc::downgrade(written));
    }

    /// Counts these among them.
    pub fn add_all(&mut self, others: &Self) {
        let writers = others.writers.iter();
        writers.for_each(|written| self.add_weak(written));
    }

    fn add_weak(&mut self, written: &Weak<Written>) {
        let known = self.writers.iter().any(|known| known.ptr_eq(written));
        if !known && written.strong_count() > 0 {
            self.writers.push(Weak::clone(written));
        }
    }

    /// Bytes can't be brought to the server: those who wrote them are told.
    pub fn failed(&self, refusal: Refusal) {
        let open = self.writers.iter().filter_map(Weak::upgrade);
        open.for_each(|written| written.failed(refusal));
    }

    /// Forgets those that are closed.
    pub fn forget_closed(&mut self) {
        self.writers.retain(|written| written.strong_count() > 0);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.writers.len()
    }
}
