//! The client against a hostile server: a mount's core without a kernel, whose every request is answered
//! with whatever a fuzzer likes, beside recalls and control messages nobody has asked for. Time passes as
//! it is told, so an input is a whole run, the same each time.
//!
//! Nothing panics, memory stays bounded, and every call ends.

mod caller;
mod mount;
mod server;

use crate::forge::Choices;
use crate::memory;
use caller::Caller;
use mount::Mount;

/// Most calls of one input.
const CALLS: usize = 48;
/// What a mount may take however its server answers: the cache's budget is 1 MiB, and so many
/// answers of 1 MiB are under way.
const MEMORY: usize = 192 << 20;

/// All of it is what the server says and the mount's users want, by turns.
pub fn run(input: &[u8]) {
    let ((), peak) = memory::peak(|| scene(Choices::new(input)));
    assert!(peak <= MEMORY, "a mount took {peak} bytes");
}

fn scene(choices: Choices) {
    let Some(mount) = Mount::connect(choices) else {
        return;
    };
    let mut caller = Caller::new(mount);
    for _ in 0..CALLS {
        if caller.is_out_of_ideas() {
            break;
        }
        caller.call();
    }
    caller.leave();
}
