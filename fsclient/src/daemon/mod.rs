//! The process behind a mount: how it starts, what it is asked, how it ends.

mod assemble;
pub mod control;
mod ending;
mod explaining;
mod heap;
mod job;
mod life;
mod listen;
mod log;
mod metrics;
pub mod mounts;
mod pins;
mod ready;
mod signals;
mod sleeping;
mod state;
mod status;
mod survey;
mod waking;
mod why;

pub use job::Job;
pub use life::{Failure, run_detached, run_foreground};
pub use pins::Pinned;
pub use state::StateDir;
pub use status::{Dirty, Kept, Lock, MemoryStatus, MountStatus, StatusDocument, Unanswered};
pub use survey::{Survey, survey};
pub use why::{Cost, Here, Other, There, Why};
