//! Whether a log of the state directory can be written.

use crate::sync::lock;
use std::io;
use std::sync::Mutex;

/// Why it couldn't be written when that was tried last, if it couldn't. Told without waiting for who writes, whose disk may hang.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<Option<String>>);

impl Trouble {
    /// Takes note of how it went.
    pub fn told<T>(&self, result: io::Result<T>) -> io::Result<T> {
        *lock(&self.0) = result.as_ref().err().map(ToString::to_string);
        result
    }

    /// What has gone wrong, if nothing has gone well since.
    pub fn last(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_until_something_is_written_again() {
        let trouble = Trouble::default();
        assert_eq!(trouble.last(), None);
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(trouble.told::<()>(Err(full)).is_err());
        assert!(trouble.last().is_some_and(|why| why.contains("No space")));
        assert!(trouble.told(Ok(())).is_ok());
        assert_eq!(trouble.last(), None);
    }
}
