//! `fsclient top`: the mounts of this user once a second, and what has changed since.

use super::StateArg;
use crate::daemon::{Lock, MountStatus, Survey, survey};
use crate::session::Waiting;
use clap::Args;
use leasefs_top::{Cell, Column, Sample, Table, TopArgs, View};
use std::path::Path;
use std::time::Duration;

/// So many kinds of requests are told.
const KINDS: usize = 3;
/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct ClientTopArgs {
    #[command(flatten)]
    top: TopArgs,
    /// Only mounts with this state directory
    #[command(flatten)]
    state: StateArg,
}

const MOUNTS: &[Column] = &[
    Column::new("MOUNT", 0),
    Column::new("CALLS/S", 8),
    Column::new("CACHED", 7),
    Column::new("REQ/S", 7),
    Column::new("LEASES", 8),
    Column::new("DIRTY", 10),
    Column::new("SERVER", 12),
];
const BY_CALLS: usize = 1;

const WAITING: &[Column] = &[
    Column::new("WAITS ON", 0),
    Column::new("PROCESS", 9),
    Column::new("USER", 8),
    Column::new("WITH", 12),
    Column::new("SINCE", 8),
    Column::new("AT MOST", 8),
];

const LOCKS: &[Column] = &[
    Column::new("LOCK OF", 0),
    Column::new("PROCESS", 8),
    Column::new("KIND", 15),
    Column::new("STATE", 6),
    Column::new("HELD UP BY", 26),
];

pub(super) fn run(args: &ClientTopArgs) -> Result<(), String> {
    let state = args.state.state.as_deref().map(std::path::absolute);
    let state = state.transpose().map_err(|e| e.to_string())?;
    let look = move || Ok(looked(survey(PATIENCE)?, state.as_deref()));
    leasefs_top::run(&args.top, BY_CALLS, look, view)
}

/// What was seen at a look.
#[derive(Clone, Debug, Default)]
struct Mounts {
    all: Vec<MountStatus>,
    /// How many daemons didn't answer.
    silent: usize,
}

fn looked(found: Survey, state: Option<&Path>) -> Mounts {
    let silent = found.unanswered.len();
    let mut all = found.mounts;
    all.retain(|mount| state.is_none_or(|dir| mount.state_dir == dir));
    Mounts { all, silent }
}

/// A count of a mount at a look; 0 where it wasn't there.
fn of(mounts: &Mounts, dir: &Path, count: impl Fn(&MountStatus) -> u64) -> u64 {
    let mount = mounts.all.iter().find(|mount| mount.dir == dir);
    mount.map_or(0, count)
}

fn path(path: &Path) -> Cell {
    Cell::text(path.as_os_str().as_encoded_bytes())
}

fn view(seen: &Sample<Mounts>) -> View {
    let mounts = &seen.now.all;
    let tables = vec![
        Table {
            name: "mounts",
            columns: MOUNTS,
            rows: mounts.iter().map(|one| mount(seen, one)).collect(),
        },
        Table {
            name: "waiting",
            columns: WAITING,
            rows: rows(mounts, |mount| &mount.session.waiting, waiting),
        },
        Table {
            name: "locks",
            columns: LOCKS,
            rows: rows(mounts, |mount| &mount.locks, |_, one| lock(one)),
        },
    ];
    View {
        title: "fsclient".to_owned(),
        facts: facts(seen),
        tables,
    }
}

/// Of all mounts together.
fn rows<T>(
    mounts: &[MountStatus],
    of: impl Fn(&MountStatus) -> &Vec<T>,
    row: impl Fn(&MountStatus, &T) -> Vec<Cell>,
) -> Vec<Vec<Cell>> {
    let all = mounts
        .iter()
        .flat_map(|mount| of(mount).iter().map(move |one| (mount, one)));
    all.map(|(mount, one)| row(mount, one)).collect()
}

fn facts(seen: &Sample<Mounts>) -> Vec<(&'static str, String)> {
    let mounts = &seen.now.all;
    let sum = |of: fn(&MountStatus) -> u64| mounts.iter().map(of).sum::<u64>();
    let rate = |of: fn(&MountStatus) -> u64| {
        let rates = mounts
            .iter()
            .map(|mount| seen.rate(|at| self::of(at, &mount.dir, of)));
        rates.sum::<u64>().to_string()
    };
    let mut facts = vec![
        ("mounts", mounts.len().to_string()),
        ("calls/s", rate(|mount| mount.kernel_requests)),
        ("requests/s", rate(|mount| mount.session.requests_total)),
        (
            "sent/s",
            format!("{} B", rate(|mount| mount.session.bytes_sent)),
        ),
        (
            "received/s",
            format!("{} B", rate(|mount| mount.session.bytes_received)),
        ),
        ("leases", sum(objects).to_string()),
        (
            "waiting",
            sum(|mount| mount.session.waiting.len() as u64).to_string(),
        ),
        ("locks", sum(|mount| mount.locks.len() as u64).to_string()),
    ];
    if seen.now.silent > 0 {
        facts.push(("do not answer", seen.now.silent.to_string()));
    }
    if let [mount] = mounts.as_slice() {
        let same = |at: &Mounts| at.all.iter().position(|one| one.dir == mount.dir);
        let fastest = seen
            .fastest(|at| same(at).and_then(|place| Some(&at.all.get(place)?.session.requests)));
        let fastest = fastest.iter().take(KINDS);
        let fastest: Vec<String> = fastest
            .map(|(kind, rate)| format!("{kind} {rate}"))
            .collect();
        if !fastest.is_empty() {
            facts.push(("most", fastest.join(", ")));
        }
    }
    facts
}

