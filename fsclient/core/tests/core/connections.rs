//! Connections of a session: the next, a restarted server's, the last.

use crate::calls::{getattr, is_done, removal};
use crate::said::{DIR, FILE, attr, grant, handle, recall, welcome};
use crate::world::{PATIENT, World};
use bytes::Bytes;
use leasefs_client::call::At;
use leasefs_client::{Answer, Call, Event, Notice, Unconnected};
use leasefs_protocol::control::{
    HelloRefusal, ReclaimLease, Standing, ToClient, ToServer, Welcome,
};
use leasefs_protocol::limits::MAX_RECALLS_OPEN;
use leasefs_protocol::{
    BootId, Mode, OpenId, Parts, Recall, RecallId, Refusal, Response, Scope, Stamp,
};
use std::time::Duration;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_lost_connection_costs_no_answer_and_a_change_keeps_its_number() {
    let mut world = World::new();
    let node = world.node(2, DIR);
    let call = world.call(getattr());
    world.asked();
    let change = world.call(Call::SetXattr {
        node,
        name: b"user.x".as_slice().into(),
        value: Bytes::from_static(b"value"),
        flags: 0,
    });
    let first = world.asked();
    assert_eq!(first.payload, "value");
    assert_eq!(first.numbered().map(|c| c.resent), Some(false));
    world.cut();
    world.wants_to_connect();
    assert_eq!(world.connects, Some(BootId([1; 16])));
    world.connected(welcome(Standing::Resumed, 1));
    let (read, write) = (world.asked(), world.asked());
    let resent = write.numbered().expect("a change");
    assert_eq!((resent.seq, resent.resent), (first.seq(), true));
    assert_eq!(write.change(), first.change());
    assert_eq!(write.payload, first.payload);
    world.answer(&read, Ok(Response::Attr(attr(0, DIR))));
    world.done(&write);
    assert!(matches!(world.answered(call), Ok(Answer::Attr(_))));
    assert!(is_done(&world.answered(change)));
    assert!(!world.is_asked());
}

#[test]
fn an_answer_that_comes_late_on_an_earlier_connection_counts_for_nothing() {
    let mut world = World::new();
    let call = world.call(getattr());
    let asked = world.asked();
    world.cut();
    world.finds(Standing::Resumed, 1);
    let reply = asked.reply(Ok(Response::Attr(attr(0, DIR))));
    world.tell(Event::Reply {
        connection: asked.connection,
        reply,
        payload: Default::default(),
    });
    assert!(world.waits(call));
    let again = world.asked();
    world.answer(&again, Ok(Response::Attr(attr(0, DIR))));
    assert!(!world.waits(call));
}

#[test]
fn what_is_asked_without_connection_is_sent_with_the_next() {
    let mut world = World::new();
    let dir = world.node(2, DIR);
    world.cut();
    let change = world.call(removal(dir));
    assert!(!world.is_asked());
    world.finds(Standing::Resumed, 1);
    let asked = world.asked();
    assert_eq!(asked.numbered().map(|c| c.resent), Some(false));
    world.done(&asked);
    assert!(is_done(&world.answered(change)));
}

/// The first page of a file comes into the kernel, under a lease.
fn fill(world: &mut World, object: u8, open: u64) {
    let node = world.node(object, FILE);
    let fh = world.open(node, open, Vec::new()).fh;
    let at = At { fh, offset: 0 };
    let read = world.call(Call::ReadPages { at, len: 4096 });
    let asked = world.asked();
    let grants = vec![grant(object, Parts::DATA, 1)];
    world.grant(&asked, Response::Done, grants);
    assert!(matches!(world.answered(read), Ok(Answer::Bytes(_))));
}

pub fn reclaimed(leases: &[u8], opens: &[u64]) -> ToClient {
    ToClient::Reclaimed {
        lost_leases: leases.iter().map(|object| handle(*object)).collect(),
        lost_opens: opens.iter().map(|open| OpenId(*open)).collect(),
        lost_locks: Vec::new(),
    }
}

