//! What other users of a client's machine, and those who may write to an export, try there.

use leasefs_tests::mounted::{Binaries, Mount, Sandbox, World, WorldOptions, within};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Some users without any rights of their own.
const VICTIM: u32 = 12_345;
const ATTACKER: u32 = 23_456;

fn world(name: &str, policy: &str, options: &[&str]) -> World {
    let mut wanted = WorldOptions::mounts(1).identity(policy);
    wanted.mount.options = options.iter().map(|&option| option.to_owned()).collect();
    World::start(name, &wanted)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

/// A program that tells whose rights it has, root's, with set-id bits.
fn plant(path: &Path) {
    fs::copy("/usr/bin/id", path).expect("a copy");
    chown(path, Some(0), Some(0)).expect("chown");
    set_mode(path, 0o6755);
}

/// User and group whose rights the program has when an unprivileged user runs it.
fn rights_of(program: &Path) -> (u32, u32) {
    let id = |of: &str| {
        let mut command = Command::new(program);
        command.arg(of).uid(ATTACKER).gid(ATTACKER).current_dir("/");
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        text.trim().parse().expect("a number")
    };
    (id("-u"), id("-g"))
}

fn gives_nobody_roots_rights(policy: &'static str) {
    let world = world(&format!("suid-{policy}"), policy, &[]);
    let (export, mount) = (world.server.export.clone(), world.mount(0).path(""));
    within("programs of the mount", LIMIT, move || {
        plant(&export.join("planted"));
        assert_eq!(rights_of(&mount.join("planted")), (ATTACKER, ATTACKER));
        set_mode(&export, 0o777);
        fs::copy("/usr/bin/id", mount.join("own")).expect("a copy");
        set_mode(&mount.join("own"), 0o6755);
        assert_eq!(rights_of(&mount.join("own")), (ATTACKER, ATTACKER));
    });
}

#[test]
fn a_set_id_program_of_the_mount_gives_nobody_roots_rights_under_squash() {
    gives_nobody_roots_rights("squash");
}

#[test]
fn a_set_id_program_of_the_mount_gives_nobody_roots_rights_under_root_squash() {
    gives_nobody_roots_rights("root_squash");
}

#[test]
fn a_set_id_program_of_the_mount_gives_nobody_roots_rights_under_trust() {
    gives_nobody_roots_rights("trust");
}

type Change = fn(&fs::File) -> std::io::Result<()>;

/// What a process does that has no rights but a descriptor, to a file with these bits, in the ways in which content is changed.
fn mode_after(path: &Path, mode: u32, change: Change) -> u32 {
    fs::write(path, [7; 8192]).expect("a file");
    set_mode(path, mode);
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let opened = opened.expect("root opens it");
    let thread = std::thread::spawn(move || {
        let id = ATTACKER;
        // SAFETY: changes the ids of this thread alone, which ends with the change.
        let switched = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, 0)
                | libc::syscall(libc::SYS_setresgid, id, id, id)
                | libc::syscall(libc::SYS_setresuid, id, id, id)
        };
        assert_eq!(switched, 0);
        change(&opened)
    });
    thread.join().expect("it works").expect("changed");
    mode_of(path)
}

#[test]
fn set_id_bits_go_when_somebody_else_writes_by_roots_descriptor() {
    use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
    let ways: [(&str, Change); 4] = [
        ("write", |file| (&*file).write_all(b"x")),
        ("truncate", |file| file.set_len(5)),
        ("punch", |file| {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(file, punch, 0, 4096)?)
        }),
        ("copy", |file| {
            copy_file_range(file, Some(&mut 0), file, Some(&mut 4096), 4096)?;
            Ok(())
        }),
    ];
    let world = world("by-descriptor", "trust", &["--suid"]);
    let (here, local) = (world.mount(0).path(""), world.sandbox.folder("local"));
    within("all ways", LIMIT, move || {
        for (way, change) in ways {
            for (mode, after) in [(0o6777, 0o777), (0o4755, 0o755), (0o2767, 0o767)] {
                for dir in [&here, &local] {
                    let found = mode_after(&dir.join("f"), mode, change);
                    let place = dir.display();
                    assert_eq!(found, after, "{way} of {mode:o} in {place}: {found:o}");
                }
            }
        }
    });
}

