//! What was measured, for people and programs.

use super::counts::Costs;
use super::limits::round_trips;
use super::rows::Row;
use super::sharing::median;
use super::trial::Sample;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// A run. Its field names are those of `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// As on the command line.
    pub link: String,
    /// Its name.
    pub scale: &'static str,
    /// The systems that were measured, ours first.
    pub systems: Vec<&'static str>,
    /// In the order in which they were run.
    pub rows: Vec<RowReport>,
    /// The most resident memory that was seen of what serves a system's mounts, in MiB.
    pub resident_mib: BTreeMap<&'static str, f64>,
    #[serde(skip)]
    rtt: Option<Duration>,
}

/// A row.
#[derive(Debug, Serialize)]
pub struct RowReport {
    /// Its name.
    pub row: &'static str,
    /// Of the values.
    pub unit: &'static str,
    /// What the costs are of.
    pub operation: &'static str,
    /// What is done.
    pub what: &'static str,
    /// By system.
    pub systems: BTreeMap<&'static str, Measured>,
    #[serde(skip)]
    is_time: bool,
}

/// A row of one system.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    /// Of each round.
    pub values: Vec<f64>,
    /// Their median.
    pub median: Option<f64>,
    /// Of the last round.
    pub costs: Option<Costs>,
    /// Microseconds that an operation took in the last round, where costs are known.
    pub operation_us: Option<f64>,
    /// What went wrong.
    pub failures: Vec<String>,
}

impl Report {
    /// Nothing measured yet.
    pub fn new(
        link: String,
        rtt: Option<Duration>,
        scale: &'static str,
        systems: Vec<&'static str>,
    ) -> Self {
        Self {
            link,
            scale,
            systems,
            rows: Vec::new(),
            resident_mib: BTreeMap::new(),
            rtt,
        }
    }

    /// Takes in what came out for a system.
    pub fn add(&mut self, row: &Row, system: &'static str, outcome: Result<Sample, String>) {
        let measured = self.row(row).systems.entry(system).or_default();
        match outcome {
            Ok(sample) => {
                measured.values.push(sample.value);
                measured.median = median(measured.values.clone());
                measured.operation_us = sample.each().map(|each| each.as_secs_f64() * 1e6);
                measured.costs = sample.costs;
            }
            Err(why) => measured.failures.push(why),
        }
    }

    fn row(&mut self, row: &Row) -> &mut RowReport {
        let known = self.rows.iter().position(|known| known.row == row.name);
        let at = known.unwrap_or(self.rows.len());
        if known.is_none() {
            self.rows.push(RowReport {
                row: row.name,
                unit: row.unit,
                operation: row.operation,
                what: row.what,
                systems: BTreeMap::new(),
                is_time: row.is_time(),
            });
        }
        &mut self.rows[at]
    }

    /// Takes in how much memory a system needs now.
    pub fn add_resident(&mut self, system: &'static str, bytes: u64) {
        let most = self.resident_mib.entry(system).or_default();
        *most = most.max(bytes as f64 / (1 << 20) as f64);
    }

    /// Whether a row went wrong on that system.
    pub fn has_failures(&self, system: &str) -> bool {
        self.rows
            .iter()
            .filter_map(|row| row.systems.get(system))
            .any(|measured| !measured.failures.is_empty())
    }

    /// Medians, and how they compare with the first system's: above 1 it is better than the other.
    pub fn table(&self) -> String {
        let Some((ours, others)) = self.systems.split_first() else {
            return String::new();
        };
        let mut text = format!("| row | {ours} |");
        for other in others {
            let _ = write!(text, " {other} | of {other} |");
        }
        text += &format!("\n|---|{}\n", "--:|".repeat(1 + 2 * others.len()));
        for row in &self.rows {
            let _ = write!(text, "| {}: {} | {} |", row.row, row.what, row.shown(ours));
            for other in others {
                let _ = write!(text, " {} | {} |", row.shown(other), row.ratio(ours, other));
            }
            text.push('\n');
        }
        let resident = |system| {
            self.resident_mib
                .get(system)
                .map_or("-".to_owned(), |mib| format!("{mib:.0} MiB"))
        };
        let _ = write!(
            text,
            "| resident memory of what serves the mounts, at most | {} |",
            resident(ours)
        );
        for other in others {
            let _ = write!(text, " {} | |", resident(other));
        }
        text.push('\n');
        text
    }

