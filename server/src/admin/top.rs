//! `fsserver top`: a running server's state once a second, and what has changed since.

use super::args::StateArg;
use super::commands::ask_status;
use super::control::ServerStatus;
use crate::status::{Away, BusyFile, Lock, SessionStatus, TermZero, Waiting};
use clap::Args;
use leasefs_protocol::escaped;
use leasefs_top::{Cell, Column, Sample, Table, TopArgs, View};
use std::collections::BTreeMap;

/// So many kinds of requests are told.
const KINDS: usize = 3;

#[derive(Debug, Args)]
pub(super) struct ServerTopArgs {
    #[command(flatten)]
    top: TopArgs,
    #[command(flatten)]
    state: StateArg,
}

const SESSIONS: &[Column] = &[
    Column::new("MOUNT", 0),
    Column::new("REQ/S", 8),
    Column::new("LEASES", 9),
    Column::new("OPENS", 7),
    Column::new("OWED", 6),
    Column::new("EXPIRES", 8),
];
const BY_RATE: usize = 1;

const WAITING: &[Column] = &[
    Column::new("WAITS", 0),
    Column::new("WITH", 10),
    Column::new("SINCE", 8),
    Column::new("FOR", 24),
    Column::new("AT MOST", 8),
];

/// So many files are shown.
const BUSIEST: usize = 8;

const BUSY: &[Column] = &[Column::new("BUSIEST", 0), Column::new("REQ/S", 8)];

const BOUNCING: &[Column] = &[
    Column::new("BOUNCES", 0),
    Column::new("SINCE", 9),
    Column::new("SAVED WRITES", 13),
    Column::new("WAITING READS", 14),
];

const LOCKS: &[Column] = &[
    Column::new("LOCK OF", 0),
    Column::new("FILE", 20),
    Column::new("PROCESS", 8),
    Column::new("KIND", 15),
    Column::new("STATE", 6),
    Column::new("SINCE", 8),
];

pub(super) fn run(args: &ServerTopArgs) -> Result<(), String> {
    let state = args.state.clone();
    leasefs_top::run(&args.top, BY_RATE, move || ask_status(&state), view)
}

fn total(requests: &BTreeMap<String, u64>) -> u64 {
    requests.values().sum()
}

fn view(seen: &Sample<ServerStatus>) -> View {
    let server = &seen.now;
    let status = &server.status;
    View {
        title: format!(
            "fsserver  {}  at {}  process {}",
            escaped(server.export.as_os_str().as_encoded_bytes()),
            server.address,
            server.pid
        ),
        facts: facts(seen),
        tables: vec![
            Table {
                name: "sessions",
                columns: SESSIONS,
                rows: sessions(seen),
            },
            Table {
                name: "waiting",
                columns: WAITING,
                rows: status
                    .waiting
                    .iter()
                    .map(|one| waiting(&status.sessions, one))
                    .collect(),
            },
            Table {
                name: "busiest",
                columns: BUSY,
                rows: status.busiest.iter().take(BUSIEST).map(busy).collect(),
            },
            Table {
                name: "bouncing",
                columns: BOUNCING,
                rows: status.term_zero.iter().map(bouncing).collect(),
            },
            Table {
                name: "locks",
                columns: LOCKS,
                rows: status.locks.iter().map(lock).collect(),
            },
        ],
    }
}