#[test]
fn set_id_bits_are_neither_shown_nor_set_under_squash() {
    let world = world("no-set-ids", "squash", &[]);
    let (export, mount) = (world.server.export.clone(), world.mount(0).path(""));
    within("set-id bits under squash", LIMIT, move || {
        plant(&export.join("planted"));
        fs::create_dir(export.join("shared")).expect("a directory");
        set_mode(&export.join("shared"), 0o2775);
        // Attributes that came with a listing, by name, and of an open file.
        let listed = fs::read_dir(&mount).expect("a listing").flatten();
        let modes: Vec<u32> = listed.map(|entry| mode_of(&entry.path())).collect();
        assert!(
            modes.contains(&0o755) && !modes.contains(&0o6755),
            "{modes:?}"
        );
        let planted = fs::File::open(mount.join("planted")).expect("an open");
        assert_eq!(planted.metadata().expect("fstat").mode() & 0o7777, 0o755);
        // Of a directory they are no rights: what is made in it inherits.
        assert_eq!(mode_of(&mount.join("shared")), 0o2775);
        // Whichever way they are set.
        set_mode(&export, 0o777);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o6711)
            .open(mount.join("made"))
            .expect("a file");
        assert_eq!(made.metadata().expect("fstat").mode() & 0o6000, 0);
        set_mode(&mount.join("made"), 0o6755);
        for path in [mount.join("made"), export.join("made")] {
            assert_eq!(mode_of(&path), 0o755, "{}", path.display());
        }
    });
}

#[test]
fn a_device_node_of_the_export_leads_nowhere() {
    for policy in ["squash", "root_squash", "trust"] {
        let world = world("nodev", policy, &[]);
        let (export, mount) = (world.server.export.clone(), world.mount(0).path(""));
        within("a device of the export", LIMIT, move || {
            make_zero(&export.join("zero"));
            let refused = fs::File::open(mount.join("zero")).expect_err("no device");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{policy}");
        });
    }
}

fn make_zero(path: &Path) {
    let mknod = Command::new("mknod")
        .arg(path)
        .args(["c", "1", "5"])
        .status();
    assert!(mknod.expect("mknod runs").success());
    set_mode(path, 0o666);
}

#[test]
fn with_suid_and_dev_programs_and_devices_of_the_mount_work() {
    for policy in ["root_squash", "trust"] {
        let world = world("suid-dev", policy, &["--suid", "--dev"]);
        let (export, mount) = (world.server.export.clone(), world.mount(0).path(""));
        within("what root has asked for", LIMIT, move || {
            plant(&export.join("planted"));
            assert_eq!(rights_of(&mount.join("planted")), (0, 0), "{policy}");
            make_zero(&export.join("zero"));
            let mut zeros = [1; 4];
            let mut zero = fs::File::open(mount.join("zero")).expect("a device");
            zero.read_exact(&mut zeros).expect("zeros");
            assert_eq!(zeros, [0; 4]);
        });
    }
}

fn client(arguments: &[&str]) -> Command {
    let mut command = Command::new(&Binaries::get().client);
    command.args(arguments).current_dir("/");
    command
}

