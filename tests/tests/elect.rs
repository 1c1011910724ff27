//! `fsclient elect`: one command at a time, whichever mount it is run on, and none that goes on without its lock.

use leasefs_tests::mounted::{Binaries, World, WorldOptions, eventually};
use rustix::process::Signal;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

const TERM: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(10);

fn world(name: &str) -> World {
    World::start(name, &WorldOptions::mounts(2).term("3s"))
}

fn elect(options: &[&str], file: &Path, script: &str) -> Command {
    let mut command = Command::new(&Binaries::get().client);
    command.arg("elect").args(options).arg(file);
    command.args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

fn run(options: &[&str], file: &Path, script: &str) -> Output {
    let output = elect(options, file, script).output();
    output.expect("fsclient runs")
}

/// One that holds the lock, and has begun: it makes the file `sign`.
fn holds(file: &Path, sign: &Path, script: &str) -> Child {
    let child = elect(&[], file, script).spawn().expect("fsclient runs");
    let begun = || sign.exists().then_some(());
    eventually("the command to run", SOON, begun, String::new);
    child
}

fn ends_within(child: &mut Child, limit: Duration) -> ExitStatus {
    let ended = || child.try_wait().expect("a child");
    eventually("fsclient elect to end", limit, ended, String::new)
}

fn at(text: &str) -> f64 {
    text.trim().parse().expect("a time")
}

fn number(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .unwrap_or_else(|_| panic!("no number: {output:?}"))
}

#[test]
fn one_command_at_a_time_runs_whichever_mount_it_is_run_on() {
    let world = world("elect");
    let [here, there] = [0, 1].map(|mount| world.mount(mount).path("leader"));
    let sign = world.sandbox.folder("notes").join("begun");
    let script = format!("touch '{}'; sleep 2; exit 7", sign.display());
    let mut holder = holds(&here, &sign, &script);
    let refused = run(&["-n"], &there, "echo no");
    assert_eq!(
        (refused.status.code(), &refused.stdout[..]),
        (Some(1), &b""[..])
    );
    let begun = Instant::now();
    let late = run(&["--wait", "300ms"], &there, "echo no");
    assert_eq!((late.status.code(), &late.stdout[..]), (Some(1), &b""[..]));
    assert!(begun.elapsed() < Duration::from_secs(2));
    let next = run(&[], &there, "echo $LEASEFS_LOCK_PATH");
    assert_eq!(
        String::from_utf8_lossy(&next.stdout).trim(),
        there.display().to_string()
    );
    let ended = ends_within(&mut holder, SOON);
    assert_eq!(ended.code(), Some(7), "as the command");
    assert!(begun.elapsed() > Duration::from_secs(1), "it waited");
}

#[test]
fn each_holder_has_a_greater_number_than_the_one_before_also_behind_a_restart() {
    let mut world = world("elected");
    let mut last = 0;
    let mut grows = |world: &World| {
        for mount in [0, 1, 1, 0] {
            let file = world.mount(mount).path("leader");
            let now = number(&run(&[], &file, "echo $LEASEFS_LOCK"));
            assert!(now > last, "{now} after {last}");
            last = now;
        }
    };
    grows(&world);
    world.server.daemon.kill();
    world.server.start_again();
    grows(&world);
    let file = world.mount(0).path("leader");
    let told = Command::new("python3")
        .arg("-c")
        .arg("import os,sys; os.getxattr(sys.argv[1], 'user.leasefs.lock')")
        .arg(&file)
        .output()
        .expect("python3");
    let error = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        error.contains("No data available"),
        "nobody holds it: {error}"
    );
    let set = rustix::fs::setxattr(
        &file,
        "user.leasefs.lock",
        b"9",
        rustix::fs::XattrFlags::empty(),
    );
    assert_eq!(set, Err(rustix::io::Errno::PERM));
}

