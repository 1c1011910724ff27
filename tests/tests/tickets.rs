//! What a ticket gives beside a mount: a directory to be confined to, a user to act as.

use leasefs_tests::mounted::{Mount, MountOptions, World, WorldOptions};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Mounts with a ticket that has these options.
fn mount(world: &mut World, name: &str, options: &[&str]) {
    let ticket = world.server.ticket_with(world.server.address, options);
    let mount = Mount::start(&world.sandbox, name, &ticket, &MountOptions::default());
    world.mounts.push(mount);
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a listing");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
    let mut names: Vec<String> = entries.map(|e| name(e.expect("an entry"))).collect();
    names.sort();
    names
}

#[test]
fn a_mount_by_a_subdir_ticket_has_that_directory_alone_and_outlives_a_restart() {
    let options = WorldOptions::mounts(1).term("2s");
    let mut world = World::start_on("subdir", &options, |export| {
        for dir in ["projects/one/sub", "projects/two"] {
            fs::create_dir_all(export.join(dir)).expect("a directory");
        }
        fs::write(export.join("projects/one/inside"), "1").expect("a file");
        fs::write(export.join("projects/two/outside"), "2").expect("a file");
        symlink("../two/outside", export.join("projects/one/out")).expect("a link");
    });
    mount(
        &mut world,
        "mount1",
        &["--trust", "--subdir", "/projects/one"],
    );
    let (all, one) = (world.mount(0).path("projects"), world.mount(1).dir.clone());
    assert_eq!(names(&one), ["inside", "out", "sub"]);
    assert!(
        fs::read(one.join("out")).is_err(),
        "the link leads nowhere here"
    );
    fs::write(one.join("inside"), "one").expect("written");
    assert_eq!(fs::read(all.join("one/inside")).expect("read"), b"one");
    fs::write(all.join("one/inside"), "all").expect("written");
    assert_eq!(fs::read(one.join("inside")).expect("read"), b"all");
    fs::rename(one.join("inside"), one.join("sub/moved")).expect("renamed");
    fs::hard_link(one.join("sub/moved"), one.join("again")).expect("linked");
    assert_eq!(names(&all.join("one")), ["again", "out", "sub"]);
    fs::rename(all.join("one/sub"), all.join("two/sub")).expect("moved out");
    assert_eq!(names(&one), ["again", "out"]);
    world.server.daemon.kill();
    world.server.start_again();
    fs::write(one.join("again"), "after").expect("written");
    assert_eq!(fs::read(all.join("two/sub/moved")).expect("read"), b"after");
    let clients = world.server.command(&["clients"]);
    assert!(clients.contains("in \"/projects/one\""), "{clients}");
}

#[test]
fn a_mount_by_a_ticket_for_one_user_has_that_users_rights_whoever_calls() {
    let mut world = World::start_on("as", &WorldOptions::mounts(0).identity("trust"), |export| {
        fs::set_permissions(export, fs::Permissions::from_mode(0o777)).expect("chmod");
        fs::write(export.join("roots"), "secret").expect("a file");
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(export.join("roots"), private).expect("chmod");
    });
    mount(&mut world, "mount0", &["--as", "1234:4321"]);
    let mount = &world.mounts[0];
    assert!(
        fs::read(mount.path("roots")).is_err(),
        "it isn't root there"
    );
    fs::write(mount.path("mine"), "1").expect("written");
    assert_eq!(fs::read(mount.path("mine")).expect("read"), b"1");
    let own = rustix::process::getuid().as_raw();
    let shown = fs::metadata(mount.path("mine")).expect("attributes");
    assert_eq!(shown.uid(), own, "the mounting user is shown");
    let host = fs::metadata(world.server.export.join("mine")).expect("attributes");
    assert_eq!((host.uid(), host.gid()), (1234, 4321));
}
