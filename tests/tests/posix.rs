//! What applications expect of a file system, across mounts.

use leasefs_tests::mounted::{Storage, World, WorldOptions, within};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Some users without any rights of their own.
const OWNER: u32 = 12_345;
const OTHER: u32 = 23_456;

fn two_mounts(name: &str, work: impl FnOnce(&Path, &Path) + Send + 'static) {
    let world = World::start(name, &WorldOptions::mounts(2));
    let (here, there) = (world.mount(0).path(""), world.mount(1).path(""));
    within(name, LIMIT, move || work(&here, &there));
}

/// Whether `user` can read the file, by a process of its own.
fn can_read(user: u32, file: &Path) -> bool {
    let mut cat = Command::new("cat");
    cat.arg(file).uid(user).gid(user);
    cat.output().expect("cat runs").status.success()
}

fn run(command: &mut Command) {
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

#[test]
fn an_unlinked_open_file_stays_usable_and_shows_no_links() {
    two_mounts("unlinked", |here, there| {
        fs::write(here.join("f"), b"before").expect("a write");
        let reader = File::open(here.join("f")).expect("an open");
        let mut writer = OpenOptions::new()
            .read(true)
            .write(true)
            .open(here.join("f"))
            .expect("an open");
        fs::remove_file(there.join("f")).expect("an unlink on the other mount");
        assert_eq!(reader.metadata().expect("fstat").nlink(), 0);
        writer.write_all(b"after!").expect("a write");
        writer.seek(SeekFrom::Start(0)).expect("a seek");
        let mut text = String::new();
        writer.read_to_string(&mut text).expect("a read");
        assert_eq!(text, "after!");
        let mut buffer = [0; 6];
        reader.read_exact_at(&mut buffer, 0).expect("a read");
        assert_eq!(&buffer, b"after!");
        let gone = File::open(here.join("f")).expect_err("the name is gone");
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn link_counts_and_times_change_on_every_mount_at_once() {
    two_mounts("links", |here, there| {
        fs::write(here.join("a"), b"x").expect("a write");
        let before = fs::metadata(there.join("a")).expect("stat");
        assert_eq!(before.nlink(), 1);
        fs::hard_link(here.join("a"), here.join("b")).expect("a link");
        let after = fs::metadata(there.join("a")).expect("stat");
        assert_eq!(after.nlink(), 2);
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        assert_eq!(
            fs::metadata(there.join("b")).expect("stat").ino(),
            after.ino()
        );
        fs::remove_file(there.join("a")).expect("an unlink");
        assert_eq!(fs::metadata(here.join("b")).expect("stat").nlink(), 1);
    });
}

#[test]
fn an_exclusive_create_has_one_winner() {
    two_mounts("exclusive", |here, there| {
        for round in 0..100 {
            let name = format!("lock{round}");
            let attempt = |dir: &Path| {
                let path = dir.join(&name);
                std::thread::spawn(move || File::create_new(path).is_ok())
            };
            let tries = [attempt(here), attempt(there)];
            let won = tries.map(|t| t.join().expect("no panic"));
            assert_eq!(won.iter().filter(|won| **won).count(), 1, "round {round}");
        }
    });
}

#[test]
fn names_are_bounded_and_every_byte_but_slash_and_nul_is_allowed() {
    two_mounts("names", |here, there| {
        use std::os::unix::ffi::OsStrExt;
        let long = here.join("x".repeat(256));
        let refused = File::create(&long).expect_err("a name of 256 bytes");
        assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG));
        let missing = fs::metadata(&long).expect_err("a name of 256 bytes");
        assert_eq!(missing.raw_os_error(), Some(libc::ENAMETOOLONG));
        let odd: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').take(254).collect();
        let odd = std::ffi::OsStr::from_bytes(&odd);
        fs::write(here.join(odd), b"odd").expect("a write");
        assert_eq!(fs::read(there.join(odd)).expect("a read"), b"odd");
    });
}

#[test]
fn holes_stay_holes_and_can_be_punched() {
    two_mounts("holes", |here, there| {
        let file = File::create(here.join("sparse")).expect("a file");
        file.write_all_at(b"end", 16 << 20).expect("a write");
        let seen = fs::metadata(there.join("sparse")).expect("stat");
        assert_eq!(seen.len(), (16 << 20) + 3);
        assert!(seen.blocks() * 512 < 1 << 20, "{} blocks", seen.blocks());
        let other = File::open(there.join("sparse")).expect("an open");
        let data = rustix::fs::seek(&other, rustix::fs::SeekFrom::Data(0)).expect("SEEK_DATA");
        assert_eq!(data, 16 << 20);
        file.write_all_at(&[7; 8192], 0).expect("a write");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 4096).expect("a punch");
        let mut start = [1; 8192];
        other.read_exact_at(&mut start, 0).expect("a read");
        assert!(start[..4096].iter().all(|b| *b == 0) && start[4096..].iter().all(|b| *b == 7));
    });
}

#[test]
fn an_acl_set_on_one_mount_is_enforced_on_the_other() {
    let options = WorldOptions::mounts(2);
    let world = World::start("acl", &options);
    let (here, there) = (world.mount(0).path("f"), world.mount(1).path("f"));
    within("acl", LIMIT, move || {
        fs::write(&here, b"secret").expect("a write");
        fs::set_permissions(&here, fs::Permissions::from_mode(0o600)).expect("chmod");
        assert!(!can_read(OTHER, &there));
        run(Command::new("setfacl")
            .arg("-m")
            .arg(format!("u:{OTHER}:r"))
            .arg(&here));
        assert!(can_read(OTHER, &there), "the ACL lets the user read");
        assert!(!can_read(OWNER, &there));
        run(Command::new("setfacl").arg("-b").arg(&here));
        assert!(!can_read(OTHER, &there), "without the ACL the user can't");
    });
}

/// A file 0600 of OWNER, made on the storage host before the server starts.
fn private_file(export: &Path) {
    fs::write(export.join("private"), b"private").expect("a file");
    fs::set_permissions(export.join("private"), fs::Permissions::from_mode(0o600)).expect("chmod");
    std::os::unix::fs::chown(export.join("private"), Some(OWNER), Some(OWNER)).expect("chown");
}

fn who_can_read_the_private_file(policy: &'static str) -> (bool, bool, bool) {
    let options = WorldOptions::mounts(1).identity(policy);
    let world = World::start_on(policy, &options, private_file);
    let file = world.mount(0).path("private");
    let (read, _) = within(policy, LIMIT, move || {
        (
            can_read(OWNER, &file),
            can_read(OTHER, &file),
            fs::read(&file).is_ok(),
        )
    });
    read
}

#[test]
fn a_private_file_is_its_owners_alone_under_root_squash() {
    assert_eq!(
        who_can_read_the_private_file("root_squash"),
        (true, false, false)
    );
}

#[test]
fn a_private_file_is_its_owners_and_roots_under_trust() {
    assert_eq!(who_can_read_the_private_file("trust"), (true, false, true));
}

#[test]
fn a_private_file_is_nobodys_under_squash() {
    assert_eq!(
        who_can_read_the_private_file("squash"),
        (false, false, false)
    );
}

#[test]
fn a_full_disk_reaches_the_writer_as_enospc() {
    let storage = Storage::new("full", 24);
    let world = World::start("full-mount", &WorldOptions::mounts(1).export(storage.dir()));
    let path = world.mount(0).path("big");
    within("filling the disk", LIMIT, move || {
        let mut file = File::create(&path).expect("a file");
        let block = vec![1; 1 << 20];
        let error =
            (0..64).find_map(|_| file.write_all(&block).and_then(|()| file.sync_all()).err());
        let error = error.expect("64 MiB don't fit into 24");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        drop(file);
        fs::remove_file(&path).expect("room can be made");
        fs::write(&path, &block).expect("and used");
    });
}

#[test]
fn an_export_that_is_gone_is_stale() {
    let world = World::start("gone", &WorldOptions::mounts(1));
    let (export, mount) = (world.server.export.clone(), world.mount(0).path(""));
    within("after the export has gone", LIMIT, move || {
        fs::remove_dir_all(&export).expect("the export is removed");
        fs::create_dir(&export).expect("another directory in its place");
        let error = File::create(mount.join("f")).expect_err("there is nothing to create it in");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    });
}

#[test]
fn a_mount_inside_the_export_is_not_crossed() {
    let storage = Storage::new("inner", 16);
    fs::write(storage.dir().join("hidden"), b"another file system").expect("a file");
    let outer = Storage::new("outer", 16);
    fs::create_dir(outer.dir().join("sub")).expect("a folder");
    run(Command::new("mount")
        .arg("--bind")
        .arg(storage.dir())
        .arg(outer.dir().join("sub")));
    let world = World::start("inner-mount", &WorldOptions::mounts(1).export(outer.dir()));
    let path = world.mount(0).path("sub/hidden");
    let (read, _) = within("a look inside", LIMIT, move || fs::read(path));
    drop(world);
    run(Command::new("umount").arg(outer.dir().join("sub")));
    assert!(read.is_err(), "{read:?}");
}

#[test]
fn symlinks_are_the_clients_to_follow_and_never_lead_the_server_out() {
    let world = World::start("symlinks", &WorldOptions::mounts(1));
    fs::write(world.sandbox.root().join("outside"), b"outside").expect("a file");
    let mount = world.mount(0).path("");
    within("symlinks", LIMIT, move || {
        symlink("../outside", mount.join("up")).expect("a symlink");
        assert_eq!(
            fs::read_link(mount.join("up")).expect("readlink"),
            Path::new("../outside")
        );
        // Followed by the client's kernel: `..` of the mount's root is the sandbox.
        assert_eq!(fs::read(mount.join("up")).expect("a read"), b"outside");
        let long = "t".repeat(4095);
        symlink(&long, mount.join("long")).expect("a long target");
        assert_eq!(
            fs::read_link(mount.join("long"))
                .expect("readlink")
                .as_os_str()
                .len(),
            4095
        );
    });
}

#[test]
fn xattrs_are_seen_on_the_other_mount_at_once() {
    two_mounts("xattrs", |here, there| {
        use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
        fs::write(here.join("f"), b"").expect("a file");
        let get = |dir: &Path| {
            let mut value = [0; 64];
            getxattr(dir.join("f"), "user.note", &mut value).map(|len| value[..len].to_vec())
        };
        assert_eq!(get(there), Err(rustix::io::Errno::NODATA));
        setxattr(here.join("f"), "user.note", b"one", XattrFlags::CREATE).expect("a new one");
        assert_eq!(get(there).as_deref(), Ok(&b"one"[..]));
        let again = setxattr(there.join("f"), "user.note", b"two", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        setxattr(there.join("f"), "user.note", b"two", XattrFlags::REPLACE).expect("replaced");
        assert_eq!(get(here).as_deref(), Ok(&b"two"[..]));
        removexattr(here.join("f"), "user.note").expect("removed");
        assert_eq!(get(there), Err(rustix::io::Errno::NODATA));
    });
}

/// The names of a file's xattrs, as `user` is told them.
fn xattr_names(user: u32, file: &Path) -> Vec<String> {
    let mut list = Command::new("getfattr");
    list.args(["--absolute-names", "--match=-"]).arg(file);
    let told = list.uid(user).gid(user).output().expect("getfattr runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let names = told
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn trusted_xattrs_are_listed_to_root_alone_also_when_names_are_cached() {
    two_mounts("trusted", |here, there| {
        use rustix::fs::{XattrFlags, removexattr, setxattr};
        let (file, seen) = (here.join("f"), there.join("f"));
        fs::write(&file, b"").expect("a file");
        for name in ["user.a", "trusted.b"] {
            setxattr(&file, name, b"1", XattrFlags::CREATE).expect("a new one");
        }
        for _asked_or_cached in 0..2 {
            assert_eq!(xattr_names(OTHER, &seen), ["user.a"]);
            assert_eq!(xattr_names(0, &seen), ["trusted.b", "user.a"]);
        }
        removexattr(&file, "trusted.b").expect("removed");
        assert_eq!(xattr_names(0, &seen), ["user.a"]);
    });
}

#[test]
fn a_directory_of_20000_files_is_listed_whole() {
    let world = World::start_on("large", &WorldOptions::mounts(1), |export| {
        fs::create_dir(export.join("large")).expect("a folder");
        for number in 0..20_000 {
            File::create(export.join("large").join(format!("file-{number:05}"))).expect("a file");
        }
    });
    let dir = world.mount(0).path("large");
    within("listing", LIMIT, move || {
        let mut names: Vec<_> = fs::read_dir(&dir)
            .expect("the folder")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        names.sort();
        let expected: Vec<_> = (0..20_000)
            .map(|number| format!("file-{number:05}"))
            .collect();
        assert_eq!(names, expected);
    });
}

#[test]
fn a_mapping_follows_what_the_other_mount_writes() {
    two_mounts("mapping", |here, there| {
        fs::write(here.join("f"), [b'a'; 8192]).expect("a file");
        let reader = File::open(here.join("f")).expect("an open");
        let map = leasefs_tests::mapping::Mapping::new(&reader, 0, 8192, false).expect("a mapping");
        for round in 0..100_u8 {
            let writer = OpenOptions::new()
                .write(true)
                .open(there.join("f"))
                .expect("an open");
            writer.write_all_at(&[round; 8192], 0).expect("a write");
            let mut seen = [0; 1];
            map.copy_to(4096, &mut seen);
            assert_eq!(seen[0], round);
        }
    });
}

#[test]
fn a_file_mapped_again_shows_what_was_written_while_nobody_had_it_open() {
    two_mounts("mapped-again", |here, there| {
        let (file, elsewhere) = (here.join("f"), there.join("f"));
        fs::write(&file, [0; 8192]).expect("a file");
        let first_byte = |offset| {
            let reader = File::open(&file).expect("an open");
            let map = leasefs_tests::mapping::Mapping::new(&reader, 0, 8192, false);
            let mut seen = [0; 1];
            map.expect("a mapping").copy_to(offset, &mut seen);
            seen[0]
        };
        for round in 0..200_u8 {
            // By turns elsewhere and here, where pages are that nobody sees.
            let writer = [&elsewhere, &file][usize::from(round % 2)];
            let writer = OpenOptions::new().write(true).open(writer);
            let writer = writer.expect("an open");
            writer.write_all_at(&[round; 8192], 0).expect("a write");
            // By another date the kernel would drop them itself.
            let date = std::time::UNIX_EPOCH + Duration::from_secs(1);
            writer.set_modified(date).expect("a date");
            drop(writer);
            assert_eq!([first_byte(0), first_byte(4096)], [round; 2]);
        }
    });
}