#[test]
fn after_a_restart_leases_and_opens_are_reclaimed_before_anything_is_asked() {
    let mut world = World::new();
    fill(&mut world, 4, 7);
    let other = world.node(5, FILE);
    world.open(other, 8, Vec::new());
    let call = world.call(getattr());
    world.asked();
    world.cut();
    world.finds(Standing::Reclaim, 2);
    let mut claimed = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let ToServer::Reclaim(reclaim) = world.said() else {
            panic!("no reclaim")
        };
        claimed.0.extend(reclaim.leases);
        claimed.1.extend(reclaim.opens.iter().map(|open| open.open));
    }
    claimed.1.sort();
    let lease = ReclaimLease {
        object: handle(4),
        parts: Parts::DATA,
        mode: Mode::Read,
    };
    assert_eq!(claimed, (vec![lease], vec![OpenId(7), OpenId(8)]));
    world.keeps_waiting = true;
    world.say(reclaimed(&[], &[]));
    assert!(world.told.is_empty() && !world.has_said());
    world.say(reclaimed(&[4], &[8]));
    let dropped = world
        .told
        .iter()
        .any(|told| matches!(told, Notice::DropPages { .. }));
    assert!(dropped && !world.has_said(), "not done before the drop");
    assert!(!world.serves && !world.is_asked());
    world.gets_on();
    assert_eq!(world.said(), ToServer::ReclaimDone);
    assert!(world.serves);
    let again = world.asked();
    world.answer(&again, Ok(Response::Attr(attr(0, DIR))));
    assert!(matches!(world.answered(call), Ok(Answer::Attr(_))));
    assert_eq!(world.core.session_status().opens, 1);
}

#[test]
fn a_reclaim_that_takes_too_long_is_begun_anew_on_another_connection() {
    let mut world = World::new();
    fill(&mut world, 4, 7);
    world.cut();
    world.finds(Standing::Reclaim, 2);
    let claims = [world.said(), world.said()];
    world.pass(Duration::from_secs(5));
    assert!(world.cut_off.is_some() && !world.has_said());
    world.finds(Standing::Reclaim, 2);
    assert_eq!([world.said(), world.said()], claims);
    world.say(reclaimed(&[], &[]));
    world.say(reclaimed(&[], &[]));
    assert_eq!(world.said(), ToServer::ReclaimDone);
}

#[test]
fn a_server_that_forgot_the_session_never_gets_a_sent_change_again() {
    let mut world = World::new();
    let dir = world.node(2, DIR);
    let change = world.call(removal(dir));
    world.asked();
    world.cut();
    world.finds(Standing::New, 2);
    assert_eq!(world.refused(change), Refusal::Lost);
    assert!(!world.is_asked());
    world.call(getattr());
    assert_eq!(world.asked().frame.request.kind(), "getattr");
}

/// How long the leases are valid from now.
fn remaining(world: &World) -> Duration {
    world.core.cache_status().remaining
}

#[test]
fn renewals_count_from_the_send_time_and_the_session_is_kept_alive() {
    let short = Welcome {
        term_ms: 1_500,
        ..welcome(Standing::New, 1)
    };
    let mut world = World::unconnected(PATIENT);
    world.lively = false;
    world.connected(short.clone());
    let whole = remaining(&world);
    assert!(whole > millis(1_000) && whole < millis(1_500));
    world.call(getattr());
    let asked = world.asked();
    world.pass(millis(300));
    assert_eq!(remaining(&world), whole - millis(300));
    world.pass(millis(100));
    world.grant(&asked, Response::Attr(attr(0, DIR)), Vec::new());
    assert_eq!(remaining(&world), whole - millis(400), "it was sent then");
    world.call(getattr());
    let late = world.asked();
    world.grant(&late, Response::Attr(attr(0, DIR)), Vec::new());
    assert_eq!(remaining(&world), whole);

    let mut world = World::unconnected(PATIENT);
    let sent = world.now().boot - millis(200);
    world.connected_since(short, sent);
    assert_eq!(remaining(&world), whole - millis(200));
    for _ in 0..100 {
        world.pass(millis(100));
        assert!(remaining(&world) > Duration::ZERO);
    }
    let status = world.core.session_status();
    assert!(status.renewals >= 2);
    assert!(status.requests.is_empty(), "renewals are no requests");
}

#[test]
fn a_keep_alive_renews_from_when_it_was_sent() {
    let mut world = World::new();
    let whole = remaining(&world);
    world.lively = false;
    // Asked for after a silence.
    world.pass(millis(1_000));
    let renewals = world.core.session_status().renewals;
    assert!(renewals > 0);
    world.pass(millis(500));
    let before = remaining(&world);
    let (number, renews) = (1, true);
    world.say(ToClient::KeepAlive { number, renews });
    let renewed = remaining(&world);
    assert!(before < renewed && renewed <= whole - millis(500));
}

