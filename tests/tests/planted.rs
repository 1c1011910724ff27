//! Whether the simulation finds faults put into what ships (`leasefs_lease::planted`).
//!
//! `cargo test -p leasefs-tests --test planted -- --nocapture` prints which judge found
//! which. `LEASEFS_SIM_BUG` tries one alone, by its name, and tells all; `LEASEFS_SIM_SEEDS` in so many runs,
//! `LEASEFS_SIM_FROM` from this seed on.
//!
//! They are in builds with assertions alone: with `--release` nothing is found.
//!
//! Whatever changes what the cores do changes the runs that seeds name. So a fault need not show in any one
//! run, but in a reasonable number of runs of its kind; the search begins where it was found last.

use leasefs_lease::planted::{self, Bug};
use leasefs_tests::sim::{Plan, run};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs in which a fault has to be found: several times as many as the rarest needs on average.
const RUNS: usize = 20_000;
const STEPS: u64 = 10_000;

thread_local! {
    /// What the last panic of this thread said, and where.
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// How a fault was found.
struct Found {
    seed: u64,
    steps: u64,
    judge: String,
    all: String,
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// What is wrong in a run, if anything. What ships asserts what it counts: that is a judge too.
fn wrong(bug: Option<Bug>, plan: Plan) -> Option<(u64, String, String)> {
    let run = || planted::with(bug, || run(plan));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => {
            let all = format!("{failure}");
            Some((failure.steps(), failure.what().to_owned(), all))
        }
        Err(_) => {
            let (what, at) = PANIC.take().unwrap_or_default();
            assert!(
                !at.starts_with("tests/"),
                "{bug:?}, {plan:?}: the simulator itself panics at {at}: {what}"
            );
            let what = format!("asserted at {at}: {what}");
            Some((0, what.clone(), what))
        }
    }
}

/// The runs in which a fault shows soonest.
#[derive(Clone, Copy)]
struct Runs {
    /// With these kinds of misfortune alone, thick and fast; `None` is with any.
    kinds: Option<&'static [&'static str]>,
    /// So many crashes in a hundred are of the server's host.
    host_crashes: usize,
    /// Whether processes store into maps.
    maps: bool,
    /// Whether they lock files.
    locks: bool,
    /// Whether names change.
    names: bool,
    /// Whether processes do nothing else.
    only_names: bool,
    /// Whether links are slow, and files large.
    slow: bool,
    /// So many clients; 0 is as many as the seed says.
    clients: usize,
    /// The seed to begin with: others come behind.
    first: u64,
}

impl Runs {
    const ANY: Self = Self {
        kinds: None,
        host_crashes: 0,
        maps: true,
        locks: false,
        names: true,
        only_names: false,
        slow: false,
        clients: 0,
        first: 0,
    };

