//! Listings, with the names and attributes that come along with them.
//!
//! Each request holds the directory shared until its answer is taken up, entry by entry. The epoch of one is sampled then.

use super::*;

/// Entries that go into an answer.
const ENTRIES: usize = 3;
/// For as long at most somebody who reads a directory puts off that an entry is taken up: less than it is waited for.
const PUT_OFF: Nanos = 3_000 * MS;
/// Room for as many of them, whose names are short.
const ROOM: u32 = 168 * ENTRIES as u32;

impl Kernel {
    pub(super) fn told_list(
        &mut self,
        cx: &mut Cx,
        process: usize,
        asked: &Asked,
        told: Result<Answer, Refusal>,
    ) {
        let dir = self.op(process).and_then(|op| op.dir);
        match (told, dir) {
            (Ok(Answer::OpenedDir(fh)), _) => {
                if let Some(op) = self.op(process) {
                    op.dir = Some(fh);
                }
                // What the kernel knows isn't told along with a listing.
                if cx.rng.chance(50) {
                    self.shrink_all(cx);
                }
                self.first(process, [Step::Lock(DIR, false), Step::List(0)]);
            }
            (Ok(Answer::Listing(listing)), Some(fh)) => {
                let mut come = Vec::new();
                listing.hand_on(|entry| {
                    if come.len() == ENTRIES {
                        return true;
                    }
                    come.push((entry.name.to_vec(), entry.ino, entry.next));
                    false
                });
                self.lists(cx, process, fh, come, Vec::new());
            }
            (Ok(Answer::Entries(entries)), Some(fh)) => {
                let (mut come, mut steps) = (Vec::new(), Vec::new());
                entries.hand_on(|entry, told| {
                    come.push((entry.name.to_vec(), entry.ino, entry.next));
                    if let Some(told) = told {
                        let told = (asked.clone(), entry.name.to_vec(), *told);
                        steps.push(Step::TakeUp(Box::new(told)));
                    }
                });
                self.lists(cx, process, fh, come, steps);
            }
            (_, Some(fh)) => self.close_dir(cx, process, fh, false),
            (_, None) => self.end(cx, process, false),
        }
    }

    /// Entries have come, each with its inode number and where the listing goes on behind it; `steps` takes them up.
    fn lists(
        &mut self,
        cx: &mut Cx,
        process: usize,
        fh: Fh,
        come: Vec<(Vec<u8>, u64, u64)>,
        mut steps: Vec<Step>,
    ) {
        let Some(op) = self.op(process) else { return };
        let last = come.last().map(|(_, _, next)| *next);
        let own = |name: &[u8]| matches!(name, b"." | b"..");
        let others = come.into_iter().filter(|(name, ..)| !own(name));
        op.listed.extend(others.map(|(name, ino, _)| (name, ino)));
        if let Some(next) = last {
            steps.extend([Step::Unlock(DIR), Step::Lock(DIR, false), Step::List(next)]);
            return self.first(process, steps);
        }
        let value = digest(op.listed.iter().map(|(name, ino)| (name.as_slice(), *ino)));
        let object = self.slot(process, DIR).and_then(|node| self.object(node));
        if let Some(object) = object {
            self.saw(cx, process, Item::Listing(object), value);
        }
        self.close_dir(cx, process, fh, true);
    }

    fn close_dir(&mut self, cx: &mut Cx, process: usize, fh: Fh, listed: bool) {
        let nobody = (None, Asker::default());
        self.ask(cx, nobody, Want::Nothing, Call::ReleaseDir { fh });
        self.end(cx, process, listed);
    }

    pub(super) fn ask_list(&mut self, cx: &mut Cx, process: usize, offset: u64) -> bool {
        self.pop(process);
        let Some(dir) = self.slot(process, DIR) else {
            return false;
        };
        let Some(op) = self.op(process) else {
            return false;
        };
        let Some(fh) = op.dir else { return false };
        if offset == 0 {
            // A rewind begins the listing.
            op.sent = cx.now;
        }
        self.waits(process, Waits::Answer);
        let asker = self.asker(process, None);
        let plus = cx.rng.chance(70).then_some(ROOM);
        let call = Call::ReadDir { fh, offset, plus };
        self.ask(cx, (Some(process), asker), Want::Op(Some(dir)), call);
        false
    }

    pub(super) fn take_up(
        &mut self,
        cx: &mut Cx,
        process: usize,
        (asked, name, entry): (Asked, Vec<u8>, Entry),
    ) -> bool {
        self.pop(process);
        let Some(dir) = self.slot(process, DIR) else {
            return false;
        };
        let follow = self.told_entry(cx, &self.as_listed(&asked), Some((dir, &name)), &entry);
        if let (Some(_), Some(op)) = (&follow, self.op(process)) {
            op.found[THE] = Some(entry.node.id);
        }
        cx.stats.listed += 1;
        match cx.rng.below(100) {
            0..50 => self.first(process, [Step::Pause(2 * MS)]),
            50 => self.first(process, [Step::Pause(PUT_OFF)]),
            _ => {}
        }
        self.follow(process, follow);
        true
    }
}
