//! From what the workers recorded to a verdict per object.

use super::report::FamilyReport;
use crate::lin::{Entry, Spec, Verdict, check, explain};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Objects whose violation is explained in full.
const EXPLAINED: usize = 2;

/// Sorts entries by the object they concern.
pub(super) fn by_object<Op>(entries: Vec<(usize, Entry<Op>)>) -> BTreeMap<usize, Vec<Entry<Op>>> {
    let mut histories: BTreeMap<usize, Vec<Entry<Op>>> = BTreeMap::new();
    for (object, entry) in entries {
        histories.entry(object).or_default().push(entry);
    }
    histories
}

/// Checks each history against the object `spec_of` gives, and counts into `report`.
pub(super) fn judge<S: Spec>(
    report: &mut FamilyReport,
    histories: &BTreeMap<usize, Vec<Entry<S::Op>>>,
    spec_of: impl Fn(usize) -> S,
    name_of: impl Fn(usize) -> String,
) where
    S::Op: Display,
{
    let mut faults = Vec::new();
    for (&object, history) in histories {
        let spec = spec_of(object);
        match check(&spec, history) {
            Verdict::Linearizable(order) => count(report, &spec, history, &order),
            Verdict::Violation if faults.len() < EXPLAINED => {
                let explanation = explain(&spec, history);
                faults.push(format!(
                    "{} is not linearizable:\n{explanation}",
                    name_of(object)
                ));
            }
            Verdict::Violation => faults.push(format!("{} is not linearizable\n", name_of(object))),
            Verdict::Undecided => {
                faults.push(format!(
                    "{}: too many operations overlap to decide\n",
                    name_of(object)
                ));
            }
        }
        let unanswered = history.iter().filter(|entry| entry.end.is_none());
        report.unanswered += unanswered.count();
        report.operations += history
            .iter()
            .filter(|entry| spec.is_whole(&entry.op))
            .count();
    }
    add_fault(report, &faults);
}

fn add_fault(report: &mut FamilyReport, faults: &[String]) {
    if faults.is_empty() {
        return;
    }
    let shown = faults.iter().take(EXPLAINED).cloned().collect::<String>();
    let more = faults.len().saturating_sub(EXPLAINED);
    let more = if more > 0 {
        format!("and {more} more objects\n")
    } else {
        String::new()
    };
    report
        .fault
        .get_or_insert_default()
        .push_str(&format!("{shown}{more}"));
}

/// Counts, in the order found, who changed the object last before each read.
fn count<S: Spec>(report: &mut FamilyReport, spec: &S, history: &[Entry<S::Op>], order: &[usize]) {
    let mut changed_by = None;
    for &index in order {
        let entry = &history[index];
        if !spec.is_whole(&entry.op) {
            continue;
        }
        if spec.is_read(&entry.op) {
            report.reads += 1;
            let remote = changed_by.is_some_and(|mount| mount != entry.who.mount);
            report.remote_reads += usize::from(remote);
        } else {
            report.changes += 1;
            changed_by = Some(entry.who.mount);
        }
    }
}
