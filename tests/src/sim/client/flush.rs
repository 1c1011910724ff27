//! Brings buffered bytes to the server, round by round. As in the shipped client.

use super::dirty::{Came, File, Flusher, Waiter, attrs};
use super::pages::Wake;
use super::tasks::Task;
use super::{Client, ClientEv};
use crate::sim::bug::Bug;
use crate::sim::cx::Cx;
use crate::sim::kernel::Unique;
use crate::sim::ledger::Writer;
use crate::sim::model::{self, CELL, Deed, MS, Nanos, Obj, US, What, process_of, value_of};
use leasefs_lease::client::{Asked, Run};
use leasefs_protocol::{Attr, Grant, Parts, Recall, Refusal, Reply, Scope, Stamp};

/// The most of a file that goes with one request.
const MOST: usize = 2 * CELL as usize;
/// How long after a failure that may pass the same bytes are sent again.
const RETRY: Nanos = 100 * MS;
/// Requests of the daemon itself are numbered from here.
const OWN: u64 = 1 << 40;

impl Client {
    /// A file's flusher wakes.
    pub(super) fn flusher_wakes(&mut self, cx: &mut Cx, file: Obj, alarm: u64) {
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        if known.flusher != Flusher::Waits(alarm) {
            return;
        }
        known.hurried = false;
        let base = known.buffer.base();
        let runs = known.buffer.begin_round(MOST);
        if runs.is_empty() {
            return self.flusher_waits(cx, file, self.kernel.habit.age);
        }
        (known.flusher, known.left) = (Flusher::Sends, runs.len());
        for run in runs {
            let deed = Deed::Flush(file, model::Run::of(&run), base);
            self.trace(cx, Some(file), || format!("flushes {deed:?}"));
            cx.stats.flushes += 1;
            self.own_requests += 1;
            let unique = Unique(OWN + self.own_requests);
            let asked = self.leases.ask();
            self.tasks.insert(unique, Task::Flush { file, run, asked });
            let what = What::Deed(cx.judge.deed(), deed);
            self.request(cx, unique, what, vec![file.handle()]);
        }
    }

    fn flusher_waits(&mut self, cx: &mut Cx, file: Obj, wait: Nanos) {
        self.dirty.alarms += 1;
        let alarm = self.dirty.alarms;
        if let Some(known) = self.dirty.files.get_mut(&file) {
            known.flusher = Flusher::Waits(alarm);
            let wait = if known.hurried { US } else { wait };
            self.later(cx, wait, ClientEv::Flusher(file, alarm));
        }
    }

    /// A request of a round is answered, or never will be.
    pub(super) fn flush_ended(
        &mut self,
        cx: &mut Cx,
        unique: Unique,
        result: Result<Reply, Refusal>,
    ) {
        let Some(Task::Flush { file, run, asked }) = self.tasks.remove(&unique) else {
            return;
        };
        let came = match result {
            Err(_) => Came::Again,
            Ok(reply) => match reply.result {
                Ok(_) => Came::Answered(Box::new(reply), self.host),
                Err(Refusal::Lost) => Came::Again,
                Err(refusal) => Came::Failed(refusal),
            },
        };
        if let Came::Answered(_, host) = came {
            self.uncommitted.changed(file, host);
        }
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        known.ends.push((asked, run, came));
        known.left -= 1;
        if known.left == 0 {
            self.round_has_ended(cx, file);
        }
    }

    fn round_has_ended(&mut self, cx: &mut Cx, file: Obj) {
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        let mut ends = std::mem::take(&mut known.ends);
        // What was answered before a crash of the server's host is here still.
        for (_, _, came) in &mut ends {
            if matches!(came, Came::Answered(_, host) if *host != self.host) {
                *came = Came::Again;
            }
        }
        self.keep_failed(cx, file, &ends);
        let again = ends.iter().any(|(_, _, came)| matches!(came, Came::Again));
        for (asked, run, came) in ends {
            self.flushed(cx, file, asked, (run, came));
        }
        let wait = if again { RETRY } else { self.kernel.habit.age };
        self.flusher_waits(cx, file, wait);
    }

