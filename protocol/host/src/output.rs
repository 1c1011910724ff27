//! What commands tell on standard output.

use std::io::{self, ErrorKind, Write};

/// Writes to standard output. A reader who has seen enough (`| head`) is no failure.
///
/// # Errors
/// The kernel's: a full disk, for one.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
