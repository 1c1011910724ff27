//! Cuts a violating history down to what a person has to look at.

use super::search::{check, check_from, final_states};
use super::{Entry, Spec, Verdict};
use std::collections::HashSet;
use std::fmt::{self, Display};

/// Changes shown from before the offending part.
const CONTEXT: usize = 4;
/// Operations shown from behind it.
const FOLLOWING: usize = 12;
/// Operations of the offending part that are printed, from its end.
const SHOWN: usize = 40;
/// Above this length reads are no longer left out one by one.
const SHRINK_LIMIT: usize = 600;

/// Why a history is not linearizable.
#[derive(Debug, Clone)]
pub struct Explanation<S: Spec> {
    /// The last changes before the offending part, in an order that explains
    /// all that was read until then.
    pub context: Vec<Entry<S::Op>>,
    /// What the object can hold where the offending part starts.
    pub states: Vec<S::State>,
    /// Operations that have no linearization from any of these states; without
    /// any of the reads among them they would have one.
    pub offending: Vec<Entry<S::Op>>,
    /// What ended next: it may tell whether a change was lost, or only seen late.
    pub following: Vec<Entry<S::Op>>,
}

/// The offending part of `history`, which [`check`] found to be in violation.
pub fn explain<S: Spec>(spec: &S, history: &[Entry<S::Op>]) -> Explanation<S> {
    let mut prefix = shortest_violation(spec, history);
    prefix.sort_by_key(|entry| entry.start);
    let (cut, states) = last_quiet_moment(spec, &prefix);
    let (before, offending) = prefix.split_at(cut);
    let last = prefix.iter().filter_map(|entry| entry.end).max();
    let later = |entry: &&Entry<S::Op>| entry.end.is_none_or(|end| Some(end) > last);
    let mut following: Vec<&Entry<S::Op>> = history.iter().filter(later).collect();
    following.sort_by_key(|entry| entry.end.unwrap_or(u64::MAX));
    Explanation {
        following: following.into_iter().take(FOLLOWING).cloned().collect(),
        context: last_changes(spec, before),
        offending: without_needless_reads(spec, &states, offending),
        states: states.into_iter().collect(),
    }
}

/// The part of `history` until `time`: what had not returned then is unanswered.
fn until<S: Spec>(spec: &S, history: &[Entry<S::Op>], time: u64) -> Vec<Entry<S::Op>> {
    let started = history.iter().filter(|entry| entry.start <= time);
    let cut = started.map(|entry| Entry {
        end: entry.end.filter(|end| *end <= time),
        ..entry.clone()
    });
    cut.filter(|entry| entry.end.is_some() || !spec.is_read(&entry.op))
        .collect()
}

/// The shortest prefix in violation (prefixes of linearizable histories are
/// linearizable, so it can be found by bisection).
fn shortest_violation<S: Spec>(spec: &S, history: &[Entry<S::Op>]) -> Vec<Entry<S::Op>> {
    let mut ends: Vec<u64> = history.iter().filter_map(|entry| entry.end).collect();
    ends.sort_unstable();
    let good =
        ends.partition_point(|&end| check(spec, &until(spec, history, end)) != Verdict::Violation);
    match ends.get(good) {
        Some(&end) => until(spec, history, end),
        None => history.to_vec(),
    }
}

/// The last index of `history` (by start) at which no operation is under way,
/// with the states that are possible there; 0 when there is none.
fn last_quiet_moment<S: Spec>(spec: &S, history: &[Entry<S::Op>]) -> (usize, HashSet<S::State>) {
    let mut best = (0, HashSet::from([spec.initial()]));
    let mut latest_end = 0;
    for (index, entry) in history.iter().enumerate() {
        if index > best.0 && latest_end < entry.start {
            match final_states(spec, &best.1, &history[best.0..index]) {
                Some(states) if !states.is_empty() => best = (index, states),
                _ => break,
            }
        }
        let Some(end) = entry.end else { break };
        latest_end = latest_end.max(end);
    }
    best
}

fn violates<S: Spec>(spec: &S, states: &HashSet<S::State>, history: &[Entry<S::Op>]) -> bool {
    states
        .iter()
        .all(|state| check_from(spec, state.clone(), history) == Verdict::Violation)
}

/// Leaves out reads as long as the rest stays in violation. (Changes can't be
/// left out: others may have seen them.)
fn without_needless_reads<S: Spec>(
    spec: &S,
    states: &HashSet<S::State>,
    history: &[Entry<S::Op>],
) -> Vec<Entry<S::Op>> {
    let mut kept = history.to_vec();
    if kept.len() > SHRINK_LIMIT {
        return kept;
    }
    for index in (0..kept.len()).rev() {
        if !spec.is_read(&kept[index].op) {
            continue;
        }
        let entry = kept.remove(index);
        if !violates(spec, states, &kept) {
            kept.insert(index, entry);
        }
    }
    kept
}

fn last_changes<S: Spec>(spec: &S, history: &[Entry<S::Op>]) -> Vec<Entry<S::Op>> {
    let order = match check(spec, history) {
        Verdict::Linearizable(order) => order,
        Verdict::Violation | Verdict::Undecided => (0..history.len()).collect(),
    };
    let changes: Vec<usize> = order
        .into_iter()
        .filter(|&index| !spec.is_read(&history[index].op))
        .collect();
    let from = changes.len().saturating_sub(CONTEXT);
    changes[from..]
        .iter()
        .map(|&index| history[index].clone())
        .collect()
}

impl<S: Spec> Display for Explanation<S>
where
    S::Op: Display,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zero = self
            .context
            .iter()
            .chain(&self.offending)
            .map(|entry| entry.start)
            .min();
        let zero = zero.unwrap_or(0);
        if !self.context.is_empty() {
            writeln!(f, "  the changes before (times in ms):")?;
        }
        for entry in &self.context {
            write_entry(f, entry, zero)?;
        }
        writeln!(
            f,
            "  then the object can only be in: {}",
            StateList(&self.states)
        )?;
        writeln!(f, "  and these have no order that explains their answers:")?;
        let hidden = self.offending.len().saturating_sub(SHOWN);
        if hidden > 0 {
            writeln!(
                f,
                "    ({hidden} earlier operations that overlap each other)"
            )?;
        }
        for entry in &self.offending[hidden..] {
            write_entry(f, entry, zero)?;
        }
        writeln!(f, "  and what followed:")?;
        self.following
            .iter()
            .try_for_each(|entry| write_entry(f, entry, zero))
    }
}

struct StateList<'a, State>(&'a [State]);

impl<State: fmt::Debug> Display for StateList<'_, State> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, state) in self.0.iter().take(4).enumerate() {
            let separator = if index == 0 { "" } else { " or " };
            write!(f, "{separator}{state:?}")?;
        }
        if self.0.len() > 4 {
            write!(f, " or {} more", self.0.len() - 4)?;
        }
        Ok(())
    }
}

fn write_entry<Op: Display>(
    f: &mut fmt::Formatter<'_>,
    entry: &Entry<Op>,
    zero: u64,
) -> fmt::Result {
    let ms = |time: u64| time.saturating_sub(zero) as f64 / 1e6;
    let end = entry
        .end
        .map_or("   no answer".to_owned(), |end| format!("{:12.4}", ms(end)));
    let who = entry.who.to_string();
    writeln!(
        f,
        "    [{:12.4} .. {end}] {who:<18} {:<14} {}",
        ms(entry.start),
        entry.how,
        entry.op
    )
}
