//! A connection that serves, until it is lost or the mount ends.

use super::{Happened, Life, Over, TICK};
use crate::api::{ConnectionId, Effect};
use crate::run::first;
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{ToClient, ToServer};
use std::collections::VecDeque;
use std::time::Duration;

/// How long the end of a session may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// After so long a silence another connection is tried.
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// After so long a silence the server is asked whether it lives: a restarted one answers that it
/// doesn't know the connection.
const ASK_AFTER: Duration = Duration::from_millis(750);

/// What is known of a connection that serves.
struct Serving {
    connection: ConnectionId,
    /// Keep-alives without answer, and when they were sent.
    asked: VecDeque<(u64, BootTime)>,
    last_asked: Option<BootTime>,
    begun: BootTime,
    datagrams: u64,
    last_tick: BootTime,
}

impl Life {
    /// Until the connection is lost, or the mount ends.
    pub(super) async fn serve(&self, connection: ConnectionId) -> Over {
        let mut serving = Serving {
            connection,
            asked: VecDeque::new(),
            last_asked: None,
            begun: self.cx.monotonic(),
            datagrams: 0,
            last_tick: self.cx.monotonic(),
        };
        let served = async {
            loop {
                self.cx.effect(Effect::Listen(connection));
                let tick = self.cx.sleep(TICK);
                let over = first(
                    async {
                        tick.await;
                        None
                    },
                    async { Some(self.listen(&mut serving).await) },
                );
                if let Some(over) = over.await {
                    return Some(over);
                }
            }
        };
        let ended = async {
            self.ended().await;
            None
        };
        match first(served, ended).await {
            Some(over) => over,
            None => self.farewell(connection).await,
        }
    }

    /// Takes in what comes, until that is the end.
    async fn listen(&self, serving: &mut Serving) -> Over {
        loop {
            let taken = match self.next().await {
                Happened::Control(on, message) if on == serving.connection => {
                    self.control(serving, message)
                }
                Happened::Heard(on, datagrams) if on == serving.connection => {
                    self.tick(serving, datagrams)
                }
                Happened::Lost(on, reason) if on == serving.connection => Err(Over::lost(reason)),
                _ => Ok(()),
            };
            if let Err(over) = taken {
                return over;
            }
        }
    }

    fn control(&self, serving: &mut Serving, message: ToClient) -> Result<(), Over> {
        match message {
            ToClient::KeepAlive { number, renews } => self.answered(serving, number, renews),
            ToClient::Cancelled { seq, begun } => self.rpc.cancelled(seq, begun),
            // The answer to ReclaimDone, where the server gives one, says nothing new.
            ToClient::Reclaimed { .. } => {}
            ToClient::Welcome(_) | ToClient::Refused(_) | ToClient::Farewell => {
                return Err(Over::lost("the server ended the session"));
            }
        }
        Ok(())
    }

    fn answered(&self, serving: &mut Serving, number: u64, renews: bool) {
        while let Some((asked, sent)) = serving.asked.front().copied() {
            if asked > number {
                break;
            }
            serving.asked.pop_front();
            if asked == number && renews {
                self.rpc.renewed(sent);
            }
        }
        self.rpc.acknowledged(number);
    }

    /// Looks how long the server has been silent. Time in which this process itself stood still counts
    /// as one tick.
    fn tick(&self, serving: &mut Serving, datagrams: u64) -> Result<(), Over> {
        let now = self.cx.monotonic();
        let passed = now.since(serving.last_tick).min(TICK * 2);
        serving.last_tick = now;
        let nothing = std::mem::replace(&mut serving.datagrams, datagrams) == datagrams;
        let silent = self.rpc.heard(nothing.then_some(passed));
        if silent >= DEAD_AFTER {
            return Err(Over::lost("the server is silent"));
        }
        let old = self.rpc.since_renewal() >= self.rpc.term() / 3;
        let asked = serving.last_asked;
        let due = asked.is_none_or(|asked| now.since(asked) >= ASK_AFTER);
        // What was said besides requests is known to have come by no other answer.
        let unknown = now.since(asked.unwrap_or(serving.begun)) >= self.rpc.term();
        if due
            && (old || unknown || silent >= ASK_AFTER)
            && let Some(number) = self.rpc.keep_alive()
        {
            serving.asked.push_back((number, self.cx.boot()));
            serving.last_asked = Some(now);
        }
        Ok(())
    }

    async fn farewell(&self, connection: ConnectionId) -> Over {
        self.tell(connection, ToServer::Goodbye);
        let heard = async {
            loop {
                match self.next().await {
                    Happened::Control(on, ToClient::Farewell) if on == connection => return,
                    Happened::Lost(on, _) if on == connection => return,
                    _ => {}
                }
            }
        };
        // The server finds out by itself that nobody is left.
        let _ = self.cx.timeout(FAREWELL, heard).await;
        Over::lost("unmounted")
    }
}
