//! One request stream.

use super::end::End;
use super::weight;
use crate::account::Room;
use crate::caught::{caught, caught_now};
use crate::server::Server;
use crate::service::{Call, changes, reads};
use crate::session::answers::Arrival;
use crate::session::{Asked, Job, Link, Origin, Place, Session, Sink, close, refused};
use bytes::Bytes;
use leasefs_protocol::limits::{MAX_BATCH, MAX_TOUCHED};
use leasefs_protocol::{
    Caller, Change, Numbered, Query, Refusal, Request, RequestFrame, Response, Seq,
};
use leasefs_transport::{FrameReader, Outbox, prompt};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

/// Data of an answer that is sent in no time.
const SMALL: usize = 16 * 1024;

type Next = (RequestFrame, Bytes, Place);
type Shared = (Arc<Server>, Arc<Link>);

/// A request stream and where its answers go.
pub struct Lane {
    server: Arc<Server>,
    session: Arc<Session>,
    link: Arc<Link>,
    out: Outbox,
}

impl Lane {
    pub fn new(
        server: &Arc<Server>,
        session: &Arc<Session>,
        link: &Arc<Link>,
        out: Outbox,
    ) -> Self {
        Self {
            server: Arc::clone(server),
            session: Arc::clone(session),
            link: Arc::clone(link),
            out,
        }
    }

    /// Serves the stream to its end. Requests are taken in only as there is room for them.
    pub async fn serve(self, mut reader: FrameReader) -> Result<(), End> {
        loop {
            let next = tokio::select! {
                biased;
                next = self.next(&mut reader) => next?,
                // What comes now is for the server's next life.
                () = self.server.stopped() => std::future::pending().await,
            };
            let Some((frame, payload, place)) = next else {
                return Ok(());
            };
            self.frame(frame, payload, place).await?;
        }
    }

    /// The next frame, as soon as there is a place for it. Cancel-safe.
    async fn next(&self, reader: &mut FrameReader) -> Result<Option<Next>, End> {
        let Some(place) = self.link.place().await else {
            return Ok(None);
        };
        let frame = reader.next::<RequestFrame>().await?;
        Ok(frame.map(|(frame, payload)| (frame, payload, place)))
    }

    async fn frame(
        &self,
        mut frame: RequestFrame,
        payload: Bytes,
        place: Place,
    ) -> Result<(), End> {
        // Its connection may live for a moment yet, until it has heard so.
        if self.session.is_over() {
            return Ok(());
        }
        self.session.is_heard(self.link.number);
        if let Some(border) = self.session.border() {
            border.take_request(&mut frame);
        }
        let RequestFrame {
            id,
            low_water,
            caller,
            request,
        } = frame;
        let takes_data = matches!(
            request,
            Request::Change(_, Change::Write(_) | Change::SetXattr(_))
        );
        if !payload.is_empty() && !takes_data {
            return Err(breach(request.kind(), "brings data"));
        }
        let caller = self.link.client.caller(caller);
        self.session.counters.count(&request);
        let asked = Asked::now(id, &request, &self.server.meters);
        // What is asked for enters the gate itself, when its turn has come.
        let pass = self.session.gate.enter().ok_or(End::Gone)?;
        if self.session.low_water(low_water) {
            self.answered_below(low_water);
        }
        drop(pass);
        match request {
            Request::Change(numbered, change) => {
                self.change(asked, caller, (numbered, change), payload, place)
                    .await
            }
            Request::Query(query) => self.read(asked, caller, query, place).await,
        }
    }

    /// The client has the answers of all changes below `low`.
    fn answered_below(&self, low: Seq) {
        let unclaimed = self.session.opens.unclaimed(low);
        if unclaimed.is_empty() {
            return;
        }
        let server = Arc::clone(&self.server);
        self.server.spawn_io(async move {
            match server.sessions.have_reclaimed() {
                true => close(unclaimed),
                // Another session may have the same file open: an orphan of it must stay until
                // that has been reclaimed.
                false => drop(unclaimed),
            }
        });
    }

    fn sink(&self, asked: Asked, place: Place, room: Option<Room>) -> Sink {
        let renews = self.server.leases.renew(self.session.id);
        Sink::new(
            asked,
            self.out.clone(),
            (place, room),
            self.session.border().cloned(),
            renews,
        )
    }

    /// What changes nothing is answered here if that can't block, else on an I/O thread.
    async fn read(
        &self,
        asked: Asked,
        caller: Caller,
        query: Query,
        place: Place,
    ) -> Result<(), End> {
        let (kept, told) = (weight::of_query(&caller, &query), weight::of_answer(&query));
        let Some(room) = self.link.room(kept).await else {
            return Ok(());
        };
        let request = asked.id;
        let sink = self.sink(asked, place, Some(room));
        let call = Call {
            server: Arc::clone(&self.server),
            session: Arc::clone(&self.session),
            client: Arc::clone(&self.link.client),
            caller,
            origin: Some(Origin {
                link: self.link.number,
                request,
            }),
        };
        match caught_now(|| reads::begin(call, query)) {
            Some(Ok(read)) => self.begun(read, told, sink).await,
            Some(Err(answer)) => send(sink, *answer).await,
            None => fail(sink).await,
        }
        Ok(())
    }