fn refusal(mut command: Command) -> String {
    let what = format!("{command:?}");
    let output = within(what.clone(), LIMIT, move || command.output()).0;
    let output: Output = output.expect("it runs");
    assert!(!output.status.success(), "{what}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn suid_and_dev_are_refused_under_squash_with_what_to_do() {
    let world = World::start("refused", &WorldOptions::mounts(0).identity("squash"));
    let dir = world.sandbox.folder("dir");
    let ticket = world.server.ticket_for(world.server.address);
    let mut command = client(&["mount", &ticket]);
    command.arg(&dir).arg("--suid").arg("--state");
    command.arg(world.sandbox.root().join("state"));
    let refused = refusal(command);
    assert!(
        refused.contains("--suid") && refused.contains("squash"),
        "{refused}"
    );
    assert_eq!(
        fs::metadata(&dir).expect("stat").dev(),
        fs::metadata(world.sandbox.root()).expect("stat").dev()
    );
}

#[test]
fn only_root_mounts_with_suid_or_dev() {
    for option in ["--suid", "--dev"] {
        let mut command = client(&["mount", "nowhere:/", "/nonexistent", option]);
        command.uid(VICTIM).gid(VICTIM);
        let refused = refusal(command);
        assert!(refused.contains("only root"), "{refused}");
    }
}

/// A temporary directory as all users share it.
fn shared_folder(sandbox: &Sandbox) -> PathBuf {
    let shared = sandbox.folder("tmp");
    set_mode(&shared, 0o1777);
    set_mode(sandbox.root(), 0o755);
    shared
}

/// A folder of this user's with a socket of this process in it; whether anybody has come to it.
fn trap(folder: &Path, owner: u32, mode: u32) -> Arc<AtomicBool> {
    fs::create_dir_all(folder).expect("a folder");
    let socket = UnixListener::bind(folder.join("0123456789abcdef0123.sock")).expect("a socket");
    set_mode(&folder.join("0123456789abcdef0123.sock"), 0o666);
    chown(folder, Some(owner), Some(owner)).expect("chown");
    set_mode(folder, mode);
    let asked = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&asked);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = socket.accept() {
            let mut line = String::new();
            let mut stream = BufReader::new(stream);
            if stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                told.store(true, Ordering::Relaxed);
                let _ = stream.get_mut().write_all(b"{\"error\":\"forged\"}\n");
            }
        }
    });
    asked
}

fn status_of_the_victim(tmp: &Path) -> Output {
    let mut command = client(&["status"]);
    command.uid(VICTIM).gid(VICTIM).env("TMPDIR", tmp);
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("LEASEFS_RUNTIME_DIR");
    command.env("HOME", tmp);
    let output = within("fsclient status", LIMIT, move || command.output()).0;
    output.expect("it runs")
}

#[test]
fn sockets_in_a_folder_that_another_user_has_made_are_not_believed() {
    let sandbox = Sandbox::new("planted-folder");
    let tmp = shared_folder(&sandbox);
    let folder = tmp.join(format!("leasefs-{VICTIM}"));
    let asked = trap(&folder, ATTACKER, 0o777);
    let output = status_of_the_victim(&tmp);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!asked.load(Ordering::Relaxed), "{errors}");
    assert!(errors.contains("another user"), "{errors}");
    assert!(sandbox.clean().is_empty());
}

#[test]
fn a_folder_that_another_user_has_made_a_link_of_is_not_believed() {
    let sandbox = Sandbox::new("planted-link");
    let tmp = shared_folder(&sandbox);
    let asked = trap(&tmp.join("elsewhere"), VICTIM, 0o700);
    symlink(tmp.join("elsewhere"), tmp.join(format!("leasefs-{VICTIM}"))).expect("a link");
    let output = status_of_the_victim(&tmp);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!asked.load(Ordering::Relaxed), "{errors}");
    assert!(errors.contains("is a link"), "{errors}");
    assert!(sandbox.clean().is_empty());
}

#[test]
fn a_socket_on_which_another_user_listens_is_not_believed() {
    let sandbox = Sandbox::new("planted-socket");
    let tmp = shared_folder(&sandbox);
    let folder = tmp.join(format!("leasefs-{VICTIM}"));
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .expect("a folder");
    chown(&folder, Some(VICTIM), Some(VICTIM)).expect("chown");
    let path = folder.join("0123456789abcdef0123.sock");
    let bind = move || {
        let socket = UnixListener::bind(&path).expect("a socket");
        set_mode(&path, 0o666);
        socket
    };
    let socket = as_user(ATTACKER, &folder, bind);
    let forged = b"{\"error\":\"forged\"}\n";
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = socket.accept() {
            let _ = stream.write_all(forged);
        }
    });
    let output = status_of_the_victim(&tmp);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!errors.contains("forged"), "{errors}");
    assert!(errors.contains(&format!("user {ATTACKER}")), "{errors}");
    assert!(sandbox.clean().is_empty());
}

