//! A server that says what none may say.

use super::*;
use leasefs_protocol::answer;
use leasefs_transport::{CloseCode, Lost};

fn is_broken(lost: &Lost) -> bool {
    let protocol = Some(CloseCode::Protocol);
    matches!(lost, Lost::Closed { code, .. } if *code == protocol)
}

#[tokio::test]
async fn no_session_stands_on_a_term_of_nothing() {
    let mut fake = Fake::start();
    fake.term_ms = 0;
    let (client, session) = connect(&fake, PATIENT).await;
    let trouble = client.driver.session_status().trouble;
    let trouble = trouble.expect("the reason");
    assert!(trouble.contains("a term out of bounds"), "{trouble}");
    let lost = soon("the end", session.connection.closed()).await;
    assert!(is_broken(&lost), "{lost:?}");
}

#[tokio::test]
async fn an_answer_that_cannot_be_one_is_an_io_error_and_the_session_goes_on() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    for (response, payload) in [
        (space(), Bytes::from_static(b"unasked")),
        (
            Response::Written(answer::Written::plain(1, 0)),
            Bytes::new(),
        ),
    ] {
        let call = client.call(statfs());
        session.asked().await.answer(Ok(response), payload);
        let told = answered(call).await;
        assert!(matches!(told, Err(Refusal::Internal)), "{told:?}");
    }
    let call = client.call(statfs());
    session.asked().await.answer(Ok(space()), Bytes::new());
    assert!(is_space(&answered(call).await));
}

#[tokio::test]
async fn a_stream_that_is_none_ends_the_connection() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let _call = client.call(statfs());
    let asked = session.asked().await;
    asked.noise();
    let lost = soon("the end", session.connection.closed()).await;
    assert!(is_broken(&lost), "{lost:?}");
    fake.welcome(Standing::Resumed, 1).await;
}
