//! Renames that succeed by doing nothing, against their definition: each is either one
//! moment, or two at which its names lead to one inode, the old name first.

use super::*;

const SLOTS: usize = 3;
const NAMES: Names = Names { slots: SLOTS };
/// Marks the two looks of a rename that does nothing.
const LOOKS: [&str; 2] = ["look at old", "look at new"];

type History = Vec<Entry<NameOp>>;

fn accepted_in_halves(history: &History) -> bool {
    accepted(&NAMES, &renames_in_halves(history.clone()))
}

/// Whether `history` is linearizable if each rename that was done is, in one of the
/// ways there are, whole or two looks.
fn by_definition_of_rename(history: &History, from: usize) -> bool {
    let rename = (from..history.len()).find_map(|index| match history[index].op {
        NameOp::Rename(old, new, true) => Some((index, old, new)),
        _ => None,
    });
    let Some((index, old, new)) = rename else {
        let precedes = |a: &Entry<NameOp>, b: &Entry<NameOp>| {
            let looks = (a.who, a.start, [a.how, b.how]) == (b.who, b.start, LOOKS);
            looks || a.precedes(b)
        };
        return by_definition(&NAMES, &NAMES.initial(), history, &precedes);
    };
    by_definition_of_rename(history, index + 1)
        || (1..=inodes(history)).any(|inode| {
            let mut looked = history.clone();
            let rename = looked.remove(index);
            for (how, name) in LOOKS.into_iter().zip([old, new]) {
                let op = NameOp::Lookup(name, Some(inode));
                looked.push(Entry {
                    how,
                    op,
                    ..rename.clone()
                });
            }
            by_definition_of_rename(&looked, index)
        })
}

fn inodes(history: &History) -> Inode {
    let created = history.iter().filter_map(|entry| match entry.op {
        NameOp::Create(_, inode) => inode,
        _ => None,
    });
    created.max().unwrap_or(0)
}

/// One call, with the moments at which it looks and at which it acts.
struct Call {
    who: Who,
    start: u64,
    end: u64,
    looks: [u64; 2],
    acts: u64,
    wanted: Wanted,
}

#[derive(Clone, Copy)]
enum Wanted {
    Create(usize),
    Rename(usize, usize),
    Link(usize),
    Unlink(usize),
    Lookup(usize),
}

fn calls(rng: &mut Rng, count: usize) -> Vec<Call> {
    let mut free_at = [0; 3];
    let call = |_| {
        let worker = rng.below(3);
        let start = free_at[worker] + rng.between(1, 30) as u64;
        let mut moments = [0; 3].map(|_| start + rng.between(1, 60) as u64);
        moments.sort_unstable();
        let [first, second, acts] = moments;
        free_at[worker] = acts + rng.between(1, 10) as u64;
        let (name, step) = (rng.below(SLOTS), rng.between(1, SLOTS - 1));
        let wanted = match rng.below(10) {
            0..2 => Wanted::Create(name),
            2..7 => Wanted::Rename(name, (name + step) % SLOTS),
            7 => Wanted::Link(name),
            8 => Wanted::Unlink(name),
            _ => Wanted::Lookup(name),
        };
        let who = Who {
            mount: worker as u16,
            worker: worker as u16,
        };
        Call {
            who,
            start,
            end: free_at[worker],
            looks: [first, second],
            acts,
            wanted,
        }
    };
    (0..count).map(call).collect()
}

/// What kernels make of the calls: a rename whose looks find one inode does nothing.
fn honest(rng: &mut Rng, count: usize) -> History {
    let calls = calls(rng, count);
    let mut moments: Vec<(u64, usize, usize)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        moments.extend([
            (call.looks[0], index, 0),
            (call.looks[1], index, 1),
            (call.acts, index, 2),
        ]);
    }
    moments.sort_unstable();
    let mut names = [None; SLOTS];
    let mut found = vec![[None; 2]; calls.len()];
    let mut newest = 0;
    let mut history = Vec::new();
    for (_, index, what) in moments {
        let call = &calls[index];
        match (call.wanted, what) {
            (Wanted::Rename(old, new), 0 | 1) => found[index][what] = names[[old, new][what]],
            (_, 0 | 1) => (),
            _ => {
                let op = act(&mut names, call.wanted, found[index], &mut newest);
                let Call {
                    who, start, end, ..
                } = *call;
                history.push(Entry {
                    who,
                    how: "test",
                    start,
                    end: Some(end),
                    op,
                });
            }
        }
    }
    history
}

