//! The running half of the leasefs server: sessions over QUIC, what their requests mean, and the
//! leases behind them.
//!
//! Data runs one way: [`wire`] reads a request and hands it to [`service`], which knows what it
//! touches ([`service::access`]), has it admitted by [`runtime`] (the lease core with time and
//! wakers) and calls the store. What a server keeps on disk stands behind [`records::Records`],
//! which is [`state`]'s. [`admin`] puts them together and is what `main` runs.
//!
//! To run one: [`server::Server::start`], then [`wire::serve`] with what it returned, an endpoint
//! and a future that ends it. Meanwhile [`server::Server::status`] and [`server::Server::revoke`]
//! serve those who administer it.

pub mod account;
pub mod admin;
pub mod border;
mod caught;
pub mod counters;
mod faults;
pub mod intent;
pub mod interrupted;
mod latch;
mod metrics;
pub mod records;
mod recovery;
mod report;
mod resent;
pub mod runtime;
pub mod seqs;
pub mod server;
pub mod service;
pub mod session;
pub mod settings;
pub mod state;
pub mod status;
mod sync;
mod traffic;
pub mod wire;
