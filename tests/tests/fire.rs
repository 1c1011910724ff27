//! Programs that go on working while the server is killed and started again under them.

use leasefs_tests::mounted::{Background, World, WorldOptions, in_background, within};
use leasefs_tests::rng::{Rng, fresh_seed};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// For the work with all the restarts in it.
const LIMIT: Duration = Duration::from_secs(240);
/// The server is killed at least so often.
const KILLS: u32 = 3;
/// How long it lives in between, in milliseconds: less where there is less to do.
const SHORT_LIFE: (usize, usize) = (300, 1000);
const LONG_LIFE: (usize, usize) = (500, 3000);
/// How long it is away, in milliseconds.
const AWAY: (usize, usize) = (0, 300);
const FILES: u32 = 2000;

fn world(name: &str) -> World {
    World::start(name, &WorldOptions::mounts(2).term("3s").write_back())
}

fn command(program: &str, dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).args(arguments);
    command
}

/// Its standard output and error; fails with them unless it works.
fn outputs_of(mut command: Command) -> [String; 2] {
    let output = command.output().expect("it can be started");
    let said = [output.stdout, output.stderr];
    let said = said.map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{command:?}\n{}", said.concat());
    said
}

fn must_work(command: Command) -> String {
    let [said, _] = outputs_of(command);
    said
}

fn complaints_of(command: Command) -> String {
    let [_, complaints] = outputs_of(command);
    complaints
}

fn git(dir: &Path, arguments: &[&str]) -> String {
    let mut git = command("git", dir, arguments);
    git.env("HOME", dir).env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{role}_NAME"), "t");
        git.env(format!("GIT_{role}_EMAIL"), "t@t.invalid");
    }
    must_work(git)
}

/// Kills the server and starts it again, at random moments, until the work is done; how often.
fn under_fire<T: Send + 'static>(
    world: &mut World,
    (limit, life): (Duration, (usize, usize)),
    mut work: Background<T>,
) -> (T, u32) {
    let mut rng = Rng::new(fresh_seed());
    let mut random = |(least, most)| Duration::from_millis(rng.between(least, most) as u64);
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < limit {
        if let Err((done, took)) = work.still_runs_after(random(life)) {
            println!("done in {took:?}, the server was killed {kills} times");
            return (done, kills);
        }
        world.server.daemon.kill();
        kills += 1;
        thread::sleep(random(AWAY));
        world.server.start_again();
    }
    (work.done_within(Duration::ZERO).0, kills)
}

/// A repository of [`FILES`] files beside the mounts.
fn repository(dir: &Path) -> PathBuf {
    let repository = dir.join("repository");
    for number in 0..FILES {
        let folder = repository.join(format!("d{}/e{}", number % 20, number % 7));
        fs::create_dir_all(&folder).expect("a folder");
        let line = format!("line of {number}\n");
        let text = line.repeat(1 + number as usize % 400);
        fs::write(folder.join(format!("f{number}")), text).expect("a file");
    }
    git(&repository, &["init", "-q"]);
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "-qm", "all"]);
    repository
}

fn clone_is_whole(clone: &Path, repository: &Path) {
    git(clone, &["fsck", "--strict", "--full"]);
    assert_eq!(git(clone, &["status", "--porcelain"]), "");
    let mut diff = command("diff", clone, &["-r", "--exclude", ".git"]);
    diff.args([repository, clone]);
    assert_eq!(must_work(diff), "");
}

#[test]
fn git_clones_2000_files_while_the_server_is_killed_and_started_again() {
    let mut world = world("fire-git");
    let repository = repository(world.sandbox.root());
    let (here, from) = (world.mount(0).path(""), repository.clone());
    let clone = in_background("git clone", move || {
        let from = format!("file://{}", from.display());
        // Once takes too little time to kill the server often.
        for clone in ["clone", "clone2"] {
            git(&here, &["clone", "-q", &from, clone]);
        }
    });
    let ((), kills) = under_fire(&mut world, (LIMIT, SHORT_LIFE), clone);
    assert!(kills >= KILLS, "the server was killed {kills} times only");
    for mount in 0..2 {
        let (clone, repository) = (world.mount(mount).path("clone"), repository.clone());
        within("looking at the clone", LIMIT, move || {
            clone_is_whole(&clone, &repository);
        });
    }
}

/// Copies the sources of a project, without what was built of them.
fn copy_sources(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a folder");
    let script = "tar -cf - --exclude=./target --exclude=./.git . | tar -xf - -C \"$0\"";
    let mut copy = command("sh", from, &["-c", script]);
    copy.arg(to);
    must_work(copy);
}

/// What is built: enough for a test, or everything.
enum Build {
    /// One crate with its dependencies, not optimized, for the sake of time.
    Protocol,
    /// As it is.
    Workspace,
}

impl Build {
    /// `LEASEFS_FIRE_WORKSPACE` asks for everything.
    fn asked() -> Self {
        match env::var_os("LEASEFS_FIRE_WORKSPACE") {
            None => Self::Protocol,
            Some(_) => Self::Workspace,
        }
    }

    fn limit(&self) -> Duration {
        match self {
            Self::Protocol => LIMIT,
            Self::Workspace => Duration::from_secs(3600),
        }
    }

    /// Builds on the mount; what cargo says.
    fn run(&self, dir: &Path) -> String {
        let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut build = command(&cargo, &dir.join("sources"), &["build"]);
        build.args(["--offline", "--locked", "--target-dir", "../target"]);
        match self {
            Self::Protocol => build.args(["--package", "leasefs-protocol"]).args([
                "--config",
                "profile.dev.opt-level=0",
                "--config",
                "profile.dev.package.\"*\".opt-level=0",
            ]),
            Self::Workspace => build.arg("--workspace"),
        };
        build.args(["--color", "never"]);
        complaints_of(build)
    }

    /// Runs what was built; what it says.
    fn result_runs(&self, dir: &Path) -> String {
        let built = dir.join("target/debug");
        match self {
            Self::Workspace => must_work(command("./fsclient", &built, &["--version"])),
            Self::Protocol => {
                let program = "fn main() { println!(\"{:?}\", leasefs_protocol::limits::ALPN) }";
                fs::write(dir.join("main.rs"), program).expect("a source");
                let library = "leasefs_protocol=target/debug/libleasefs_protocol.rlib";
                let mut rustc = command("rustc", dir, &["main.rs", "--extern", library]);
                rustc.args(["-L", "dependency=target/debug/deps", "--edition", "2024"]);
                must_work(rustc);
                must_work(command("./main", dir, &[]))
            }
        }
    }
}

#[test]
fn cargo_builds_this_project_while_the_server_is_killed_and_started_again() {
    let build = Build::asked();
    let limit = build.limit();
    let mut world = world("fire-cargo");
    // This project, as it is now.
    let original = world.sandbox.root().join("sources");
    copy_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &original);
    let (mount, from) = (world.mount(0).path(""), original.clone());
    let built = in_background("cargo build", move || {
        copy_sources(&from, &mount.join("sources"));
        build.run(&mount);
        (build, mount)
    });
    let ((build, mount), kills) = under_fire(&mut world, (limit, LONG_LIFE), built);
    assert!(kills >= KILLS, "the server was killed {kills} times only");
    let other = world.mount(1).path("");
    let looking = "looking at what was built";
    within(looking, LIMIT, move || {
        let mut diff = command("diff", &other, &["-r", "sources"]);
        diff.arg(original);
        assert_eq!(must_work(diff), "");
        let again = build.run(&mount);
        assert!(!again.contains("Compiling"), "it is out of date:\n{again}");
        assert_ne!(build.result_runs(&other), "");
    });
}
