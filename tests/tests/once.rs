//! Connections are cut and the server is killed under a load of changes: each takes effect once.
//!
//! `LEASEFS_ONCE_CUTS` says how often (by default as often as a suite has time for),
//! `LEASEFS_ONCE_SEED` which run.

use leasefs_tests::mounted::{Mount, World, WorldOptions};
use leasefs_tests::once::Load;
use leasefs_tests::rng::{Rng, fresh_seed};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const CUTS: u64 = 12;
/// Longer than the term and short of what makes a client look for another connection by itself.
const CUT: (usize, usize) = (1100, 2000);
/// How long everything runs undisturbed between two cuts, in milliseconds.
const CALM: (usize, usize) = (50, 600);
/// Callers go on when everything is whole again.
const END: Duration = Duration::from_secs(60);
/// A few rounds of the server's housekeeping.
const SWEEPS: Duration = Duration::from_secs(20);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn pause(rng: &mut Rng, (low, high): (usize, usize)) {
    sleep(Duration::from_millis(rng.between(low, high) as u64));
}

/// How often what happened.
#[derive(Debug, Default)]
struct Cuts {
    links: u64,
    kills: u64,
    /// Crashes at a chosen step of a change.
    crashes: u64,
}

impl Cuts {
    fn all(&self) -> u64 {
        self.links + self.kills + self.crashes
    }

    fn cut_link(&mut self, world: &World, rng: &mut Rng) {
        let relay = &world.relays[rng.below(world.relays.len())];
        relay.cut();
        pause(rng, CUT);
        relay.mend();
        self.links += 1;
    }

    /// Ends the server at a random moment, or lets it crash in the middle of a change as it was
    /// told at its start; then starts it again.
    fn end_server(&mut self, world: &mut World, rng: &mut Rng) {
        let is_told = !world.server.options.env.is_empty();
        let until = Instant::now() + Duration::from_secs(3);
        while is_told && world.server.daemon.exited().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        match world.server.daemon.exited() {
            Some(_) => self.crashes += 1,
            None => self.kills += 1,
        }
        world.server.daemon.kill();
        world.server.options.env = match rng.chance(70) {
            true => vec![("LEASEFS_TEST_FAULT".to_owned(), fault(rng))],
            false => Vec::new(),
        };
        world.server.start_again();
    }
}

fn fault(rng: &mut Rng) -> String {
    let points = ["crash-begun", "crash-happened", "crash-answered"];
    let point = points[rng.below(points.len())];
    format!("{point}:{}", rng.between(1, 400))
}

/// What nobody has open goes, if not at its last close then once all have reclaimed.
fn left_orphans(world: &World) -> Option<String> {
    let folder = world.server.export.join(".leasefs-orphans");
    let count = || fs::read_dir(&folder).map_or(0, Iterator::count);
    let until = Instant::now() + SWEEPS;
    while count() > 0 && Instant::now() < until {
        sleep(Duration::from_millis(100));
    }
    match count() {
        0 => None,
        left => Some(format!("{left} orphans that nobody has open are left")),
    }
}

/// What a mount could not bring in of the log, as people get it back.
fn kept_of_the_log(mount: &Mount) -> String {
    let listed = mount.client(&["recover", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let mut kept = String::new();
    for item in listed["items"].as_array().expect("items") {
        assert_eq!(
            item["path"], "log",
            "only the log is changed elsewhere: {item}"
        );
        let id = item["id"].as_str().expect("an id");
        let name = format!("kept-{id}");
        mount.client(&["recover", "restore", id, "--as", &name]);
        let text = fs::read_to_string(mount.path(&name)).expect("the restored file");
        for range in item["ranges"].as_array().expect("ranges") {
            let [offset, length] = ["offset", "length"].map(|key| range[key].as_u64());
            let from = offset.expect("an offset") as usize;
            kept.push_str(&text[from..from + length.expect("a length") as usize]);
        }
    }
    kept
}

#[test]
fn every_change_takes_effect_once_while_links_are_cut_and_the_server_is_killed() {
    let wanted = number("LEASEFS_ONCE_CUTS").unwrap_or(CUTS);
    let seed = number("LEASEFS_ONCE_SEED").unwrap_or_else(fresh_seed);
    println!("LEASEFS_ONCE_SEED={seed}");
    let options = WorldOptions::mounts(2).term("1s").with_relays();
    let mut world = World::start("once", &options);
    let mounts: Vec<PathBuf> = world.mounts.iter().map(|mount| mount.dir.clone()).collect();
    let load = Load::start(&mounts, seed);
    let mut rng = Rng::new(seed);
    let (mut cuts, begun) = (Cuts::default(), Instant::now());
    while cuts.all() < wanted && !load.mark().is_wrong() {
        pause(&mut rng, CALM);
        match rng.chance(30) {
            true => cuts.cut_link(&world, &mut rng),
            false => cuts.end_server(&mut world, &mut rng),
        }
    }
    if world.server.daemon.exited().is_some() || !world.server.options.env.is_empty() {
        world.server.daemon.kill();
        world.server.options.env.clear();
        world.server.start_again();
    }
    let operations = load.mark().operations();
    let mut wrong = match load.finish(END) {
        Ok(answers) => {
            let kept: Vec<String> = world.mounts.iter().map(kept_of_the_log).collect();
            answers.differences(&world.server.export, &kept)
        }
        Err(wrong) => wrong,
    };
    if wrong.is_empty() {
        wrong.extend(left_orphans(&world));
    }
    println!(
        "{cuts:?}, {operations} operations in {:.0?}",
        begun.elapsed()
    );
    assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
    assert!(
        operations > 20 * wanted,
        "only {operations} operations: the load stood still"
    );
}
