//! The checkers in rounds, under faults. See `scripts/soak`.

use clap::Parser;
use leasefs_tests::coherence::Family;
use leasefs_tests::durable::program;
use leasefs_tests::mounted::Binaries;
use leasefs_tests::rng::fresh_seed;
use leasefs_tests::soak::{Act, one_round, soak};
use std::process::ExitCode;
use std::time::Duration;

/// Runs checked programs on mounts of their own while daemons are killed and frozen, links cut and slowed,
/// until the time is up or a violation is found.
#[derive(Parser)]
#[command(name = "leasefs-soak", version)]
struct Arguments {
    /// For so long; the round under way is finished.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Repeats the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Only rounds of this act: buffered, away, frozen, files or durable.
    #[arg(long, value_parser = act)]
    only: Option<Act>,
    /// Without this family of the coherence programs, to get past what is known.
    #[arg(long, value_parser = family)]
    without: Vec<Family>,
    /// One round of an earlier run, as it was printed: ACT:SEED.
    #[arg(long, value_parser = round)]
    round: Option<(Act, u64)>,
}

fn act(name: &str) -> Result<Act, String> {
    Act::named(name).ok_or_else(|| {
        let known: Vec<&str> = Act::ALL.iter().map(|act| act.name()).collect();
        format!("expected one of {}", known.join(", "))
    })
}

fn family(name: &str) -> Result<Family, String> {
    Family::named(name).ok_or_else(|| "no such family".to_owned())
}

fn round(text: &str) -> Result<(Act, u64), String> {
    let (name, seed) = text.split_once(':').ok_or("expected ACT:SEED")?;
    let seed = seed.parse().map_err(|error| format!("{error}"))?;
    Ok((act(name)?, seed))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let writer = Binaries::beside("leasefs-durable-writer");
    program(&writer.to_string_lossy());
    let tally = match arguments.round {
        Some((act, seed)) => one_round(act, seed, &arguments.without),
        None => {
            let seed = arguments.seed.unwrap_or_else(fresh_seed);
            println!("seed {seed}");
            let time = Duration::from_secs(60 * arguments.minutes);
            soak(time, seed, arguments.only, &arguments.without)
        }
    };
    println!("{tally}");
    ExitCode::from(u8::from(!tally.findings.is_empty()))
}
