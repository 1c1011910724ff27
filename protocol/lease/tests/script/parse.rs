//! Words of the transcript language.

use leasefs_lease::server::{
    Config, Event, Grace, LoggedWrites, OpId, ReadItem, ReadKind, Touch, Wanted,
};
use leasefs_protocol::{Handle, KeyHash, Parts, RawName, RecallId, SessionId, Stamp};
use std::time::Duration;

pub fn session(word: &str) -> SessionId {
    let mut id = [0; 16];
    id[0] = word.as_bytes()[0];
    SessionId(id)
}

pub fn object(word: &str) -> Handle {
    Handle::new(word.as_bytes()).expect("names of objects are short")
}

pub fn op(word: &str) -> OpId {
    OpId(word.trim_end_matches(':').parse().expect("a number"))
}

pub fn duration(word: &str) -> Duration {
    let (number, unit) = match word.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis(1)),
        None => (word.trim_end_matches('s'), Duration::from_secs(1)),
    };
    unit * number.parse::<u32>().expect("a number")
}

fn parts(word: &str) -> Parts {
    let part = |word: &str| match word {
        "attrs" => Parts::ATTRS,
        "data" => Parts::DATA,
        "listing" => Parts::LISTING,
        "names" => Parts::NAMES,
        "" => Parts::NONE,
        other => panic!("{other} is no part"),
    };
    word.split('+')
        .fold(Parts::NONE, |all, word| all | part(word))
}

/// `object:part+part{name,name}`
pub fn item(word: &str) -> (Handle, Parts, Vec<RawName>) {
    let (name, rest) = word.split_once(':').unwrap_or((word, ""));
    let (listed, names) = rest.split_once('{').unwrap_or((rest, ""));
    let names = names
        .trim_end_matches('}')
        .split(',')
        .filter(|n| !n.is_empty());
    let names = names.map(|n| RawName(n.as_bytes().to_vec())).collect();
    (object(name), parts(listed), names)
}

/// `F:AD` for reading, `F:AD!` for writing.
fn wanted(word: &str) -> Wanted {
    let (object, parts, _) = item(word.trim_end_matches('!'));
    match word.ends_with('!') {
        true => Wanted::write(object, parts),
        false => Wanted::read(object, parts),
    }
}

fn touches(words: &[&str]) -> Vec<Touch> {
    let touch = |word: &&str| {
        let (object, parts, names) = item(word);
        Touch {
            object,
            parts,
            names,
        }
    };
    words.iter().map(touch).collect()
}

fn read_item(word: &&str) -> ReadItem {
    let (object, parts, mut names) = item(word);
    ReadItem {
        object,
        parts,
        name: names.pop(),
    }
}

