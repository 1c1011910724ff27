//! What goes wrong out of sight is told where people and their machines look.

use leasefs_tests::mounted::{
    Binaries, Mount, MountOptions, World, WorldOptions, eventually, within,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// What `fsclient mount --foreground` exits with if bytes stay behind.
const LEFT_BEHIND: i32 = 3;

/// A small file system in memory, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn on(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).expect("a folder");
        let options = c"size=2m,mode=700";
        mount("tmpfs", &dir, "tmpfs", MountFlags::empty(), options).expect("as root");
        Self(dir)
    }

    /// Takes all that is free.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("full");
        let mut file = File::create(&path).expect("a file");
        while file.write_all(&[0; 512]).is_ok() {}
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_servers_state_that_can_not_be_written_is_told_until_it_can() {
    let place = std::env::temp_dir().join(format!("leasefs-small-{}", std::process::id()));
    let small = Small::on(place.clone());
    let mut options = WorldOptions::mounts(1);
    options.server.state = Some(place.join("state"));
    let world = World::start("state-full", &options);
    let told = || world.server.command(&["status"]);
    assert!(!told().contains("STATE"), "{}", told());
    let full = small.fill();
    // The page that the journal ends in has room for some.
    let make = |n: usize| fs::create_dir(world.mount(0).path(format!("d{n}")));
    let refused = (0..1000).find_map(|n| make(n).err().map(|error| (n, error)));
    let (last, error) = refused.expect("a change that can't be journalled");
    assert!(
        !world.server.export.join(format!("d{last}")).exists(),
        "{error}"
    );
    let said = told();
    assert!(
        said.contains("STATE      can't be written: No space left"),
        "{said}"
    );
    fs::remove_file(full).expect("removed");
    make(last).expect("made");
    assert!(!told().contains("STATE"), "{}", told());
    drop(world);
    drop(small);
    fs::remove_dir(place).expect("nothing in it");
}

/// `fsclient recover WHAT ID --state STATE`: whether it succeeds, and what it says.
fn recover(what: &str, id: &str, state: &Path) -> (bool, String) {
    let mut command = Command::new(&Binaries::get().client);
    command
        .args(["recover", what, id])
        .arg("--state")
        .arg(state);
    let (output, _) = within(format!("{command:?}"), LIMIT, move || command.output());
    let output = output.expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

#[test]
fn bytes_that_stay_behind_have_an_exit_code_and_go_through_no_mount_of_another_client() {
    let mut world = World::start("behind", &WorldOptions::mounts(0).term("2s"));
    let start = |world: &World, name: &str| {
        let ticket = world.server.ticket_for(world.server.address);
        Mount::start(&world.sandbox, name, &ticket, &MountOptions::default())
    };
    let mut first = start(&world, "first");
    fs::write(first.path("f"), "before").expect("written");
    File::open(first.path("f"))
        .and_then(|f| f.sync_all())
        .expect("durable");
    fs::write(first.path("f"), "kept").expect("written");
    world.server.daemon.kill();
    let (output, _) = first.umount(&["--force"], LIMIT);
    assert!(!output.status.success());
    assert_eq!(first.daemon.ends_within(LIMIT).code(), Some(LEFT_BEHIND));
    world.server.start_again();

    let listed = fs::read_dir(first.state.join("client/recovery")).expect("a folder");
    let names = listed.map(|entry| entry.expect("an entry").file_name().into_string());
    let id = names
        .flatten()
        .find(|name| !name.starts_with('.'))
        .expect("an item");
    let second = start(&world, "second");
    world.mounts.push(second);
    let (done, said) = recover("diff", &id, &first.state);
    assert!(
        !done && said.contains("by the client that kept this"),
        "{said}"
    );
    let again = start(&world, "first");
    assert_eq!(again.state, first.state);
    world.mounts.push(again);
    let diff = || Some(recover("diff", &id, &first.state)).filter(|(done, _)| *done);
    let (_, said) = eventually("the file to be there", LIMIT, diff, String::new);
    assert!(said.contains("kept  4 bytes"), "{said}");
}

#[test]
fn a_closed_port_is_told_and_waited_for_unless_by_force() {
    let mut world = World::start("closed", &WorldOptions::mounts(1).term("2s").write_back());
    let closed = format!(
        "nothing listens on UDP port {}",
        world.server.address.port()
    );
    fs::create_dir(world.mount(0).path("own")).expect("a folder");
    fs::write(world.mount(0).path("own/f"), "kept").expect("written");
    world.server.daemon.kill();
    let mount = world.mount(0);
    let told = || {
        let status = mount.status();
        let trouble = status["mounts"][0]["trouble"].as_str().map(str::to_owned);
        trouble.filter(|trouble| trouble.contains(&closed))
    };
    eventually("the reason", LIMIT, told, String::new);
    let (output, took) = mount.umount(&[], LIMIT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(&closed), "{said}");
    assert!(took >= Duration::from_secs(9), "it may be back: {took:?}");
    let (output, took) = mount.umount(&["--force"], LIMIT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("1 file(s) could not be brought") && said.contains(&closed),
        "{said}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!mount.is_mounted());
}

#[test]
fn the_busiest_file_is_told_by_its_path() {
    let world = World::start("busiest", &WorldOptions::mounts(1));
    let told = || {
        let lines = world.server.command(&["top", "--lines", "--count", "1"]);
        let line = lines
            .lines()
            .find(|line| line.contains("BUSIEST /logs/one"));
        line.map(str::to_owned)
    };
    fs::create_dir(world.mount(0).path("logs")).expect("a folder");
    let mut log = File::create(world.mount(0).path("logs/one")).expect("a file");
    let line = eventually(
        "the file is told of",
        LIMIT,
        || {
            for _ in 0..100 {
                log.write_all(b"line\n").expect("room");
                log.sync_data().expect("it is synced");
            }
            told()
        },
        || world.server.command(&["status", "--json"]),
    );
    let rate = line.rsplit("REQ/S ").next().expect("a rate");
    let rate = rate.trim().replace(',', "").parse::<u64>();
    assert!(rate.is_ok_and(|rate| rate > 0), "{line}");
}