fn act(
    names: &mut [Option<Inode>; SLOTS],
    wanted: Wanted,
    found: [Option<Inode>; 2],
    newest: &mut Inode,
) -> NameOp {
    match wanted {
        Wanted::Create(name) if names[name].is_some() => NameOp::Create(name, None),
        Wanted::Create(name) => {
            *newest += 1;
            names[name] = Some(*newest);
            NameOp::Create(name, Some(*newest))
        }
        Wanted::Rename(old, new) if found[0].is_some() && found[0] == found[1] => {
            NameOp::Rename(old, new, true)
        }
        Wanted::Rename(old, new) => {
            let moved = names[old];
            if moved.is_some() && moved != names[new] {
                (names[old], names[new]) = (None, moved);
            }
            NameOp::Rename(old, new, moved.is_some())
        }
        Wanted::Link(name) => {
            let held = names.iter().copied().flatten().next();
            match held {
                Some(inode) if names[name].is_none() => {
                    names[name] = Some(inode);
                    NameOp::Link(inode, name, Linked::Done)
                }
                _ => NameOp::Lookup(name, names[name]),
            }
        }
        Wanted::Unlink(name) => NameOp::Unlink(name, names[name].take().is_some()),
        Wanted::Lookup(name) => NameOp::Lookup(name, names[name]),
    }
}

/// Makes one answer another one, perhaps a wrong one.
fn doubtful(rng: &mut Rng, history: &mut History) {
    let inodes = inodes(history);
    let victim = rng.below(history.len());
    match &mut history[victim].op {
        NameOp::Lookup(_, found) => {
            *found = Some(rng.between(1, 3) as Inode).filter(|i| *i <= inodes)
        }
        NameOp::Rename(_, _, done) | NameOp::Unlink(_, done) => *done = !*done,
        _ => (),
    }
}

#[test]
fn what_kernels_do_is_accepted_and_needs_the_halves() {
    let mut refused_whole = 0;
    for seed in 0..3000 {
        let history = honest(&mut Rng::new(seed), 40);
        assert!(accepted_in_halves(&history), "seed {seed}: {history:#?}");
        refused_whole += usize::from(!accepted(&NAMES, &history));
    }
    assert!(
        refused_whole > 30,
        "only {refused_whole} histories needed it"
    );
}

#[test]
fn verdicts_on_short_histories_of_renames_are_those_of_the_definition() {
    let (mut refused, mut needed) = (0, 0);
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let mut history = honest(&mut rng, 7);
        if seed % 3 > 0 {
            doubtful(&mut rng, &mut history);
        }
        let truth = by_definition_of_rename(&history, 0);
        assert_eq!(
            accepted_in_halves(&history),
            truth,
            "seed {seed}: {history:#?}"
        );
        refused += usize::from(!truth);
        needed += usize::from(truth && !accepted(&NAMES, &history));
    }
    assert!(
        refused > 300 && needed > 50,
        "{refused} in violation, {needed} that do nothing"
    );
}

#[test]
fn a_rename_that_does_nothing_needs_another_that_moves_its_inode_meanwhile() {
    let at = |worker, start, end, op| entry(worker, start, end, op);
    let first = |end| at(1, 10, end, NameOp::Rename(0, 1, true));
    let story = |second: Entry<NameOp>, first: Entry<NameOp>| {
        vec![
            at(0, 1, 2, NameOp::Create(0, Some(5))),
            first,
            at(0, 30, 31, NameOp::Create(0, Some(6))),
            second,
            at(0, 90, 91, NameOp::Lookup(0, Some(6))),
        ]
    };
    let rename = |start| at(2, start, 60, NameOp::Rename(0, 1, true));
    assert!(accepted_in_halves(&story(rename(9), first(20))));
    assert!(!accepted_in_halves(&story(rename(21), first(20))));
    assert!(!accepted(&NAMES, &story(rename(9), first(20))));
}
