//! `fsclient forget`.

use super::{StateArg, show};
use crate::daemon::StateDir;
use clap::Args;
use leasefs_protocol::ticket::ServerAddr;

#[derive(Debug, Args)]
pub(super) struct ForgetArgs {
    /// The server: it is its key that is forgotten, by whatever names it is known
    #[arg(value_name = "HOST[:PORT]", value_parser = super::parse_server)]
    server: ServerAddr,
    #[command(flatten)]
    state: StateArg,
}

pub(super) fn run(args: &ForgetArgs) -> Result<(), String> {
    let state = StateDir::find(args.state.state.as_deref())?;
    let names = state.pins().forget(&args.server)?.join(", ");
    show(&format!(
        "forgotten: {names}; to mount it again takes a ticket (`fsserver ticket` on the server prints one)"
    ))
}
