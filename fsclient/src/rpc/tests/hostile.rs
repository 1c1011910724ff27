//! A server that says what none may say.

use super::*;
use leasefs_protocol::RawName;
use leasefs_protocol::limits::MAX_RECALLS_OPEN;
use leasefs_transport::{CloseCode, Lost};

#[tokio::test]
async fn a_mount_does_not_stand_on_a_term_of_nothing() {
    let mut fake = Fake::start();
    fake.term_ms = 0;
    let (config, _events, renewed) = config(&fake, PATIENT);
    let again_and_again = async {
        loop {
            fake.welcome(Standing::New, 1).await;
        }
    };
    let refused: ConnectError = tokio::select! {
        connected = Rpc::connect(config) => connected.map(drop).expect_err("refused"),
        () = again_and_again => unreachable!(),
    };
    assert!(
        refused.to_string().contains("a term out of bounds"),
        "{refused}"
    );
    assert_eq!(renewed.count(), 0);
}

#[tokio::test]
async fn an_answer_that_cannot_be_one_is_an_io_error_and_the_session_goes_on() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let renewed = client.renewed.count();
    let mut endless = attr();
    endless.size = u64::MAX;
    for (response, payload) in [
        (Response::Attr(endless), Bytes::new()),
        (Response::Attr(attr()), Bytes::from_static(b"unasked")),
        (Response::Written { len: 1, offset: 0 }, Bytes::new()),
    ] {
        let call = client.call(getattr());
        session.asked().await.answer(Ok(response), payload);
        let answer = call.await.expect("task").expect("answer");
        assert_eq!(answer.reply.result, Err(Refusal::Internal));
        assert_eq!(answer.reply.stamp, Stamp::default());
    }
    assert_eq!(client.renewed.count(), renewed);
    let call = client.call(getattr());
    let asked = session.asked().await;
    asked.answer(Ok(Response::Attr(attr())), Bytes::new());
    let answer = call.await.expect("task").expect("answer");
    assert_eq!(answer.reply.result, Ok(Response::Attr(attr())));
}

#[tokio::test]
async fn the_open_of_one_file_is_not_given_out_for_another() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    for expected in [opened(7), Err(Refusal::Internal)] {
        let call = client.call(opening());
        session.asked().await.answer(opened(7), Bytes::new());
        let answer = call.await.expect("task").expect("answer");
        assert_eq!(answer.reply.result, expected);
    }
    assert_eq!(client.rpc.status().opens, 1);
}

#[tokio::test]
async fn a_flood_of_recalls_ends_the_connection() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let recall = |id| Recall {
        id: RecallId(id),
        stamp: Stamp(id),
        scope: Scope::Object {
            object: handle(1),
            parts: Parts::ALL,
            names: vec![RawName(b"x".to_vec())],
        },
    };
    for id in 0..=MAX_RECALLS_OPEN as u64 {
        session.push(Push::Recall(recall(id))).await;
    }
    let lost = soon("the end", session.connection.closed()).await;
    let code = Some(CloseCode::Protocol);
    assert!(
        matches!(&lost, Lost::Closed { code: found, .. } if *found == code),
        "{lost:?}"
    );
    let mut taken = 0;
    while let Event::Recall(_) = client.event().await {
        taken += 1;
    }
    assert_eq!(taken, MAX_RECALLS_OPEN);
}
