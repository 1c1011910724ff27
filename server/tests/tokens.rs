//! Open tokens: good for taking up again what was open, by the same client, in the same session, under
//! the same rights, after a restart. For nothing else.

mod support;

use bytes::Bytes;
use leasefs_protocol::control::{
    HelloRefusal, IdentityPolicy, Reclaim, ReclaimOpen, Standing, ToClient, ToServer,
};
use leasefs_protocol::{OpenId, OpenToken, Query, Response, SessionId, answer, query};
use std::time::Duration;
use support::client::{Client, LONG, Who, mkdir, raw};
use support::memory::At;
use support::{House, Running};
use tokio::time::timeout;

const A_WHILE: Duration = Duration::from_millis(300);

/// Opens a file to write.
async fn opened(client: &mut Client, name: &str) -> ReclaimOpen {
    let request = client.create_request(name, libc::O_RDWR);
    match client.ask(request).await.result {
        Ok(Response::Created(answer::Created { open, token, .. })) => ReclaimOpen { open, token },
        other => panic!("not created: {other:?}"),
    }
}

async fn lost(client: &mut Client, opens: Vec<ReclaimOpen>) -> Vec<OpenId> {
    let leases = Vec::new();
    let reclaim = ToServer::Reclaim(Reclaim {
        leases,
        opens,
        ..Reclaim::default()
    });
    client.tell(reclaim).await;
    match client.told().await {
        ToClient::Reclaimed { lost_opens, .. } => lost_opens,
        other => panic!("no answer to a reclaim: {other:?}"),
    }
}

async fn close(client: &mut Client, open: OpenId) {
    let opens = vec![open];
    let closed = client.ask(Query::Close(query::Close { opens })).await;
    assert_eq!(closed.result, Ok(Response::Done));
}

async fn reads(client: &mut Client, open: OpenId) -> bool {
    client.read(open, 0, 9).await.0.result.is_ok()
}

/// A client with an open file, and its house. It has the answer of the create.
async fn client_with_an_open_file() -> (House, Running, Who, ReclaimOpen) {
    client_with_an_open_file_for(Duration::from_secs(10)).await
}

