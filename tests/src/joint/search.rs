//! Every state is visited.

use super::plan::Plan;
use super::state::{Choice, Joint, Seen};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

/// What was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps taken for the first time.
    pub steps: usize,
    /// Runs that came to their end.
    pub ends: usize,
    /// Steps of the longest run.
    pub depth: usize,
    /// Whether nothing was left out for want of states or depth.
    pub exhausted: bool,
}

impl Explored {
    /// Adds what another plan came to.
    pub fn add(&mut self, other: &Explored) {
        self.states += other.states;
        self.steps += other.steps;
        self.ends += other.ends;
        self.depth = self.depth.max(other.depth);
        self.exhausted &= other.exhausted;
    }
}

/// A run that went wrong: the shortest, if that could be found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What was wrong.
    pub what: String,
    /// What was chosen.
    pub choices: Vec<String>,
    /// All that happened.
    pub lines: Vec<String>,
    /// By which script.
    pub script: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "script {}: {}", self.script, self.what)?;
        writeln!(f, "after {} steps:", self.choices.len())?;
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// A step that needs not be taken here, since it was taken before and nobody could tell the difference.
#[derive(Clone, Copy, Debug)]
struct Asleep {
    choice: Choice,
    seen: Seen,
}

struct Frame {
    choices: Vec<Choice>,
    next: usize,
    sleep: Vec<Asleep>,
}

struct Search<'a> {
    plan: &'a Plan,
    joint: Joint,
    path: Vec<Choice>,
    frames: Vec<Frame>,
    /// With which steps asleep each state was visited.
    visited: HashMap<u64, Box<[u64]>>,
    explored: Explored,
}

/// Explores all of a plan.
///
/// # Errors
/// What went wrong.
pub fn explore(plan: &Plan) -> Result<Explored, Box<Found>> {
    let mut search = Search {
        plan,
        joint: Joint::new(plan, false),
        path: Vec::new(),
        frames: Vec::new(),
        visited: HashMap::new(),
        explored: Explored {
            exhausted: true,
            ..Explored::default()
        },
    };
    match search.run() {
        Ok(()) => Ok(search.explored),
        Err(Wrong) => {
            let path = shortest(plan, search.path.len()).unwrap_or(search.path);
            Err(Box::new(found(plan, &path)))
        }
    }
}

/// The path has come to something that must never happen.
struct Wrong;

impl Search<'_> {
    fn run(&mut self) -> Result<(), Wrong> {
        self.arrive(Vec::new())?;
        let mut fresh = true;
        while let Some(frame) = self.frames.last_mut() {
            let Some(choice) = frame.choices.get(frame.next).copied() else {
                self.frames.pop();
                self.path.pop();
                fresh = false;
                continue;
            };
            frame.next += 1;
            if !fresh {
                self.replay();
            }
            let seen = self.joint.perform(choice);
            self.path.push(choice);
            self.explored.steps += 1;
            let Some(frame) = self.frames.last_mut() else {
                break;
            };
            let awake = frame.sleep.iter().filter(|a| !a.seen.matters(seen));
            let sleep = awake.copied().collect();
            frame.sleep.push(Asleep { choice, seen });
            fresh = self.arrive(sleep)?;
        }
        Ok(())
    }

    /// The world is at the end of the path. Whether anything is to be explored from there.
    fn arrive(&mut self, sleep: Vec<Asleep>) -> Result<bool, Wrong> {
        if self.joint.violation().is_some() {
            return Err(Wrong);
        }
        let depth = self.path.len();
        self.explored.depth = self.explored.depth.max(depth);
        let mut choices = self.joint.choices();
        self.explored.ends += usize::from(self.joint.ended);
        let key = self.joint.fingerprint();
        let ids: Vec<u64> = sleep.iter().map(|a| a.choice.id).collect();
        match self.visited.get_mut(&key) {
            None => {
                self.visited.insert(key, ids.clone().into());
                self.explored.states += 1;
                choices.retain(|choice| !ids.contains(&choice.id));
            }
            Some(known) => {
                choices.retain(|choice| known.contains(&choice.id) && !ids.contains(&choice.id));
                *known = known
                    .iter()
                    .filter(|id| ids.contains(id))
                    .copied()
                    .collect();
            }
        }
        let full = self.explored.states >= self.plan.states || depth >= self.plan.depth;
        if full && !choices.is_empty() {
            self.explored.exhausted = false;
            choices.clear();
        }
        let any = !choices.is_empty();
        if any {
            self.frames.push(Frame {
                choices,
                next: 0,
                sleep,
            });
        } else {
            self.path.pop();
        }
        Ok(any)
    }

    fn replay(&mut self) {
        self.joint = Joint::new(self.plan, false);
        for choice in &self.path {
            self.joint.perform(*choice);
        }
    }
}

/// The shortest path to anything wrong, of fewer steps than `below` at most.
fn shortest(plan: &Plan, below: usize) -> Option<Vec<Choice>> {
    let mut known = HashSet::new();
    let mut queue = VecDeque::from([Vec::<Choice>::new()]);
    while let Some(path) = queue.pop_front() {
        if path.len() + 1 >= below || known.len() > plan.states.min(MOST_FOR_SHORTEST) {
            return None;
        }
        let from = at_end_of(plan, &path);
        for choice in from.choices() {
            let mut longer = path.clone();
            longer.push(choice);
            let mut joint = at_end_of(plan, &path);
            joint.perform(choice);
            if joint.violation().is_some() {
                return Some(longer);
            }
            if known.insert(joint.fingerprint()) {
                queue.push_back(longer);
            }
        }
    }
    None
}

/// Beyond that a violation is shown as it was found.
const MOST_FOR_SHORTEST: usize = 4_000;

fn at_end_of(plan: &Plan, path: &[Choice]) -> Joint {
    let mut joint = Joint::new(plan, false);
    for choice in path {
        joint.perform(*choice);
    }
    joint
}

/// Runs a path once more and tells what happens.
fn found(plan: &Plan, path: &[Choice]) -> Found {
    let mut joint = Joint::new(plan, true);
    let mut steps = Vec::new();
    for choice in path {
        let from = joint.world.cx.traced();
        steps.push((from, joint.describe(choice)));
        joint.perform(*choice);
    }
    let what = joint.violation().map_or_else(
        || "a run that went wrong did not go wrong again".into(),
        |violation| violation.what.clone(),
    );
    let trace = joint.trace();
    let begin = steps.first().map_or(0, |(from, _)| *from);
    let mut lines = Vec::new();
    let mut next = steps.iter().enumerate().peekable();
    for (number, line) in trace.iter().enumerate().skip(begin) {
        while let Some((step, (_, text))) = next.next_if(|(_, (from, _))| *from <= number) {
            lines.push(format!("{:>3}. {text}", step + 1));
        }
        lines.push(format!("       {}", line.text));
    }
    lines.extend(next.map(|(step, (_, text))| format!("{:>3}. {text}", step + 1)));
    Found {
        what,
        choices: steps.into_iter().map(|(_, text)| text).collect(),
        lines,
        script: plan.script.to_string(),
    }
}
