//! A small language for lease transcripts: a line of input, then, indented, every action it
//! causes. See `transcripts/README.md`.

mod parse;

use leasefs_lease::server::{
    Action, Config, Core, Event, Grace, OpId, Reclaimed, Standing, Waiting,
};
use leasefs_lease::time::BootTime;
use leasefs_protocol::{Grant, Handle, Mode, Parts, RawName, Recall, Scope, SessionId};
use std::fmt::Write;
use std::time::Duration;

/// One scenario of a transcript.
pub struct Scenario<'a> {
    pub claim: &'a str,
    pub lines: Vec<&'a str>,
}

/// Splits a transcript at its `==` lines.
pub fn scenarios(text: &str) -> Vec<Scenario<'_>> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for line in text.lines() {
        if let Some(claim) = line.strip_prefix("== ") {
            let lines = Vec::new();
            scenarios.push(Scenario { claim, lines });
        } else if let Some(scenario) = scenarios.last_mut() {
            scenario.lines.push(line);
        }
    }
    scenarios
}

/// Replays a scenario; its text as it really is.
pub fn replay(scenario: &Scenario) -> String {
    let mut player = Player::new();
    let mut actual = format!("== {}\n", scenario.claim);
    for line in &scenario.lines {
        if line.starts_with(' ') {
            continue;
        }
        writeln!(actual, "{line}").expect("a string takes it");
        // `#1` names a recall, `# ` begins a comment.
        let input = line.split("# ").next().unwrap_or_default();
        if input.trim().is_empty() {
            continue;
        }
        for output in player.run(input.trim()) {
            writeln!(actual, "    {output}").expect("a string takes it");
        }
    }
    actual
}

struct Player {
    config: Config,
    grace: Option<Grace>,
    core: Option<Core>,
    now: BootTime,
}

impl Player {
    fn new() -> Self {
        Self {
            config: Config {
                drift_ppm: 0,
                ..Config::default()
            },
            grace: None,
            core: None,
            now: BootTime::ZERO,
        }
    }

    fn run(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["config", settings @ ..] => {
                parse::config(&mut self.config, settings);
                return Vec::new();
            }
            ["grace", settings @ ..] => {
                self.grace = Some(parse::grace(&self.config, settings));
                return Vec::new();
            }
            _ => {}
        }
        if self.core.is_none() {
            self.core = Some(Core::new(self.config.clone(), self.now, self.grace.take()));
        }
        let mut out = self
            .query(&words)
            .unwrap_or_else(|| self.step(&words, line));
        self.take_actions(&mut out);
        out
    }

    fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("made by the first input")
    }

    fn step(&mut self, words: &[&str], line: &str) -> Vec<String> {
        let now = self.now;
        match words {
            ["+", by] => return self.pass(parse::duration(by)),
            [who, "renews"] => {
                let renewed = self.core().renew(now, parse::session(who));
                return vec![if renewed { "renewed" } else { "not renewed" }.into()];
            }
            [who, "reclaims", what, mode @ ..] => {
                let (object, parts, _) = parse::item(what);
                let mode = if mode == ["write"] {
                    Mode::Write
                } else {
                    Mode::Read
                };
                let lease = Reclaimed {
                    object,
                    parts,
                    mode,
                };
                let result = self.core().reclaim(now, parse::session(who), lease);
                return vec![
                    result.map_or_else(|e| format!("refused: {e}"), |()| "taken over".into()),
                ];
            }
            _ => {}
        }
        let event = parse::event(words).unwrap_or_else(|| panic!("not understood: {line}"));
        self.core().handle(now, event);
        Vec::new()
    }

    /// Lets time pass, stopping at every deadline.
    fn pass(&mut self, by: Duration) -> Vec<String> {
        let end = self.now + by;
        let mut out = Vec::new();
        while let Some(at) = self.core().next_deadline().filter(|at| *at <= end) {
            self.now = at.max(self.now);
            let now = self.now;
            self.core().handle(now, Event::Tick);
            let mut here = Vec::new();
            self.take_actions(&mut here);
            out.extend(
                here.into_iter()
                    .map(|action| format!("{action} at {now:?}")),
            );
        }
        self.now = end;
        out
    }

    fn take_actions(&mut self, out: &mut Vec<String>) {
        let core = self.core();
        while let Some(action) = core.poll_action() {
            out.push(render_action(&action));
        }
        core.check_invariants()
            .unwrap_or_else(|e| panic!("invariant: {e}\n{out:#?}"));
    }

    fn query(&mut self, words: &[&str]) -> Option<Vec<String>> {
        let core = self.core.as_ref()?;
        Some(match words {
            ["waiting?"] => core.waiting().iter().map(render_waiting).collect(),
            ["quiet?"] => vec![if core.all_quiet() { "yes" } else { "no" }.into()],
            ["grace?"] => vec![
                core.grace_until()
                    .map_or("over".into(), |at| format!("until {at:?}")),
            ],
            ["deadline?"] => vec![
                core.next_deadline()
                    .map_or("none".into(), |at| format!("{at:?}")),
            ],
            ["state?", op] => {
                let state = core.op_state(parse::op(op));
                vec![state.map_or("gone".into(), |s| format!("{s:?}").to_lowercase())]
            }
            [who, "recalls?"] => {
                let recalls = core.open_recalls(parse::session(who));
                recalls.iter().map(render_recall).collect()
            }
            [who, "leases?"] => {
                let session = parse::session(who);
                let sessions = core.sessions().into_iter();
                let mut of = sessions.filter(|s| s.session == session);
                vec![of.next().map_or("unknown".into(), |s| {
                    let until = s
                        .expires
                        .map_or("ended".into(), |at| format!("until {at:?}"));
                    let denied = s.denied_until;
                    let denied = denied.map_or(String::new(), |at| format!(", none until {at:?}"));
                    format!("{} {until}{denied}", s.leases)
                })]
            }
            _ => return None,
        })
    }
}

