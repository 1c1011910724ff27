//! Requests on their way through the session.

use crate::calls::{getattr, is_done, removal};
use crate::said::{Asked, DIR, attr, grant, handle, welcome};
use crate::world::{PATIENT, World};
use leasefs_client::{Answer, Call, NodeId, Timeout};
use leasefs_protocol::control::{Standing, ToClient, ToServer, Welcome};
use leasefs_protocol::{BootId, FileKind, Parts, Refusal, Response, Seq};
use std::time::Duration;

/// Whether what the server says of a directory is cached; it says so with this stamp.
fn is_cached(world: &mut World, (node, object): (NodeId, u8), stamp: u64) -> bool {
    let call = world.call(Call::GetAttr { node });
    let asked = world.asked();
    let grants = vec![grant(object, Parts::ATTRS, stamp)];
    world.grant(&asked, Response::Attr(attr(object, DIR)), grants);
    match world.answered(call) {
        Ok(Answer::Attr(shown)) => !shown.valid.is_zero(),
        other => panic!("no attributes: {other:?}"),
    }
}

#[test]
fn a_request_is_answered_with_its_payload_and_counted() {
    let mut world = World::new();
    let node = world.node(1, FileKind::Symlink);
    let call = world.call(Call::ReadLink { node });
    let asked = world.asked();
    assert_eq!(asked.numbered(), None);
    world.reply(asked.reply(Ok(Response::Done)), b"target");
    match world.answered(call) {
        Ok(Answer::Bytes(target)) => assert_eq!(target, "target"),
        other => panic!("no target: {other:?}"),
    }
    let status = world.core.session_status();
    assert_eq!(status.requests.get(asked.frame.request.kind()), Some(&1));
    assert_eq!(status.requests.values().sum::<u64>(), 2);
    assert!(status.connected && status.waiting.is_empty());
}

#[test]
fn changes_follow_unanswered_ones_of_the_same_object_and_tell_the_low_water_mark() {
    let mut world = World::new();
    let dirs = [2, 3].map(|object| world.node(object, DIR));
    let change = |world: &mut World, dir: usize| {
        let call = world.call(removal(dirs[dir]));
        (call, world.asked())
    };
    let changes = [0, 1, 0].map(|dir| change(&mut world, dir));
    let seqs = changes.each_ref().map(|(_, asked)| asked.seq());
    let after = |asked: &Asked| asked.numbered().cloned().expect("a change").after;
    let afters: Vec<Vec<Seq>> = changes.iter().map(|(_, asked)| after(asked)).collect();
    assert_eq!(afters, [vec![], vec![], vec![seqs[0]]]);
    world.done(&changes[0].1);
    assert!(is_done(&world.answered(changes[0].0)));
    let (_, last) = change(&mut world, 0);
    assert_eq!(last.frame.low_water, seqs[1]);
    assert_eq!(after(&last), [seqs[2]]);
}

#[test]
fn an_abandoned_change_lets_its_caller_go_and_settles_by_the_cancels_answer() {
    let mut world = World::new();
    let dir = (world.node(2, DIR), 2);
    for begun in [false, true] {
        let change = world.call_by(7, removal(dir.0));
        let asked = world.asked();
        let seq = asked.seq();
        world.leaves(7);
        assert_eq!(world.refused(change), Refusal::Cancelled);
        assert_eq!(world.said(), ToServer::Cancel { seq });
        assert!(!is_cached(&mut world, dir, 5), "it may still happen");
        world.say(ToClient::Cancelled { seq, begun });
        if begun {
            assert!(!is_cached(&mut world, dir, 5), "it happens");
            world.done(&asked);
        }
        assert!(is_cached(&mut world, dir, 10), "begun: {begun}");
    }
}

