//! What was measured, and what a process takes.

use super::Outcome;
use std::fmt;
use std::fs;
use std::time::Duration;

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What is measured.
    pub what: String,
    /// In this unit.
    pub unit: &'static str,
    /// How much it is.
    pub value: f64,
    /// How much it may be.
    pub target: Option<f64>,
}

impl Row {
    /// Whether it is as it should be.
    pub fn is_reached(&self) -> bool {
        self.target.is_none_or(|target| self.value <= target)
    }
}

/// What a run has measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// In the order in which it was measured.
    pub rows: Vec<Row>,
}

impl Report {
    pub(super) fn add(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        let what = what.into();
        self.rows.push(Row {
            what,
            unit,
            value,
            target: None,
        });
    }

    pub(super) fn judge(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        target: f64,
    ) {
        self.add(what, value, unit);
        if let Some(row) = self.rows.last_mut() {
            row.target = Some(target);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| what | measured | at most | |\n| --- | --- | --- | --- |"
        )?;
        for row in &self.rows {
            let Row {
                what, unit, value, ..
            } = row;
            write!(f, "| {what} | {value:.1} {unit} |")?;
            match row.target {
                None => writeln!(f, " | |")?,
                Some(target) => {
                    let verdict = if row.is_reached() {
                        "reached"
                    } else {
                        "missed"
                    };
                    writeln!(f, " {target} {unit} | {verdict} |")?;
                }
            }
        }
        Ok(())
    }
}

/// Bytes of memory that a process has.
pub(super) fn resident(pid: u32) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.ok_or("no VmRSS")?.trim().parse::<f64>()? * 1024.0)
}

/// How long its threads have run.
pub(super) fn cpu(pid: u32) -> Outcome<Duration> {
    let mut all = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(task?.path().join("schedstat"))?;
        let ran = stat.split(' ').next().ok_or("no schedstat")?;
        all += Duration::from_nanos(ran.parse()?);
    }
    Ok(all)
}