    /// What an operation has cost ours, where it is known.
    pub fn costs(&self) -> String {
        let trips = if self.rtt.is_some() {
            " round trips |"
        } else {
            ""
        };
        let mut text = format!(
            "| row | operation | requests | of the kernel | datagrams | µs of fsserver | µs of fsclient |{trips}\n|---|---|{}\n",
            "--:|".repeat(5 + usize::from(self.rtt.is_some()))
        );
        for row in &self.rows {
            let measured = self.systems.first().and_then(|ours| row.systems.get(ours));
            let Some((measured, costs)) =
                measured.and_then(|measured| Some((measured, measured.costs.as_ref()?)))
            else {
                continue;
            };
            let counts = [costs.requests, costs.kernel_requests, costs.datagrams];
            let counts = counts.map(|count| format!("{count:.2}")).join(" | ");
            let _ = write!(
                text,
                "| {} | {} | {counts} | {:.1} | {:.1} |",
                row.row, row.operation, costs.server_us, costs.client_us
            );
            if let (Some(rtt), Some(each)) = (self.rtt, measured.operation_us) {
                let _ = write!(
                    text,
                    " {:.1} |",
                    round_trips(Duration::from_secs_f64(each / 1e6), rtt)
                );
            }
            text.push('\n');
        }
        text
    }
}

impl RowReport {
    fn median(&self, system: &str) -> Option<f64> {
        self.systems
            .get(system)
            .and_then(|measured| measured.median)
    }

    fn shown(&self, system: &str) -> String {
        match (self.median(system), self.systems.get(system)) {
            (Some(value), _) => format!("{} {}", short(value), self.unit),
            (None, Some(_)) => "failed".to_owned(),
            (None, None) => "-".to_owned(),
        }
    }

    /// How much better ours is than the other.
    fn ratio(&self, ours: &str, other: &str) -> String {
        let Some((ours, other)) = self.median(ours).zip(self.median(other)) else {
            return String::new();
        };
        let ratio = if self.is_time {
            other / ours
        } else {
            ours / other
        };
        format!("{} ×", short(ratio))
    }
}

/// Three digits that say something.
fn short(value: f64) -> String {
    let digits = |value: f64| (2.0 - value.log10().floor()).clamp(0.0, 6.0) as usize;
    match value {
        10_000.0.. => format!("{:.*}k", digits(value / 1e3), value / 1e3),
        _ if value > 0.0 => format!("{value:.*}", digits(value)),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(value: f64) -> Result<Sample, String> {
        Ok(Sample {
            value,
            took: Duration::from_millis(10),
            costs: None,
        })
    }

    #[test]
    fn ratios_above_one_are_better_whatever_the_unit() {
        let mut report = Report::new("veth".to_owned(), None, "small", vec!["leasefs", "ext4"]);
        let rows = ["create", "untar"].map(|name| Row::named(name).expect("a row"));
        for (row, values) in rows.into_iter().zip([[10.0, 20.0], [4.0, 2.0]]) {
            report.add(row, "leasefs", sample(values[0]));
            report.add(row, "ext4", sample(values[1]));
        }
        let table = report.table();
        let of_row = |name: &str| {
            table
                .lines()
                .find(|line| line.starts_with(&format!("| {name}:")))
                .map(str::to_owned)
        };
        for name in ["create", "untar"] {
            let line = of_row(name).expect("its line");
            assert!(line.ends_with("| 0.500 × |"), "{line}");
        }
    }

    #[test]
    fn three_digits_are_shown() {
        let shown = [123_456.0, 12_345.0, 1234.5, 12.345, 0.012_345, 0.0].map(short);
        assert_eq!(shown, ["123k", "12.3k", "1234", "12.3", "0.0123", "0"]);
    }

    #[test]
    fn medians_are_told_and_failures_kept() {
        let mut report = Report::new("veth".to_owned(), None, "small", vec!["leasefs"]);
        let row = Row::named("unlink").expect("a row");
        for value in [3.0, 1.0, 2.0] {
            report.add(row, "leasefs", sample(value));
        }
        assert!(!report.has_failures("leasefs"));
        report.add(row, "leasefs", Err("no space".to_owned()));
        assert!(report.has_failures("leasefs"));
        assert!(report.table().contains("| 2.00 /s |"), "{}", report.table());
    }
}
