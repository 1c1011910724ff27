//! What a driver does beside connections: it tells the kernel, keeps bytes, looks at the clock.

use super::*;
use leasefs_client::call::{NewMode, Writing};
use leasefs_client::{Undelivered, WhyNot};
use leasefs_protocol::answer;
use leasefs_protocol::control::Push;
use leasefs_protocol::{Recall, RecallId, Scope};
use std::sync::atomic::AtomicBool;

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
    let open = Response::Opened(answer::Opened {
        open: OpenId(8),
        token: OpenToken(vec![8]),
        attr: attr(),
    });
    session.asked().await.answer(Ok(open), Bytes::new());
    let Ok(Answer::OpenedDir(fh)) = answered(opened).await else {
        panic!("no directory")
    };
    let _listing = client.call(Call::ReadDir {
        fh,
        offset: 0,
        plus: None,
    });
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
        writer: None,
        size: 4,
        extents: vec![(0, Bytes::from_static(b"data"))],
        reason: WhyNot::ChangedElsewhere,
    });
    assert_eq!(client.driver.left_behind(), 1);
    for item in client.scratch.recovery().items() {
        let id = item.expect("an item").id;
        let folder = client.scratch.recovery().folder_with(id);
        folder.expect("there").discard(id).expect("discarded");
    }
    assert_eq!(client.driver.left_behind(), 0);
    assert_eq!(client.driver.keep_all(), (0, 0));
}

/// What it is told ends in a panic once it is armed.
#[derive(Default)]
struct Treacherous {
    armed: AtomicBool,
    ended: AtomicBool,
}

impl Kernel for Treacherous {
    fn tell(&self, _: &Notice) -> Noticed {
        assert!(!self.armed.load(Ordering::Relaxed), "armed");
        Noticed::Done
    }

    fn can_forget_names(&self) -> bool {
        true
    }

    fn end_process(&self) -> ! {
        self.ended.store(true, Ordering::Relaxed);
        panic!("the process would end here")
    }
}

/// A file of this mount's making has bytes that the server doesn't have.
async fn buffered(client: &Client, session: &mut Session) {
    let made = client.call(Call::Create {
        parent: NodeId::ROOT,
        name: b"x"[..].into(),
        mode: NewMode {
            mode: libc::S_IFREG | 0o644,
            umask: 0,
        },
        flags: libc::O_RDWR as u32,
    });
    let created = Response::Created(answer::Created {
        handle: handle(1),
        attr: Attr { size: 0, ..file() },
        open: OpenId(7),
        token: OpenToken(vec![7]),
    });
    let grant = Grant {
        object: handle(1),
        parts: Parts::ALL,
        mode: Mode::Write,
        stamp: Stamp(1),
    };
    let asked = session.asked().await;
    asked.grant(created, Bytes::new(), vec![grant]);
    let Ok(Answer::Created(_, open)) = answered(made).await else {
        panic!("nothing made")
    };
    let written = client.call(Call::Write {
        fh: open.fh,
        writing: Writing {
            offset: 0,
            data: Bytes::from_static(b"data"),
            flags: libc::O_RDWR as u32,
            writeback: false,
            kill_priv: false,
            owner: None,
        },
    });
    assert!(matches!(answered(written).await, Ok(Answer::Written(4))));
    assert_eq!(client.driver.dirty_files().len(), 1);
}

#[tokio::test]
async fn after_a_panic_nobody_goes_on_and_what_was_buffered_is_kept() {
    let fake = Fake::start();
    let kernel = Arc::new(Treacherous::default());
    let (client, mut session) = connect_with(&fake, PATIENT, kernel.clone()).await;
    buffered(&client, &mut session).await;
    // Of a file that it knows already the kernel is told something.
    for armed in [false, true] {
        kernel.armed.store(armed, Ordering::Relaxed);
        let found = client.call(Call::Lookup {
            parent: NodeId::ROOT,
            name: b"y"[..].into(),
        });
        let (handle, attr) = (handle(2), Attr { ino: 6, ..file() });
        let asked = session.asked().await;
        asked.answer(
            Ok(Response::Object(answer::Object { handle, attr })),
            Bytes::new(),
        );
        if !armed {
            answered(found).await.expect("found");
        }
    }
    soon("the end", async {
        while !kernel.ended.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let items = client.scratch.recovery().items();
    let [Ok(item)] = &items[..] else {
        panic!("one file: {items:?}")
    };
    assert_eq!(item.bytes, 4);
    let driver = client.driver.clone();
    let again = tokio::task::spawn_blocking(move || driver.drive(Event::Tick)).await;
    assert!(again.is_err(), "the core goes on");
}
