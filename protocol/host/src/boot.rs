//! Which life of the host this is.

use leasefs_protocol::BootId;
use std::io;

/// Names, in debug builds, the boot id instead of the kernel: a test that takes from the storage
/// what it hadn't made durable says so with another id than before.
const TEST_BOOT_ID: &str = "LEASEFS_TEST_BOOT_ID";
/// Where the kernel tells it.
pub const PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The host's boot id.
///
/// # Errors
/// If the kernel doesn't tell it.
pub fn boot_id() -> io::Result<BootId> {
    let text = match of_test() {
        Some(text) => text,
        None => std::fs::read_to_string(PATH)?,
    };
    parse(&text).ok_or_else(|| {
        let why = format!("expected a boot id, found {text:?}");
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

fn of_test() -> Option<String> {
    if !cfg!(debug_assertions) {
        return None;
    }
    std::env::var(TEST_BOOT_ID).ok()
}

fn parse(text: &str) -> Option<BootId> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_32_digits_however_they_are_grouped() {
        let id = parse("00000000-0000-0000-0000-000000000102\n").expect("a boot id");
        assert_eq!(id, BootId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]));
        assert_eq!(parse("0102"), None);
        assert!(boot_id().is_ok());
    }
}