/// Splits at the word `at`, which may be missing.
fn split<'a>(words: &'a [&'a str], at: &str) -> (&'a [&'a str], &'a [&'a str]) {
    match words.iter().position(|word| *word == at) {
        Some(here) => (&words[..here], &words[here + 1..]),
        None => (words, &[]),
    }
}

fn read(number: &str, who: &str, kind: ReadKind, items: &[&str]) -> Event {
    Event::AdmitRead {
        op: op(number),
        session: session(who),
        kind,
        items: items.iter().map(read_item).collect(),
    }
}

fn change(number: &str, who: &str, words: &[&str]) -> Event {
    let writeback = words.last() == Some(&"writeback");
    let words = &words[..words.len() - usize::from(writeback)];
    let (touched, dropped) = split(words, "dropped");
    Event::AdmitChange {
        op: op(number),
        session: session(who),
        touches: touches(touched),
        dropped: dropped.iter().map(|word| object(word)).collect(),
        writeback,
        locked: None,
    }
}

fn opens(who: &str, client: &str) -> Event {
    Event::SessionOpened {
        session: session(who),
        client: KeyHash([client.as_bytes()[0]; 32]),
        drift_ppm: 0,
    }
}

pub fn event(words: &[&str]) -> Option<Event> {
    let recall = |word: &str| RecallId(word.trim_start_matches('#').parse().expect("a number"));
    Some(match words {
        ["shutdown"] => Event::Shutdown,
        ["gone", what] => Event::Gone {
            object: object(what),
        },
        [number, who, "reads", items @ ..] => read(number, who, ReadKind::Metadata, items),
        [number, who, "peeks", items @ ..] => read(number, who, ReadKind::Uncached, items),
        [number, who, "fills", items @ ..] => read(number, who, ReadKind::FillPages, items),
        [number, who, "fills-to-store", items @ ..] => {
            read(number, who, ReadKind::FillForStore, items)
        }
        [number, who, "changes", rest @ ..] => change(number, who, rest),
        [number, "requeued", rest @ ..] => {
            let (touched, dropped) = split(rest, "dropped");
            Event::Requeue {
                op: op(number),
                touches: touches(touched),
                dropped: dropped.iter().map(|word| object(word)).collect(),
            }
        }
        [number, "finishes", rest @ ..] => Event::FinishChange {
            op: op(number),
            wants: split(rest, "wants")
                .1
                .iter()
                .map(|word| wanted(word))
                .collect(),
        },
        [number, "withdrawn"] => Event::Withdraw { op: op(number) },
        [who, "opens"] => opens(who, who),
        [who, "opens", "of", client] => opens(who, client),
        [who, "rtt", rtt] => Event::RoundTrip {
            session: session(who),
            rtt: duration(rtt),
        },
        [who, "ends"] => Event::SessionEnded {
            session: session(who),
        },
        [who, "approves", id] => Event::Approve {
            session: session(who),
            recall: recall(id),
        },
        [who, "flushes", what, kib] => Event::Flushed {
            session: session(who),
            object: object(what),
            bytes: 1024
                * kib
                    .trim_end_matches("KiB")
                    .parse::<u64>()
                    .expect("a number"),
        },
        [who, "is-done"] => Event::ReclaimDone {
            session: session(who),
        },
        [who, "never-hears-of", what] => Event::TakeBack {
            session: session(who),
            object: item(what).0,
            parts: item(what).1,
        },
        [who, "releases", what, "seen", stamp] => Event::Release {
            session: session(who),
            object: item(what).0,
            parts: item(what).1,
            seen: Stamp(stamp.trim_start_matches('@').parse().expect("a number")),
        },
        _ => return None,
    })
}

pub fn config(config: &mut Config, settings: &[&str]) {
    for setting in settings {
        match setting.split_once('=').expect("name=value") {
            ("term", value) => config.term = duration(value),
            ("drift", value) => config.drift_ppm = value.parse().expect("a number"),
            ("overdue", value) => config.overdue = duration(value),
            ("probation", value) => config.probation = duration(value),
            ("max", value) => config.max_leases_per_client = value.parse().expect("a number"),
            ("recalls", value) => config.max_recalls_per_client = value.parse().expect("a number"),
            (other, _) => panic!("{other} is no setting"),
        }
    }
}

/// `term=10s sessions=A,B wrote=A:f,A:g` or `wrote=unknown`
pub fn grace(config: &Config, settings: &[&str]) -> Grace {
    let mut grace = Grace {
        max_term: config.term,
        drift_ppm: config.drift_ppm,
        sessions: Vec::new(),
        writes: LoggedWrites::Trusted(Vec::new()),
    };
    for setting in settings {
        match setting.split_once('=').expect("name=value") {
            ("term", value) => grace.max_term = duration(value),
            ("sessions", value) => grace.sessions = value.split(',').map(session).collect(),
            ("wrote", "unknown") => grace.writes = LoggedWrites::Unknown,
            ("wrote", value) => {
                let one = |logged: &str| {
                    let (who, what) = logged.split_once(':').expect("session:object");
                    (session(who), object(what))
                };
                grace.writes = LoggedWrites::Trusted(value.split(',').map(one).collect());
            }
            (other, _) => panic!("{other} is no setting"),
        }
    }
    grace
}
