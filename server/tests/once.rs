//! Changes take effect once and in order, however often their connection is lost.

mod support;

use leasefs_protocol::Durability;
use leasefs_protocol::change::{Place, WriteAt, WriteKind};
use leasefs_protocol::limits::MAX_PLACES;
use leasefs_protocol::query::{self, Fill};
use leasefs_protocol::{
    Change, Mode, OpenId, Query, Refusal, Reply, RequestFrame, Response, Seq, SetAttr, Version,
    answer, change,
};
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;
use support::House;
use support::client::{Client, Who, numbered};
use tokio::time::timeout;

const RECORDS: u64 = 600;
/// Appends under way at a time.
const WINDOW: usize = 16;

/// A small generator, so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

fn record(number: u64) -> Vec<u8> {
    format!("{number:07}\n").into_bytes()
}

fn append(open: OpenId) -> Change {
    Change::Write(change::Write {
        open,
        at: WriteAt::Append,
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Through { keep: false },
    })
}

/// What a client must remember of its appends.
struct Appender {
    unanswered: BTreeMap<u64, RequestFrame>,
    answered: BTreeMap<u64, u64>,
    /// The number of the first append.
    first: u64,
}

impl Appender {
    async fn send(&mut self, client: &mut Client, open: OpenId) {
        let mut frame = client.frame(append(open));
        let change = numbered(&mut frame);
        let seq = change.seq.0;
        change.after = self.unanswered.keys().copied().map(Seq).collect();
        frame.low_water = self.low_water(seq);
        self.unanswered.insert(seq, frame.clone());
        client.send(&frame, &record(seq - self.first)).await;
    }

    fn low_water(&self, next: u64) -> Seq {
        Seq(self.unanswered.keys().next().copied().unwrap_or(next))
    }

    async fn resend(&mut self, client: &mut Client) {
        let low_water = self.low_water(client.seq + 1);
        for (seq, frame) in &mut self.unanswered {
            frame.low_water = low_water;
            numbered(frame).resent = true;
            client.send(frame, &record(seq - self.first)).await;
        }
    }

    async fn hear(&mut self, client: &mut Client) {
        let (reply, _) = client.reply().await;
        let found = self.unanswered.iter().find(|(_, f)| f.id == reply.id);
        let seq = *found.expect("an answer to what was asked").0;
        let Ok(Response::Written(answer::Written { offset, len: 8, .. })) = reply.result else {
            panic!("not written: {reply:?}");
        };
        self.unanswered.remove(&seq);
        self.answered.insert(seq - self.first, offset);
    }
}