    /// Goes on with a request whose answer may take `told` bytes. While it waits for others they aren't counted: what
    /// they wait for needs room as well.
    async fn begun(&self, mut read: reads::Read, told: usize, sink: Sink) {
        let shared = || (Arc::clone(&self.server), Arc::clone(&self.link));
        if read.waits() {
            self.server.begin_io(held_back(shared(), read, told, sink));
            return;
        }
        let Some(room) = self.link.room_for_answer(told).await else {
            return;
        };
        let sink = sink.with(room);
        let at_once = caught_now(|| match read.cached() {
            Some(answer) => Break(answer),
            None => Continue(read),
        });
        match at_once {
            Some(Break(answer)) => send(sink, answer).await,
            Some(Continue(read)) => {
                self.server.begin_io(elsewhere(shared(), read, sink));
            }
            None => fail(sink).await,
        }
    }

    async fn change(
        &self,
        asked: Asked,
        caller: Caller,
        (numbered, change): (Numbered, Change),
        mut payload: Bytes,
        place: Place,
    ) -> Result<(), End> {
        if numbered.dropped.len() > MAX_TOUCHED {
            return Err(breach(
                change.kind(),
                "drops more objects than it can touch",
            ));
        }
        if numbered.closed.len() > MAX_BATCH {
            return Err(breach(change.kind(), "closes too many opens"));
        }
        // A copy of what is here already must not wait for room that its first copy holds.
        let mut room = None;
        if self.session.knows(numbered.seq) {
            payload = Bytes::new();
        } else {
            let bytes = weight::of_change(&caller, &change) + payload.len();
            room = self.link.room(bytes).await;
            if room.is_none() {
                return Ok(());
            }
        }
        let sink = self.sink(asked, place, None);
        let job = Job {
            caller,
            client: Arc::clone(&self.link.client),
            change,
            payload,
            dropped: numbered.dropped.clone(),
            resent: numbered.resent,
            locked: numbered.locked,
            room,
        };
        let arrival = self.session.arrive(self.link.number, &numbered, job, sink);
        let arrival = arrival.map_err(|violation| End::Breach(violation.to_string()))?;
        let closed = self.session.opens.take(&numbered.closed);
        match arrival {
            Arrival::Run(job) => {
                changes::start(&self.server, &self.session, numbered.seq, job, closed);
            }
            known => {
                if !closed.is_empty() {
                    self.server.spawn_io(async { close(closed) });
                }
                self.not_now(numbered.seq, known).await;
            }
        }
        Ok(())
    }

    /// What becomes of a change that isn't to be run, or not yet.
    async fn not_now(&self, seq: Seq, arrival: Arrival<Job, Sink>) {
        match arrival {
            Arrival::Run(_) | Arrival::Held | Arrival::Attached => (),
            Arrival::Repeat(reply, sink) => {
                let opened = reply.result.as_ref().ok().and_then(Response::opened);
                if let Some((open, _)) = opened {
                    self.session.opens.claim(open);
                }
                sink.send((*reply).clone(), Bytes::new()).await;
            }
            Arrival::Refuse(refusal, sink) => sink.send(refused(refusal), Bytes::new()).await,
            Arrival::Lost => {
                let reply = refused(Refusal::Lost);
                changes::finish(&self.server, &self.session, seq, reply).await;
            }
        }
    }
}

fn breach(kind: &str, what: &str) -> End {
    End::Breach(format!("{kind} {what}"))
}

async fn send(sink: Sink, answer: reads::Answer) {
    sink.send(answer.reply, answer.payload).await;
}

/// Waits for others, and goes on as [`elsewhere`].
async fn held_back(shared: Shared, read: reads::Read, told: usize, sink: Sink) {
    let link = &shared.1;
    let ready = tokio::select! {
        biased;
        ready = caught(read.ready()) => ready,
        () = link.ended() => return,
    };
    let read = match ready {
        Some(Some(read)) => read,
        Some(None) => return,
        None => return fail(sink).await,
    };
    let Some(room) = link.room_for_answer(told).await else {
        return;
    };
    elsewhere(shared, read, sink.with(room)).await;
}

/// Goes on with a request on an I/O thread, for as long as its connection lives.
async fn elsewhere((server, link): Shared, read: reads::Read, sink: Sink) {
    let answer = tokio::select! {
        biased;
        answer = caught(read.answer()) => answer,
        () = link.ended() => return,
    };
    match answer {
        Some(Some(answer)) => {
            if answer.payload.len() <= SMALL {
                server.nearly_done();
            }
            prompt(send(sink, answer)).await;
        }
        // The server ends, or the client is shut out.
        Some(None) => (),
        None => fail(sink).await,
    }
}

/// Answers a request that nothing else comes of.
async fn fail(sink: Sink) {
    tracing::error!("a request failed inside");
    sink.send(refused(Refusal::Internal), Bytes::new()).await;
}
