//! Random bytes.

use ring::rand::{SecureRandom, SystemRandom};
use std::io;

/// Bytes that nobody can guess.
///
/// # Errors
/// If the system has no randomness.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(bytes)
}