fn render_waiting(waiting: &Waiting) -> String {
    let mut text = format!("{} of {}", waiting.op.0, name(waiting.session));
    for (session, recall) in &waiting.holders {
        write!(text, " for {}#{recall}", name(*session)).expect("a string takes it");
    }
    for OpId(op) in &waiting.behind {
        write!(text, " behind {op}").expect("a string takes it");
    }
    if waiting.grace {
        text.push_str(" in grace");
    }
    if let Some(until) = waiting.until {
        write!(text, " until {until:?}").expect("a string takes it");
    }
    text
}

fn render_action(action: &Action) -> String {
    match action {
        Action::Opened {
            session,
            standing,
            renewed,
        } => {
            let standing = match standing {
                Standing::New => "new",
                Standing::Resumed => "resumed",
                Standing::Expired => "back after expiry",
                Standing::Reclaim => "to reclaim",
            };
            let renewed = if *renewed { "renewed" } else { "not renewed" };
            format!("{} opened {standing}, {renewed}", name(*session))
        }
        Action::Admitted { op, grants } => format!("{} admitted{}", op.0, render_grants(grants)),
        Action::Finished { op, stamp, grants } => {
            format!("{} finished @{stamp}{}", op.0, render_grants(grants))
        }
        Action::Recall { session, recall } => {
            format!("to {}: recall {}", name(*session), render_recall(recall))
        }
        Action::Expired { session } => format!("{} expired", name(*session)),
        Action::LockLost { op } => format!("{} has lost its locks", op.0),
        Action::Locked { op, answer } => format!("{} {answer:?}", op.0),
        Action::LockGranted { session, granted } => {
            format!("to {}: {granted:?}", name(*session))
        }
        Action::GraceEnded => "grace ended".into(),
    }
}

fn render_grants(grants: &[Grant]) -> String {
    let mode = |grant: &Grant| {
        if grant.mode == Mode::Write {
            " write"
        } else {
            ""
        }
    };
    let one = |g: &Grant| format!(" {}:{:?}{}@{}", text(&g.object), g.parts, mode(g), g.stamp);
    grants.iter().map(one).collect()
}

fn render_recall(recall: &Recall) -> String {
    let scope = match &recall.scope {
        Scope::Everything => "everything".into(),
        Scope::Object {
            object,
            parts,
            names,
        } => {
            format!("{}:{}", text(object), render_cover(*parts, names))
        }
    };
    format!("#{}@{} {scope}", recall.id, recall.stamp)
}

fn render_cover(parts: Parts, names: &[RawName]) -> String {
    let names: Vec<_> = names
        .iter()
        .map(|n| String::from_utf8_lossy(&n.0))
        .collect();
    match (parts, names.is_empty()) {
        (_, true) => format!("{parts:?}"),
        (Parts::NONE, false) => format!("{{{}}}", names.join(",")),
        (_, false) => format!("{parts:?}{{{}}}", names.join(",")),
    }
}

fn text(object: &Handle) -> String {
    String::from_utf8_lossy(object.as_bytes()).into_owned()
}

fn name(session: SessionId) -> String {
    let [first, ..] = session.0;
    char::from(first).into()
}