fn facts(seen: &Sample<ServerStatus>) -> Vec<(&'static str, String)> {
    let status = &seen.now.status;
    let sum =
        |of: fn(&SessionStatus) -> usize| status.sessions.iter().map(of).sum::<usize>().to_string();
    let connected = status
        .sessions
        .iter()
        .filter(|session| session.address.is_some());
    let mut facts = vec![
        (
            "sessions",
            format!("{} of {}", connected.count(), status.sessions.len()),
        ),
        ("leases", sum(|session| session.leases)),
        ("opens", sum(|session| session.opens)),
        ("recalls owed", sum(|session| session.recalls)),
        ("waiting", status.waiting.len().to_string()),
        (
            "requests/s",
            seen.rate(|at| total(&at.status.requests)).to_string(),
        ),
        ("renewals/s", seen.rate(|at| at.status.renewals).to_string()),
    ];
    let fastest = seen.fastest(|at| Some(&at.status.requests));
    let fastest = fastest.iter().take(KINDS);
    let fastest: Vec<String> = fastest
        .map(|(kind, rate)| format!("{kind} {rate}"))
        .collect();
    if !fastest.is_empty() {
        facts.push(("most", fastest.join(", ")));
    }
    if let Some(left) = status.grace_ms {
        facts.push(("grace", format!("{} s more", left.div_ceil(1000))));
    }
    if let Some(why) = &status.state_trouble {
        facts.push(("STATE", format!("can't be written: {why}")));
    }
    if status.violations > 0 {
        facts.push(("violations", status.violations.to_string()));
    }
    facts
}

fn sessions(seen: &Sample<ServerStatus>) -> Vec<Vec<Cell>> {
    let (present, groups) = seen.now.status.present_and_away();
    let present = present.into_iter().map(|one| session(seen, one));
    present.chain(groups.iter().map(away)).collect()
}

/// One that is away is nobody's trouble any more.
fn away(away: &Away<'_>) -> Vec<Cell> {
    let called = away.longest.called();
    vec![
        Cell::text(format!("{} away: {called}", away.count)),
        Cell::number(0),
        Cell::number(0),
        Cell::number(away.opens as u64),
        Cell::owed(0),
        Cell::shown(0, "ended".into()),
    ]
}

fn session(seen: &Sample<ServerStatus>, session: &SessionStatus) -> Vec<Cell> {
    let of = |at: &ServerStatus| {
        let mut all = at.status.sessions.iter();
        let same = all.find(|one| one.session == session.session);
        same.map_or(0, |one| total(&one.requests))
    };
    let expires = match session.expires_ms {
        None => Cell::shown(0, "ended".into()).alarm_if(true),
        Some(_) if session.reclaiming => Cell::shown(0, "reclaims".into()),
        left => Cell::millis(left).alarm_if(left < Some(seen.now.status.term_ms / 2)),
    };
    vec![
        Cell::text(session.called()).alarm_if(session.address.is_none()),
        Cell::number(seen.rate(of)),
        Cell::number(session.leases as u64),
        Cell::number(session.opens as u64),
        Cell::owed(session.recalls as u64),
        expires,
    ]
}

/// The session with this id, or the beginning of that.
fn named(sessions: &[SessionStatus], id: &str) -> String {
    let session = sessions.iter().find(|session| session.session == id);
    let short = || id.chars().take(8).collect();
    session
        .map(SessionStatus::called)
        .filter(|name| !name.is_empty())
        .map_or_else(short, str::to_owned)
}

fn waiting(sessions: &[SessionStatus], waiting: &Waiting) -> Vec<Cell> {
    let holders: Vec<String> = waiting
        .holders
        .iter()
        .map(|id| named(sessions, id))
        .collect();
    let whom = match (waiting.grace, holders.is_empty()) {
        (true, _) => "the end of grace".to_owned(),
        (false, true) => "those before it".to_owned(),
        (false, false) => holders.join(", "),
    };
    vec![
        Cell::text(named(sessions, &waiting.session)).alarm_if(true),
        Cell::text(&waiting.request),
        Cell::millis(Some(waiting.since_ms)),
        Cell::text(whom),
        Cell::millis(waiting.until_ms),
    ]
}

fn file(path: Option<&String>, inode: Option<u64>) -> Cell {
    match (path, inode) {
        (Some(path), _) => Cell::text(path),
        (None, Some(inode)) => Cell::text(format!("inode {inode}")),
        (None, None) => Cell::text("gone"),
    }
}

fn busy(busy: &BusyFile) -> Vec<Cell> {
    vec![
        file(busy.path.as_ref(), busy.inode),
        Cell::number(busy.per_second),
    ]
}

fn bouncing(zero: &TermZero) -> Vec<Cell> {
    vec![
        file(zero.path.as_ref(), zero.inode),
        Cell::millis(Some(zero.since_ms)),
        Cell::number(zero.hits),
        Cell::number(zero.recalls),
    ]
}