fn objects(mount: &MountStatus) -> u64 {
    mount.leases.get("objects").copied().unwrap_or_default()
}

fn mount(seen: &Sample<Mounts>, mount: &MountStatus) -> Vec<Cell> {
    let grown = |count: fn(&MountStatus) -> u64| seen.grown(|at| of(at, &mount.dir, count));
    let rate = |count: fn(&MountStatus) -> u64| seen.rate(|at| of(at, &mount.dir, count));
    let calls = grown(|mount| mount.kernel_requests);
    let cached = grown(|mount| mount.cache_answers.values().sum());
    let share = match calls {
        0 => Cell::shown(0, "-".into()),
        calls => {
            let percent = (cached.min(calls) * 100) / calls;
            Cell::shown(percent, format!("{percent} %"))
        }
    };
    let rtt = mount.session.rtt_us.unwrap_or_default();
    let server = match mount.session.state.as_str() {
        "connected" => Cell::shown(rtt, format!("{}.{:02} ms", rtt / 1_000, rtt % 1_000 / 10)),
        state => Cell::text(state).alarm_if(true),
    };
    vec![
        path(&mount.dir),
        Cell::number(rate(|mount| mount.kernel_requests)),
        share,
        Cell::number(rate(|mount| mount.session.requests_total)),
        Cell::number(objects(mount)),
        Cell::bytes(mount.dirty.bytes),
        server,
    ]
}

fn waiting(mount: &MountStatus, waiting: &Waiting) -> Vec<Cell> {
    vec![
        path(&mount.dir).alarm_if(true),
        Cell::text(waiting.pid.map_or("-".into(), |pid| pid.to_string())),
        Cell::text(waiting.uid.to_string()),
        Cell::text(&waiting.kind),
        Cell::millis(Some(waiting.waited_ms)),
        Cell::millis(waiting.ends_in_ms),
    ]
}

fn lock(lock: &Lock) -> Vec<Cell> {
    let mode = if lock.shared { "shared" } else { "exclusive" };
    let waits = lock.token.is_none();
    let holder = lock.holder.as_ref();
    let holder = holder.map_or(String::new(), |holder| {
        format!("{} of {}", holder.pid, holder.mount)
    });
    vec![
        Cell::text(&lock.file),
        Cell::text(lock.pid.to_string()),
        Cell::text(format!("{} {mode}", lock.kind)),
        Cell::text(if waits { "waits" } else { "held" }).alarm_if(waits),
        Cell::text(holder),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(calls: u64, cached: u64, sent: u64, state: &str) -> Mounts {
        let status = json!({
            "dir": "/m", "source": "nas:/", "state_dir": "/s", "pid": 1, "read_only": false,
            "session": "00", "server": "nas:4430", "state": state, "trouble": null, "server_process": null,
            "standing": "new", "identity": "squash", "term_ms": 10_000, "rtt_us": 1_250, "reconnects": 0,
            "requests": {"read": sent}, "requests_total": sent, "renewals": 0, "bytes_sent": 0, "bytes_received": 0,
            "opens": 0,
            "waiting": [{"kind": "write", "object": null, "uid": 0, "pid": 9, "waited_ms": 1_500, "ends_in_ms": null}],
            "lease_ms_left": 9_000, "leases": {"objects": 3}, "recalls_open": 0,
            "memory": {"limit": 1, "cached": 0, "clean": 0, "dirty": 0, "unstable": 0},
            "kernel_requests": calls, "cache_answers": {"getattr": cached},
            "locks": [{"file": "f", "pid": 9, "kind": "flock", "shared": false, "first": 0, "last": null,
                "token": null, "decided_here": false, "holder": null}],
        });
        let mount = serde_json::from_value(status).expect("a status");
        let frozen = json!({"dir": "/n", "source": "nas:/", "user": 0, "state": "stopped"});
        let found = Survey {
            mounts: vec![mount],
            unanswered: vec![serde_json::from_value(frozen).expect("one that is stopped")],
            ..Survey::default()
        };
        looked(found, None)
    }

    fn seen(before: Mounts, now: Mounts) -> View {
        view(&Sample {
            before: Some((before, Duration::from_secs(2))),
            now,
        })
    }

    #[test]
    fn rates_and_the_caches_share_are_those_of_the_interval() {
        let view = seen(
            at(1_000, 900, 50, "connected"),
            at(1_200, 950, 70, "connected"),
        );
        let row = &view.tables[0].rows[0];
        assert_eq!(row[BY_CALLS], Cell::number(100));
        assert_eq!(row[2], Cell::shown(25, "25 %".into()), "50 of 200");
        assert_eq!(row[3], Cell::number(10));
        assert_eq!(row[6], Cell::shown(1_250, "1.25 ms".into()));
        assert!(view.facts.contains(&("do not answer", "1".into())));
        assert!(view.facts.contains(&("most", "read 10".into())), "{view:?}");
    }

    #[test]
    fn where_nothing_was_asked_there_is_no_share_and_a_mount_that_is_cut_off_stands_out() {
        let view = seen(at(5, 5, 5, "silent"), at(5, 5, 5, "silent"));
        let row = &view.tables[0].rows[0];
        assert_eq!(row[2], Cell::shown(0, "-".into()));
        assert_eq!(row[6], Cell::text("silent").alarm_if(true));
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        let view = view(&Sample {
            before: None,
            now: at(1, 1, 1, "connected"),
        });
        for table in view.tables {
            assert_eq!(table.rows.len(), 1, "{}", table.name);
            assert_eq!(table.rows[0].len(), table.columns.len(), "{}", table.name);
        }
    }
}
