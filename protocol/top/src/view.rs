//! What is shown, and in which order. Pure.

use leasefs_protocol::escaped;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

/// What was seen at a look, and at the one before.
#[derive(Debug)]
pub struct Sample<D> {
    /// The look before, and how long ago it was.
    pub before: Option<(D, Duration)>,
    /// This one.
    pub now: D,
}

impl<D> Sample<D> {
    /// How much a count has grown in a second; 0 if it began anew, or at the first look.
    pub fn rate(&self, count: impl Fn(&D) -> u64) -> u64 {
        let Some((before, apart)) = &self.before else {
            return 0;
        };
        per_second(count(&self.now).saturating_sub(count(before)), *apart)
    }

    /// By how much a count has grown.
    pub fn grown(&self, count: impl Fn(&D) -> u64) -> u64 {
        let before = self.before.as_ref().map(|(before, _)| count(before));
        before.map_or(0, |before| count(&self.now).saturating_sub(before))
    }

    /// The kinds that have grown, by how much in a second, the fastest first.
    pub fn fastest(
        &self,
        counts: impl Fn(&D) -> Option<&BTreeMap<String, u64>>,
    ) -> Vec<(String, u64)> {
        let count = |at: &D, kind: &String| counts(at).and_then(|all| all.get(kind).copied());
        let rate = |kind: &String| self.rate(|at| count(at, kind).unwrap_or_default());
        let kinds = counts(&self.now).into_iter().flat_map(BTreeMap::keys);
        let mut rates: Vec<_> = kinds.map(|kind| (kind.clone(), rate(kind))).collect();
        rates.retain(|(_, rate)| *rate > 0);
        rates.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        rates
    }
}

fn per_second(count: u64, apart: Duration) -> u64 {
    let millis = apart.as_millis().max(1);
    let rate = (u128::from(count) * 1_000 + millis / 2) / millis;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The first line.
    pub title: String,
    /// What is told above the tables: names and values.
    pub facts: Vec<(&'static str, String)>,
    /// The first can be sorted and scrolled.
    pub tables: Vec<Table>,
}

/// Rows of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What they are.
    pub name: &'static str,
    /// Their columns.
    pub columns: &'static [Column],
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Above it.
    pub title: &'static str,
    /// How wide it is; 0 has what is left.
    pub width: u16,
}

impl Column {
    /// A column of this title and width.
    pub const fn new(title: &'static str, width: u16) -> Self {
        Self { title, width }
    }
}

/// A value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub(crate) text: String,
    /// By what it is sorted, and set to the right, if it is a number.
    pub(crate) number: Option<u64>,
    pub(crate) alarm: bool,
}

impl Cell {
    /// Somebody's words: no terminal obeys them.
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self {
            text: escaped(&text).to_string(),
            ..Self::default()
        }
    }

    /// A count, or a rate.
    pub fn number(number: u64) -> Self {
        Self {
            text: grouped(number),
            number: Some(number),
            alarm: false,
        }
    }

    /// A count that is worth seeing where it isn't zero.
    pub fn owed(number: u64) -> Self {
        Self::number(number).alarm_if(number > 0)
    }

    /// A time in milliseconds, if there is one.
    pub fn millis(millis: Option<u64>) -> Self {
        let shown = |ms: u64| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100);
        Self {
            text: millis.map_or("-".into(), shown),
            number: Some(millis.unwrap_or_default()),
            alarm: false,
        }
    }

    /// A number of bytes.
    pub fn bytes(bytes: u64) -> Self {
        Self {
            text: binary(bytes),
            number: Some(bytes),
            alarm: false,
        }
    }

    /// A number as it is to be shown.
    pub fn shown(number: u64, text: String) -> Self {
        Self {
            text,
            number: Some(number),
            alarm: false,
        }
    }

    /// Stands out.
    pub fn alarm_if(self, alarm: bool) -> Self {
        Self { alarm, ..self }
    }
}

/// Thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn binary(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10 / 1024;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!(
        "{}.{} {}",
        tenths / 10,
        tenths % 10,
        UNITS.get(unit).unwrap_or(&"")
    )
}

