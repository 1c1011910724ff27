//! The search for a linearization, after Wing & Gong with Lowe's memoisation.
//!
//! A configuration is the set of operations already placed plus the object's
//! state; from each the search places one of the operations that nothing
//! unplaced precedes. Configurations seen before are not entered twice. A read
//! that fits the state is placed at once and never undone on its own: whatever
//! linearization exists from here also exists with this read moved to its front.

use super::{Entry, Spec};
use std::collections::HashSet;

/// Configurations entered before the search gives up.
const BUDGET: usize = 4_000_000;

/// What the checker found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A linearization: indices into the history. Unanswered operations that
    /// nobody saw the effect of are left out.
    Linearizable(Vec<usize>),
    /// There is none.
    Violation,
    /// The search gave up: too many operations overlap.
    Undecided,
}

/// Checks `history` (in any order) against `spec` from its initial state.
pub fn check<S: Spec>(spec: &S, history: &[Entry<S::Op>]) -> Verdict {
    check_from(spec, spec.initial(), history)
}

/// Checks `history` against `spec`, starting in `initial`.
pub fn check_from<S: Spec>(spec: &S, initial: S::State, history: &[Entry<S::Op>]) -> Verdict {
    Search::new(spec, initial, history).run()
}

/// All states in which `history` can leave the object when it starts in one of
/// `initial`; `None` when the search gave up. Only for complete histories.
pub(super) fn final_states<S: Spec>(
    spec: &S,
    initial: &HashSet<S::State>,
    history: &[Entry<S::Op>],
) -> Option<HashSet<S::State>> {
    let mut all = HashSet::new();
    for state in initial {
        let mut search = Search::new(spec, state.clone(), history);
        search.collect = Some(HashSet::new());
        if search.run() == Verdict::Undecided {
            return None;
        }
        all.extend(search.collect.take().unwrap_or_default());
    }
    Some(all)
}

/// Which operations are placed: `low` of the answered ones from the front, some
/// beyond, and some of the unanswered ones.
struct Placed {
    bits: Vec<u64>,
    low: usize,
}

impl Placed {
    fn new(len: usize) -> Self {
        Self {
            bits: vec![0; len.div_ceil(64)],
            low: 0,
        }
    }

    fn has(&self, index: usize) -> bool {
        self.bits[index / 64] >> (index % 64) & 1 == 1
    }

    fn add(&mut self, index: usize, answered: usize) {
        self.bits[index / 64] |= 1 << (index % 64);
        while self.low < answered && self.has(self.low) {
            self.low += 1;
        }
    }

    fn remove(&mut self, index: usize) {
        self.bits[index / 64] &= !(1 << (index % 64));
        self.low = self.low.min(index);
    }

    /// The set without its full front and empty back: short whatever the
    /// history's length.
    fn key(&self) -> (usize, Box<[u64]>) {
        let front = (self.low / 64).min(self.bits.len());
        let back = self
            .bits
            .iter()
            .rposition(|word| *word != 0)
            .map_or(front, |last| last + 1);
        (self.low, self.bits[front..back.max(front)].into())
    }
}

/// One choice on the search path.
struct Frame<State> {
    /// State before the choice, after the reads placed with it.
    state: State,
    /// Candidates not tried yet, last first.
    untried: Vec<usize>,
    /// Length of the order when this frame was entered (its reads included).
    depth: usize,
}

struct Search<'a, S: Spec> {
    spec: &'a S,
    history: &'a [Entry<S::Op>],
    /// History indices: answered operations by start, then the unanswered.
    sorted: Vec<usize>,
    answered: usize,
    placed: Placed,
    /// Positions in `sorted`, in the order of placing.
    order: Vec<usize>,
    state: S::State,
    seen: HashSet<(usize, Box<[u64]>, S::State)>,
    collect: Option<HashSet<S::State>>,
}

impl<'a, S: Spec> Search<'a, S> {
    fn new(spec: &'a S, initial: S::State, history: &'a [Entry<S::Op>]) -> Self {
        let mut sorted: Vec<usize> = (0..history.len()).collect();
        sorted.sort_by_key(|&i| (history[i].end.is_none(), history[i].start, history[i].end));
        let answered = history.iter().filter(|entry| entry.end.is_some()).count();
        Self {
            spec,
            history,
            answered,
            placed: Placed::new(sorted.len()),
            order: Vec::with_capacity(sorted.len()),
            sorted,
            state: initial,
            seen: HashSet::new(),
            collect: None,
        }
    }

