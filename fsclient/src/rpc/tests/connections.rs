//! Connections of a session: the first, the next, a restarted server's, the last.

use super::*;

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
async fn after_a_restart_leases_and_opens_are_reclaimed_before_anything_is_asked() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    for open in [7, 8] {
        let call = client.call(opening());
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

#[tokio::test]
async fn a_server_that_allows_no_requests_does_not_keep_its_client_for_ever() {
    let fake = Fake::start();
    let (config, _events, _renewed) = config(&fake, PATIENT);
    let starve = async {
        let incoming = fake.server.accept().await.expect("open");
        let connection = incoming.handshake().await.expect("handshake");
        let (_, mut control, _reader) = connection.accept().await.expect("control");
        // It isn't let in: it may open no other stream.
        let welcome = ToClient::Welcome(fake.greeting(Standing::New, 1));
        control.send(&welcome, Bytes::new()).await.expect("sent");
        connection.closed().await
    };
    let connected = soon("the client gives up", async {
        tokio::join!(Rpc::connect(config), starve)
    });
    let (refused, _) = connected.await;
    let error = refused.expect_err("no session");
    assert!(error.to_string().contains("allows no requests"), "{error}");
}
