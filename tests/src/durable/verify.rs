//! Whether what is there is what the journals allow.

use super::journal::{FileId, STRIPES};
use super::log::check_log;
use super::model::{FileModel, WriterModel};
use super::register::Floor;
use super::snapshot::{STRIPE, Snapshot};
use super::stamp::{CELL, Cell, Stamp, describe};

/// What a crash may have done to a writer's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expect {
    /// What of its data must be there.
    pub content: Floor,
    /// What of its names.
    pub names: Floor,
    /// Parts of what wasn't durable may be there without the rest.
    pub torn: bool,
}

impl Expect {
    /// Its client lives; the server's process may have died.
    pub const ALL_RETURNED: Self = Self {
        content: Floor::Returned,
        names: Floor::Returned,
        torn: false,
    };
    /// Its client has died, with data it had buffered.
    pub const CLIENT_DIED: Self = Self {
        content: Floor::Durable,
        names: Floor::Returned,
        torn: false,
    };
    /// The storage has lost what wasn't durable.
    pub const POWER_LOST: Self = Self {
        content: Floor::Durable,
        names: Floor::Durable,
        torn: true,
    };
}

/// A writer and what is expected of its work.
#[derive(Debug, Clone)]
pub struct Witness {
    /// What it has done.
    pub model: WriterModel,
    /// What must have survived.
    pub expect: Expect,
}

/// Everything in `found` that the writers' journals don't allow, in words; at most a few for
/// each file.
pub fn verify(seed: u64, witnesses: &[Witness], found: &Snapshot) -> Vec<String> {
    let mut findings = Vec::new();
    for (writer, witness) in witnesses.iter().enumerate() {
        let home = Home {
            seed,
            writer: writer as u16,
            witness,
        };
        match found.homes.get(writer) {
            Some(there) => home.check(there, &mut findings),
            None => findings.push(format!("the directory of writer {writer} is missing")),
        }
    }
    check_stripes(seed, witnesses, &found.stripes, &mut findings);
    check_log(seed, witnesses, &found.log, &mut findings);
    findings
}

/// A file as one writer's calls may have left it.
struct Written<'a> {
    seed: u64,
    writer: u16,
    file: FileId,
    model: &'a FileModel,
    expect: Expect,
}

impl Written<'_> {
    fn expected(&self, call: Option<u64>, place: u64) -> Cell {
        let stamp = |seq| Stamp {
            seed: self.seed,
            file: self.file,
            writer: self.writer,
            seq,
        };
        call.map_or([0; CELL], |seq| stamp(seq).cell(place))
    }

    /// What is wrong with a cell, if anything is.
    fn wrong(&self, place: u64, found: &Cell) -> Option<String> {
        let calls = self.model.cell(place, self.expect.content);
        let allowed: Vec<Cell> = calls
            .iter()
            .map(|call| self.expected(*call, place))
            .collect();
        if allowed.contains(found) || (self.expect.torn && is_mixed(found, &allowed)) {
            return None;
        }
        let found = describe(self.seed, found);
        Some(format!(
            "byte {place}: {found}, expected one of the calls {calls:?}"
        ))
    }

    fn check(&self, bytes: &[u8], findings: &mut Vec<String>) {
        let (least, most) = self.model.sizes(self.expect.content);
        let size = bytes.len() as u64;
        if !(least..=most).contains(&size) || !size.is_multiple_of(CELL as u64) {
            findings.push(format!("{size} bytes, expected {least} to {most}"));
        }
        let end = size.max(self.model.end_of_cells());
        let places = (0..end).step_by(CELL);
        let wrong = places.filter_map(|place| self.wrong(place, &cell_at(bytes, place)));
        push_some(wrong, findings);
    }
}

/// Adds the first few and says how many more there are.
pub(super) fn push_some(wrong: impl Iterator<Item = String>, findings: &mut Vec<String>) {
    const SHOWN: usize = 4;
    let mut wrong = wrong.peekable();
    findings.extend(wrong.by_ref().take(SHOWN));
    let more = wrong.count();
    if more > 0 {
        findings.push(format!("and {more} more"));
    }
}

