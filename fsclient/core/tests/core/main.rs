//! A client whose kernel, server and clocks are the test's: what happens goes in, what it wants done comes
//! out. Nothing here waits.

mod ahead;
mod along;
mod anything;
mod calls;
mod connections;
mod hostile;
mod interface;
mod kernel;
mod listings;
mod locks;
mod lookups;
mod opens;
mod reopen;
mod requests;
mod said;
mod sets;
mod short;
mod small;
mod syncs;
mod walks;
mod window;
mod world;
mod xattrs;
