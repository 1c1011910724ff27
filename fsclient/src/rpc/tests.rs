//! Sessions against a server whose every word the test says, over real connections.

mod fake;

use super::*;
use bytes::Bytes;
use fake::{Asked, Fake, Session, attr, handle, soon};
use leasefs_lease::time::BootTime;
use leasefs_protocol::control::{
    HelloRefusal, Push, ReclaimLease, Standing, ToClient, ToServer, Welcome,
};
use leasefs_protocol::limits::DEFAULT_DRIFT_PPM;
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
    let (events, received) = mpsc::unbounded_channel();
    let renewed = Arc::new(Renewed::default());
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
        renewals: renewed.clone(),
    };
    (config, received, renewed)
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

const PATIENT: Timeout = Timeout::After(Duration::from_secs(60));

fn removal(object: u8) -> Request {
    Request::Unlink {
        dir: handle(object),
        name: leasefs_protocol::RawName(b"x".to_vec()),
    }
}

fn getattr() -> Request {
    Request::GetAttr { object: handle(1) }
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
    let call = client.call(getattr());
    let asked = session.asked().await;
    assert_eq!(
        (asked.frame.request.clone(), asked.frame.change.clone()),
        (getattr(), None)
    );
    asked.answer(Ok(Response::Done), Bytes::from_static(b"data"));
    let answer = call.await.expect("task").expect("answer");
    assert_eq!(answer.payload, "data");
    let status = client.rpc.status();
    assert_eq!(status.requests.get("getattr"), Some(&1));
    assert_eq!(
        (status.requests_total, status.state.as_str()),
        (1, "connected")
    );
}

#[tokio::test]
async fn hello_says_who_and_shows_the_ticket_only_until_the_first_welcome() {
    let fake = Fake::start();
    let (mut client, session) = connect(&fake, PATIENT).await;
    assert_eq!(session.hello.ticket, Some([5; 32]));
    assert_eq!(session.hello.last_process, None);
    session.cut();
    client.disconnected().await;
    let again = fake.welcome(Standing::Resumed, 1).await;
    assert_eq!(again.hello.ticket, None);
    assert_eq!(again.hello.session, SessionId([3; 16]));
    assert_eq!(
        again.hello.last_process.map(|process| process.0[0]),
        Some(1)
    );
    assert_eq!(client.connected().await.standing, Standing::Resumed);
}

#[tokio::test]
async fn a_refusal_of_the_first_hello_is_surfaced_as_it_is() {
    let fake = Fake::start();
    let (config, _events, _renewed) = config(&fake, PATIENT);
    let refuse = async {
        let (_, _connection, mut control, mut reader) = fake.hello().await;
        let refused = ToClient::Refused(HelloRefusal::TicketExpired);
        control.send(&refused, Bytes::new()).await.expect("sent");
        let _ = reader.next::<ToServer>().await;
    };
    let (refused, ()) = tokio::join!(Rpc::connect(config), refuse);
    let error = refused.expect_err("refused");
    assert!(matches!(
        &error,
        ConnectError::Refused {
            refusal: HelloRefusal::TicketExpired,
            ..
        }
    ));
    assert!(error.to_string().contains("fsserver ticket"), "{error}");
}

#[tokio::test]
async fn a_lost_connection_costs_no_answer_and_a_change_keeps_its_number() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let call = client.call(getattr());
    session.asked().await;
    let change = client.change(2, &Abandon::new());
    let first = session.asked().await;
    assert_eq!(first.frame.change.as_ref().map(|c| c.resent), Some(false));
    session.cut();
    client.disconnected().await;
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let mut again = [session.asked().await, session.asked().await];
    again.sort_by_key(|asked| asked.frame.change.is_some());
    let [read, write] = again;
    let resent = write.frame.change.as_ref().expect("a change");
    assert_eq!((resent.seq, resent.resent), (first.seq(), true));
    assert_eq!(write.payload, first.payload);
    read.answer(Ok(Response::Done), Bytes::new());
    write.answer(Ok(Response::Done), Bytes::new());
    assert!(is_done(&call.await.expect("task").expect("answer")));
    assert!(is_done(
        &change.await.expect("task").result.expect("answer")
    ));
}