#[test]
fn a_cancelled_change_is_sent_again_only_if_it_had_begun() {
    let mut world = World::new();
    let dirs = [2, 3].map(|object| (world.node(object, DIR), object));
    let changes = [(7, dirs[0].0), (8, dirs[1].0)].map(|(pid, dir)| {
        let call = world.call_by(pid, removal(dir));
        (call, world.asked().seq())
    });
    world.cut();
    world.leaves(7);
    world.leaves(8);
    for (call, _) in changes {
        assert_eq!(world.refused(call), Refusal::Cancelled);
    }
    let [first, second] = changes.map(|(_, seq)| seq);
    world.finds(Standing::Resumed, 1);
    for seq in [first, second] {
        assert_eq!(world.said(), ToServer::Cancel { seq });
    }
    assert!(!world.is_asked());
    for (seq, begun) in [(second, false), (first, true)] {
        world.say(ToClient::Cancelled { seq, begun });
    }
    let again = world.asked();
    let change = again.numbered().cloned().expect("a change");
    assert_eq!((change.seq, change.resent), (first, true));
    assert!(!is_cached(&mut world, dirs[0], 5), "it may happen yet");
    assert!(is_cached(&mut world, dirs[1], 5), "it never happens");
    world.done(&again);
    assert!(is_cached(&mut world, dirs[0], 6));
}

#[test]
fn a_silent_server_times_requests_out_and_the_change_is_cancelled_by_number() {
    let mut world = World::with(Timeout::After(Duration::from_millis(300)));
    let dirs = [2, 3].map(|object| world.node(object, DIR));
    let sent = world.call(removal(dirs[0]));
    let seq = world.asked().seq();
    world.cut();
    let unsent = world.call(removal(dirs[1]));
    let call = world.call(getattr());
    world.pass(Duration::from_millis(250));
    assert!([sent, unsent, call].iter().all(|call| world.waits(*call)));
    world.pass(Duration::from_millis(300));
    for call in [sent, unsent, call] {
        assert_eq!(world.refused(call), Refusal::TimedOut);
    }
    world.finds(Standing::Resumed, 1);
    assert_eq!(world.said(), ToServer::Cancel { seq });
    assert!(!world.has_said() && !world.is_asked());
}

#[test]
fn while_the_server_is_in_contact_a_request_is_given_the_time_that_others_leases_may_take() {
    let mut world = World::with(Timeout::After(Duration::from_secs(1)));
    let call = world.call(getattr());
    // Two terms, and five seconds.
    world.pass(Duration::from_millis(24_900));
    assert!(world.waits(call));
    world.pass(Duration::from_millis(400));
    assert_eq!(world.refused(call), Refusal::TimedOut);
}

#[test]
fn who_waits_for_ever_waits_through_any_silence() {
    let mut world = World::with(Timeout::Hard);
    let call = world.call(getattr());
    let asked = world.asked();
    world.cut();
    world.pass(Duration::from_secs(600));
    assert!(world.waits(call));
    world.finds(Standing::Resumed, 1);
    assert_eq!(world.asked().frame.id, asked.frame.id);
}

#[test]
fn a_request_over_the_bounds_of_the_protocol_is_refused_and_not_sent_again() {
    let mut world = World::new();
    let call = world.call(getattr());
    let asked = world.asked();
    world.tell(leasefs_client::Event::Unsendable(asked.frame.id));
    assert_eq!(world.refused(call), Refusal::Invalid);
    world.cut();
    world.finds(Standing::Resumed, 1);
    assert!(!world.is_asked());
}

#[test]
fn a_change_made_ready_in_another_life_of_the_host_is_made_ready_anew() {
    let mut world = World::with(PATIENT);
    let dir = world.node(2, DIR);
    world.cut();
    let change = world.call(removal(dir));
    world.wants_to_connect();
    world.connected(Welcome {
        host: BootId([8; 16]),
        ..welcome(Standing::Resumed, 2)
    });
    assert!(!world.is_asked(), "what it comes behind isn't known yet");
    world.pass(Duration::from_millis(10));
    let asked = world.asked();
    assert_eq!(asked.numbered().map(|c| c.resent), Some(false));
    assert_eq!(
        asked.numbered().map(|c| c.dropped.clone()),
        Some(vec![handle(2)])
    );
    world.done(&asked);
    assert!(is_done(&world.answered(change)));
    assert!(!world.is_asked(), "once");
}
