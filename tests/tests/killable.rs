//! Processes that wait for a server that is gone can be killed, and end by
//! themselves after `--timeout`.

use leasefs_tests::mounted::{Caller, World, WorldOptions, eventually, within};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(6);
const LIMIT: Duration = Duration::from_secs(60);
const KILLED: Option<i32> = Some(9);

fn world(name: &str) -> World {
    let options = WorldOptions::mounts(1).term("2s").timeout("6s");
    World::start_on(name, &options, |export| {
        fs::create_dir(export.join("dir")).expect("a folder");
        for name in ["read", "stat", "write", "msync"] {
            fs::write(export.join(name), vec![0; 4096]).expect("a file");
        }
    })
}

fn caller(world: &World, operation: &str, name: &str) -> Caller {
    let program = env!("CARGO_BIN_EXE_leasefs-caller");
    Caller::prepare(
        program,
        world.sandbox.root(),
        operation,
        &world.mount(0).path(name),
    )
}

/// Lets the leases run out too, so that nothing is answered from a cache.
fn kill_server(world: &mut World) {
    world.server.daemon.kill();
    std::thread::sleep(Duration::from_millis(2500));
}

fn dies_at_once_of_sigkill(operation: &str, name: &str) {
    let mut world = world(operation);
    let mut caller = caller(&world, operation, name);
    kill_server(&mut world);
    caller.go();
    caller.is_busy_for(Duration::from_millis(800));
    caller.kill();
    let (status, took) = caller.ends_within(Duration::from_secs(2));
    println!("{operation}: dead after {took:?}");
    assert_eq!(status.signal(), KILLED);
}

#[test]
fn a_reader_without_a_server_dies_within_2_s_of_sigkill() {
    dies_at_once_of_sigkill("read", "read");
}

#[test]
fn a_reader_past_the_cache_without_a_server_dies_within_2_s_of_sigkill() {
    dies_at_once_of_sigkill("read-direct", "read");
}

#[test]
fn a_stat_without_a_server_dies_within_2_s_of_sigkill() {
    dies_at_once_of_sigkill("stat", "stat");
}

#[test]
fn a_writer_without_a_server_dies_within_2_s_of_sigkill() {
    dies_at_once_of_sigkill("write", "write");
}

#[test]
fn a_creator_without_a_server_dies_within_2_s_of_sigkill() {
    dies_at_once_of_sigkill("create", "dir/new");
}

#[test]
fn callers_fail_with_a_timeout_after_the_time_given() {
    let mut world = world("timeout");
    let mut callers = [
        caller(&world, "read", "read"),
        caller(&world, "create", "dir/new"),
    ];
    kill_server(&mut world);
    callers.iter_mut().for_each(Caller::go);
    for caller in &mut callers {
        let (status, took) = caller.ends_within(TIMEOUT + Duration::from_secs(6));
        println!("ended with {status} after {took:?}");
        assert_eq!(status.code(), Some(libc::ETIMEDOUT));
    }
}

#[test]
fn one_queued_behind_anothers_directory_operation_ends_after_the_timeout_at_the_latest() {
    let mut world = world("queued");
    let names = ["dir/a", "dir/b", "dir/c"];
    let mut callers: Vec<Caller> = names
        .iter()
        .map(|name| caller(&world, "create", name))
        .collect();
    kill_server(&mut world);
    callers.iter_mut().for_each(Caller::go);
    callers[0].is_busy_for(Duration::from_millis(500));
    callers.iter_mut().for_each(Caller::kill);
    let killed = Instant::now();
    for caller in &mut callers {
        let (_, took) = caller.ends_within(TIMEOUT + Duration::from_secs(4));
        println!("ended {took:?} later");
    }
    println!("all had ended {:?} after SIGKILL", killed.elapsed());
}

#[test]
fn one_that_waits_for_dirty_mapped_pages_ends_after_the_timeout_at_the_latest() {
    let mut world = world("msync");
    let mut caller = caller(&world, "msync", "msync");
    kill_server(&mut world);
    caller.go();
    caller.is_busy_for(Duration::from_millis(300));
    caller.kill();
    let (_, took) = caller.ends_within(TIMEOUT + Duration::from_secs(4));
    println!("ended {took:?} after SIGKILL");
}

#[test]
fn a_mount_without_a_server_can_be_unmounted() {
    let mut world = world("unmount");
    let mut caller = caller(&world, "read", "read");
    kill_server(&mut world);
    caller.go();
    caller.is_busy_for(Duration::from_millis(300));
    let dir = world.mount(0).dir.clone();
    let (output, took) = within("fusermount3 -uz", LIMIT, move || {
        Command::new("fusermount3").arg("-uz").arg(dir).output()
    });
    assert!(output.expect("fusermount3 can be started").status.success());
    println!("unmounted after {took:?}");
    caller.ends_within(TIMEOUT + Duration::from_secs(6));
    let mount = &mut world.mounts[0];
    eventually(
        "the mount to go",
        LIMIT,
        || (!mount.is_mounted()).then_some(()),
        String::new,
    );
    mount.daemon.ends_within(LIMIT);
}

#[test]
fn umount_works_without_a_server_where_no_bytes_wait_for_its_disk() {
    let options = WorldOptions::mounts(1).term("2s").write_back();
    let mut world = World::start("umount-durable", &options);
    let mount = world.mount(0);
    let file = fs::File::create(mount.path("f")).expect("made");
    (&file).write_all(b"durable").expect("written");
    file.sync_all().expect("on the disk");
    drop(file);
    fs::create_dir(mount.path("d")).expect("made");
    kill_server(&mut world);
    // That the folder is on the server's disk it can't tell, and says so.
    let (output, _) = world.mounts[0].umount(&[], LIMIT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!world.mounts[0].is_mounted(), "{said}");
    assert!(said.contains("may not be on the server's disk"), "{said}");
    world.mounts[0].daemon.ends_within(LIMIT);
}

#[test]
fn umount_works_without_a_server() {
    let mut world = world("umount");
    kill_server(&mut world);
    let (output, took) = world.mounts[0].umount(&[], LIMIT);
    println!(
        "umount took {took:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mount = &mut world.mounts[0];
    eventually(
        "the mount to go",
        LIMIT,
        || (!mount.is_mounted()).then_some(()),
        String::new,
    );
    mount.daemon.ends_within(LIMIT);
}
