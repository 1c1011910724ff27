//! What a driver does beside connections: it tells the kernel, keeps bytes, looks at the clock.

use super::*;
use leasefs_client::{Undelivered, WhyNot};
use leasefs_protocol::control::Push;
use leasefs_protocol::{OpenId, OpenToken, Parts, Recall, RecallId, Scope, Stamp};

#[tokio::test]
async fn a_notice_that_blocks_holds_up_its_recall_and_nothing_else() {
    let fake = Fake::start();
    let (kernel, free) = Blocking::new();
    let (client, mut session) = connect_with(&fake, PATIENT, kernel).await;
    page_in_kernel(&client, &mut session).await;
    let recall = Recall {
        id: RecallId(1),
        stamp: Stamp(3),
        scope: Scope::Object {
            object: handle(1),
            parts: Parts::ALL,
            names: Vec::new(),
        },
    };
    session.push(Push::Recall(recall)).await;
    soon("the recall", async {
        while client.driver.cache_status().recalls == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let call = client.call(statfs());
    session.asked().await.answer(Ok(space()), Bytes::new());
    assert!(is_space(&answered(call).await));
    assert!(session.said.try_recv().is_err(), "nothing is approved yet");
    drop(free);
    let said = session.said().await;
    assert!(matches!(said, ToServer::Approve(_)), "{said:?}");
}

#[tokio::test]
async fn large_reads_dont_hold_up_small_requests() {
    let fake = Fake::start();
    let (client, mut session) = connect(&fake, PATIENT).await;
    let small = client.call(statfs());
    let asked = session.asked().await;
    assert!(!asked.large);
    asked.answer(Ok(space()), Bytes::new());
    answered(small).await.expect("answered");
    let opened = client.call(Call::OpenDir { node: NodeId::ROOT });
    let open = Response::Opened {
        open: OpenId(8),
        token: OpenToken(vec![8]),
        attr: attr(),
    };
    session.asked().await.answer(Ok(open), Bytes::new());
    let Ok(Answer::OpenedDir(fh)) = answered(opened).await else {
        panic!("no directory")
    };
    let _listing = client.call(Call::ReadDir { fh, offset: 0 });
    let asked = session.asked().await;
    assert_eq!(asked.frame.request.kind(), "readdir");
    assert!(asked.large);
}

#[tokio::test]
async fn what_was_kept_counts_until_somebody_disposes_of_it() {
    let fake = Fake::start();
    let (client, _session) = connect(&fake, PATIENT).await;
    assert_eq!(client.driver.left_behind(), 0);
    client.driver.keeping.keep_for_later(Undelivered {
        object: handle(1),
        path: Some("x".into()),
        size: 4,
        extents: vec![(0, Bytes::from_static(b"data"))],
        reason: WhyNot::ChangedElsewhere,
    });
    assert_eq!(client.driver.left_behind(), 1);
    let folder = client.scratch.folder();
    for id in folder.ids().expect("a folder") {
        folder.discard(id).expect("discarded");
    }
    assert_eq!(client.driver.left_behind(), 0);
    assert_eq!(client.driver.keep_all(), 0);
}
