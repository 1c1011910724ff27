//! Connections of a session: the first, the next, the last.

use super::*;
use leasefs_protocol::control::HelloRefusal;
use leasefs_transport::CloseCode;

#[tokio::test]
async fn hello_says_who_and_shows_the_ticket_only_until_the_first_welcome() {
    let fake = Fake::start();
    let (client, session) = connect(&fake, PATIENT).await;
    assert_eq!(session.hello.ticket, Some([5; 32]));
    assert_eq!(session.hello.last_process, None);
    session.cut();
    let again = fake.welcome(Standing::Resumed, 1).await;
    assert_eq!(again.hello.ticket, None);
    assert_eq!(again.hello.session, SessionId([3; 16]));
    assert_eq!(
        again.hello.last_process.map(|process| process.0[0]),
        Some(1)
    );
    client.becomes("connected").await;
}

#[tokio::test]
async fn a_port_that_is_closed_is_told_as_that_and_a_server_that_takes_it_again_is_found() {
    let fake = Fake::start();
    let (client, session) = connect(&fake, PATIENT).await;
    assert!(!client.driver.nobody_listens().await, "it is there");
    session.cut();
    let (address, identity) = (fake.server.local_addr(), fake.identity.clone());
    drop(fake);
    let told = format!("nothing listens on UDP port {}", address.port());
    soon("what is wrong", async {
        let trouble = || client.driver.status().trouble.unwrap_or_default();
        while !trouble().contains(&told) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(client.driver.nobody_listens().await, "it is closed");
    let fake = Fake::start_at(address, identity);
    let _again = fake.welcome(Standing::Resumed, 1).await;
    client.becomes("connected").await;
}

#[tokio::test]
async fn a_refusal_of_the_first_hello_is_surfaced_as_it_is() {
    let fake = Fake::start();
    let config = session_config(&fake);
    let refuse = async {
        let (_, _connection, mut control, mut reader) = fake.hello().await;
        let refused = ToClient::Refused(HelloRefusal::TicketExpired);
        control.send(&refused, Bytes::new()).await.expect("sent");
        let _ = reader.next::<ToServer>().await;
    };
    let (refused, ()) = tokio::join!(session::first(&config), refuse);
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
async fn a_request_is_answered_and_counted() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let call = client.call(statfs());
    let asked = session.asked().await;
    assert_eq!(asked.frame.request.kind(), "statfs");
    asked.answer(Ok(space()), Bytes::new());
    assert!(is_space(&answered(call).await));
    let status = client.driver.status();
    assert_eq!(status.requests.get("statfs"), Some(&1));
    assert_eq!(
        (status.requests_total, status.state.as_str()),
        (1, "connected")
    );
    assert!(status.bytes_sent > 0 && status.rtt_us.is_some());
}

#[tokio::test]
async fn a_lost_connection_costs_no_answer_and_a_change_keeps_its_number() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let read = client.call(statfs());
    session.asked().await;
    let change = client.call(removal());
    let first = session.asked().await;
    assert_eq!(first.numbered().map(|c| c.resent), Some(false));
    session.cut();
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let mut again = [session.asked().await, session.asked().await];
    again.sort_by_key(|asked| asked.numbered().is_some());
    let [statfs, removal] = again;
    let resent = removal.numbered().expect("a change");
    assert_eq!((resent.seq, resent.resent), (first.seq(), true));
    statfs.answer(Ok(space()), Bytes::new());
    removal.answer(Ok(Response::Done), Bytes::new());
    assert!(is_space(&answered(read).await));
    assert!(matches!(answered(change).await, Ok(Answer::Done)));
    assert_eq!(client.driver.status().reconnects, 1);
}

#[tokio::test]
async fn what_is_asked_without_connection_is_sent_with_the_next() {
    let fake = Fake::start();
    let (client, session) = connect(&fake, PATIENT).await;
    session.cut();
    client.disconnected().await;
    let call = client.call(statfs());
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    session.asked().await.answer(Ok(space()), Bytes::new());
    assert!(is_space(&answered(call).await));
}

#[tokio::test]
async fn a_silent_server_times_requests_out() {
    let fake = Fake::start();
    let (client, session) = connect(&fake, Timeout::After(Duration::from_millis(300))).await;
    session.cut();
    client.disconnected().await;
    // The server's port stays open, but nobody says anything.
    let told = answered(client.call(statfs())).await;
    assert!(matches!(told, Err(Refusal::TimedOut)), "{told:?}");
}

#[tokio::test]
async fn the_session_is_kept_alive() {
    let mut fake = Fake::start();
    fake.term_ms = 1_500;
    let (client, mut session) = connect(&fake, PATIENT).await;
    session.keep_alive().await;
    session.keep_alive().await;
    let status = client.driver.status();
    assert!(status.renewals >= 2);
    assert_eq!(status.requests_total, 0, "renewals are no requests");
}

#[tokio::test]
async fn a_fenced_connection_is_replaced() {
    let fake = Fake::start();
    let (client, session) = connect(&fake, PATIENT).await;
    session.connection.close(CloseCode::Fenced, "newer");
    let mut session = fake.welcome(Standing::Resumed, 1).await;
    let call = client.call(statfs());
    session.asked().await.answer(Ok(space()), Bytes::new());
    assert!(is_space(&answered(call).await));
}

#[tokio::test]
async fn goodbye_waits_for_the_farewell_and_closes_the_connection() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let driver = client.driver.clone();
    let goodbye = tokio::spawn(async move { driver.goodbye().await });
    assert_eq!(session.said().await, ToServer::Goodbye);
    assert!(!goodbye.is_finished());
    session.say(ToClient::Farewell).await;
    soon("the end", goodbye).await.expect("task");
    let lost = soon("the close", session.connection.closed()).await;
    let leasefs_transport::Lost::Closed { code, .. } = &lost else {
        panic!("{lost:?}")
    };
    assert_eq!(*code, Some(CloseCode::Goodbye));
}

#[tokio::test]
async fn a_server_that_allows_no_requests_does_not_keep_its_client_for_ever() {
    let fake = Fake::start();
    let config = session_config(&fake);
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
        tokio::join!(session::first(&config), starve)
    });
    let (refused, _) = connected.await;
    let error = refused.expect_err("no session");
    assert!(error.to_string().contains("allows no requests"), "{error}");
}