    fn rough(kinds: &'static [&'static str]) -> Self {
        Self {
            kinds: Some(kinds),
            maps: false,
            ..Self::ANY
        }
    }

    fn with_maps(self) -> Self {
        Self { maps: true, ..self }
    }

    fn with_locks(self) -> Self {
        Self {
            locks: true,
            ..self
        }
    }

    fn of_files(self) -> Self {
        Self {
            names: false,
            ..self
        }
    }

    fn of_names(self) -> Self {
        Self {
            only_names: true,
            ..self
        }
    }

    fn of_two(self) -> Self {
        Self { clients: 2, ..self }
    }

    fn over_slow_links(self) -> Self {
        Self { slow: true, ..self }
    }

    fn and_host_crashes(self) -> Self {
        let host_crashes = 50;
        Self {
            host_crashes,
            ..self
        }
    }

    fn from(self, first: u64) -> Self {
        Self { first, ..self }
    }

    fn of(bug: Bug) -> Self {
        match bug {
            Bug::RunAfterHostCrash | Bug::ForgetHostCrash | Bug::ResendAsNew => {
                Self::rough(&["crash"]).and_host_crashes().from(11)
            }
            Bug::TrustAfterHostCrash => Self::rough(&["crash"]).and_host_crashes().from(195),
            Bug::RestoreOver => Self::rough(&["crash"]).and_host_crashes().from(900),
            Bug::KeepAfterHostCrash => {
                let two = Self::rough(&["crash"]).of_two();
                two.and_host_crashes().from(265)
            }
            Bug::LostKept => Self::rough(&["crash"])
                .and_host_crashes()
                .with_maps()
                .from(2770),
            Bug::RestoreAnyway => {
                let two = Self::rough(&["crash"]).of_two();
                two.and_host_crashes().from(340)
            }
            Bug::ForgetAnswers | Bug::NoGrace | Bug::GraceEndsAtFirst => Self::rough(&["crash"]),
            Bug::ForgetRemoval => Self::rough(&["crash"]).from(460),
            Bug::ReadInGrace => Self::rough(&["crash"]).from(175),
            Bug::AppendAgain => Self::rough(&["crash"]).from(70),
            Bug::PassInterrupted => Self::rough(&["crash"]).with_maps().from(659),
            Bug::DropAnswerAtMark => Self::rough(&["crash", "break"]),
            Bug::CloseLost => Self::rough(&["break"]).from(90),
            Bug::FlushBaseless | Bug::RefusedDropped | Bug::NoSweep => Self::rough(&["part"]),
            Bug::UntakenNames => Self::rough(&[]).of_names().over_slow_links().from(580),
            Bug::EndCleared => Self::rough(&["freeze"]).with_maps().of_files().from(120),
            Bug::FetchStale => Self::ANY.from(960),
            Bug::SyncLeftOut => Self::ANY.from(2150),
            Bug::SyncUntold => Self::rough(&["part"]).from(118),
            Bug::ForgetRefused => Self::rough(&["part"]).from(1560),
            Bug::CancelBegun => Self::rough(&["part", "stall"]).from(2834),
            Bug::AnswerUnclean => Self::rough(&["part", "stall"]).with_maps().from(3600),
            Bug::FillUnderEnded => Self::rough(&["freeze", "stall"]).with_maps().from(370),
            Bug::SuspendUnnoticed => Self::rough(&["suspend", "freeze"]).with_maps().from(1335),
            Bug::TimeoutsBeforeSleep => Self::rough(&["suspend"]).from(1835),
            Bug::WholeTermTimeout => Self::rough(&["freeze"]),
            Bug::RenewOverdue => Self::rough(&["stall", "freeze"]).from(90),
            Bug::ReleaseStale => Self::rough(&[]).from(2905),
            Bug::OldAnswer => Self::rough(&[]).over_slow_links().from(250),
            Bug::LatePages => {
                let two = Self::rough(&["freeze"]).with_maps().of_two();
                two.of_files().from(60)
            }
            Bug::DecidesOn | Bug::HeldUnsaid => Self::ANY.with_locks(),
            Bug::LocksOutliveLeases => Self::ANY.with_locks().from(227),
            Bug::LateUnderLock => Self::ANY.with_locks().from(3065),
            Bug::TenureUnclaimed => Self::rough(&["crash"]).with_locks().from(1735),
            _ => Self::ANY,
        }
    }

    fn plan(self, seed: u64) -> Plan {
        let plan = Plan {
            locks: self.locks,
            slow: self.slow,
            clients: self.clients,
            ..Plan::of(seed, STEPS)
        };
        match self.kinds {
            None => plan,
            Some(kinds) => Plan {
                rough: Some(self.host_crashes),
                maps: self.maps,
                names: self.names,
                only_names: self.only_names,
                ..plan.with_only(kinds)
            },
        }
    }
}

fn find(bug: Bug) -> Option<Found> {
    let runs = Runs::of(bug);
    let most = number("LEASEFS_SIM_SEEDS").unwrap_or(RUNS);
    let first = number("LEASEFS_SIM_FROM").unwrap_or(runs.first);
    let plans = (first..).map(|seed| runs.plan(seed));
    let plans = plans.filter(|plan| plan.locks == plan.has_locks());
    plans.take(most).find_map(|plan| {
        let (steps, judge, all) = wrong(Some(bug), plan)?;
        // What fails without it too proves nothing.
        wrong(None, plan).is_none().then_some(Found {
            seed: plan.seed,
            steps,
            judge,
            all,
        })
    })
}

fn note_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        if at.starts_with("tests/") {
            usual(info);
        }
        let payload = info.payload();
        let literal = payload.downcast_ref::<&str>().map(ToString::to_string);
        let what = literal.or_else(|| payload.downcast_ref::<String>().cloned());
        let what = what.unwrap_or_default();
        PANIC.set(Some((what, at)));
    }));
}

fn chosen() -> Vec<Bug> {
    let name = std::env::var("LEASEFS_SIM_BUG").ok();
    let named = |bug: &Bug| name.as_ref().is_none_or(|name| format!("{bug:?}") == *name);
    Bug::ALL.iter().copied().filter(named).collect()
}

#[test]
fn faults_put_into_what_ships_are_found() {
    note_panics();
    let bugs = chosen();
    assert!(!bugs.is_empty(), "a fault's name");
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let Some(found) = find(bug) else {
                println!("{bug:?} | not found");
                missed.lock().expect("nobody panics here").push(bug);
                continue;
            };
            if bugs.len() == 1 {
                println!("{}", found.all);
            }
            let Found {
                seed, steps, judge, ..
            } = found;
            println!("{bug:?} | {judge} | seed {seed} | {steps} steps");
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let missed = missed.into_inner().expect("nobody panics here");
    assert!(missed.is_empty(), "not found: {missed:?}");
}