#[test]
fn a_fenced_connection_is_replaced() {
    let mut world = World::new();
    world.tell(Event::Lost(
        world.connection,
        "fenced by a newer one".into(),
    ));
    world.finds(Standing::Resumed, 1);
    let call = world.call(getattr());
    let asked = world.asked();
    world.answer(&asked, Ok(Response::Attr(attr(0, DIR))));
    assert!(matches!(world.answered(call), Ok(Answer::Attr(_))));
    assert_eq!(world.core.session_status().connections, 2);
}

#[test]
fn a_connection_on_which_nothing_comes_is_given_up() {
    let mut world = World::new();
    world.lively = false;
    world.pass(millis(4_500));
    assert_eq!(world.cut_off, None);
    world.pass(millis(1_500));
    let ended = world.cut_off.clone().expect("given up");
    assert!(
        !ended.broken && ended.reason.contains("silent"),
        "{ended:?}"
    );
    world.finds(Standing::Resumed, 1);
    assert!(world.serves);
}

#[test]
fn who_asks_is_told_that_the_server_refuses_the_session_until_it_changes_its_mind() {
    let mut world = World::new();
    let waits = world.call(getattr());
    world.asked();
    world.cut();
    world.is_refused(Unconnected::Unreachable("no route".into()));
    assert!(world.waits(waits));
    world.is_refused(Unconnected::Refused(HelloRefusal::TooMany(
        "sessions".into(),
    )));
    assert!(world.waits(waits));
    world.is_refused(Unconnected::Refused(HelloRefusal::ForeignSession));
    assert_eq!(world.refused(waits), Refusal::Access);
    let call = world.call(getattr());
    assert_eq!(world.refused(call), Refusal::Access);
    world.finds(Standing::New, 1);
    world.call(getattr());
    assert!(world.is_asked());
}

#[test]
fn goodbye_waits_for_the_farewell() {
    for farewell in [true, false] {
        let mut world = World::new();
        world.tell(Event::Goodbye);
        assert_eq!(world.said(), ToServer::Goodbye);
        world.pass(millis(900));
        assert!(!world.has_ended);
        match farewell {
            true => world.say(ToClient::Farewell),
            false => world.pass(millis(100)),
        }
        assert!(world.has_ended);
        world.pass(Duration::from_secs(60));
        assert_eq!(world.connects, None);
    }
}

#[test]
fn a_recall_from_before_the_server_forgot_the_session_is_never_approved() {
    let mut world = World::new();
    fill(&mut world, 4, 7);
    world.keeps_waiting = true;
    world.recall(recall(1, 4, Parts::DATA, &[]));
    world.cut();
    world.finds(Standing::New, 1);
    world.take_said();
    world.gets_on();
    world.pass(millis(100));
    let approvals = world.take_said();
    assert!(approvals.is_empty(), "of another object: {approvals:?}");
}

/// Asks for the root's attributes, whose lease comes with the answer.
fn learns(world: &mut World, stamp: u64) {
    let call = world.call(getattr());
    let asked = world.asked();
    let grants = vec![grant(0, Parts::ATTRS, stamp)];
    world.grant(&asked, Response::Attr(attr(0, DIR)), grants);
    assert!(matches!(world.answered(call), Ok(Answer::Attr(_))));
}

#[test]
fn a_session_that_the_server_has_forgotten_caches_again_in_the_same_life_of_the_server() {
    let mut world = World::new();
    learns(&mut world, 500);
    world.recall(Recall {
        id: RecallId(7),
        stamp: Stamp(501),
        scope: Scope::Everything,
    });
    assert!(matches!(world.said(), ToServer::Approve(_)));
    world.cut();
    world.finds(Standing::New, 1);
    learns(&mut world, 1);
    let cached = world.call(getattr());
    assert!(!world.is_asked());
    assert!(matches!(world.answered(cached), Ok(Answer::Attr(_))));
}

#[test]
fn recalls_that_ended_with_their_leases_are_not_counted_against_a_server() {
    const FILES: u8 = 64;
    let mut world = World::new();
    for file in 1..=FILES {
        fill(&mut world, file, file.into());
    }
    // None can be approved.
    world.keeps_waiting = true;
    let mut ids = 1..;
    for _ in 0..2 {
        let files = (1..=FILES).cycle().take(MAX_RECALLS_OPEN);
        for (file, id) in files.zip(ids.by_ref()) {
            world.recall(recall(id, file, Parts::DATA, &[]));
        }
        assert_eq!(world.cut_off, None);
        world.cut();
        world.finds(Standing::Expired, 1);
    }
}