fn lock(lock: &Lock) -> Vec<Cell> {
    let mode = if lock.shared { "shared" } else { "exclusive" };
    let waits = lock.token.is_none();
    vec![
        Cell::text(&lock.mount),
        file(lock.path.as_ref(), lock.inode),
        Cell::text(lock.pid.to_string()),
        Cell::text(format!("{} {mode}", lock.kind)),
        Cell::text(if waits { "waits" } else { "held" }).alarm_if(waits),
        Cell::millis(Some(lock.since_ms)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;
    use std::time::Duration;

    fn at(reads: u64) -> ServerStatus {
        let requests = BTreeMap::from([("read".to_owned(), reads)]);
        let session = SessionStatus {
            session: "12".repeat(16),
            mount: "b:/mnt".into(),
            address: Some("10.0.0.1:1".into()),
            expires_ms: Some(1_000),
            requests: requests.clone(),
            recalls: 1,
            ..SessionStatus::default()
        };
        let waiting = Waiting {
            session: "34".repeat(16),
            request: "write".into(),
            holders: vec![session.session.clone()],
            until_ms: Some(8_000),
            ..Waiting::default()
        };
        ServerStatus {
            export: "/srv".into(),
            address: "[::]:4430".into(),
            pid: 7,
            note: None,
            status: Status {
                term_ms: 10_000,
                sessions: vec![session],
                waiting: vec![waiting],
                requests,
                ..Status::default()
            },
        }
    }

    fn seen(before: u64, now: u64) -> View {
        view(&Sample {
            before: Some((at(before), Duration::from_secs(2))),
            now: at(now),
        })
    }

    #[test]
    fn rates_are_those_of_the_interval_in_all_and_of_each_session() {
        let view = seen(100, 300);
        assert!(
            view.facts.contains(&("requests/s", "100".into())),
            "{view:?}"
        );
        assert!(view.facts.contains(&("most", "read 100".into())));
        assert_eq!(view.tables[0].rows[0][BY_RATE], Cell::number(100));
    }

    #[test]
    fn who_waits_is_shown_with_the_mount_that_holds_it_up() {
        let view = seen(0, 0);
        let row = &view.tables[1].rows[0];
        assert_eq!(
            row[0],
            Cell::text("34343434").alarm_if(true),
            "of a session that is gone, its id"
        );
        assert_eq!(row[3], Cell::text("b:/mnt"));
        assert_eq!(row[4], Cell::millis(Some(8_000)));
    }

    #[test]
    fn a_session_that_has_not_renewed_for_half_a_term_stands_out() {
        let row = &seen(0, 0).tables[0].rows[0];
        assert_eq!(row[5], Cell::millis(Some(1_000)).alarm_if(true));
        assert_eq!(row[4], Cell::owed(1));
    }

    #[test]
    fn sessions_of_one_name_that_are_away_are_one_row_behind_those_that_are_not() {
        let mut now = at(0);
        let away = SessionStatus {
            mount: "b:/mnt".into(),
            kept_ms: Some(1_000),
            opens: 3,
            ..SessionStatus::default()
        };
        now.status.sessions.splice(0..0, [away.clone(), away]);
        let rows = &view(&Sample { before: None, now }).tables[0].rows;
        let first: Vec<&Cell> = rows.iter().map(|row| &row[0]).collect();
        assert_eq!(
            first,
            [&Cell::text("b:/mnt"), &Cell::text("2 away: b:/mnt")]
        );
        assert_eq!(rows[1][3], Cell::number(6));
        assert_eq!(rows[1].len(), SESSIONS.len());
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        let mut now = at(0);
        now.status.term_zero = vec![TermZero::default()];
        now.status.locks = vec![Lock::default()];
        now.status.busiest = vec![BusyFile::default()];
        let view = view(&Sample { before: None, now });
        for table in view.tables {
            assert_eq!(table.rows.len(), 1, "{}", table.name);
            assert_eq!(table.rows[0].len(), table.columns.len(), "{}", table.name);
        }
    }
}