    fn run(&mut self) -> Verdict {
        let mut frames: Vec<Frame<S::State>> = Vec::new();
        let mut entering = true;
        loop {
            if entering {
                let untried = self.enter();
                if self.placed.low == self.answered && self.finished() {
                    return self.linearization();
                }
                if self.seen.len() > BUDGET {
                    return Verdict::Undecided;
                }
                frames.push(Frame {
                    state: self.state.clone(),
                    untried,
                    depth: self.order.len(),
                });
            }
            let Some(frame) = frames.last_mut() else {
                return self.nothing_left();
            };
            match frame.untried.pop() {
                Some(candidate) => {
                    let (depth, state) = (frame.depth, frame.state.clone());
                    self.back_to(depth);
                    entering = self.place(candidate, &state);
                }
                None => {
                    frames.pop();
                    entering = false;
                }
            }
        }
    }

    /// Places the reads that fit, then returns the choices, the most
    /// promising last; none when this configuration was met before.
    fn enter(&mut self) -> Vec<usize> {
        let candidates = loop {
            let candidates = self.candidates();
            let before = self.order.len();
            for &candidate in &candidates {
                if self.fits_now(candidate) {
                    self.placed.add(candidate, self.answered);
                    self.order.push(candidate);
                }
            }
            if self.order.len() == before {
                break candidates;
            }
        };
        let (low, window) = self.placed.key();
        if self.seen.insert((low, window, self.state.clone())) {
            candidates
        } else {
            Vec::new()
        }
    }

    fn step(&self, position: usize, state: &S::State) -> Option<S::State> {
        self.spec
            .step(state, &self.history[self.sorted[position]].op)
    }

    /// A read that answers what it did in the present state.
    fn fits_now(&self, position: usize) -> bool {
        self.spec.is_read(&self.history[self.sorted[position]].op)
            && self.step(position, &self.state).as_ref() == Some(&self.state)
    }

    fn place(&mut self, candidate: usize, state: &S::State) -> bool {
        let Some(next) = self.step(candidate, state) else {
            return false;
        };
        // One that nobody heard of and that changes nothing need not have happened.
        if candidate >= self.answered && next == *state {
            return false;
        }
        self.state = next;
        self.placed.add(candidate, self.answered);
        self.order.push(candidate);
        true
    }

    fn back_to(&mut self, depth: usize) {
        for position in self.order.drain(depth..) {
            self.placed.remove(position);
        }
    }

    /// The unplaced operations that no unplaced one precedes: unanswered ones
    /// first (tried last), then by falling end.
    fn candidates(&self) -> Vec<usize> {
        let mut deadline = u64::MAX;
        let mut found = Vec::new();
        for position in self.placed.low..self.answered {
            let entry = &self.history[self.sorted[position]];
            if entry.start > deadline {
                break;
            }
            if !self.placed.has(position) {
                deadline = deadline.min(entry.end.unwrap_or(u64::MAX));
                found.push(position);
            }
        }
        let start = |position: &usize| self.history[self.sorted[*position]].start;
        let unanswered = self.answered..self.sorted.len();
        found.extend(unanswered.filter(|position| !self.placed.has(*position)));
        found.retain(|position| start(position) <= deadline);
        found.sort_by_key(|position| {
            std::cmp::Reverse(self.history[self.sorted[*position]].end.unwrap_or(u64::MAX))
        });
        found
    }

    /// Everything answered is placed: done, unless all endings are wanted.
    fn finished(&mut self) -> bool {
        match &mut self.collect {
            None => true,
            Some(states) => {
                states.insert(self.state.clone());
                false
            }
        }
    }

    fn linearization(&self) -> Verdict {
        Verdict::Linearizable(
            self.order
                .iter()
                .map(|&position| self.sorted[position])
                .collect(),
        )
    }

    fn nothing_left(&self) -> Verdict {
        match &self.collect {
            Some(states) if !states.is_empty() => Verdict::Linearizable(Vec::new()),
            _ => Verdict::Violation,
        }
    }
}
