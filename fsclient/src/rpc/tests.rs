//! Sessions against a server whose every word the test says, over real connections.

mod connections;
pub(crate) mod fake;
mod hostile;
mod opens;

use super::*;
use bytes::Bytes;
use fake::{Asked, Fake, Session, attr, handle, soon};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{
    HelloRefusal, Push, ReclaimLease, Standing, ToClient, ToServer, Welcome,
};
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
use leasefs_protocol::request::Fill;
use leasefs_protocol::ticket::ServerAddr;
use leasefs_protocol::{
    Approval, Caller, Mode, OpenId, OpenToken, Parts, Recall, RecallId, Refusal, Request, Response,
    Scope, Seq, SessionId, Stamp,
};
use leasefs_transport::Identity;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[derive(Debug, Default)]
struct Renewed(Mutex<Vec<BootTime>>);

impl Renewals for Renewed {
    fn renewed(&self, sent: BootTime, term: Duration, _: u32) {
        assert!(term > Duration::ZERO);
        self.0.lock().expect("lock").push(sent);
    }
}

impl Renewed {
    fn count(&self) -> usize {
        self.0.lock().expect("lock").len()
    }
}

/// A client with its session.
struct Client {
    rpc: Rpc,
    events: mpsc::UnboundedReceiver<Event>,
    renewed: Arc<Renewed>,
}

fn config(fake: &Fake, timeout: Timeout) -> (Config, mpsc::UnboundedReceiver<Event>, Arc<Renewed>) {
    let renewed = Arc::new(Renewed::default());
    let (config, received) = config_with(fake, timeout, renewed.clone());
    (config, received, renewed)
}

pub(crate) fn config_with(
    fake: &Fake,
    timeout: Timeout,
    renewals: Arc<dyn Renewals>,
) -> (Config, mpsc::UnboundedReceiver<Event>) {
    let (events, received) = mpsc::unbounded_channel();
    let address = fake.server.local_addr();
    let config = Config {
        server: ServerAddr {
            host: address.ip().to_string(),
            port: address.port(),
        },
        key: fake.identity.key_hash(),
        identity: Identity::generate().expect("identity"),
        ticket: Some([5; 32]),
        session: SessionId([3; 16]),
        name: "test".into(),
        subdir: Vec::new(),
        drift_ppm: DEFAULT_DRIFT_PPM,
        timeout,
        connect_timeout: Duration::from_secs(1),
        events,
        renewals,
    };
    (config, received)
}

async fn connect(fake: &Fake, timeout: Timeout) -> (Client, Session) {
    let (config, events, renewed) = config(fake, timeout);
    let (connected, session) = tokio::join!(Rpc::connect(config), fake.welcome(Standing::New, 1));
    let (rpc, _) = connected.expect("connected");
    let mut client = Client {
        rpc,
        events,
        renewed,
    };
    assert_eq!(client.connected().await.standing, Standing::New);
    (client, session)
}

impl Client {
    async fn event(&mut self) -> Event {
        soon("an event", self.events.recv()).await.expect("event")
    }

    async fn connected(&mut self) -> Welcome {
        match self.event().await {
            Event::Connected { welcome } => *welcome,
            other => panic!("{other:?}"),
        }
    }

    async fn disconnected(&mut self) {
        assert!(matches!(self.event().await, Event::Disconnected));
    }

    fn call(&self, request: Request) -> JoinHandle<Result<Answer, Refusal>> {
        let rpc = self.rpc.clone();
        tokio::spawn(async move {
            rpc.call(
                Caller::default(),
                request,
                Bytes::new(),
                CallOptions::default(),
            )
            .await
        })
    }

    fn change(&self, object: u8, abandon: &Abandon) -> JoinHandle<Changed> {
        let (rpc, abandon) = (self.rpc.clone(), abandon.clone());
        tokio::spawn(async move {
            rpc.change(
                Caller::default(),
                removal(object),
                Bytes::from_static(b"data"),
                &[handle(object)],
                vec![handle(object)],
                CallOptions {
                    abandon: Some(&abandon),
                    ..CallOptions::default()
                },
            )
            .await
        })
    }
}

pub(crate) const PATIENT: Timeout = Timeout::After(Duration::from_secs(60));

fn removal(object: u8) -> Request {
    Request::Unlink {
        dir: handle(object),
        name: leasefs_protocol::RawName(b"x".to_vec()),
    }
}

fn getattr() -> Request {
    Request::GetAttr { object: handle(1) }
}

fn opening() -> Request {
    Request::Open {
        object: handle(1),
        flags: 0,
    }
}

fn opened(open: u64) -> Result<Response, Refusal> {
    Ok(Response::Opened {
        open: OpenId(open),
        token: OpenToken(vec![open as u8]),
        attr: attr(),
    })
}

fn is_done(answer: &Answer) -> bool {
    answer.reply.result == Ok(Response::Done)
}

