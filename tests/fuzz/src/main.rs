//! libFuzzer on one of the targets, which `LEASEFS_FUZZ_TARGET` names; `scripts/fuzz` runs it.

#![no_main]

use leasefs_fuzz::Target;
use std::sync::OnceLock;

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var("LEASEFS_FUZZ_TARGET").unwrap_or_default();
    leasefs_fuzz::target(&name).unwrap_or_else(|| {
        eprintln!("LEASEFS_FUZZ_TARGET names no target: {name:?}");
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| (TARGET.get_or_init(chosen).run)(input));
