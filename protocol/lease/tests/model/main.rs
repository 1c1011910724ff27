//! Every order of events of two clients, one server and one object: the shipped lease core against
//! the shipped client's lease state, with lost connections, a crash on each side, and clocks
//! that let leases end at any moment, the client's view before the server's.

mod client;
mod server;
mod state;
mod wire;

use client::{Client, Fault};
use leasefs_lease::server::OpId;
use server::{Disk, Server};
use state::State;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use std::hash::{DefaultHasher, Hash, Hasher};
use wire::{Kind, Message};

const CACHES: &str = "a client caches what the other has changed";
const WAITS: &str = "a change waits for a client that is gone";

/// How much may happen.
#[derive(Clone, Debug)]
struct Bounds {
    reads: [u8; 2],
    changes: [u8; 2],
    keep_alives: [u8; 2],
    disconnects: u8,
    client_crashes: u8,
    server_crashes: u8,
    kinds: Vec<Kind>,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Connect(u8),
    Disconnect(u8),
    Reclaim(u8),
    Read(u8, Kind),
    Change(u8),
    KeepAlive(u8),
    Deliver(usize),
    Run(OpId),
    /// Half a term.
    Pass,
    CrashClient(u8),
    CrashServer,
    Restart,
}

/// The same in every run, so that equal sets of messages are equal lists.
fn hash(message: &(u8, Message)) -> u64 {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    hasher.finish()
}

impl Model for Bounds {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let client =
            |at: usize| Client::new(self.reads[at], self.changes[at], self.keep_alives[at]);
        let disk = Disk::default();
        let mut state = State {
            server: Some(Server::start(&disk, self.fault)),
            disk,
            clients: [client(0), client(1)],
            net: Vec::new(),
            completed: 0,
            disconnects_left: self.disconnects,
            client_crashes_left: self.client_crashes,
            server_crashes_left: self.server_crashes,
        };
        (0..2).for_each(|who| state.connect(who, self.fault));
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Pass);
        steps.extend((0..state.net.len()).map(Step::Deliver));
        match &state.server {
            Some(server) => steps.extend(server.running.iter().copied().map(Step::Run)),
            None => steps.push(Step::Restart),
        }
        if state.server.is_some() && state.server_crashes_left > 0 {
            steps.push(Step::CrashServer);
        }
        for who in (0..2).filter(|who| state.client(*who).alive) {
            let client = state.client(who);
            if state.client_crashes_left > 0 {
                steps.push(Step::CrashClient(who));
            }
            if !client.connected {
                steps.extend(state.server.is_some().then_some(Step::Connect(who)));
                continue;
            }
            if state.disconnects_left > 0 {
                steps.push(Step::Disconnect(who));
            }
            if client.reclaiming {
                steps.push(Step::Reclaim(who));
                continue;
            }
            if client.reads_left > 0 && client.read.is_none() {
                steps.extend(self.kinds.iter().map(|kind| Step::Read(who, *kind)));
            }
            if client.changes_left > 0 && client.change.is_none() {
                steps.push(Step::Change(who));
            }
            if client.keep_alives_left > 0 && client.keep_alive.is_none() {
                steps.push(Step::KeepAlive(who));
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let floor = state.completed;
        match step {
            Step::Connect(who) => state.connect(who, self.fault),
            Step::Disconnect(who) => {
                state.disconnects_left -= 1;
                state.disconnect(who);
            }
            Step::Reclaim(who) => state.reclaim(who),
            Step::Read(who, kind) => {
                let message = state.client_mut(who).begin_read(kind, floor);
                state.send(who, message);
            }
            Step::Change(who) => {
                let message = state.client_mut(who).begin_change(floor, self.fault);
                state.send(who, message);
            }
            Step::KeepAlive(who) => {
                let message = state.client_mut(who).begin_keep_alive();
                state.send(who, message);
            }
            Step::Deliver(at) => state.deliver(at, self.fault),
            Step::Run(op) => drop(state.ask(|s, disk, out| s.run(op, disk, out))),
            Step::Pass => state.pass(self.fault),
            Step::CrashClient(who) => {
                state.client_crashes_left -= 1;
                state.client_mut(who).alive = false;
                state.disconnect(who);
            }
            Step::CrashServer => {
                state.server_crashes_left -= 1;
                state.crash_server();
            }
            Step::Restart => state.server = Some(Server::start(&state.disk, self.fault)),
        }
        state.net.sort_by_cached_key(hash);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no cached value is older than the last completed change",
                |model: &Self, s: &State| {
                    let mut served = s.clients.iter().flat_map(|c| c.served(model.fault));
                    served.all(|value| value >= s.completed)
                },
            ),
            Property::always(
                "no answer is older than what was complete when it was asked for",
                |_, s: &State| s.clients.iter().all(|c| !c.stale_answer),
            ),
            Property::always(
                "every change completes, even if all clients fall silent",
                |_, s: &State| s.comes_to_rest(),
            ),
            Property::always("the core's invariants hold", |_, s: &State| {
                s.server
                    .as_ref()
                    .is_none_or(|server| server.check().is_ok())
            }),
            Property::sometimes(
                "a client caches what the other has changed",
                |_, s: &State| {
                    let [a, b] = &s.clients;
                    s.completed > 0
                        && a.change.is_none()
                        && (b.attrs.max(b.data)) == Some(s.completed)
                },
            ),
            Property::sometimes(
                "a change waits for a client that is gone",
                |_, s: &State| {
                    let gone = s.clients.iter().any(|c| !c.connected);
                    gone && s.server.as_ref().is_some_and(Server::waits)
                },
            ),
        ]
    }
}

