//! What a running server is asked on its control socket: tickets, clients, how it is.

use super::commands::print;
use super::control::{Reply, Request, ServerStatus};
use super::present;
use crate::server::Server;
use crate::state::{Directory, Policy, Role, Served, State};
use crate::status::{SessionStatus, Status};
use leasefs_protocol::control::IdentityPolicy;
use leasefs_protocol::limits::TICKET_LIFE;
use leasefs_protocol::ticket::{Addresses, Ticket};
use leasefs_protocol::{Caller, FileKind, KeyHash, Name, Refusal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the commands of the control socket need.
#[derive(Clone)]
pub(super) struct Attendant {
    pub(super) server: Arc<Server>,
    pub(super) desk: Arc<Desk>,
}

/// Where tickets are made.
pub(super) struct Desk {
    pub(super) state: Arc<State>,
    pub(super) policy: Policy,
    pub(super) advertise: Addresses,
    pub(super) key: KeyHash,
    pub(super) export: PathBuf,
    pub(super) address: SocketAddr,
}

impl Desk {
    pub(super) fn note_served(&self) -> Result<(), String> {
        let served = Served {
            advertise: self.advertise.to_string(),
            identity: self.policy,
        };
        let noted = self.state.dir().note_served(&served);
        noted.map_err(|e| e.to_string())
    }

    fn ticket(&self, role: Role) -> Result<Ticket, String> {
        Policy::can_give(&role)?;
        Ok(Ticket {
            servers: self.advertise.clone(),
            key: self.key,
            secret: self.state.issue(role).map_err(|e| e.to_string())?,
        })
    }

    /// A session that has not come back since the server began is still known to be some client's.
    fn named(&self, mut status: Status) -> Status {
        let clients = self.state.clients();
        let nameless = |session: &&mut SessionStatus| session.client.is_empty();
        for session in status.sessions.iter_mut().filter(nameless) {
            let client = clients.iter().find(|c| c.key.to_string() == session.key);
            session.client = client.map_or_else(String::new, |client| client.name.clone());
        }
        status
    }

    /// Invites somebody as long as nobody has ever come.
    pub(super) fn first_ticket(&self, file: Option<&Path>) -> Result<(), String> {
        if !self.state.clients().is_empty() {
            if file.is_some() {
                tracing::info!(
                    "no ticket written: this isn't the first start (`fsserver ticket` prints one)"
                );
            }
            return Ok(());
        }
        let ticket = self.ticket(Role::default())?;
        let hours = TICKET_LIFE.as_secs() / 3600;
        match file {
            Some(file) => {
                leasefs_host::files::replace(file, format!("{ticket}\n").as_bytes())
                    .map_err(|e| format!("can't write the ticket to {}: {e}", file.display()))?;
                tracing::info!(file = %file.display(), "a ticket for the first client, good for {hours} h: fsclient mount @{} DIR", file.display());
            }
            None => {
                print(&format!("{ticket}\n"));
                tracing::info!(
                    "the ticket above is for one client, good for {hours} h: fsclient mount TICKET DIR"
                );
            }
        }
        if self.address.ip().is_unspecified() {
            tracing::info!(
                "tickets name this server {}; if clients can't reach it so, start it with --advertise HOST:PORT",
                self.advertise
            );
        }
        Ok(())
    }
}

impl Attendant {
    pub(super) async fn answer(self, request: Request) -> Result<Reply, String> {
        let server = Arc::clone(&self.server);
        // The registry is on disk.
        let answered = tokio::task::spawn_blocking(move || self.answer_blocking(request)).await;
        let mut reply =
            answered.map_err(|_| "the server has failed: its log says how".to_owned())??;
        if let Reply::Revoked { client, under_way } = &mut reply {
            *under_way = server.revoke(client.key).await;
        }
        Ok(reply)
    }

    /// Looks for a directory below the served one, as the server itself and by no link.
    fn directory(&self, path: String) -> Result<Directory, String> {
        let store = &self.server.store;
        if !store.has_borders() {
            return Err(
                "clients can't be confined here: that needs the host's file handles (a server that \
                 runs as root, and a file system that has them)"
                    .to_owned(),
            );
        }
        let refused = |refusal: Refusal| format!("{path}: {refusal}");
        let who = store.identity(IdentityPolicy::Trust, &Caller::default());
        let (who, root) = (who.map_err(refused)?, store.root().map_err(refused)?);
        let mut handle = root.handle;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let name = Name::new(name.as_bytes()).map_err(refused)?;
            let found = store.lookup(&who, &handle, &name).map_err(refused)?;
            let found = found.filter(|found| found.attr.kind == FileKind::Directory);
            let found = found.ok_or_else(|| {
                format!("{path}: there is no such directory below the served one (links aren't followed)")
            })?;
            handle = found.handle;
        }
        match store.is_root(&handle) {
            true => Err("the served directory itself is no border: leave --subdir out".to_owned()),
            false => Ok(Directory { path, handle }),
        }
    }

    fn answer_blocking(&self, request: Request) -> Result<Reply, String> {
        let desk = &self.desk;
        match request {
            Request::Ticket { mut role, subdir } => {
                role.border = subdir.map(|path| self.directory(path)).transpose()?;
                desk.ticket(role).map(|t| Reply::Ticket(t.to_string()))
            }
            Request::Clients => Ok(Reply::Clients {
                clients: desk.state.clients(),
                note: desk.state.note(),
            }),
            Request::Revoke(which) => {
                let client = desk.state.revoke(&which);
                let client = client.map_err(|e| present::not_revoked(&e))?;
                let under_way = 0;
                Ok(Reply::Revoked { client, under_way })
            }
            Request::Status => Ok(Reply::Status(Box::new(ServerStatus {
                export: desk.export.clone(),
                address: desk.address.to_string(),
                pid: std::process::id(),
                note: desk.state.note(),
                status: desk.named(self.server.status()),
            }))),
        }
    }
}
