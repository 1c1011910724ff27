//! Measures leasefs on a link of its own, beside other file systems; or counts what its operations cost. See
//! `scripts/bench`.

use clap::Parser;
use leasefs_tests::bench::System;
use leasefs_tests::bench::beside::{Local, Sshfs};
use leasefs_tests::bench::inputs::Inputs;
use leasefs_tests::bench::limits::{Limit, round_trips};
use leasefs_tests::bench::ours::Ours;
use leasefs_tests::bench::report::Report;
use leasefs_tests::bench::rows::{ROWS, Row};
use leasefs_tests::bench::scale::Scale;
use leasefs_tests::bench::trial::{Perf, Sample, Trial};
use leasefs_tests::link::{Link, Spec};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is counted on a link where each round trip shows.
const FAR: &str = "rtt=100ms";
/// A row may exceed its limits so often before it counts: what runs on a timer may fall into it.
const TRIES: u32 = 3;

/// Makes a network of its own, serves across it, mounts four times, and measures.
#[derive(Parser)]
#[command(name = "leasefs-bench", version)]
struct Arguments {
    /// An empty directory to work in.
    work: PathBuf,
    /// The link: veth, or rtt=20ms,rate=1gbit,loss=0.1%.
    #[arg(long, default_value = "veth")]
    link: String,
    /// How much: lan, wan (where each operation costs a round trip) or small.
    #[arg(long, default_value = "lan", value_parser = scale)]
    scale: &'static Scale,
    /// Only these rows.
    #[arg(long, value_delimiter = ',', value_parser = row)]
    rows: Vec<&'static Row>,
    /// How often each is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// Counts what operations cost, and fails if it is more than allowed.
    #[arg(long, conflicts_with_all = ["link", "scale", "rounds", "json"])]
    smoke: bool,
    /// What was measured goes there.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where `perf record --control fifo:FIFO` listens: it is to record our work while it is timed.
    #[arg(long, value_name = "FIFO", conflicts_with = "smoke")]
    perf: Option<PathBuf>,
    /// An option for `fsclient mount`.
    #[arg(long, allow_hyphen_values = true)]
    mount_option: Vec<String>,
    /// An empty directory to serve; made in the one to work in if none is given.
    #[arg(long)]
    export: Option<PathBuf>,
    /// An empty directory of this machine, to compare with.
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// An empty directory for sshfs to serve, to compare with.
    #[arg(long, value_name = "DIR")]
    sshfs: Option<PathBuf>,
}

fn scale(name: &str) -> Result<&'static Scale, String> {
    Scale::named(name).ok_or_else(|| "no such scale".to_owned())
}

fn row(name: &str) -> Result<&'static Row, String> {
    let known = || ROWS.map(|row| row.name).join(", ");
    Row::named(name).ok_or_else(|| format!("expected some of {}", known()))
}

impl Arguments {
    fn rows(&self) -> Vec<&'static Row> {
        match self.rows.is_empty() {
            true => ROWS.iter().collect(),
            false => self.rows.clone(),
        }
    }

    /// Made for each link anew, so that each begins with the same.
    fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let folder = self.work.join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// Runs rows, each with names of its own.
struct Bench<'a> {
    scale: &'a Scale,
    inputs: Inputs,
    trials: u32,
    perf: Option<Perf>,
}

impl<'a> Bench<'a> {
    fn new(scale: &'a Scale, dir: &Path) -> io::Result<Self> {
        Ok(Self {
            scale,
            inputs: Inputs::make(dir, scale)?,
            trials: 0,
            perf: None,
        })
    }

    fn run(&mut self, row: &Row, system: &mut dyn System) -> Result<Sample, String> {
        self.trials += 1;
        let mut trial = Trial {
            system,
            scale: self.scale,
            inputs: &self.inputs,
            number: self.trials,
            perf: self.perf.as_ref(),
        };
        (row.run)(&mut trial).map_err(|error| format!("{}: {error}", row.name))
    }
}

// ---- measuring -------------------------------------------------------------

fn systems(arguments: &Arguments, link: &Link, bench: &Bench) -> io::Result<Vec<Box<dyn System>>> {
    let export = match &arguments.export {
        Some(export) => export.clone(),
        None => arguments.folder("export")?,
    };
    for dir in [
        Some(&export),
        arguments.local.as_ref(),
        arguments.sshfs.as_ref(),
    ]
    .into_iter()
    .flatten()
    {
        bench.inputs.fill(dir, bench.scale)?;
    }
    let mut systems: Vec<Box<dyn System>> = vec![Box::new(Ours::start(
        link,
        &export,
        &arguments.mount_option,
    ))];
    if let Some(dir) = &arguments.local {
        systems.push(Box::new(Local::new(dir)));
    }
    if let Some(export) = &arguments.sshfs {
        systems.push(Box::new(Sshfs::start(link, export)?));
    }
    Ok(systems)
}