    /// Keeps what the server refuses beside; what has changed elsewhere isn't sent any more.
    fn keep_failed(&mut self, cx: &mut Cx, file: Obj, ends: &[(Asked, Run, Came)]) {
        let failed = ends.iter().filter_map(|(_, run, came)| match came {
            Came::Failed(refusal) => Some((run.clone(), *refusal)),
            Came::Answered(..) | Came::Again => None,
        });
        let (mut runs, refusals): (Vec<Run>, Vec<Refusal>) = failed.unzip();
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        if refusals.first() == Some(&Refusal::Changed) {
            runs.append(&mut known.buffer.take_unsent());
        }
        if runs.is_empty() || cx.has(Bug::ForgetRefused) {
            return;
        }
        let writers = known.writers.iter().map(|process| (*process, file));
        self.dirty.failed.extend(writers);
        for (page, value) in runs.iter().flat_map(|run| model::Run::of(run).pages()) {
            self.trace(cx, Some(file), || format!("keeps {value} of page {page}"));
            cx.judge.kept(value, self.writer(process_of(value), file));
        }
    }

    /// A descriptor of this mount.
    pub(super) fn writer(&self, process: usize, file: Obj) -> Writer {
        Writer {
            session: self.session,
            process,
            file,
        }
    }

    fn flushed(&mut self, cx: &mut Cx, file: Obj, asked: Asked, (run, came): (Run, Came)) {
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        let (mut grants, mut after) = (Vec::<Grant>::new(), None);
        match came {
            Came::Answered(reply, _) => {
                let pages = model::Run::of(&run).pages();
                pages.for_each(|(_, value)| cx.judge.flushed(value));
                after = attr_after(&reply, file);
                known.buffer.answered(after.map(|attr| attr.version()));
                grants = reply.grants;
                self.granted(cx, asked, &grants);
                self.leases
                    .changed(&file.handle(), Parts::ATTRS, reply.stamp);
            }
            Came::Again => {
                known.buffer.again(&run);
                known.again = true;
            }
            Came::Failed(_) => known.buffer.given_up(),
        }
        self.end_of_round(cx, file);
        if !self.dirty.contains(file)
            && let Some(attr) = after
        {
            self.learn_attr(cx, asked, &grants, file, value_of(&attr));
        }
    }

    fn end_of_round(&mut self, cx: &mut Cx, file: Obj) {
        let Some(known) = self.dirty.files.get_mut(&file) else {
            return;
        };
        if known.buffer.is_flushing() {
            return;
        }
        if std::mem::take(&mut known.again) {
            known.this_round.append(&mut known.next_round);
            return;
        }
        let mut wake = std::mem::take(&mut known.this_round);
        known.this_round = std::mem::take(&mut known.next_round);
        if known.buffer.is_clean() {
            wake.append(&mut known.this_round);
            self.dirty.files.remove(&file);
            self.leases.end_change(&attrs(file), Some(Stamp::default()));
        }
        for waiter in wake {
            let wait = cx.short(100 * US);
            let ev = match waiter {
                Waiter::Task(unique) => ClientEv::Wake(Wake::Task(unique)),
                Waiter::Recall(recall) => ClientEv::Flushed(recall),
            };
            self.later(cx, wait, ev);
        }
    }

    /// What a recall waits for is flushed, file by file; then its pages are dropped.
    pub(super) fn flush_for(&mut self, cx: &mut Cx, recall: Recall, mut files: Vec<Obj>) {
        while let Some(file) = files.pop() {
            let waiter = Waiter::Recall(recall.id);
            if self.is_to_flush(cx, file) && self.wait_flushed(cx, file, waiter) {
                self.flushing.insert(recall.id, (recall, files));
                return;
            }
        }
        self.drop_recalled_pages(cx, &recall);
    }

    fn is_to_flush(&self, cx: &Cx, file: Obj) -> bool {
        let known = self.dirty.files.get(&file);
        let unsent = |known: &File| known.buffer.has_unsent();
        match cx.has(Bug::ForgetFlushUnderWay) {
            true => known.is_some_and(unsent),
            false => !cx.has(Bug::ApproveBeforeFlush),
        }
    }

    /// Files whose buffered bytes a recall waits for.
    pub(super) fn recalled_dirty(&self, recall: &Recall) -> Vec<Obj> {
        let content = Parts::ATTRS | Parts::DATA;
        match &recall.scope {
            Scope::Everything => self.dirty.objects(),
            Scope::Object { object, parts, .. } if parts.intersects(content) => {
                let file = Obj::of(object);
                self.dirty
                    .contains(file)
                    .then_some(file)
                    .into_iter()
                    .collect()
            }
            Scope::Object { .. } => Vec::new(),
        }
    }
}

fn attr_after(reply: &Reply, file: Obj) -> Option<Attr> {
    let handle = file.handle();
    let touched = reply.touched.iter().find(|t| t.object == handle);
    touched.map(|touched| touched.attr)
}
