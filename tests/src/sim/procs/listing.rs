//! Listings, with the names and attributes that come along with them.
//!
//! Each request holds the directory shared until its answer is taken up, entry by entry. The epoch of one is sampled then.

use super::*;

/// Entries that go into an answer.
const ENTRIES: usize = 3;
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
                self.lists(cx, process, fh, (&listing, ENTRIES), Vec::new());
            }
            (Ok(Answer::Entries(listing, entries)), Some(fh)) => {
                let mut told = entries.iter();
                let mut steps = Vec::new();
                listing.hand_on(|entry| {
                    let Some(told) = told.next() else { return true };
                    if let Some(told) = told {
                        let told = (asked.clone(), entry.name.to_vec(), *told);
                        steps.push(Step::TakeUp(Box::new(told)));
                    }
                    false
                });
                self.lists(cx, process, fh, (&listing, entries.len()), steps);
            }
            (_, Some(fh)) => self.close_dir(cx, process, fh, false),
            (_, None) => self.end(cx, process, false),
        }
    }

    /// So many entries of a listing have come; `steps` takes them up.
    fn lists(
        &mut self,
        cx: &mut Cx,
        process: usize,
        fh: Fh,
        (listing, mut most): (&ListingFrom, usize),
        mut steps: Vec<Step>,
    ) {
        let Some(op) = self.op(process) else { return };
        let mut last = None;
        listing.hand_on(|entry| {
            if most == 0 {
                return true;
            }
            most -= 1;
            last = Some(entry.next);
            if !matches!(entry.name, b"." | b"..") {
                op.listed.push((entry.name.to_vec(), entry.ino));
            }
            false
        });
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
        let follow = self.told_listed(cx, &asked, (dir, &name), &entry);
        if let (Some(_), Some(op)) = (&follow, self.op(process)) {
            op.found[THE] = Some(entry.node.id);
        }
        cx.stats.listed += 1;
        if cx.rng.chance(50) {
            self.first(process, [Step::Pause]);
        }
        self.follow(process, follow);
        true
    }
}