#[tokio::test]
async fn a_request_is_answered_with_its_payload_and_counted() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let read = Request::Read {
        open: OpenId(1),
        offset: 0,
        len: 4,
        fill: Fill::Nothing,
    };
    let call = client.call(read.clone());
    let asked = session.asked().await;
    assert_eq!(
        (asked.frame.request.clone(), asked.frame.change.clone()),
        (read, None)
    );
    asked.answer(Ok(Response::Done), Bytes::from_static(b"data"));
    let answer = call.await.expect("task").expect("answer");
    assert_eq!(answer.payload, "data");
    let status = client.rpc.status();
    assert_eq!(status.requests.get("read"), Some(&1));
    assert_eq!(
        (status.requests_total, status.state.as_str()),
        (1, "connected")
    );
}

#[tokio::test]
async fn changes_follow_unanswered_ones_of_the_same_object_and_tell_the_low_water_mark() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let never = Abandon::new();
    let mut asked: Vec<Asked> = Vec::new();
    let mut changes = Vec::new();
    for object in [2, 3, 2] {
        changes.push(client.change(object, &never));
        asked.push(session.asked().await);
    }
    let after: Vec<Vec<Seq>> = asked
        .iter()
        .map(|asked| asked.frame.change.clone().expect("change").after)
        .collect();
    assert_eq!(after, [vec![], vec![], vec![asked[0].seq()]]);
    asked[0].answer(Ok(Response::Done), Bytes::new());
    changes.remove(0).await.expect("task");
    let _last = client.change(2, &never);
    let last = session.asked().await.frame;
    assert_eq!(last.low_water, asked[1].seq());
    assert_eq!(last.change.expect("change").after, [asked[2].seq()]);
}

#[tokio::test]
async fn an_abandoned_change_lets_its_caller_go_and_settles_by_the_cancels_answer() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    for begun in [false, true] {
        let abandon = Abandon::new();
        let change = client.change(2, &abandon);
        let asked = session.asked().await;
        let seq = asked.seq();
        abandon.trigger();
        let changed = soon("the caller", change).await.expect("task");
        assert!(matches!(changed.result, Err(Refusal::Cancelled)));
        assert_eq!(session.said().await, ToServer::Cancel { seq });
        session.say(ToClient::Cancelled { seq, begun }).await;
        if begun {
            asked.answer(Ok(Response::Done), Bytes::new());
        }
        let settled = soon("the settlement", changed.unsettled.expect("unsettled")).await;
        match (begun, settled) {
            (false, Settlement::NeverHappens) => {}
            (true, Settlement::Answered(answer)) => assert!(is_done(&answer)),
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_cancelled_change_is_sent_again_only_if_it_had_begun() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let abandon = Abandon::new();
    let (begun, unbegun) = (client.change(2, &abandon), client.change(3, &abandon));
    let mut seqs = [session.asked().await, session.asked().await].map(|asked| {
        let seq = asked.seq();
        (asked.frame.change.expect("change").dropped, seq)
    });
    seqs.sort_by_key(|(dropped, _)| dropped.clone());
    let [(_, first), (_, second)] = seqs;
    session.cut();
    client.disconnected().await;
    abandon.trigger();
    let begun = begun.await.expect("task").unsettled.expect("unsettled");
    let unbegun = unbegun.await.expect("task").unsettled.expect("unsettled");
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let mut cancels = [session.said().await, session.said().await];
    cancels.sort_by_key(|message| *message != ToServer::Cancel { seq: first });
    assert_eq!(
        cancels,
        [
            ToServer::Cancel { seq: first },
            ToServer::Cancel { seq: second }
        ]
    );
    for (seq, begun) in [(second, false), (first, true)] {
        session.say(ToClient::Cancelled { seq, begun }).await;
    }
    let asked = session.asked().await;
    let change = asked.frame.change.clone().expect("change");
    assert_eq!((change.seq, change.resent), (first, true));
    asked.answer(Ok(Response::Done), Bytes::new());
    assert!(matches!(
        soon("settlement", begun).await,
        Settlement::Answered(_)
    ));
    assert!(matches!(
        soon("settlement", unbegun).await,
        Settlement::NeverHappens
    ));
}

#[tokio::test]
async fn a_silent_server_times_requests_out_and_the_change_is_cancelled_by_number() {
    let fake = Fake::start();
    let (mut client, session) = connect(&fake, Timeout::After(Duration::from_millis(300))).await;
    session.cut();
    client.disconnected().await;
    // The server's port stays open, but nobody says anything.
    let call = client.call(getattr());
    let change = client.change(2, &Abandon::new());
    assert!(matches!(
        soon("the timeout", call).await.expect("task"),
        Err(Refusal::TimedOut)
    ));
    let changed = soon("the timeout", change).await.expect("task");
    assert!(matches!(changed.result, Err(Refusal::TimedOut)));
    assert!(changed.unsettled.is_none(), "it was never sent");
}