async fn run(seed: u64) {
    let house = House::new();
    let server = house.serve().await;
    let who = Who::enrolled(&house, 1);
    let mut client = who.connect(&server).await;
    let (_, open) = client.create("log").await;
    let first = client.seq + 1;
    let mut appender = Appender {
        unanswered: BTreeMap::new(),
        answered: BTreeMap::new(),
        first,
    };
    let mut dice = Dice(seed);
    while (appender.answered.len() as u64) < RECORDS {
        let more = client.seq + 1 < first + RECORDS;
        match dice.roll(40) {
            0 => {
                let mut next = who.connect(&server).await;
                next.take_over(&client);
                client = next;
                appender.resend(&mut client).await;
            }
            1..20 if more && appender.unanswered.len() < WINDOW => {
                appender.send(&mut client, open).await;
            }
            _ if appender.unanswered.is_empty() => (),
            _ => {
                let heard = appender.hear(&mut client);
                let heard = timeout(Duration::from_secs(10), heard).await;
                assert!(heard.is_ok(), "seed {seed}: no answer");
            }
        }
    }
    let expected: Vec<u8> = (0..RECORDS).flat_map(record).collect();
    let found = std::fs::read(house.path("log")).expect("the file");
    assert!(
        found == expected,
        "seed {seed}: lost, doubled or out of order"
    );
    for (number, offset) in appender.answered {
        assert_eq!(offset, number * 8, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_of_a_client_that_keeps_reconnecting_are_neither_lost_nor_doubled() {
    for seed in 1..=8 {
        run(seed).await;
    }
}

/// Bytes kept back under a lease that has ended, for a file that has changed since.
fn late_flush(open: OpenId, offset: u64, repeated: bool) -> Change {
    flush(open, offset, Version::default(), repeated)
}

fn flush(open: OpenId, offset: u64, base: Version, repeated: bool) -> Change {
    Change::Write(change::Write {
        open,
        at: WriteAt::Offset(offset),
        kill_priv: false,
        durability: Durability::None,
        kind: WriteKind::Flush {
            base,
            written: None,
            late: true,
            repeated,
            set: SetAttr::default(),
        },
    })
}

fn to_places(open: OpenId, places: &[(u64, u64)], kind: WriteKind) -> Change {
    let place = |&(offset, len)| Place { offset, len };
    Change::Write(change::Write {
        open,
        at: WriteAt::Places(places.iter().map(place).collect()),
        kill_priv: false,
        durability: Durability::None,
        kind,
    })
}

const THROUGH: WriteKind = WriteKind::Through { keep: false };

#[tokio::test]
async fn a_write_goes_to_several_places_that_are_apart_and_to_nothing_else() {
    let house = House::new();
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (_, open) = client.create("f").await;
    let many: Vec<_> = (0..=MAX_PLACES as u64).map(|at| (2 * at, 1)).collect();
    let bad: [&[(u64, u64)]; 8] = [
        &[],
        &[(0, 4)],
        &[(0, 6)],
        &[(0, 2), (1, 3)],
        &[(4, 2), (0, 3)],
        &[(0, 5), (9, 0)],
        &[(0, u64::MAX), (u64::MAX, 6)],
        &many,
    ];
    for places in bad {
        let data = &[b'x'; MAX_PLACES + 1][..if places.len() > MAX_PLACES {
            places.len()
        } else {
            5
        }];
        let (reply, _) = client
            .ask_with(to_places(open, places, THROUGH), data)
            .await;
        assert_eq!(reply.result, Err(Refusal::Invalid), "{places:?}");
    }
    let far = [(0, 2), (i64::MAX as u64, 3)];
    let (reply, _) = client
        .ask_with(to_places(open, &far, THROUGH), b"abcde")
        .await;
    assert_eq!(reply.result, Err(Refusal::TooBig));
    let good = to_places(open, &[(1, 2), (6, 3)], THROUGH);
    let (reply, _) = client.ask_with(good, b"abcde").await;
    let written = answer::Written::plain(5, 1);
    assert_eq!(reply.result, Ok(Response::Written(written)));
    let file = std::fs::read(house.path("f")).expect("read");
    assert_eq!(file, b"\0ab\0\0\0cde");
}

#[tokio::test]
async fn what_comes_too_late_again_for_several_places_is_taken_if_the_file_holds_all_of_it() {
    let house = House::new();
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (_, open) = client.create("f").await;
    let there = client.write(open, 0, b"0123456789").await;
    there.result.expect("written");
    let kind = WriteKind::Flush {
        base: Version::default(),
        written: None,
        late: true,
        repeated: true,
        set: SetAttr::default(),
    };
    let late = || to_places(open, &[(1, 2), (6, 3)], kind);
    let (reply, _) = client.ask_with(late(), b"12678").await;
    let written = answer::Written::plain(5, 1);
    assert_eq!(reply.result, Ok(Response::Written(written)));
    let (reply, _) = client.ask_with(late(), b"12679").await;
    assert_eq!(reply.result, Err(Refusal::Changed));
}

/// As after a crash of the server that took the answer.
async fn ask_again(client: &mut Client, request: Change, data: &[u8]) -> Reply {
    let mut frame = client.frame(request);
    numbered(&mut frame).resent = true;
    client.send(&frame, data).await;
    client.reply().await.0
}

#[tokio::test]
async fn bytes_that_come_too_late_again_are_taken_if_the_file_holds_them_and_nothing_is_said_of_it()
{
    let house = House::new();
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (_, open) = client.create("f").await;
    client
        .write(open, 0, b"there")
        .await
        .result
        .expect("written");
    for (offset, data) in [(0, &b"THERE"[..]), (3, b"re and more"), (9, b"x")] {
        let (reply, _) = client.ask_with(late_flush(open, offset, true), data).await;
        assert_eq!(reply.result, Err(Refusal::Changed));
    }
    let (first, _) = client.ask_with(late_flush(open, 2, false), b"ere").await;
    assert_eq!(first.result, Err(Refusal::Changed), "another's bytes");
    let (repeated, _) = client.ask_with(late_flush(open, 2, true), b"ere").await;
    let resent = ask_again(&mut client, late_flush(open, 2, false), b"ere").await;
    for reply in [repeated, resent] {
        assert_eq!(
            reply.result,
            Ok(Response::Written(answer::Written::plain(3, 2)))
        );
        assert_eq!((reply.grants, reply.touched), (Vec::new(), Vec::new()));
    }
}

async fn while_it_approves<T>(holder: &mut Client, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            recall = holder.recall() => holder.approve(&recall).await,
        }
    }
}

#[tokio::test]
async fn a_late_flush_is_taken_where_nothing_but_flushes_like_it_has_changed_the_file() {
    let house = House::new();
    let server = house.serve().await;
    let mut client = Who::enrolled(&house, 1).connect(&server).await;
    let (file, open) = client.create("f").await;
    let attr = client.getattr(file).await.result;
    let Ok(Response::Attr(attr)) = attr else {
        panic!("no attributes: {attr:?}");
    };
    let base = attr.version();
    for (offset, data) in [(0, b"one "), (4, b"two ")] {
        let (flushed, _) = client
            .ask_with(flush(open, offset, base, false), data)
            .await;
        flushed.result.expect("it is what it was but for these");
    }
    let mut other = Who::enrolled(&house, 2).connect(&server).await;
    let write = async {
        let open = other.open(file, libc::O_WRONLY).await;
        other.write(open, 0, b"ONE").await
    };
    let written = while_it_approves(&mut client, write).await;
    written.result.expect("written");
    // What is granted with a read doesn't make it another's lease under which the bytes were kept back.
    let exclusive = query::Read {
        open,
        offset: 0,
        len: 4,
        fill: Fill::PagesForStore,
    };
    let read = while_it_approves(&mut other, client.ask(Query::Read(exclusive))).await;
    assert!(read.grants.iter().any(|grant| grant.mode == Mode::Write));
    let late = client.ask_with(flush(open, 8, base, false), b"three");
    let late = while_it_approves(&mut other, late).await;
    assert_eq!(late.0.result, Err(Refusal::Changed));
    let content = std::fs::read(house.path("f")).expect("a file");
    assert_eq!(content, b"ONE two ");
}
