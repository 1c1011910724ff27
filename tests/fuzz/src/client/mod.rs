//! The client against a hostile server: a mount without a kernel, whose every request is answered
//! with whatever a fuzzer likes, beside recalls and control messages nobody has asked for.
//!
//! Nothing panics, memory stays bounded, and every call ends.

mod caller;
mod mount;
mod server;

use crate::forge::Choices;
use crate::memory;
use caller::Caller;
use mount::Mount;
use server::Hostile;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most calls of one input.
const CALLS: usize = 48;
/// What a mount may take however its server answers: the cache's budget is 1 MiB, and so many
/// answers of 1 MiB are under way.
const MEMORY: usize = 192 << 20;

/// What both sides take their choices from.
type Shared = Arc<Mutex<Choices>>;

/// All of it is what the server says and the mount's users want, by turns.
pub fn run(input: &[u8]) {
    let choices: Shared = Arc::new(Mutex::new(Choices::new(input)));
    let ((), peak) = memory::peak(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(scene(choices));
        runtime.shutdown_timeout(Duration::from_secs(5));
    });
    assert!(peak <= MEMORY, "a mount took {peak} bytes");
}

async fn scene(choices: Shared) {
    let hostile = Hostile::listen(Arc::clone(&choices));
    let Some(mount) = Mount::connect(&hostile).await else {
        return;
    };
    let mut caller = Caller::new(mount);
    for _ in 0..CALLS {
        if choices.lock().expect("choices").is_empty() {
            break;
        }
        hostile.say_something();
        caller.call(&choices).await;
    }
    caller.leave().await;
}
