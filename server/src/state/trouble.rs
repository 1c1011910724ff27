//! Whether the state directory can be written.

use crate::sync::lock;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What was to be written last, if it couldn't be.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Spares what goes well the lock.
    is_there: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Trouble {
    /// Takes note of how it went.
    pub fn told<T>(&self, result: io::Result<T>) -> io::Result<T> {
        match &result {
            Ok(_) if !self.is_there.load(Ordering::Relaxed) => {}
            Ok(_) => self.is(None),
            Err(error) => self.is(Some(error.to_string())),
        }
        result
    }

    /// For what need not be durable: a failure costs a longer grace, or an answer.
    pub fn noted(&self, what: &'static str, result: io::Result<()>) {
        if let Err(error) = self.told(result) {
            tracing::warn!(%error, what, "the state directory can't be written");
        }
    }

    pub fn last(&self) -> Option<String> {
        lock(&self.why).clone()
    }

    fn is(&self, why: Option<String>) {
        let mut last = lock(&self.why);
        self.is_there.store(why.is_some(), Ordering::Relaxed);
        *last = why;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_until_something_is_written_again() {
        let trouble = Trouble::default();
        assert_eq!(trouble.last(), None);
        let full = || Err(io::Error::from_raw_os_error(libc::ENOSPC));
        trouble.noted("an answer", full());
        assert!(trouble.last().is_some_and(|why| why.contains("No space")));
        assert!(trouble.told::<()>(full()).is_err());
        trouble.noted("an answer", Ok(()));
        assert_eq!(trouble.last(), None);
    }
}