/// A page that was written while it changed: each word is of one version.
fn is_mixed(found: &Cell, allowed: &[Cell]) -> bool {
    let words = |cell: &Cell| {
        *cell
            .as_chunks::<8>()
            .0
            .first_chunk::<{ CELL / 8 }>()
            .unwrap_or(&[[0; 8]; CELL / 8])
    };
    let mut found = words(found).into_iter().enumerate();
    found.all(|(index, word)| allowed.iter().any(|cell| words(cell)[index] == word))
}

/// A cell of a file, which is zeros beyond the end.
pub(super) fn cell_at(bytes: &[u8], place: u64) -> Cell {
    let mut cell = [0; CELL];
    let there = bytes.get(place as usize..).unwrap_or_default();
    cell.iter_mut()
        .zip(there)
        .for_each(|(to, from)| *to = *from);
    cell
}

/// A writer's directory.
struct Home<'a> {
    seed: u64,
    writer: u16,
    witness: &'a Witness,
}

impl Home<'_> {
    fn check(&self, there: &super::snapshot::Home, findings: &mut Vec<String>) {
        let (writer, Witness { model, expect }) = (self.writer, self.witness);
        for name in there.keys().filter(|name| !model.names.contains_key(*name)) {
            findings.push(format!("writer {writer}: nobody made {name}"));
        }
        for (name, register) in &model.names {
            let files = register.may_be(expect.names);
            let wrong = match there.get(name) {
                None if files.contains(&None) => Vec::new(),
                None => vec![format!("is missing, expected one of {files:?}")],
                Some(bytes) => self.content(bytes, &files),
            };
            findings.extend(
                wrong
                    .iter()
                    .map(|wrong| format!("writer {writer}: {name}: {wrong}")),
            );
        }
    }

    /// What is wrong if this is the content of one of the files; nothing if it suits any.
    fn content(&self, bytes: &[u8], files: &[Option<FileId>]) -> Vec<String> {
        let mut all = Vec::new();
        for file in files.iter().flatten() {
            let mut wrong = Vec::new();
            if let Some(model) = self.witness.model.files.get(file) {
                let written = Written {
                    seed: self.seed,
                    writer: self.writer,
                    file: *file,
                    model,
                    expect: self.witness.expect,
                };
                written.check(bytes, &mut wrong);
            }
            if wrong.is_empty() {
                return wrong;
            }
            all.extend(
                wrong
                    .iter()
                    .map(|wrong| format!("as file {}: {wrong}", file.0)),
            );
        }
        if all.is_empty() {
            all.push("is there, expected to be gone".to_owned());
        }
        all
    }
}

fn check_stripes(seed: u64, witnesses: &[Witness], bytes: &[u8], findings: &mut Vec<String>) {
    let owner = |place: u64| (place / STRIPE) as usize % witnesses.len();
    let wrong = |place: u64| {
        let witness = &witnesses[owner(place)];
        let written = Written {
            seed,
            writer: owner(place) as u16,
            file: STRIPES,
            model: witness.model.files.get(&STRIPES)?,
            expect: witness.expect,
        };
        written.wrong(place, &cell_at(bytes, place))
    };
    let size = bytes.len() as u64;
    let sizes = witnesses
        .iter()
        .filter_map(|witness| witness.model.files.get(&STRIPES));
    let expected = sizes.map(|model| model.sizes(Floor::Durable).0).max();
    if expected.is_some_and(|expected| expected != size) {
        findings.push(format!("stripes: {size} bytes, expected {expected:?}"));
    }
    let places = (0..size).step_by(CELL);
    let wrong = places
        .filter_map(wrong)
        .map(|wrong| format!("stripes: {wrong}"));
    push_some(wrong, findings);
}
