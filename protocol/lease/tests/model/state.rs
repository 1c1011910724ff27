//! The model's world: both clients, the server, and what is under way between them.

use super::client::{Client, Fault, TERM, object};
use super::server::{Disk, Out, Server};
use super::wire::{Message, Value};
use leasefs_lease::server::{Reclaimed, Standing};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub server: Option<Server>,
    pub disk: Disk,
    pub clients: [Client; 2],
    /// Messages under way, in a normal order: they may overtake each other.
    pub net: Vec<(u8, Message)>,
    /// What the newest finished change has left.
    pub completed: Value,
    pub disconnects_left: u8,
    pub client_crashes_left: u8,
    pub server_crashes_left: u8,
}

impl State {
    pub fn client(&self, who: u8) -> &Client {
        &self.clients[usize::from(who)]
    }

    pub fn client_mut(&mut self, who: u8) -> &mut Client {
        &mut self.clients[usize::from(who)]
    }

    pub fn send(&mut self, who: u8, message: Message) {
        if self.client(who).connected {
            self.net.push((who, message));
        }
    }

    /// What the server says, if it is there.
    pub fn ask<R>(
        &mut self,
        what: impl FnOnce(&mut Server, &mut Disk, &mut Out) -> R,
    ) -> Option<R> {
        let mut out = Out::default();
        let result = what(self.server.as_mut()?, &mut self.disk, &mut out);
        for (who, message) in out.messages {
            self.send(who, message);
        }
        self.completed = self.completed.max(out.completed.unwrap_or_default());
        Some(result)
    }

    pub fn connect(&mut self, who: u8, fault: Fault) {
        self.client_mut(who).connected = true;
        let Some((standing, renewed)) = self.ask(|s, disk, out| s.open(who, disk, out)) else {
            return;
        };
        let client = self.client_mut(who);
        match standing {
            Standing::Reclaim => {
                client.leases.restarted();
                client.reclaiming = true;
                return;
            }
            Standing::New | Standing::Expired => {
                client.expire(fault);
                client.valid = 0;
            }
            Standing::Resumed => {}
        }
        if renewed {
            client.renewed(TERM);
        }
        self.send_again(who);
    }

    pub fn send_again(&mut self, who: u8) {
        for message in self.client_mut(who).send_again() {
            self.send(who, message);
        }
    }

    pub fn reclaim(&mut self, who: u8) {
        let alive = self.client(who).valid > 0;
        let leases = self.client(who).leases.reclaim_list().filter(|_| alive);
        for lease in leases.collect::<Vec<_>>() {
            let lease = Reclaimed {
                object: lease.object,
                parts: lease.parts,
                mode: lease.mode,
            };
            if self.ask(|s, disk, out| s.reclaim(who, lease, disk, out)) == Some(false) {
                self.client_mut(who).lost(object());
            }
        }
        if self.ask(|s, disk, out| s.reclaim_done(who, disk, out)) == Some(true) {
            self.client_mut(who).renewed(TERM);
        }
        self.client_mut(who).reclaiming = false;
        self.send_again(who);
    }

    pub fn disconnect(&mut self, who: u8) {
        self.client_mut(who).connected = false;
        self.client_mut(who).reclaiming = false;
        self.net.retain(|(of, _)| *of != who);
        self.ask(|s, disk, out| s.disconnected(who, disk, out));
    }

    pub fn deliver(&mut self, at: usize, fault: Fault) {
        let (who, message) = self.net.remove(at);
        if message.is_to_server() {
            self.ask(|s, disk, out| s.told(who, message, disk, out));
        } else if self.client(who).alive
            && let Some(reply) = self.client_mut(who).told(message, fault)
        {
            self.send(who, reply);
        }
    }

    pub fn pass(&mut self, fault: Fault) {
        let alive = self.clients.iter_mut().filter(|c| c.alive);
        alive.for_each(|client| client.pass(fault));
        self.ask(Server::pass);
    }

    pub fn crash_server(&mut self) {
        self.server = None;
        self.net.clear();
        for client in &mut self.clients {
            (client.connected, client.reclaiming) = (false, false);
        }
    }

    /// If from now on no client does anything, the server runs every change it has been asked for.
    pub fn comes_to_rest(&self) -> bool {
        let mut state = self.clone();
        for _ in 0..8 {
            let Some(server) = &state.server else {
                return true;
            };
            if !server.waits() && server.running.is_empty() {
                return true;
            }
            for op in server.running.clone() {
                state.ask(|s, disk, out| s.run(op, disk, out));
            }
            state.ask(Server::pass);
        }
        false
    }
}