/// Each row on all systems in turn, and each round with another of them first, so that what else the machine does
/// falls on all.
fn measure(arguments: &Arguments, spec: &Spec) -> io::Result<Report> {
    let link = Link::new(spec)?;
    let mut bench = Bench::new(arguments.scale, &arguments.folder("inputs")?)?;
    bench.perf = arguments.perf.as_deref().map(Perf::at).transpose()?;
    let mut systems = systems(arguments, &link, &bench)?;
    let names = systems.iter().map(|system| system.name()).collect();
    let mut report = Report::new(
        arguments.link.clone(),
        spec.rtt(),
        arguments.scale.name,
        names,
    );
    for round in 0..usize::from(arguments.rounds) {
        for row in arguments.rows() {
            let count = systems.len();
            for system in (0..count).map(|at| (at + round) % count) {
                let system = systems[system].as_mut();
                if row.shared && !system.is_coherent() {
                    continue;
                }
                let outcome = bench.run(row, system);
                eprintln!("{} {}: {}", row.name, system.name(), told(row, &outcome));
                report.add(row, system.name(), outcome);
                if let Some(bytes) = system.resident() {
                    report.add_resident(system.name(), bytes);
                }
            }
        }
    }
    Ok(report)
}

fn told(row: &Row, outcome: &Result<Sample, String>) -> String {
    match outcome {
        Ok(sample) => format!("{:.3} {}", sample.value, row.unit),
        Err(why) => why.clone(),
    }
}

fn measured(arguments: &Arguments) -> Result<bool, String> {
    let spec = arguments.link.parse()?;
    let report = measure(arguments, &spec).map_err(|error| error.to_string())?;
    print!("{}\n{}", report.table(), report.costs());
    if let Some(file) = &arguments.json {
        let text = serde_json::to_vec_pretty(&report).map_err(|error| error.to_string())?;
        fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(!report.has_failures("leasefs"))
}

// ---- counting --------------------------------------------------------------

/// What a row exceeds on that link, if it does so each time.
fn check(bench: &mut Bench, row: &Row, system: &mut dyn System, spec: &Spec) -> Vec<String> {
    let mut exceeded = Vec::new();
    for _ in 0..TRIES {
        exceeded = match bench.run(row, system) {
            Ok(sample) => compare(row, &sample, spec),
            Err(why) => vec![why],
        };
        if exceeded.is_empty() {
            break;
        }
    }
    exceeded
}

fn compare(row: &Row, sample: &Sample, spec: &Spec) -> Vec<String> {
    let Some((limit, costs)) = Limit::of(row.name).zip(sample.costs.as_ref()) else {
        return vec![format!("{}: there is no limit, or no count", row.name)];
    };
    let each = sample.each().unwrap_or_default();
    let (exceeded, counted) = match spec.rtt() {
        Some(rtt) => {
            let counted = format!("{:.1} round trips", round_trips(each, rtt));
            (limit.too_far(each, rtt).into_iter().collect(), counted)
        }
        None => {
            let counted = format!(
                "{:.3} requests, {:.3} of the kernel",
                costs.requests, costs.kernel_requests
            );
            (limit.exceeded(costs), counted)
        }
    };
    println!(
        "{} ({} × {}): {counted} {:?}",
        row.name, costs.operations, row.operation, costs.kinds
    );
    let above = exceeded.into_iter();
    above
        .map(|what: String| format!("{}: {what}, for each {}", row.name, row.operation))
        .collect()
}

fn count_on(arguments: &Arguments, spec: &Spec, rows: &[&Row]) -> io::Result<Vec<String>> {
    let name = if spec.rtt().is_some() {
        "smoke-far"
    } else {
        "smoke"
    };
    let scale = Scale::named(name).ok_or(io::ErrorKind::NotFound)?;
    let link = Link::new(spec)?;
    let mut bench = Bench::new(scale, &arguments.folder(&format!("{name}-inputs"))?)?;
    let export = arguments.folder(&format!("{name}-export"))?;
    bench.inputs.fill(&export, scale)?;
    let mut system = Ours::start(&link, &export, &arguments.mount_option);
    let exceeded = rows
        .iter()
        .flat_map(|row| check(&mut bench, row, &mut system, spec));
    Ok(exceeded.collect())
}

/// Requests are counted on a near link, where that is fast; round trips on a far one, where they are most of the time.
fn smoke(arguments: &Arguments) -> Result<bool, String> {
    let rows = arguments.rows();
    let with_trips = |row: &&&Row| Limit::of(row.name).is_some_and(|limit| limit.trips.is_some());
    let far: Vec<&Row> = rows.iter().filter(with_trips).copied().collect();
    let mut exceeded =
        count_on(arguments, &Spec::Veth, &rows).map_err(|error| error.to_string())?;
    exceeded.extend(count_on(arguments, &FAR.parse()?, &far).map_err(|error| error.to_string())?);
    for what in &exceeded {
        println!("EXCEEDED {what}");
    }
    Ok(exceeded.is_empty())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.smoke {
        smoke(&arguments)
    } else {
        measured(&arguments)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("leasefs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