#[tokio::test]
async fn what_is_asked_without_connection_is_sent_with_the_next() {
    let fake = Fake::start();
    let (mut client, session) = connect(&fake, PATIENT).await;
    session.cut();
    client.disconnected().await;
    let change = client.change(2, &Abandon::new());
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let asked = session.asked().await;
    assert_eq!(asked.frame.change.as_ref().map(|c| c.resent), Some(false));
    asked.answer(Ok(Response::Done), Bytes::new());
    assert!(is_done(
        &change.await.expect("task").result.expect("answer")
    ));
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
async fn a_change_that_finds_no_room_is_asked_again_once_what_was_closed_before_is_closed() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let never = Abandon::new();
    let full = || Err(Refusal::Host(libc::ENOSPC as u16));
    let open = client.call(getattr());
    session.asked().await.answer(opened(7), Bytes::new());
    open.await.expect("task").expect("an open");

    client.rpc.close(OpenId(7));
    let close = session.asked().await;
    let change = client.change(2, &never);
    session.asked().await.answer(full(), Bytes::new());
    close.answer(Ok(Response::Done), Bytes::new());
    session
        .asked()
        .await
        .answer(Ok(Response::Done), Bytes::new());
    assert!(is_done(
        &change.await.expect("task").result.expect("answer")
    ));

    let change = client.change(2, &never);
    session.asked().await.answer(full(), Bytes::new());
    let told = change.await.expect("task").result.expect("answer");
    assert_eq!(told.reply.result, full(), "nothing was closed meanwhile");
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

#[tokio::test]
async fn after_a_restart_leases_and_opens_are_reclaimed_before_anything_is_asked() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    for open in [7, 8] {
        let call = client.call(getattr());
        session.asked().await.answer(opened(open), Bytes::new());
        call.await.expect("task").expect("answer");
    }
    let call = client.call(getattr());
    session.asked().await;
    session.cut();
    client.disconnected().await;
    let mut session = fake.welcome(Standing::Reclaim, 2).await;
    assert_eq!(client.connected().await.standing, Standing::Reclaim);
    let Event::Reclaim { reply } = client.event().await else {
        panic!("no question")
    };
    let lease = ReclaimLease {
        object: handle(4),
        parts: Parts::DATA,
        mode: Mode::Read,
    };
    reply.send(vec![lease]).expect("asked");
    let mut reclaimed = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let ToServer::Reclaim(reclaim) = session.said().await else {
            panic!("no reclaim")
        };
        reclaimed.0.extend(reclaim.leases);
        reclaimed
            .1
            .extend(reclaim.opens.iter().map(|open| open.open));
    }
    reclaimed.1.sort();
    assert_eq!(reclaimed, (vec![lease], vec![OpenId(7), OpenId(8)]));
    let nothing = ToClient::Reclaimed {
        lost_leases: Vec::new(),
        lost_opens: Vec::new(),
    };
    session.say(nothing).await;
    session
        .say(ToClient::Reclaimed {
            lost_leases: vec![handle(4)],
            lost_opens: vec![OpenId(8)],
        })
        .await;
    let Event::Lost {
        leases,
        opens,
        done,
    } = client.event().await
    else {
        panic!("nothing lost")
    };
    assert_eq!((leases, opens), (vec![handle(4)], vec![OpenId(8)]));
    assert!(session.said.try_recv().is_err(), "not done before the drop");
    done.send(()).expect("waited for");
    assert_eq!(session.said().await, ToServer::ReclaimDone);
    session
        .asked()
        .await
        .answer(Ok(Response::Done), Bytes::new());
    assert!(is_done(&call.await.expect("task").expect("answer")));
    assert_eq!(client.rpc.status().opens, 1);
}

#[tokio::test]
async fn a_server_that_forgot_the_session_never_gets_a_sent_change_again() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let change = client.change(2, &Abandon::new());
    session.asked().await;
    session.cut();
    client.disconnected().await;
    let mut session = fake.welcome(Standing::New, 2).await;
    let changed = soon("the change", change).await.expect("task");
    assert!(matches!(changed.result, Err(Refusal::Lost)));
    let call = client.call(getattr());
    assert_eq!(session.asked().await.frame.request, getattr());
    call.abort();
}

