//! What people do with mounts every day: they end them, make them again, look at them, and are told what is wrong.

use leasefs_protocol::ticket::Ticket;
use leasefs_tests::mounted::{
    Binaries, Mount, MountOptions, World, WorldOptions, eventually, mounts_below, within,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::net::Ipv6Addr;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Nobody waits longer to be told that something is wrong.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Some user without any rights of his own.
const USER: u32 = 12_345;
/// One that has a name, which fusermount3 wants: `daemon`.
const NAMED: u32 = 1;

fn client(arguments: &[&str]) -> Command {
    let mut command = Command::new(&Binaries::get().client);
    command.args(arguments).current_dir("/");
    command
}

fn run(mut command: Command) -> (Output, Duration) {
    let what = format!("{command:?}");
    let (output, took) = within(what, LIMIT, move || command.output());
    (output.expect("it runs"), took)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it says when it refuses, which it does at once.
fn refusal(command: Command) -> String {
    let what = format!("{command:?}");
    let (output, took) = run(command);
    let said = said(&output);
    assert!(!output.status.success(), "{what}: {said}");
    assert!(took < AT_ONCE, "{what}: {said} after {took:?}");
    said
}

fn done(command: Command) -> String {
    let what = format!("{command:?}");
    let (output, _) = run(command);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {told}{}", said(&output));
    told
}

/// `fsclient mount`, in the background.
fn mount(source: &str, dir: &Path, state: &Path) -> Command {
    let mut command = client(&["mount", source]);
    command.arg(dir).arg("--state").arg(state);
    command
}

fn umount(dir: &Path) -> Command {
    let mut command = client(&["umount"]);
    command.arg(dir);
    command
}

/// Where to mount, and where the client has its state.
fn places(world: &World) -> (PathBuf, PathBuf) {
    let state = world.sandbox.root().join("state");
    (world.sandbox.folder("dir"), state)
}

fn ticket_of(world: &World) -> String {
    world.server.ticket_for(world.server.address)
}

fn is_mounted(dir: &Path) -> bool {
    mounts_below(dir).contains(&dir.to_owned())
}

fn world(name: &str, mounts: usize, policy: &str) -> World {
    World::start(name, &WorldOptions::mounts(mounts).identity(policy))
}

/// Does something with the ids of [`USER`].
fn as_user<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        // SAFETY: changes the ids of this thread alone, which ends with the work.
        let switched = unsafe {
            libc::syscall(libc::SYS_setresgid, USER, USER, USER)
                | libc::syscall(libc::SYS_setresuid, USER, USER, USER)
        };
        assert_eq!(switched, 0);
        work()
    });
    thread.join().expect("it works")
}

#[test]
fn unmounting_does_not_race_its_own_daemon_when_the_client_was_revoked() {
    let world = world("revoked", 0, "trust");
    for _ in 0..12 {
        let ticket = ticket_of(&world);
        let options = MountOptions::default();
        let mount = Mount::start(&world.sandbox, "mount", &ticket, &options);
        fs::write(mount.path("f"), "x").expect("written");
        let clients = world.server.command(&["clients"]);
        let key = clients.split_whitespace().next().expect("a key").to_owned();
        File::open(mount.path("f"))
            .expect("open")
            .sync_all()
            .expect("durable");
        world.server.command(&["revoke", &key]);
        let (output, _) = mount.umount(&[], LIMIT);
        let said = said(&output);
        // It can't tell any more whether everything is on the disk.
        assert!(
            output.status.success() || said.contains("may not be on the server's disk"),
            "{said}"
        );
        assert!(!mount.is_mounted());
        fs::remove_dir_all(&mount.state).expect("another client next time");
    }
}