/// Explores everything that can happen; `reached` must be among it.
fn check(bounds: Bounds, reached: &[&'static str]) {
    let always = bounds
        .properties()
        .into_iter()
        .filter(|p| p.expectation == Expectation::Always);
    let always: Vec<&'static str> = always.map(|p| p.name).collect();
    let started = std::time::Instant::now();
    let checker = bounds.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states in {:?}",
        checker.unique_state_count(),
        started.elapsed()
    );
    assert!(checker.is_done());
    always
        .into_iter()
        .for_each(|name| checker.assert_no_discovery(name));
    reached
        .iter()
        .for_each(|name| drop(checker.assert_any_discovery(name)));
}

fn small() -> Bounds {
    Bounds {
        reads: [0, 2],
        changes: [1, 0],
        keep_alives: [0, 1],
        disconnects: 0,
        client_crashes: 0,
        server_crashes: 0,
        kinds: vec![Kind::Attrs],
        fault: Fault::None,
    }
}

#[test]
fn a_reader_and_a_writer() {
    let kinds = vec![Kind::Attrs, Kind::Pages];
    check(Bounds { kinds, ..small() }, &[CACHES]);
}

#[test]
fn two_writers_one_of_whom_reads() {
    let bounds = Bounds {
        changes: [1, 1],
        reads: [0, 1],
        keep_alives: [0, 0],
        ..small()
    };
    check(bounds, &[CACHES]);
}

#[test]
fn a_connection_is_lost() {
    let bounds = Bounds {
        disconnects: 1,
        keep_alives: [0, 0],
        ..small()
    };
    check(bounds, &[CACHES, WAITS]);
}

#[test]
fn a_client_crashes() {
    let bounds = Bounds {
        client_crashes: 1,
        ..small()
    };
    check(bounds, &[CACHES, WAITS]);
}

#[test]
fn the_server_crashes() {
    let bounds = Bounds {
        server_crashes: 1,
        keep_alives: [0, 0],
        ..small()
    };
    check(bounds, &[CACHES, WAITS]);
}

#[test]
fn a_client_and_the_server_crash() {
    let bounds = Bounds {
        reads: [0, 1],
        keep_alives: [0, 0],
        client_crashes: 1,
        server_crashes: 1,
        ..small()
    };
    check(bounds, &[CACHES, WAITS]);
}

/// Several minutes and gigabytes: `cargo test -p leasefs-lease --test model -- --ignored`.
#[test]
#[ignore = "several minutes"]
fn larger_bounds() {
    let silent = Bounds {
        keep_alives: [0, 0],
        ..small()
    };
    let both = Bounds {
        reads: [1, 1],
        changes: [1, 1],
        ..silent.clone()
    };
    let everything = Bounds {
        reads: [0, 1],
        disconnects: 1,
        client_crashes: 1,
        server_crashes: 1,
        ..silent
    };
    check(both, &[CACHES]);
    check(everything, &[CACHES, WAITS]);
}

/// The mistake is found, so the model would notice it in what is shipped.
fn finds(bounds: Bounds) {
    let checker = bounds.checker().threads(2);
    let checker = checker
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    assert!(
        checker
            .discovery("no cached value is older than the last completed change")
            .is_some(),
        "{} states and nothing stale",
        checker.unique_state_count()
    );
}

#[test]
fn approving_without_dropping_is_noticed() {
    finds(Bounds {
        fault: Fault::ApproveWithoutDrop,
        ..small()
    });
}

#[test]
fn using_what_is_cached_after_the_expiry_is_noticed() {
    finds(Bounds {
        fault: Fault::IgnoreExpiry,
        ..small()
    });
}

#[test]
fn caching_replies_whatever_their_stamps_is_noticed() {
    finds(Bounds {
        fault: Fault::IgnoreStamps,
        ..small()
    });
}

#[test]
fn keeping_a_value_across_an_own_change_is_noticed() {
    finds(Bounds {
        fault: Fault::KeepAcrossOwnChange,
        reads: [1, 0],
        ..small()
    });
}

#[test]
fn a_restart_without_grace_is_noticed() {
    finds(Bounds {
        fault: Fault::NoGrace,
        server_crashes: 1,
        ..small()
    });
}
