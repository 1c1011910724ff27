//! One connection of a session, and what its requests may take.

use crate::account::{Account, Room};
use crate::border::Border;
use crate::counters::Meters;
use crate::records::Client;
use crate::traffic::Counted;
use bytes::Bytes;
use leasefs_protocol::limits::MAX_REQUESTS_IN_FLIGHT;
use leasefs_protocol::{Refusal, Reply, Request, RequestId};
use leasefs_transport::{CloseCode, Connection, OutFrame, Outbox};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A connection that has said `Hello`.
#[derive(Debug)]
pub struct Link {
    /// Told apart from the session's other connections by this.
    pub number: u64,
    /// The client as it was when it said `Hello`.
    pub client: Arc<Client>,
    connection: Connection,
    requests: Arc<Semaphore>,
    account: Arc<Account>,
    /// Never has a permit; closed when the connection ends.
    end: Semaphore,
    _counted: Counted,
}

/// A request's place while it is not answered.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Link {
    /// A connection whose client is known.
    pub fn new(
        number: u64,
        client: Arc<Client>,
        connection: Connection,
        account: Arc<Account>,
        counted: Counted,
    ) -> Self {
        Self {
            number,
            client,
            connection,
            requests: Arc::new(Semaphore::new(MAX_REQUESTS_IN_FLIGHT)),
            account,
            end: Semaphore::new(0),
            _counted: counted,
        }
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Closes it with a reason; what waits on its behalf alone ends.
    pub fn close(&self, code: CloseCode, reason: &str) {
        self.connection.close(code, reason);
        self.end.close();
    }

    /// Waits until [`Link::close`].
    pub async fn ended(&self) {
        // There never is a permit: this returns when the semaphore is closed.
        let _ = self.end.acquire().await;
    }

    /// A place for the next request, as soon as there is one; `None` if the connection has ended.
    pub async fn place(&self) -> Option<Place> {
        let place = Arc::clone(&self.requests).acquire_owned();
        tokio::select! {
            biased;
            place = place => place.ok().map(|_permit| Place { _permit }),
            () = self.ended() => None,
        }
    }

    /// Room for what the request brings; `None` if the connection has ended.
    pub async fn room(&self, bytes: usize) -> Option<Room> {
        self.unless_ended(Arc::clone(&self.account).room(bytes))
            .await
    }

    /// Room for its answer; `None` if the connection has ended.
    pub async fn room_for_answer(&self, bytes: usize) -> Option<Room> {
        self.unless_ended(Arc::clone(&self.account).room_for_answer(bytes))
            .await
    }

    async fn unless_ended<T>(&self, comes: impl Future<Output = Option<T>>) -> Option<T> {
        tokio::select! {
            biased;
            comes = comes => comes,
            () = self.ended() => None,
        }
    }
}

/// A request that has come.
#[derive(Debug)]
pub struct Asked {
    /// Its number.
    pub id: RequestId,
    kind: &'static str,
    at: Instant,
    meters: Arc<Meters>,
}

impl Asked {
    /// It has come now.
    pub fn now(id: RequestId, request: &Request, meters: &Arc<Meters>) -> Self {
        Self {
            id,
            kind: request.kind(),
            at: Instant::now(),
            meters: Arc::clone(meters),
        }
    }
}

/// Where the answer of one request goes. Holds the request's place, and room for the answer, until it
/// has gone.
#[derive(Debug)]
pub struct Sink {
    asked: Asked,
    lane: Outbox,
    renews: bool,
    border: Option<Arc<Border>>,
    place: Place,
    rooms: [Option<Room>; 2],
}

impl Sink {
    /// Answers go to `lane`, for a request of a client within `border`. `renews`: whether its arrival renewed the
    /// session. An answer given later must not: a client frozen while its change waited would
    /// hold others up for two terms.
    pub fn new(
        asked: Asked,
        lane: Outbox,
        (place, room): (Place, Option<Room>),
        border: Option<Arc<Border>>,
        renews: bool,
    ) -> Self {
        Self {
            asked,
            lane,
            renews,
            border,
            place,
            rooms: [room, None],
        }
    }

    /// The answer takes up room.
    #[must_use]
    pub fn with(mut self, room: Room) -> Self {
        self.rooms[1] = Some(room);
        self
    }

    /// Sends the answer, as that to this request.
    pub async fn send(self, mut reply: Reply, payload: Bytes) {
        let Asked {
            id,
            kind,
            at,
            meters,
        } = self.asked;
        reply.id = id;
        reply.renews = self.renews;
        if let Some(border) = &self.border {
            border.give_reply(&mut reply);
        }
        let frame = OutFrame::new(&reply, payload).or_else(|error| {
            tracing::error!(%error, "an answer can't be sent");
            reply = Reply {
                id,
                ..refused(Refusal::Internal)
            };
            OutFrame::new(&reply, Bytes::new())
        });
        // Who has the answer finds it counted.
        meters.requests.add(kind, at.elapsed());
        if let Ok(frame) = frame {
            // Without its lane the answer has nowhere to go; a change's is kept.
            let held = Box::new((self.place, self.rooms));
            let _ = self.lane.send(frame.holding(held)).await;
        }
    }
}

/// The answer to a change that never ran.
pub fn refused(refusal: Refusal) -> Reply {
    Reply {
        id: leasefs_protocol::RequestId(0),
        renews: false,
        stamp: leasefs_protocol::Stamp(0),
        grants: Vec::new(),
        touched: Vec::new(),
        room: None,
        result: Err(refusal),
    }
}
