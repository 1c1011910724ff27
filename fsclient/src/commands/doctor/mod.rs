//! `fsclient doctor`: is this machine fit, and are its servers to be reached?

mod checks;
mod facts;

use super::{StateArg, show, show_json};
use crate::daemon::StateDir;
use checks::{Check, Level};
use clap::Args;
use leasefs_protocol::KeyHash;
use leasefs_protocol::ticket::ServerAddr;
use std::collections::BTreeMap;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// A server; without it all with which this client is enrolled are tried
    #[arg(value_name = "HOST[:PORT]", value_parser = super::parse_server)]
    server: Option<ServerAddr>,
    /// In JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArg,
}

pub(super) fn run(args: &DoctorArgs) -> Result<(), String> {
    let state = StateDir::find(args.state.state.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| format!("can't start: {e}"))?;
    let checks = runtime.block_on(all(args, &state));
    // A resolver that hangs isn't waited for.
    runtime.shutdown_background();
    match args.json {
        true => show_json(&checks)?,
        false => show(&for_people(&checks))?,
    }
    let problems = checks.iter().filter(|check| check.level == Level::Problem);
    match problems.count() {
        0 => Ok(()),
        1 => Err("1 problem".into()),
        n => Err(format!("{n} problems")),
    }
}

async fn all(args: &DoctorArgs, state: &StateDir) -> Vec<Check> {
    let enrolled = state.pins().all().map(by_key);
    let known = enrolled.as_ref().cloned().unwrap_or_default();
    let tried: Vec<_> = servers(args, known)
        .into_iter()
        .map(|(names, key)| tokio::spawn(facts::server(state.clone(), names, key)))
        .collect();
    let mounts = tokio::task::spawn_blocking(facts::mounts);
    let mut checks = checks::system(&facts::system().await);
    checks.extend(checks::state(&facts::state(state)));
    checks.push(checks::enrolled(enrolled.as_ref().map(BTreeMap::len)));
    checks.extend(mounts.await.unwrap_or_default().iter().map(checks::mount));
    for tried in tried {
        if let Ok(found) = tried.await {
            checks.extend(checks::server(&found));
        }
    }
    checks
}

/// Those to be tried, each by all its names, with their keys where they are known.
fn servers(args: &DoctorArgs, enrolled: Enrolled) -> Vec<(Vec<ServerAddr>, Option<KeyHash>)> {
    match &args.server {
        None => enrolled
            .into_iter()
            .map(|(key, names)| (names, Some(key)))
            .collect(),
        Some(server) => {
            let mut known = enrolled.into_iter();
            let known = known.find(|(_, names)| names.contains(server));
            vec![(vec![server.clone()], known.map(|(key, _)| key))]
        }
    }
}

/// A server is its key, whatever its names.
type Enrolled = BTreeMap<KeyHash, Vec<ServerAddr>>;

fn by_key(enrolled: Vec<(ServerAddr, KeyHash)>) -> Enrolled {
    let mut servers = Enrolled::new();
    for (name, key) in enrolled {
        servers.entry(key).or_default().push(name);
    }
    servers
}

fn for_people(checks: &[Check]) -> String {
    let one = |check: &Check| {
        let level = match check.level {
            Level::Ok => "ok     ",
            Level::Warning => "warning",
            Level::Problem => "PROBLEM",
        };
        let advice = check.advice.as_ref();
        let advice = advice.map_or(String::new(), |advice| format!("\n         {advice}"));
        format!("{level}  {}: {}{advice}\n", check.name, check.found)
    };
    checks.iter().map(one).collect()
}
