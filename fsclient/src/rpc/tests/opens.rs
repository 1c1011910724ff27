//! Opens that are closed, given up with an approval, or made for nobody.

use super::*;

#[tokio::test]
async fn a_change_that_finds_no_room_is_asked_again_once_what_was_closed_before_is_closed() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let never = Abandon::new();
    let full = || Err(Refusal::Host(libc::ENOSPC as u16));
    let open = client.call(opening());
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
async fn recalls_reach_the_engine_and_approvals_the_server_with_the_opens_given_up() {
    let fake = Fake::start();
    let (mut client, mut session) = connect(&fake, PATIENT).await;
    let call = client.call(opening());
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
    let call = client.call(opening());
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