/// Where leases are for a term.
async fn client_with_an_open_file_for(term: Duration) -> (House, Running, Who, ReclaimOpen) {
    let house = House::new();
    let server = house.serve_with(term, |_| ()).await;
    let who = Who::enrolled(&house, 1);
    let mut client = who.connect(&server).await;
    let open = opened(&mut client, "f").await;
    // The next change says so, and is on record with it.
    client.low_water = leasefs_protocol::Seq(client.seq + 1);
    let made = client.ask(mkdir(client.root(), raw("d"))).await;
    assert!(made.result.is_ok());
    (house, server, who, open)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_open_is_not_opened_again_by_its_token_while_the_server_lives() {
    let (_house, server, who, open) = client_with_an_open_file().await;
    let mut client = who.connect(&server).await;
    assert_eq!(lost(&mut client, vec![open.clone()]).await, [], "it stands");
    close(&mut client, open.open).await;
    assert_eq!(lost(&mut client, vec![open.clone()]).await, [open.open]);
    assert!(!reads(&mut client, open.open).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_opened_after_a_restart_and_closed_is_not_opened_again_while_reclaims_are_open() {
    let (house, server, who, first) = client_with_an_open_file().await;
    server.crash();
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    let (object, _) = client.lookup(client.root(), "f").await.expect("there");
    let flags = (libc::O_RDONLY as u32).into();
    let second = match client
        .ask(Query::Open(query::Open {
            object,
            flags,
            with_data: false,
        }))
        .await
        .result
    {
        Ok(Response::Opened(answer::Opened { open, token, .. })) => ReclaimOpen { open, token },
        other => panic!("not opened: {other:?}"),
    };
    close(&mut client, second.open).await;
    let lost = lost(&mut client, vec![first, second.clone()]).await;
    assert_eq!(lost, [second.open]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reclaimed_once_a_session_has_said_that_it_has_reclaimed_everything() {
    let (house, server, who, open) = client_with_an_open_file().await;
    server.crash();
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    client.tell(ToServer::ReclaimDone).await;
    assert_eq!(lost(&mut client, vec![open.clone()]).await, [open.open]);
    assert!(!reads(&mut client, open.open).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_under_its_own_number_only() {
    let (house, server, who, open) = client_with_an_open_file().await;
    server.crash();
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    let other = ReclaimOpen {
        open: OpenId(open.open.0 + 1000),
        token: open.token.clone(),
    };
    let number = other.open;
    assert_eq!(lost(&mut client, vec![other, open]).await, [number]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_kept_is_good_for_one_life_after_another() {
    let (house, mut server, who, open) = client_with_an_open_file().await;
    for _ in 0..3 {
        server.crash();
        server = house.serve().await;
        let mut client = who.connect(&server).await;
        assert_eq!(client.welcome.standing, Standing::Reclaim);
        assert_eq!(lost(&mut client, vec![open.clone()]).await, []);
        client.tell(ToServer::ReclaimDone).await;
        assert!(reads(&mut client, open.open).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_void_in_a_later_session_of_the_same_number() {
    let (house, server, who, open) = client_with_an_open_file().await;
    let mut client = who.connect(&server).await;
    client.tell(ToServer::Goodbye).await;
    assert_eq!(client.told().await, ToClient::Farewell);
    until_forgotten(&house, &who).await;
    let client = who.connect(&server).await;
    assert_eq!(client.welcome.standing, Standing::New);
    server.crash();
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    assert_eq!(lost(&mut client, vec![open.clone()]).await, [open.open]);
}

async fn until_forgotten(house: &House, who: &Who) {
    while house.records.has_session(who.session) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_void_in_another_clients_session() {
    let (house, server, who, open) = client_with_an_open_file().await;
    let mut client = who.connect(&server).await;
    client.tell(ToServer::Goodbye).await;
    assert_eq!(client.told().await, ToClient::Farewell);
    until_forgotten(&house, &who).await;
    // The number of a session is its client's choice.
    let thief = Who::enrolled(&house, 1);
    thief.connect(&server).await;
    server.crash();
    let server = house.serve().await;
    let mut thief = thief.connect(&server).await;
    assert_eq!(lost(&mut thief, vec![open.clone()]).await, [open.open]);
}

/// What it was leased before is waited for first.
async fn let_in_again(who: &Who, server: &Running) -> Client {
    let let_in = async {
        loop {
            match who.connect_with(server, who.hello()).await {
                Ok(client) => break client,
                Err(HelloRefusal::Internal(_)) => tokio::time::sleep(A_WHILE).await,
                Err(refusal) => panic!("{refusal}"),
            }
        }
    };
    timeout(LONG, let_in).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_opens_of_a_client_whose_rights_have_changed_are_void() {
    let downgrades = [
        (true, IdentityPolicy::Trust),
        (false, IdentityPolicy::RootSquash),
        (false, IdentityPolicy::Squash),
    ];
    for restarts in [false, true] {
        for (read_only, identity) in downgrades {
            let term = Duration::from_secs(1);
            let (house, mut server, who, open) = client_with_an_open_file_for(term).await;
            let key = who.identity.key_hash();
            house.records.enrol_as(key, read_only, identity);
            if restarts {
                server.crash();
                server = house.serve_with(term, |_| ()).await;
            }
            let mut client = let_in_again(&who, &server).await;
            let void = lost(&mut client, vec![open.clone()]).await;
            assert_eq!(void, [open.open], "{read_only} {identity:?} {restarts}");
            assert!(!reads(&mut client, open.open).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_client_takes_nothing_up_again_by_its_tokens() {
    let (house, server, who, open) = client_with_an_open_file().await;
    let key = who.identity.key_hash();
    house.records.revoke(key);
    server.server.revoke(key).await;
    until_forgotten(&house, &who).await;
    // Readmitted, it begins anew.
    house.records.readmit(key);
    who.connect(&server).await;
    server.crash();
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    assert_eq!(lost(&mut client, vec![open.clone()]).await, [open.open]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_token_opens_nothing() {
    let (house, server, who, open) = client_with_an_open_file().await;
    server.crash();
    let server = house.serve().await;
    let mut client = who.connect(&server).await;
    for at in 0..open.token.0.len() {
        let mut token = open.token.0.clone();
        token[at] ^= 1;
        let forged = ReclaimOpen {
            open: open.open,
            token: OpenToken(token),
        };
        assert_eq!(lost(&mut client, vec![forged]).await, [open.open], "{at}");
    }
}

/// A client's rights change, and it connects with them, while its older hello is held up at `at`.
async fn hello_overtaken_by_other_rights(at: At) {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let held = house.records.hold(at);
    let older = who.reach(&server).await;
    let (mut control, mut answers) = older.open().await.expect("a control stream");
    let hello = ToServer::Hello(who.hello());
    control.send(&hello, Bytes::new()).await.expect("sent");
    held.reached().await;
    let key = who.identity.key_hash();
    house
        .records
        .enrol_as(key, true, IdentityPolicy::RootSquash);
    let newer = Who {
        session: SessionId([2; 16]),
        ..who.clone()
    };
    let newer = newer.connect(&server);
    tokio::pin!(newer);
    let early = timeout(A_WHILE, &mut newer).await.ok();
    drop(held);
    let mut newer = match early {
        Some(client) => client,
        None => newer.await,
    };
    assert!(newer.welcome.read_only);
    let over = timeout(LONG, older.closed()).await;
    assert!(over.is_ok(), "what it was let in for is over");
    drop(answers.next::<ToClient>().await);
    assert!(newer.getattr(newer.root()).await.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_is_overtaken_by_a_change_of_rights_does_not_go_on_with_the_old_ones() {
    hello_overtaken_by_other_rights(At::Admitted).await;
    hello_overtaken_by_other_rights(At::Record).await;
}
