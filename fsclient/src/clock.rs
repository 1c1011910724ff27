//! The clocks, as the core asks for them.

use leasefs_client::Now;
use leasefs_host::clock::{boot_time, monotonic_time};

pub(crate) use leasefs_host::clock::{boot_time as boot, monotonic_time as monotonic};

/// Both, in the order the core asks for.
pub(crate) fn now() -> Now {
    Now {
        boot: boot_time(),
        monotonic: monotonic_time(),
    }
}