#[tokio::test]
async fn renewals_count_from_the_send_time_and_the_session_is_kept_alive() {
    let mut fake = Fake::start();
    fake.term_ms = 1_500;
    let before = now();
    let (client, mut session) = connect(&fake, PATIENT).await;
    assert_eq!(client.renewed.count(), 1, "the welcome renews");
    let call = client.call(getattr());
    let asked = session.asked().await;
    let answered = now();
    asked.renew();
    call.await.expect("task").expect("answer");
    let sent: Vec<BootTime> = client.renewed.0.lock().expect("lock").clone();
    assert!(sent.iter().all(|sent| before <= *sent && *sent <= answered));
    let renewed = client.renewed.count();
    session.keep_alive().await;
    session.keep_alive().await;
    soon("renewals", async {
        while client.renewed.count() < renewed + 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let status = client.rpc.status();
    assert!(status.renewals >= 2);
    assert_eq!(status.requests_total, 1, "renewals are no requests");
}

#[tokio::test]
async fn recalls_reach_the_engine_and_approvals_the_server_with_the_opens_given_up() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let call = client.call(getattr());
    session.asked().await.answer(opened(7), Bytes::new());
    call.await.expect("task").expect("answer");
    let recall = Recall {
        id: RecallId(5),
        stamp: Stamp(2),
        scope: Scope::Everything,
    };
    session.push(Push::Recall(recall.clone())).await;
    let Event::Recall(received) = client.event().await else {
        panic!("no recall")
    };
    assert_eq!(received, recall);
    let approval = Approval {
        recall: RecallId(5),
        closes: vec![OpenId(7)],
    };
    client.rpc.approve(vec![approval.clone()]);
    assert_eq!(session.said().await, ToServer::Approve(vec![approval]));
    assert_eq!(client.rpc.status().opens, 0);
}

#[tokio::test]
async fn an_open_nobody_waits_for_is_closed_again_and_closes_are_gathered() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let call = client.call(getattr());
    let asked = session.asked().await;
    call.abort();
    let _ = call.await;
    asked.answer(opened(7), Bytes::new());
    let close = session.asked().await;
    let expected = Request::Close {
        opens: vec![OpenId(7)],
    };
    assert_eq!(close.frame.request, expected);
    close.answer(Ok(Response::Done), Bytes::new());
}

#[tokio::test]
async fn an_open_nobody_waits_for_is_asked_for_again_after_a_lost_connection_and_closed() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let object = handle(1);
    let calls = [getattr(), Request::Open { object, flags: 0 }].map(|asked| client.call(asked));
    let asked = [session.asked().await, session.asked().await];
    for call in calls {
        call.abort();
        let _ = call.await;
    }
    session.cut();
    client.disconnected().await;
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let again = session.asked().await;
    let first = asked.iter().find(|asked| asked.frame.id == again.frame.id);
    let first = first.expect("the number it was first sent with");
    assert_eq!(again.frame.request, first.frame.request);
    assert_eq!(again.frame.request.kind(), "open");
    again.answer(opened(7), Bytes::new());
    let close = session.asked().await;
    let opens = vec![OpenId(7)];
    assert_eq!(close.frame.request, Request::Close { opens });
    close.answer(Ok(Response::Done), Bytes::new());
}

#[tokio::test]
async fn a_fenced_connection_is_replaced() {
    let fake = Fake::start();
    let (mut client, session) = connect(&fake, PATIENT).await;
    session
        .connection
        .close(leasefs_transport::CloseCode::Fenced, "newer");
    client.disconnected().await;
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let call = client.call(getattr());
    session
        .asked()
        .await
        .answer(Ok(Response::Done), Bytes::new());
    assert!(is_done(&call.await.expect("task").expect("answer")));
    assert_eq!(client.rpc.status().reconnects, 1);
}

#[tokio::test]
async fn goodbye_waits_for_the_farewell() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let rpc = client.rpc.clone();
    let goodbye = tokio::spawn(async move { rpc.goodbye().await });
    assert_eq!(session.said().await, ToServer::Goodbye);
    assert!(!goodbye.is_finished());
    session.say(ToClient::Farewell).await;
    soon("the end", goodbye).await.expect("task");
}