#[test]
fn what_is_unmounted_is_mounted_again_by_the_next_command() {
    let world = world("again", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    let source = format!("{}:/", world.server.address);
    done(mount(&ticket, &dir, &state));
    for round in 0..6 {
        let text = format!("{round}").repeat(300_000);
        fs::write(dir.join("f"), &text).expect("written");
        match round % 2 {
            0 => assert!(
                Command::new("umount")
                    .arg(&dir)
                    .status()
                    .expect("runs")
                    .success()
            ),
            _ => drop(done(umount(&dir))),
        }
        done(mount(&source, &dir, &state));
        assert_eq!(fs::read_to_string(dir.join("f")).expect("read"), text);
    }
    done(umount(&dir));
    assert!(refusal(umount(&dir)).contains("is not a leasefs mount"));
}

#[test]
fn a_server_is_known_by_its_key_whatever_name_it_is_reached_by() {
    let mut options = WorldOptions::mounts(0);
    options.server.listen = Some(Ipv6Addr::UNSPECIFIED.into());
    let world = World::start("names", &options);
    let (dir, state) = places(&world);
    let port = world.server.address.port();
    let default = world.server.command(&["ticket"]).trim().parse::<Ticket>();
    let default = default.expect("a ticket").servers;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host");
    assert_eq!(default.first().host, host.trim(), "{default}");
    let ticket = world
        .server
        .ticket_for(format!("127.0.0.1:{port}").parse().expect("an address"));
    done(mount(&ticket, &dir, &state));
    done(umount(&dir));
    for name in ["localhost", "[::1]", "[::ffff:127.0.0.1]", "127.0.0.2"] {
        done(mount(&format!("{name}:{port}:/"), &dir, &state));
        assert!(fs::read_dir(&dir).is_ok());
        done(umount(&dir));
    }
    let other = World::start("names-other", &options);
    let source = format!("localhost:{}:/", other.server.address.port());
    let refused = refusal(mount(&source, &dir, &state));
    assert!(
        refused.contains("not enrolled") && refused.contains("ticket"),
        "{refused}"
    );
}

#[test]
fn a_ticket_leads_to_the_server_by_any_of_its_addresses() {
    let world = world("addresses", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    let (_, secret) = ticket.split_once("/#").expect("a ticket");
    // No such name; an address where nothing listens; and its own.
    let (address, nothing) = (world.server.address, "no-such-host.invalid:1,127.0.0.1:1");
    done(mount(
        &format!("leasefs://{nothing},{address}/#{secret}"),
        &dir,
        &state,
    ));
    let shown = done({
        let mut command = client(&["status", "--json"]);
        command.arg(&dir);
        command
    });
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        shown["mounts"][0]["source"],
        format!("{address}:/"),
        "the one that works"
    );
    done(umount(&dir));
    done(mount(&format!("{address}:/"), &dir, &state));
    done(umount(&dir));
}

#[test]
fn what_is_wrong_with_a_mount_is_said_at_once_with_what_to_do() {
    let world = world("wrong", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    let (_, secret) = ticket.split_once("/#").expect("a ticket");
    let to = |address: &str| mount(&format!("leasefs://{address}/#{secret}"), &dir, &state);
    let closed = refusal(to("127.0.0.1:1"));
    assert!(
        closed.contains("nothing listens on UDP port 1 of 127.0.0.1"),
        "{closed}"
    );
    let unknown = refusal(to("no-such-host.invalid:4430"));
    assert!(
        unknown.contains("can't find no-such-host.invalid:4430"),
        "{unknown}"
    );
    let mut empty = mount("-", &dir, &state);
    empty.stdin(Stdio::null());
    let empty = refusal(empty);
    assert!(
        empty.contains("no ticket") && empty.contains("fsserver ticket"),
        "{empty}"
    );
    assert!(!is_mounted(&dir));
}

#[test]
fn root_is_told_at_once_that_it_is_nobody_under_root_squash() {
    for (policy, told) in [("root_squash", true), ("trust", false)] {
        let world = world(&format!("nobody-{policy}"), 0, policy);
        let (dir, state) = places(&world);
        let ticket = ticket_of(&world);
        let (output, _) = run(mount(&ticket, &dir, &state));
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(
            said(&output).contains("root is nobody"),
            told,
            "{}",
            said(&output)
        );
        done(umount(&dir));
    }
}

fn pid_of(dir: &Path) -> Pid {
    let mut command = client(&["status", "--json"]);
    command.arg(dir);
    let shown: Value = serde_json::from_str(&done(command)).expect("JSON");
    let pid = shown["mounts"][0]["pid"].as_i64().expect("a pid");
    Pid::from_raw(pid.try_into().expect("small")).expect("a pid")
}

/// What the status of everything says of the mount.
fn seen(dir: &Path) -> String {
    let all: Value = serde_json::from_str(&done(client(&["status", "--json"]))).expect("JSON");
    let of = |list: &str| {
        let mounts = all[list].as_array().expect("a list").iter();
        let found = mounts.filter(|mount| mount["dir"] == dir.to_str().expect("text"));
        found.cloned().collect::<Vec<_>>()
    };
    let (answering, silent) = (of("mounts"), of("unanswered"));
    assert_eq!(answering.len() + silent.len(), 1, "{all}");
    let state = silent.first().and_then(|mount| mount["state"].as_str());
    state.unwrap_or("answers").to_owned()
}

#[test]
fn a_mount_whose_daemon_is_stopped_or_dead_is_shown_as_that_and_can_be_unmounted() {
    let world = world("dead", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    done(mount(&ticket, &dir, &state));
    let pid = pid_of(&dir);
    assert_eq!(seen(&dir), "answers");
    kill_process(pid, Signal::STOP).expect("stopped");
    assert_eq!(seen(&dir), "stopped");
    let refused = refusal(umount(&dir));
    let advice = format!("kill -CONT {}", pid.as_raw_nonzero());
    assert!(
        refused.contains(&advice) && refused.contains("--force"),
        "{refused}"
    );
    assert!(is_mounted(&dir));
    kill_process(pid, Signal::CONT).expect("goes on");
    assert_eq!(seen(&dir), "answers");
    kill_process(pid, Signal::KILL).expect("killed");
    let dead = || (seen(&dir) == "dead").then_some(());
    eventually("the mount to be dead", LIMIT, dead, String::new);
    let state = state.to_str().expect("text");
    for all in [&["status"][..], &["status", "--state", state]] {
        let told = done(client(all));
        assert!(told.contains("has died: `fsclient umount"), "{told}");
    }
    done(umount(&dir));
    assert!(!is_mounted(&dir));
}

#[test]
fn a_mount_whose_bytes_are_not_on_the_servers_disk_stays_until_they_are() {
    let world = world("unstable", 1, "trust");
    let mount = world.mount(0);
    fs::write(mount.path("f"), "written").expect("written");
    let at_the_server = || {
        let status = mount.status();
        let bytes = |of: &str| status.pointer(of).and_then(Value::as_u64);
        let is = bytes("/mounts/0/dirty/bytes") == Some(0)
            && bytes("/mounts/0/memory/unstable") > Some(0);
        is.then_some(())
    };
    eventually(
        "what was written to be sent",
        LIMIT,
        at_the_server,
        String::new,
    );
    let server = Pid::from_raw(world.server.daemon.pid() as i32).expect("a process");
    kill_process(server, Signal::STOP).expect("stopped");
    let (refused, _) = run(umount(&mount.dir));
    let told = said(&refused);
    assert!(!refused.status.success(), "{told}");
    assert!(told.contains("may not be on the server's disk"), "{told}");
    assert!(is_mounted(&mount.dir));
    assert_eq!(mount.status()["mounts"][0]["unmounting"], false);
    kill_process(server, Signal::CONT).expect("goes on");
    done(umount(&mount.dir));
    assert!(!is_mounted(&mount.dir));
}

#[test]
fn several_mounts_are_unmounted_at_once_and_one_that_is_busy_does_not_keep_the_others() {
    let world = world("several", 2, "trust");
    let [one, two] = [0, 1].map(|number| world.mount(number).dir.clone());
    let open = fs::File::create(one.join("f")).expect("made");
    let mut both = umount(&one);
    both.arg(&two);
    let refused = refusal(both);
    assert!(refused.contains("in use by"), "{refused}");
    assert!(is_mounted(&one) && !is_mounted(&two));
    drop(open);
    done(umount(&one));
}

#[test]
fn who_reads_no_further_is_no_failure_and_a_full_disk_is_told() {
    let world = world("read", 1, "trust");
    let program = Binaries::get().client.display().to_string();
    for command in ["status", "status --json", "doctor --json", "recover list"] {
        let script = format!(
            "{program} {command} --state {} | true",
            world.mount(0).state.display()
        );
        let mut shell = Command::new("bash");
        shell.args([
            "-c",
            &format!("for i in 1 2 3 4 5 6 7 8; do {script}; done"),
        ]);
        let (output, _) = run(shell);
        assert_eq!(
            said(&output).matches("panicked").count(),
            0,
            "{}",
            said(&output)
        );
    }
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{program} status > /dev/full")]);
    assert!(refusal(shell).contains("standard output: No space left"));
}

#[test]
fn a_stopped_daemon_is_unmounted_by_force() {
    let world = world("stopped", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    done(mount(&ticket, &dir, &state));
    let pid = pid_of(&dir);
    kill_process(pid, Signal::STOP).expect("stopped");
    let mut forced = umount(&dir);
    forced.arg("--force");
    done(forced);
    assert!(!is_mounted(&dir));
    kill_process(pid, Signal::CONT).expect("goes on");
    let gone = || {
        rustix::process::test_kill_process(pid)
            .is_err()
            .then_some(())
    };
    eventually("the daemon to end", LIMIT, gone, String::new);
}

#[test]
fn status_tells_whose_rights_requests_have_what_is_dirty_and_how_it_is_written() {
    let mut options = WorldOptions::mounts(1).identity("trust");
    options.mount.options.push("--write-through".to_owned());
    let world = World::start("told", &options);
    let mount = world.mount(0);
    fs::write(mount.path("f"), "x").expect("written");
    let told = mount.client(&["status", mount.dir.to_str().expect("text")]);
    for part in [
        "written through",
        "trust: each acts as himself",
        "to write  nothing",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn a_client_is_named_after_its_host_and_a_killed_ones_session_after_its_client() {
    let mut world = world("named", 1, "trust");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host");
    let host = host.trim();
    let clients = world.server.command(&["clients"]);
    assert!(
        clients.trim_end().ends_with(&format!("  {host}")),
        "{clients}"
    );
    fs::write(world.mount(0).path("f"), "x").expect("written");
    world.kill_client(0);
    world.server.daemon.kill();
    world.server.start_again();
    let status = world.server.command(&["status"]);
    let expected = format!("of {host}, not back since the server began");
    assert!(status.contains(&expected), "{status}");
}

#[test]
fn what_is_on_a_mount_is_not_served_by_another_server() {
    let world = world("served-again", 1, "trust");
    let below = world.mount(0).path("below");
    fs::create_dir(&below).expect("made");
    let state = world.sandbox.root().join("second-state");
    for dir in [&world.mount(0).dir, &below] {
        let mut second = Command::new(&Binaries::get().server);
        second.arg("serve").arg(dir).arg("--state").arg(&state);
        second.args(["--listen", "127.0.0.1:0"]);
        let refused = refusal(second);
        assert!(
            refused.contains("on a leasefs mount") && refused.contains("on the storage host"),
            "{refused}"
        );
        assert!(!state.exists(), "nothing is made before");
    }
}

#[test]
fn what_is_served_is_not_mounted_upon_itself() {
    let world = world("upon-itself", 0, "trust");
    let (_, state) = places(&world);
    let export = &world.server.export;
    let refused = refusal(mount(&ticket_of(&world), export, &state));
    assert!(
        refused.contains("would hide what the server serves"),
        "{refused}"
    );
    assert!(!is_mounted(export));
}

#[test]
fn mount_and_umount_of_the_system_find_their_helpers_options_and_what_is_mounted() {
    let world = world("helper", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    done(mount(&ticket, &dir, &state));
    fs::write(dir.join("f"), "x").expect("written");
    let as_helper = |name: &str, arguments: &[&str]| {
        let mut command = client(&[]);
        command.arg0(name).args(arguments);
        command
    };
    let text = dir.to_str().expect("text");
    done(as_helper("/sbin/umount.fuse.leasefs", &[text, "-v"]));
    assert!(!is_mounted(&dir));
    let source = format!("{}:/", world.server.address);
    let options = format!(
        "rw,ro,noexec,_netdev,x-a.b=c,timeout=30s,state={}",
        state.display()
    );
    let helped = as_helper(
        "/sbin/mount.leasefs",
        &[&source, text, "-n", "-o", &options],
    );
    done(helped);
    let mut shown = Command::new("findmnt");
    shown.args(["-no", "SOURCE,FSTYPE,OPTIONS", text]);
    let shown = done(shown);
    assert!(
        shown.starts_with(&format!("{source} ")),
        "as it was written: {shown}"
    );
    for part in ["fuse.leasefs", "ro", "nosuid", "nodev", "noexec"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let denied = fs::write(dir.join("f"), "y").expect_err("read-only");
    assert_eq!(denied.raw_os_error(), Some(libc::EROFS));
    done(as_helper("umount.leasefs", &["-f", text]));
    assert!(!is_mounted(&dir));
    let wrong = as_helper("mount.leasefs", &[&source, text, "-o", "soft"]);
    let (output, _) = run(wrong);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let own = format!("state={}", state.display());
    let failed = as_helper("mount.leasefs", &["127.0.0.1:1:/", text, "-o", &own]);
    assert_eq!(run(failed).0.status.code(), Some(32));
}

#[test]
fn where_all_users_are_one_everything_is_shown_as_the_user_that_is_named() {
    let options = WorldOptions::mounts(0).identity("squash");
    let squash = World::start_on("shown", &options, |export| {
        chown(export, Some(USER + 1), Some(USER + 1)).expect("chown");
    });
    let (dir, state) = places(&squash);
    let owner = ["--uid", "12345", "--gid", "54321"];
    let mut command = mount(&ticket_of(&squash), &dir, &state);
    command.args(owner);
    done(command);
    fs::write(dir.join("f"), "x").expect("written");
    let shown = fs::metadata(dir.join("f")).expect("attributes");
    assert_eq!((shown.uid(), shown.gid()), (12_345, 54_321));
    done(umount(&dir));
    let trust = world("not-shown", 0, "trust");
    let state = trust.sandbox.root().join("state");
    let mut command = mount(&ticket_of(&trust), &dir, &state);
    command.args(owner);
    let refused = refusal(command);
    assert!(refused.contains("--uid"), "{refused}");
}

#[test]
fn where_all_users_are_one_nothing_is_found_in_a_directory_that_may_not_be_searched_any_more() {
    let options = WorldOptions::mounts(2).identity("squash");
    let world = World::start_on("unsearched", &options, |export| {
        chown(export, Some(USER + 1), Some(USER + 1)).expect("chown");
    });
    let [here, there] = [0, 1].map(|mount| world.mount(mount).path("d"));
    fs::create_dir(&here).expect("made");
    fs::write(here.join("f"), "x").expect("written");
    for changes in [&here, &there] {
        for _ in 0..2 {
            assert_eq!(fs::read(here.join("f")).expect("read"), b"x");
        }
        fs::set_permissions(changes, Permissions::from_mode(0o000)).expect("chmod");
        for work in [
            fs::metadata(here.join("f")).map(drop),
            fs::read(here.join("f")).map(drop),
        ] {
            let refused = work.expect_err("it can't be found");
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        fs::set_permissions(changes, Permissions::from_mode(0o700)).expect("chmod");
    }
}

/// A directory in which all users may do as in /tmp.
fn shared(world: &World) -> PathBuf {
    let shared = world.sandbox.folder("tmp");
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).expect("chmod");
    fs::set_permissions(world.sandbox.root(), Permissions::from_mode(0o755)).expect("chmod");
    shared
}

fn by_user(mut command: Command, tmp: &Path) -> Command {
    command
        .uid(USER)
        .gid(USER)
        .env("HOME", tmp)
        .env("TMPDIR", tmp);
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("LEASEFS_RUNTIME_DIR");
    command
}

/// Runs a script where every user may use /dev/fuse, with the mounts that it makes seen by itself alone.
fn with_fuse_for_all(tmp: &Path, script: &str) -> String {
    let preparation = "set -e; mknod -m 666 \"$TMPDIR/fuse\" c 10 229; mount --bind \"$TMPDIR/fuse\" /dev/fuse; \
         as() { setpriv --reuid \"$1\" --regid \"$1\" --clear-groups \"${@:2}\" 2>&1; }\n";
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash", "-c", &format!("{preparation}{script}")]);
    command.env("TMPDIR", tmp).env("HOME", tmp).current_dir("/");
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("LEASEFS_RUNTIME_DIR");
    command.env("fsclient", &Binaries::get().client);
    done(command)
}

/// Where [`NAMED`] may put things as in /tmp, where he may mount, and a ticket for him.
fn place_of_a_user(world: &World) -> (PathBuf, String, String) {
    let (tmp, dir) = (shared(world), world.sandbox.folder("dir"));
    chown(&dir, Some(NAMED), Some(NAMED)).expect("chown");
    let options = ["--as", &format!("{NAMED}:{NAMED}")];
    let ticket = world.server.ticket_with(world.server.address, &options);
    (tmp, dir.to_str().expect("text").to_owned(), ticket)
}

#[test]
fn root_sees_and_unmounts_what_a_user_has_mounted_and_no_other_user_does() {
    let world = world("users", 0, "trust");
    let (tmp, dir, ticket) = place_of_a_user(&world);
    let told = with_fuse_for_all(
        &tmp,
        &format!(
            "as {NAMED} $fsclient mount '{ticket}' {dir} --state $TMPDIR/state; $fsclient status | grep '^{dir} '; \
             as {other} $fsclient umount {dir} && echo unmounted by another; $fsclient umount {dir}; \
             grep {dir} /proc/mounts || echo gone",
            other = USER
        ),
    );
    let lines: Vec<&str> = told.lines().collect();
    let [shown, refused, "gone"] = lines[..] else {
        panic!("{told}")
    };
    assert!(shown.starts_with(&dir), "{told}");
    assert!(
        refused.contains(&format!("is a mount of user {NAMED}")),
        "{told}"
    );
}

/// Opens a file as a user, and uses it as root.
const PASSED_ON: &str = r#"
import os, socket, sys
path, user = sys.argv[1], int(sys.argv[2])
ours, theirs = socket.socketpair()
if os.fork() == 0:
    os.setgid(user)
    os.setuid(user)
    socket.send_fds(theirs, [b"f"], [os.open(path, os.O_RDWR | os.O_CREAT, 0o600)])
    os._exit(0)
_, fds, _, _ = socket.recv_fds(ours, 1, 1)
os.wait()
os.write(fds[0], b"written")
print(os.pread(fds[0], 9, 0).decode(), os.lseek(fds[0], 0, os.SEEK_DATA))
os.fsync(fds[0])
os.close(fds[0])
"#;

#[test]
fn who_is_given_a_descriptor_of_a_users_mount_may_use_it() {
    let world = world("passed", 0, "trust");
    let (tmp, dir, ticket) = place_of_a_user(&world);
    chown(&world.server.export, Some(NAMED), Some(NAMED)).expect("chown");
    fs::write(tmp.join("passed.py"), PASSED_ON).expect("written");
    let told = with_fuse_for_all(
        &tmp,
        &format!(
            "as {NAMED} $fsclient mount '{ticket}' {dir} --state $TMPDIR/state; \
             python3 $TMPDIR/passed.py {dir}/f {NAMED}; as {NAMED} $fsclient umount {dir}"
        ),
    );
    assert_eq!(told.trim(), "written 0");
}

#[test]
fn a_users_daemon_is_found_after_the_folder_of_his_session_has_gone() {
    let world = world("logout", 0, "trust");
    let (tmp, dir, ticket) = place_of_a_user(&world);
    let told = with_fuse_for_all(
        &tmp,
        &format!(
            "install -d -m 700 -o {NAMED} \"$TMPDIR/session\"; session=\"env XDG_RUNTIME_DIR=$TMPDIR/session\"; \
             as {NAMED} $session $fsclient mount '{ticket}' {dir} --state $TMPDIR/state; \
             as {NAMED} $session $fsclient status | grep -c '^{dir} '; rm -r \"$TMPDIR/session\"; \
             for i in $(seq 100); do as {NAMED} $fsclient status | grep -q '  server    ' && break; sleep 0.2; done; \
             as {NAMED} $session $fsclient status | grep -c '  server    '; as {NAMED} $session $fsclient umount {dir}; \
             grep {dir} /proc/mounts || echo gone"
        ),
    );
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines, ["1", "1", "gone"], "{told}");
}

#[test]
fn what_roots_mount_has_kept_of_a_user_is_that_users_to_list_restore_and_discard() {
    let options = WorldOptions::mounts(2)
        .identity("root_squash")
        .term("2s")
        .with_relays()
        .write_back();
    let world = World::start_on("kept", &options, |export| {
        let home = export.join("home");
        fs::create_dir(&home).expect("a directory");
        chown(&home, Some(USER), Some(USER)).expect("chown");
        fs::set_permissions(&home, Permissions::from_mode(0o700)).expect("chmod");
    });
    let tmp = shared(&world);
    let (mine, theirs) = (world.mount(0).path("home/f"), world.mount(1).path("home/f"));
    let file = as_user(move || {
        let file = File::create(mine).expect("a file");
        file.write_all_at(b"begun", 0).expect("written");
        file.sync_all().expect("on the disk");
        file.write_all_at(b"mine, and longer", 4).expect("written");
        file
    });
    world.relays[0].cut();
    within("the write elsewhere", LIMIT, move || {
        as_user(move || {
            let mut file = File::options().write(true).open(theirs).expect("open");
            file.set_len(0)
                .and_then(|()| file.write_all(b"x"))
                .expect("written");
        });
    });

    world.relays[0].mend();
    drop(file);
    let mount = world.mount(0);
    let state = mount.state.to_str().expect("text").to_owned();
    let items = |listed: String| -> Vec<Value> {
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        listed["items"].as_array().expect("a list").clone()
    };
    let probe = || items(mount.client(&["recover", "list", "--json"])).pop();
    let item = eventually("the bytes to be kept", LIMIT, probe, String::new);
    assert_eq!(item["writer"]["uid"], USER, "{item}");
    let id = item["id"].as_str().expect("an id");

    // Root acts as that user.
    assert!(
        mount
            .client(&["recover", "diff", id])
            .contains("kept  16 bytes")
    );
    mount.client(&["recover", "restore", id]);
    let restored = world.server.export.join(format!("home/f.recovered-{id}"));
    let attributes = fs::metadata(&restored).expect("restored");
    assert_eq!((attributes.uid(), attributes.gid()), (USER, USER));
    assert_eq!(
        fs::read(&restored).expect("read"),
        b"x\0\0\0mine, and longer"
    );

    let user = |arguments: &[&str]| {
        let mut command = client(arguments);
        command.args(["--state", &state]);
        run(by_user(command, &tmp)).0
    };
    let listed = user(&["recover", "list", "--json"]);
    let listed = items(String::from_utf8(listed.stdout).expect("text"));
    assert_eq!(listed, std::slice::from_ref(&item));
    let output = user(&["recover", "restore", id, "--as", "again"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("zeros: 1-3"), "{}", said(&output));
    let mut other = client(&["recover", "discard", id, "--state", &state]);
    other.uid(USER + 1).gid(USER + 1).env("HOME", &tmp);
    assert!(refusal(other).contains("no item"));
    let output = user(&["recover", "discard", id]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(items(mount.client(&["recover", "list", "--json"])).is_empty());
}

#[test]
fn a_slash_behind_a_mount_point_means_the_same_mount() {
    let world = world("slash", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    done(mount(&ticket, &dir, &state));
    fs::write(dir.join("f"), "x").expect("written");
    let slash = PathBuf::from(format!("{}/", dir.display()));
    let mut shown = client(&["status"]);
    shown.arg(&slash);
    assert!(done(shown).contains("connected"));
    let mut forced = umount(&slash);
    forced.arg("--force");
    done(forced);
    assert_eq!(
        fs::read(world.server.export.join("f")).expect("brought in"),
        b"x"
    );
}

#[test]
fn a_mount_that_can_not_be_made_leaves_no_session() {
    let world = world("no-session", 0, "squash");
    let (dir, state) = places(&world);
    let mut command = mount(&ticket_of(&world), &dir, &state);
    command.arg("--suid");
    refusal(command);
    // /dev/fuse is no device there.
    let mut without = Command::new("unshare");
    without.args([
        "--mount",
        "sh",
        "-c",
        "mount --bind /dev/null /dev/fuse && exec \"$@\"",
        "sh",
    ]);
    without
        .arg(&Binaries::get().client)
        .args(["mount", &ticket_of(&world)]);
    without.arg(&dir).arg("--state").arg(&state);
    refusal(without);
    let status: Value =
        serde_json::from_str(&world.server.command(&["status", "--json"])).expect("JSON");
    assert_eq!(
        status["sessions"].as_array().map(Vec::len),
        Some(0),
        "{status}"
    );
}

#[test]
fn a_state_directory_on_a_mount_is_refused_and_bytes_that_can_not_be_kept_are_called_lost() {
    let mut world = world("lost", 1, "trust");
    let dir = world.sandbox.folder("dir");
    let ticket = ticket_of(&world);
    let refused = refusal(mount(&ticket, &dir, &world.mount(0).path("state")));
    assert!(refused.contains("lies on the leasefs mount"), "{refused}");
    assert!(!world.mount(0).path("state").exists());
    let state = world.sandbox.root().join("state");
    done(mount(&ticket, &dir, &state));
    // No folder can be made there, not even by root.
    fs::write(state.join("client/recovery"), "in the way").expect("written");
    // Where nobody else looks: it is buffered.
    fs::create_dir(dir.join("own")).expect("a directory");
    fs::write(dir.join("own/f"), vec![b'x'; 100_000]).expect("written");
    world.server.daemon.kill();
    let mut forced = umount(&dir);
    forced.arg("--force");
    let (output, _) = run(forced);
    assert!(
        !output.status.success() && said(&output).contains("LOST"),
        "{}",
        said(&output)
    );
    assert!(!is_mounted(&dir));
}

#[test]
fn what_the_system_mounts_stays_in_the_process_group_of_mount_unless_it_has_a_terminal() {
    let world = world("group", 0, "trust");
    let (dir, state) = places(&world);
    let ticket = ticket_of(&world);
    let group = |options: &[&str]| {
        let mut command = mount(&ticket, &dir, &state);
        command.args(options).process_group(0);
        done(command);
        let pid = pid_of(&dir);
        let group = rustix::process::getpgid(Some(pid)).expect("a group");
        done(umount(&dir));
        group == pid
    };
    assert!(group(&[]), "a session of its own");
    assert!(!group(&["--by-system"]), "that of the command");
}
