//! One session with its server: every request goes through [`Rpc`].
//!
//! The session survives lost connections, address changes and server restarts. Requests that
//! change nothing are sent again freely; changes are numbered, sent again under their number and
//! run once. A caller that gives up leaves at once; what became of its change is told later
//! ([`Unsettled`]).
//!
//! What the server says unasked goes to the recall engine as [`Event`]s, in order.
//!
//! ```text
//! Rpc::connect(Config) -> Result<(Rpc, Welcome), ConnectError>
//! rpc.call(caller: Caller, Request, payload: Bytes, CallOptions) -> Result<Answer, Refusal>    async
//! rpc.change(Caller, Request, payload, touches: &[Handle], dropped: Vec<Handle>, CallOptions) -> Changed   async
//! rpc.close(OpenId)                   forgets an open; the server is told in the background
//! rpc.approve(Vec<Approval>)          sent at once, dropped without connection (recalls come again)
//! rpc.release(Vec<Release>)           likewise
//! rpc.status() -> Status              for `fsclient status`
//! rpc.goodbye() async                 ends the session
//! ```

mod border;
mod client;
mod clock;
mod contact;
mod lanes;
mod link;
mod opens;
mod reclaim;
mod request;
mod server_time;
mod serving;
mod session;
mod shared;
mod status;
mod table;
mod types;

pub use client::Rpc;
pub use clock::now;
pub use status::{Status, Waiting};
pub use types::{
    Abandon, Answer, CallOptions, Changed, Config, ConnectError, Event, Renewals, Settlement,
    Timeout, Unsettled,
};

#[cfg(test)]
pub(crate) mod tests;