/// By which column the first table is sorted, and from where it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) column: usize,
    pub(crate) reversed: bool,
    pub(crate) first: usize,
}

impl Order {
    /// Puts the rows of a table in order: numbers from the greatest, texts from the first.
    pub(crate) fn sort(self, table: &mut Table) {
        let by = |a: &Vec<Cell>, b: &Vec<Cell>| {
            let (Some(a), Some(b)) = (a.get(self.column), b.get(self.column)) else {
                return Ordering::Equal;
            };
            let order = b.number.cmp(&a.number).then_with(|| a.text.cmp(&b.text));
            if self.reversed {
                order.reverse()
            } else {
                order
            }
        };
        table.rows.sort_by(by);
    }

    /// The next column.
    pub(crate) fn next(&mut self, columns: usize) {
        self.column = (self.column + 1) % columns.max(1);
    }

    /// Moves what is shown, not beyond the rows there are.
    pub(crate) fn scroll(&mut self, by: isize, rows: usize) {
        let last = rows.saturating_sub(1);
        self.first = self.first.saturating_add_signed(by).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(before: u64, now: u64, apart: u64) -> Sample<u64> {
        Sample {
            before: Some((before, Duration::from_millis(apart))),
            now,
        }
    }

    #[test]
    fn a_rate_is_what_has_grown_in_a_second_and_none_of_what_began_anew() {
        assert_eq!(sample(100, 300, 2_000).rate(|n| *n), 100);
        assert_eq!(sample(0, 1, 500).rate(|n| *n), 2);
        assert_eq!(
            sample(300, 5, 1_000).rate(|n| *n),
            0,
            "the daemon was started anew"
        );
        assert_eq!(
            sample(0, 5, 0).rate(|n| *n),
            5_000,
            "no time is not divided by"
        );
        let first = Sample {
            before: None,
            now: 5,
        };
        assert_eq!(first.rate(|n| *n), 0);
    }

    #[test]
    fn the_fastest_kinds_come_first() {
        let counts =
            |read, write| BTreeMap::from([("read".to_owned(), read), ("write".to_owned(), write)]);
        let sample = Sample {
            before: Some((counts(10, 10), Duration::from_secs(1))),
            now: counts(12, 19),
        };
        let fastest = sample.fastest(|counts| Some(counts));
        assert_eq!(fastest, [("write".to_owned(), 9), ("read".to_owned(), 2)]);
    }

    #[test]
    fn numbers_are_sorted_from_the_greatest_and_texts_from_the_first() {
        let row = |name: &str, n| vec![Cell::text(name), Cell::number(n)];
        let mut table = Table {
            name: "rows",
            columns: &[],
            rows: vec![row("b", 9), row("a", 10), row("c", 1)],
        };
        let names = |table: &Table| -> String {
            table.rows.iter().map(|row| row[0].text.clone()).collect()
        };
        let order = |column, reversed| Order {
            column,
            reversed,
            first: 0,
        };
        order(0, false).sort(&mut table);
        assert_eq!(names(&table), "abc");
        order(1, false).sort(&mut table);
        assert_eq!(names(&table), "abc");
        order(1, true).sort(&mut table);
        assert_eq!(names(&table), "cba");
    }

    #[test]
    fn scrolling_stays_within_the_rows() {
        let mut order = Order::default();
        order.scroll(-1, 5);
        assert_eq!(order.first, 0);
        order.scroll(100, 5);
        assert_eq!(order.first, 4);
        order.scroll(1, 0);
        assert_eq!(order.first, 0);
    }

    #[test]
    fn values_are_shown_as_people_read_them() {
        assert_eq!(Cell::number(1_234_567).text, "1,234,567");
        assert_eq!(Cell::bytes(0).text, "0.0 KiB");
        assert_eq!(Cell::bytes(3 << 19).text, "1.5 MiB");
        assert_eq!(Cell::millis(Some(8_250)).text, "8.2 s");
        assert_eq!(Cell::millis(None).text, "-");
        assert!(!Cell::text("x\u{1b}[2J").text.contains('\u{1b}'));
    }
}
