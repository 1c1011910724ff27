//! Metrics for Prometheus: a page in the OpenMetrics text format, and where it is asked for by HTTP.
//!
//! Nothing here knows what is counted. Labels are kinds that stand in the program, so that there are no
//! more series than these: never a path, or a name that a peer has chosen.

mod page;
mod place;
mod serve;

pub use page::Page;
pub use place::Place;
pub use serve::{Endpoint, Serving};