/// A command that tells in a file how long it runs.
fn ignores_sigterm(lives: &Path) -> String {
    format!(
        "python3 -c 'import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
notes = os.open(\"{}\", os.O_WRONLY | os.O_CREAT)
while True:
    # In one piece: it is killed at any moment.
    os.pwrite(notes, b\"%.6f\" % time.time(), 0)
    time.sleep(0.02)'",
        lives.display()
    )
}

#[test]
fn a_command_is_ended_before_its_lock_can_be_lost() {
    let mut world = world("deposed");
    let [here, there] = [0, 1].map(|mount| world.mount(mount).path("leader"));
    // It can't show on the mount how long it runs.
    let lives = world.sandbox.folder("notes").join("lives");
    // A process that ended would close what it inherits, and that waits for the mount's daemon.
    let forever = format!("exec {}", ignores_sigterm(&lives));
    let mut holder = holds(&here, &lives, &forever);
    let next = elect(&[], &there, "date +%s.%N")
        .spawn()
        .expect("fsclient runs");
    world.mounts[0].freeze();
    let next = next.wait_with_output().expect("a child");
    world.mounts[0].thaw();
    let ended = ends_within(&mut holder, TERM + SOON);
    assert_eq!(ended.code(), Some(75), "{ended:?}, {:?}", ended.signal());
    let last = at(&fs::read_to_string(&lives).expect("it ran"));
    let first = at(&String::from_utf8_lossy(&next.stdout));
    assert!(
        last < first && first - last < TERM.as_secs_f64(),
        "it ran until {last}, and its successor from {first} on"
    );
}

#[test]
fn what_a_command_leaves_behind_is_ended_before_the_lock_can_be_lost() {
    let world = World::start(
        "orphaned",
        &WorldOptions::mounts(2).term("3s").with_relays(),
    );
    let [here, there] = [0, 1].map(|mount| world.mount(mount).path("leader"));
    let lives = world.sandbox.folder("notes").join("lives");
    let left_behind = format!("{} & wait", ignores_sigterm(&lives));
    let mut holder = holds(&here, &lives, &left_behind);
    let next = elect(&[], &there, "date +%s.%N")
        .spawn()
        .expect("fsclient runs");
    world.relays[0].cut();
    let ended = ends_within(&mut holder, TERM + SOON);
    assert_eq!(ended.code(), Some(75), "{ended:?}, {:?}", ended.signal());
    let next = next.wait_with_output().expect("a child");
    let last = at(&fs::read_to_string(&lives).expect("it ran"));
    let first = at(&String::from_utf8_lossy(&next.stdout));
    assert!(last < first, "it ran until {last}, {first}");
    world.relays[0].mend();
}

#[test]
fn a_command_that_had_to_end_has_ended_though_the_server_answers_again() {
    let world = World::start("mended", &WorldOptions::mounts(2).term("3s").with_relays());
    let [here, there] = [0, 1].map(|mount| world.mount(mount).path("leader"));
    let notes = world.sandbox.folder("notes");
    let [sign, told] = ["begun", "told"].map(|name| notes.join(name));
    let script = format!(
        "trap 'touch {}; exit 0' TERM; touch '{}'; sleep 60 & wait",
        told.display(),
        sign.display()
    );
    let mut holder = holds(&here, &sign, &script);
    world.relays[0].cut();
    let has_to_end = || told.exists().then_some(());
    eventually("the command to be told", SOON, has_to_end, String::new);
    world.relays[0].mend();
    assert_eq!(ends_within(&mut holder, TERM).code(), Some(75));
    assert!(run(&["--wait", "10s"], &there, "true").status.success());
}

#[test]
fn what_it_is_told_by_a_signal_the_command_is_told() {
    let world = world("told");
    let sign = world.sandbox.folder("notes").join("begun");
    let file = world.mount(0).path("leader");
    let script = format!(
        "trap 'exit 9' TERM; touch '{}'; sleep 60 & wait",
        sign.display()
    );
    let mut holder = holds(&file, &sign, &script);
    let pid = rustix::process::Pid::from_child(&holder);
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(ends_within(&mut holder, SOON).code(), Some(9));
}

#[test]
fn a_local_file_elects_nobody() {
    let world = world("local");
    let refused = run(
        &[],
        &world.sandbox.folder("notes").join("leader"),
        "echo no",
    );
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("is not on a leasefs mount"), "{said}");
    assert!(refused.stdout.is_empty());
}
