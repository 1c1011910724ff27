//! Commands beside a server: tickets, clients, revoking, status.

use super::args::{RevokeArgs, StateArg, StatusArgs, TicketArgs};
use super::control::{AskError, Reply, Request, ServerStatus, ask};
use super::present;
use crate::state::{Location, Policy, Registry, Role, StateDir, wall_clock};
use leasefs_protocol::ticket::{Addresses, Ticket};

const UNEXPECTED: &str = "the server answers something else: use the fsserver that it runs";

/// Asks the server, or without one does it on the state directory.
fn ask_or(
    state: &StateArg,
    request: &Request,
    alone: impl FnOnce(StateDir) -> Result<Reply, String>,
) -> Result<Reply, String> {
    let location = locate(state)?;
    match ask(&location, request) {
        Err(AskError::NotRunning(_)) if location.own().is_dir() => {
            alone(location.take().map_err(|e| e.to_string())?)
        }
        Err(AskError::NotRunning(path)) => Err(format!(
            "no server has ever run with the state directory {}: start one (`fsserver serve DIR`), \
             or name its state directory with --state",
            path.display()
        )),
        other => other.map_err(|e| e.to_string()),
    }
}

fn locate(state: &StateArg) -> Result<Location, String> {
    Location::find(state.state.as_deref()).map_err(|e| e.to_string())
}

/// Prints to standard output. That it can't is no failure of the command: what was asked for is done.
pub(super) fn print(text: &str) {
    let _ = leasefs_host::output::print(text);
}

pub(super) fn ticket(args: &TicketArgs) -> Result<(), String> {
    let role = Role {
        read_only: args.read_only,
        trust: args.trust,
        acts_as: args.acts_as,
        border: None,
    };
    let subdir = args.subdir.clone();
    let request = Request::Ticket {
        role: role.clone(),
        subdir: subdir.clone(),
    };
    let alone = |dir: StateDir| match subdir {
        None => ticket_alone(&dir, role),
        Some(_) => Err(
            "the directory is looked for by the server, which isn't running: start it first \
             (`fsserver serve DIR`)"
                .to_owned(),
        ),
    };
    match ask_or(&args.state, &request, alone)? {
        Reply::Ticket(ticket) => print(&format!("{ticket}\n")),
        _ => return Err(UNEXPECTED.to_owned()),
    }
    Ok(())
}

/// Clients and tickets. What is wrong with them is said here, since the next change mends it.
fn registry(dir: &StateDir) -> Result<Registry, String> {
    let registry = dir.registry().map_err(|e| e.to_string())?;
    if let Some(note) = registry.note() {
        eprintln!("fsserver: {note}");
    }
    Ok(registry)
}

fn ticket_alone(dir: &StateDir, role: Role) -> Result<Reply, String> {
    let served = dir.served().map_err(|e| e.to_string())?;
    let served = served.ok_or_else(|| {
        "a ticket names the server's address, and no server has run with this state directory \
         yet: start it first (`fsserver serve DIR`)"
            .to_owned()
    })?;
    Policy::can_give(&role)?;
    let servers: Addresses = served
        .advertise
        .parse()
        .map_err(|e| format!("the server's addresses on record: {e}"))?;
    let mut registry = registry(dir)?;
    let secret = registry.issue(role, wall_clock());
    let secret = secret.map_err(|e| e.to_string())?;
    let key = dir.identity().map_err(|e| e.to_string())?.key_hash();
    let ticket = Ticket {
        servers,
        key,
        secret,
    };
    Ok(Reply::Ticket(ticket.to_string()))
}

pub(super) fn clients(args: &StateArg) -> Result<(), String> {
    let alone = |dir: StateDir| {
        let registry = registry(&dir)?;
        Ok(Reply::Clients {
            clients: registry.clients().to_vec(),
            note: None,
        })
    };
    match ask_or(args, &Request::Clients, alone)? {
        Reply::Clients { clients, note } => print(&present::clients(&clients, note.as_deref())),
        _ => return Err(UNEXPECTED.to_owned()),
    }
    Ok(())
}

pub(super) fn revoke(args: &RevokeArgs) -> Result<(), String> {
    let which = args.client.clone();
    let alone = |dir: StateDir| {
        let mut registry = registry(&dir)?;
        let client = registry.revoke(&which, wall_clock());
        let client = client.map_err(|e| present::not_revoked(&e))?;
        let under_way = 0;
        Ok(Reply::Revoked { client, under_way })
    };
    let request = Request::Revoke(args.client.clone());
    match ask_or(&args.state, &request, alone)? {
        Reply::Revoked { client, under_way } => print(&present::revoked(&client, under_way)),
        _ => return Err(UNEXPECTED.to_owned()),
    }
    Ok(())
}

/// A running server's state.
pub(super) fn ask_status(state: &StateArg) -> Result<ServerStatus, String> {
    let location = locate(state)?;
    let reply = ask(&location, &Request::Status).map_err(|e| match e {
        AskError::NotRunning(_) => {
            format!(
                "{e}: start it (`fsserver serve DIR`), or name its state directory with --state"
            )
        }
        _ => e.to_string(),
    })?;
    match reply {
        Reply::Status(status) => Ok(*status),
        _ => Err(UNEXPECTED.to_owned()),
    }
}

pub(super) fn status(args: &StatusArgs) -> Result<(), String> {
    let status = ask_status(&args.state)?;
    if args.json {
        let text = serde_json::to_string_pretty(&status).map_err(|e| e.to_string())?;
        print(&format!("{text}\n"));
    } else {
        print(&present::status(&status));
    }
    Ok(())
}
