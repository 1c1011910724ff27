//! What can happen next, and whose step it is.

use super::parts::{Blow, ClientEv, Down, Ev, KernelEv, LinkId, Nanos, ServerEv, Up, World};
use super::plan::Grain;
use leasefs_protocol::control::{ToClient, ToServer};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a step changes: hosts, and what is under way to a client, or from it. Steps that have nothing of
/// that in common come to the same in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(pub u16);

impl Hosts {
    pub const ALL: Hosts = Hosts(u16::MAX);

    pub fn client(index: usize) -> Self {
        Self(1 << index)
    }

    pub fn server(clients: usize) -> Self {
        Self(1 << clients)
    }

    /// What is under way to a client.
    pub fn down(index: usize) -> Self {
        Self(1 << (4 + 2 * index))
    }

    /// What is under way from a client.
    pub fn up(index: usize) -> Self {
        Self(2 << (4 + 2 * index))
    }

    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn meet(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// When an event's turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before anything else: it is part of the step that has brought it.
    AtOnce,
    /// So is this, but a crash may come before it.
    AtOnceOrNever,
    /// So is this, once it is the first of its stream: what renews leases, while time stands still, and
    /// what follows a hello until everything is reclaimed.
    Soon,
    /// At any time from now on.
    AnyTime,
    /// When its time has come.
    InTime,
    /// When all is done: it only looks things over.
    InTheEnd,
    /// Never: it is chance that brings it elsewhere.
    Never,
}

/// Something that is to happen.
pub(super) struct Pending {
    /// Names it; the same in every run in which its host has come to it in the same way.
    pub id: u64,
    pub at: Nanos,
    pub ev: Ev,
    pub hosts: Hosts,
    pub when: When,
}

/// Whose events these are.
pub(super) fn hosts(world: &World, ev: &Ev) -> Hosts {
    let server = Hosts::server(world.clients.len());
    match ev {
        Ev::ToServer(link, ..) => server.with(Hosts::up(world.cx.net.client(*link))),
        Ev::Server(..) => server,
        Ev::ToClient(link, ..) => {
            let index = world.cx.net.client(*link);
            Hosts::client(index).with(Hosts::down(index))
        }
        Ev::Client(index, ..) | Ev::Kernel(index, ..) => Hosts::client(*index),
        Ev::Blow(Blow::Lost(index, _)) => Hosts::client(*index),
        Ev::Blow(Blow::Left(_)) => server,
        Ev::Blow(_) | Ev::Audit => Hosts::ALL,
    }
}

/// When their turn comes.
pub(super) fn when(ev: &Ev, grain: Grain) -> When {
    let fine = match grain {
        Grain::Fine => When::AnyTime,
        Grain::Coarse => When::AtOnce,
    };
    match ev {
        Ev::ToServer(_, _, up) if is_soon_up(up) && grain == Grain::Coarse => When::Soon,
        Ev::ToClient(_, _, down) if is_soon_down(down) && grain == Grain::Coarse => When::Soon,
        Ev::ToServer(..) | Ev::ToClient(..) => When::AnyTime,
        Ev::Server(_, ev) => match (ev, grain) {
            (ServerEv::Work(_), Grain::Coarse) => When::AtOnceOrNever,
            (ServerEv::Work(_), Grain::Fine) => When::AnyTime,
            (ServerEv::Tick | ServerEv::Impatient | ServerEv::Quiet, _) => When::InTime,
            (ServerEv::Sweep, _) => When::InTheEnd,
        },
        Ev::Client(_, _, ev) => match ev {
            ClientEv::Tick | ClientEv::GivesUp(_) | ClientEv::Look(..) => When::InTime,
            ClientEv::Begin(..) => When::AnyTime,
            ClientEv::Notified(_) => fine,
            ClientEv::Message(..)
            | ClientEv::Lost(_)
            | ClientEv::Connect
            | ClientEv::Ask(..)
            | ClientEv::Forget(..)
            | ClientEv::Kept(..)
            | ClientEv::Goodbye => When::AtOnce,
        },
        Ev::Kernel(_, _, ev) => match ev {
            KernelEv::Next(_) => When::AnyTime,
            KernelEv::Go(_) => When::AtOnce,
            KernelEv::Told(..) => fine,
            KernelEv::WriteBack => When::InTheEnd,
            KernelEv::Shrink => When::Never,
        },
        Ev::Blow(Blow::Lost(..) | Blow::Left(_)) => fine,
        Ev::Blow(Blow::Start { .. }) => When::AtOnce,
        Ev::Blow(Blow::Join(_)) => When::InTime,
        Ev::Blow(_) => When::Never,
        Ev::Audit => When::InTheEnd,
    }
}

fn is_soon_up(up: &Up) -> bool {
    let Up::Control(message) = up else {
        return false;
    };
    match message {
        ToServer::KeepAlive { .. } | ToServer::Reclaim(_) | ToServer::ReclaimDone => true,
        ToServer::Hello(_)
        | ToServer::Approve(_)
        | ToServer::Held(_)
        | ToServer::Release(_)
        | ToServer::Cancel { .. }
        | ToServer::Goodbye => false,
    }
}

fn is_soon_down(down: &Down) -> bool {
    let Down::Control(message) = down else {
        return false;
    };
    matches!(
        message,
        ToClient::KeepAlive { .. } | ToClient::Welcome(_) | ToClient::Reclaimed { .. }
    )
}

/// Whether it would do nothing: its connection is cut, or it belongs to a life that is over.
pub(super) fn is_over(world: &World, ev: &Ev) -> bool {
    let client = |index: &usize, life: &u64| {
        let client = &world.clients[*index];
        client.life != *life || !client.alive
    };
    match ev {
        Ev::ToServer(link, stream, _) => {
            !world.server.up || world.cx.net.is_cut(world.cx.now, *link, *stream)
        }
        Ev::ToClient(link, stream, _) => {
            let index = world.cx.net.client(*link);
            !world.clients[index].alive || world.cx.net.is_cut(world.cx.now, *link, *stream)
        }
        Ev::Server(life, _) => !world.server.up || world.server.life != *life,
        Ev::Client(index, life, _) | Ev::Kernel(index, life, _) => client(index, life),
        Ev::Blow(Blow::Lost(index, link)) => world.clients[*index].link() != Some(*link),
        Ev::Blow(_) | Ev::Audit => false,
    }
}

/// The stream of a message, whose messages come one after the other.
pub(super) fn stream(ev: &Ev) -> Option<(LinkId, usize)> {
    match ev {
        Ev::ToServer(link, stream, _) | Ev::ToClient(link, stream, _) => {
            Some((*link, stream.index()))
        }
        _ => None,
    }
}

/// Names an event by what it is, where it isn't its client's own doing.
pub(super) fn id(ev: &Ev) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    match ev {
        Ev::ToServer(link, stream, up) => (link.0, stream.index(), up).hash(&mut hasher),
        Ev::ToClient(link, stream, down) => (link.0, stream.index(), down).hash(&mut hasher),
        Ev::Server(life, ev) => (life, format!("{ev:?}")).hash(&mut hasher),
        Ev::Blow(blow) => format!("{blow:?}").hash(&mut hasher),
        Ev::Client(..) | Ev::Kernel(..) | Ev::Audit => return None,
    }
    Some(hasher.finish())
}

/// A line for people.
pub(super) fn describe(ev: &Ev) -> String {
    let text = match ev {
        Ev::ToServer(link, _, up) => format!("the server takes from connection {}: {up:?}", link.0),
        Ev::ToClient(link, _, down) => format!("connection {} brings: {down:?}", link.0),
        Ev::Server(_, ev) => format!("server: {ev:?}"),
        Ev::Client(index, _, ev) => format!("client {index}: {ev:?}"),
        Ev::Kernel(index, _, ev) => format!("kernel of client {index}: {ev:?}"),
        Ev::Blow(blow) => format!("{blow:?}"),
        Ev::Audit => "all is looked over".into(),
    };
    text.chars().take(240).collect()
}