/// Does something with the ids of a user, who may write to `folder` while it lasts.
fn as_user<T: Send + 'static>(
    user: u32,
    folder: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let before = mode_of(folder);
    set_mode(folder, 0o777);
    let thread = std::thread::spawn(move || {
        // SAFETY: changes the ids of this thread alone, which ends with the work.
        let switched = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        assert_eq!(switched, 0);
        work()
    });
    let done = thread.join().expect("it works");
    set_mode(folder, before);
    done
}

#[test]
fn another_user_who_reaches_a_daemons_socket_is_not_answered() {
    let mut options = WorldOptions::mounts(0);
    let sandbox = Sandbox::new("reached");
    let folder = sandbox.folder("run");
    set_mode(&folder, 0o700);
    set_mode(sandbox.root(), 0o755);
    let runtime = folder.to_str().expect("text").to_owned();
    options
        .mount
        .env
        .push(("LEASEFS_RUNTIME_DIR".to_owned(), runtime));
    let world = World::start("reached-world", &options);
    let ticket = world.server.ticket_for(world.server.address);
    let mut mount = Mount::start(&world.sandbox, "mount", &ticket, &options.mount);
    let sockets = fs::read_dir(&folder).expect("a listing").flatten();
    let socket = sockets.map(|entry| entry.path()).next().expect("a socket");
    set_mode(&socket, 0o777);
    let answer = as_user(ATTACKER, &folder, move || {
        let mut stream = UnixStream::connect(socket).expect("it is reached");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        // It may have hung up already.
        let _ = stream.write_all(b"{\"op\":\"status\"}\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    });
    assert_eq!(answer, "");
    assert!(mount.daemon.end_or_kill(LIMIT));
    drop(world);
    assert!(sandbox.clean().is_empty());
}

#[test]
fn a_state_directory_that_another_user_has_made_is_refused() {
    let sandbox = Sandbox::new("planted-state");
    let state = shared_folder(&sandbox).join("state");
    for side in ["server", "client"] {
        fs::create_dir_all(state.join(side)).expect("a folder");
        chown(state.join(side), Some(ATTACKER), Some(ATTACKER)).expect("chown");
        set_mode(&state.join(side), 0o777);
    }
    let mut serve = Command::new(&Binaries::get().server);
    serve.arg("serve").arg(sandbox.folder("export"));
    serve
        .args(["--listen", "127.0.0.1:0", "--state"])
        .arg(&state);
    // One that is not refused would serve until it is ended.
    let serving = serve
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let pid = rustix::process::Pid::from_child(&serving);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    });
    let output = serving.wait_with_output().expect("it ends");
    let refused = String::from_utf8_lossy(&output.stderr).into_owned();
    killer.join().expect("done");
    assert!(refused.contains("another user"), "{refused}");
    let mut mount = client(&["mount", "127.0.0.1:9:/"]);
    mount.arg(sandbox.folder("dir")).arg("--state").arg(&state);
    let refused = refusal(mount);
    assert!(refused.contains("another user"), "{refused}");
    assert!(sandbox.clean().is_empty());
}

#[test]
fn a_state_directory_in_which_others_may_put_something_is_refused() {
    let sandbox = Sandbox::new("open-state");
    let tmp = shared_folder(&sandbox);
    for (name, owner, mode) in [
        ("sticky", 0, 0o1777),
        ("group", 0, 0o770),
        ("foreign", ATTACKER, 0o755),
    ] {
        let state = tmp.join(name);
        fs::create_dir(&state).expect("a folder");
        chown(&state, Some(owner), Some(ATTACKER)).expect("chown");
        set_mode(&state, mode);
        let mut mount = client(&["mount", "127.0.0.1:9:/"]);
        mount.arg(sandbox.folder("dir")).arg("--state").arg(&state);
        let mut serve = Command::new(&Binaries::get().server);
        serve.arg("serve").arg(sandbox.folder("export"));
        serve.args(["--listen", "127.0.0.1:0", "--state"]);
        serve.arg(&state);
        for command in [mount, serve] {
            let refused = refusal(command);
            assert!(refused.contains("folder of your own"), "{name}: {refused}");
        }
    }
    assert!(sandbox.clean().is_empty());
}

/// A link in the place of another user's socket, to that of root's own daemon.
#[test]
fn root_who_unmounts_what_a_user_has_mounted_is_led_to_no_mount_of_its_own() {
    let world = world("led-astray", "trust", &[]);
    let planted = world.sandbox.folder("planted");
    // A mount of his whose daemon never says anything, and the link.
    let script = format!(
        "exec 3<>/dev/fuse
         mount -i -t fuse.leasefs -o fd=3,rootmode=40000,user_id={ATTACKER},group_id={ATTACKER} nas '{0}' || exit 0
         folder=/run/user/{ATTACKER}/leasefs
         mkdir -p $folder && chown {ATTACKER} $folder && chmod 700 $folder && ln -s \"$2\" $folder/$1 || exit 0
         '{1}' umount '{0}'
         code=$?
         umount -l '{0}'
         rm -r /run/user/{ATTACKER}
         exit $code",
        planted.display(),
        Binaries::get().client.display(),
    );
    let [socket, own] = [&planted, &world.mount(0).dir].map(|dir| socket_of(dir));
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", &socket]);
    command.arg(Path::new("/run/leasefs").join(own));
    let refused = refusal(command);
    assert!(world.mount(0).is_mounted(), "{refused}");
    assert!(refused.contains("is no socket"), "{refused}");
}

/// What the socket of a mount point's daemon is called.
fn socket_of(dir: &Path) -> String {
    let script = "import hashlib, os, sys
print(hashlib.sha256(os.fsencode(sys.argv[1])).hexdigest()[:20] + '.sock')";
    let mut command = Command::new("python3");
    let output = command.args(["-c", script]).arg(dir).output();
    let output = output.expect("python3 runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn what_a_user_puts_where_his_bytes_are_kept_leads_root_nowhere() {
    let sandbox = Sandbox::new("kept-links");
    set_mode(sandbox.root(), 0o755);
    let secrets = sandbox.folder("secrets");
    let item = r#"{"id":"01234567","source":"nas:4430:/","path":null,"object":"ab","why":"unreachable",
        "time_ms":0,"size":6,"bytes":6,"ranges":[{"offset":0,"length":6}]}"#;
    fs::write(secrets.join("item.json"), item).expect("written");
    fs::write(secrets.join("data"), "secret").expect("written");
    set_mode(&secrets, 0o700);
    let folder = sandbox.folder(&format!("state/recovery/{ATTACKER}"));
    let target = sandbox.folder("out");
    set_mode(&target, 0o777);
    chown(&folder, Some(ATTACKER), Some(ATTACKER)).expect("chown");
    let restore = || {
        let mut command = client(&["recover", "restore", "01234567", "--as"]);
        command.arg(target.join("f")).arg("--state");
        command.arg(sandbox.root().join("state"));
        refusal(command)
    };
    // A folder that isn't root's own is none of its.
    symlink(&secrets, folder.join("01234567")).expect("a link");
    assert!(restore().contains("no item"));
    chown(&folder, Some(0), Some(ATTACKER)).expect("chown");
    let refused = restore();
    assert!(
        refused.contains("Too many levels of symbolic links"),
        "{refused}"
    );
    // What is said of the item never comes.
    fs::remove_file(folder.join("01234567")).expect("removed");
    let own = folder.join("01234567");
    fs::create_dir(&own).expect("a folder");
    let fifo = Command::new("mkfifo").arg(own.join("item.json")).status();
    assert!(fifo.expect("it runs").success());
    for path in [own.join("item.json"), own.clone()] {
        chown(path, Some(ATTACKER), Some(ATTACKER)).expect("chown");
    }
    assert!(restore().contains("is damaged"));
    fs::remove_file(own.join("item.json")).expect("removed");
    // Its bytes are elsewhere.
    fs::write(own.join("item.json"), item).expect("written");
    symlink(secrets.join("data"), own.join("data")).expect("a link");
    let refused = restore();
    assert!(refused.contains("data"), "{refused}");
    assert!(!target.join("f").exists());
    // They are the user's own: it is the user who writes.
    fs::remove_file(own.join("data")).expect("removed");
    fs::write(own.join("data"), "his ow").expect("written");
    set_mode(&target, 0o700);
    let refused = restore();
    assert!(refused.contains("Permission denied"), "{refused}");
    assert!(sandbox.clean().is_empty());
}
