//! The process behind a mount: how it starts, what it is asked, how it ends.

mod assemble;
pub mod control;
mod ending;
mod heap;
mod job;
mod life;
mod listen;
mod log;
pub mod mounts;
mod pins;
mod ready;
mod sleeping;
mod state;
mod status;
mod survey;
mod waking;

pub use job::Job;
pub use life::{run_detached, run_foreground};
pub use pins::Pinned;
pub use state::StateDir;
pub use status::{Dirty, Kept, Lock, MemoryStatus, MountStatus, StatusDocument, Unanswered};
pub use survey::{Survey, survey};
