//! Cached work sends nothing.

use leasefs_tests::mapping::Mapping;
use leasefs_tests::mounted::{Mount, World, WorldOptions, eventually, within};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PAGE: usize = 4096;
const BIG: usize = 256 * 1024 * 1024;
const FILES: usize = 1000;
const LIMIT: Duration = Duration::from_secs(120);

/// Makes `folder` with files `f0`, `f1`… of one byte.
fn fill(folder: &Path, files: usize) {
    fs::create_dir(folder).expect("a folder");
    for number in 0..files {
        fs::write(folder.join(format!("f{number}")), b"x").expect("a file");
    }
}

fn fill_big(export: &Path) {
    let block: Vec<u8> = (0..1024 * 1024u32)
        .map(|index| (index % 251) as u8)
        .collect();
    let mut file = File::create(export.join("big")).expect("a file");
    for _ in 0..BIG / block.len() {
        std::io::Write::write_all(&mut file, &block).expect("room for the file");
    }
}

fn read_all(path: &Path) -> u64 {
    let mut file = File::open(path).expect("the file");
    let mut buffer = vec![0; 1024 * 1024];
    let mut sum = 0;
    loop {
        match file.read(&mut buffer).expect("a read") {
            0 => return sum,
            got => {
                sum += buffer[..got]
                    .iter()
                    .map(|byte| u64::from(*byte))
                    .sum::<u64>()
            }
        }
    }
}

/// Does `work` once so that everything is cached, then again, and checks that the
/// second time sent nothing and gave the same.
fn second_time_sends_nothing<T: PartialEq + Send + std::fmt::Debug + 'static>(
    mount: &Mount,
    work: impl Fn() -> T + Send + Clone + 'static,
) {
    let (first, _) = within("the first time", LIMIT, work.clone());
    let before = mount.settled_requests();
    assert!(
        before.total() > 0,
        "the first time has sent nothing: are requests counted?"
    );
    let (second, took) = within("the second time", LIMIT, work);
    let sent = mount.settled_requests().since(&before);
    assert_eq!(
        sent.total(),
        0,
        "the second time took {took:?} and sent {sent:?}"
    );
    assert_eq!(first, second);
}

#[test]
fn reading_a_cached_256_mib_file_again_sends_nothing() {
    let world = World::start_on("reread", &WorldOptions::mounts(1), fill_big);
    let path = world.mount(0).path("big");
    let opened = path.clone();
    second_time_sends_nothing(world.mount(0), move || {
        File::open(&opened)
            .and_then(|mut file| file.read(&mut [0; PAGE]))
            .expect("a read")
    });
    // The machine may take pages away that are not pinned, and then they must be asked for.
    let file = File::open(&path).expect("the file");
    let pinned = Mapping::new(&file, 0, BIG, false).expect("a mapping");
    pinned.pin().expect("room in memory");
    drop(file);
    second_time_sends_nothing(world.mount(0), move || read_all(&path));
}

#[test]
fn stat_of_1000_cached_files_again_sends_nothing() {
    let world = World::start_on("restat", &WorldOptions::mounts(1), |export| {
        fill(&export.join("many"), FILES);
    });
    let folder: PathBuf = world.mount(0).path("many");
    second_time_sends_nothing(world.mount(0), move || {
        let sizes = (0..FILES).map(|number| {
            fs::metadata(folder.join(format!("f{number}")))
                .expect("the file")
                .len()
        });
        sizes.collect::<Vec<_>>()
    });
}

#[test]
fn listing_a_cached_directory_and_asking_for_missing_names_again_sends_nothing() {
    let world = World::start_on("relist", &WorldOptions::mounts(1), |export| {
        fill(&export.join("some"), 100);
    });
    let folder = world.mount(0).path("some");
    second_time_sends_nothing(world.mount(0), move || {
        let names = fs::read_dir(&folder).expect("the folder").count();
        let missing = (0..100)
            .filter(|n| !folder.join(format!("missing{n}")).exists())
            .count();
        (names, missing)
    });
}

#[test]
fn names_of_a_directory_that_was_made_or_listed_here_are_not_asked_for_one_by_one() {
    let world = World::start_on("names", &WorldOptions::mounts(2), |export| {
        fs::create_dir(export.join("old")).expect("a folder");
        fs::write(export.join("old/there"), b"x").expect("a file");
    });
    let [here, there] = [0, 1].map(|at| world.mount(at).dir.clone());
    let folders = here.clone();
    within("a new folder and a listing", LIMIT, move || {
        fs::create_dir(folders.join("new")).expect("a folder");
        let listed = fs::read_dir(folders.join("old")).expect("the folder");
        assert_eq!(listed.count(), 1);
    });
    let before = world.mount(0).settled_requests();
    let folders = here.clone();
    within("new names", LIMIT, move || {
        for folder in ["new", "old"].map(|name| folders.join(name)) {
            for number in 0..100 {
                let file = folder.join(format!("f{number}"));
                assert!(!file.exists(), "{file:?}");
                File::create_new(&file).expect("a file");
            }
        }
    });
    let sent = world.mount(0).settled_requests().since(&before);
    assert!(sent.of("lookup") <= 4, "{sent:?}");
    assert_eq!(sent.of("create"), 200, "{sent:?}");
    let before = world.mount(0).settled_requests();
    let folders = here.clone();
    within("names that go and come back", LIMIT, move || {
        for round in 0..50 {
            for folder in ["new", "old"].map(|name| folders.join(name)) {
                let file = folder.join("f7");
                fs::remove_file(&file).expect("it is there");
                assert!(!file.exists(), "{round}");
                File::create_new(&file).expect("a file");
            }
        }
    });
    let sent = world.mount(0).settled_requests().since(&before);
    assert_eq!(
        (sent.of("unlink"), sent.of("create")),
        (100, 100),
        "{sent:?}"
    );
    assert!(sent.of("lookup") <= 4, "{sent:?}");
    let before = world.mount(0).settled_requests();
    let folder = here.join("new");
    within("names that are renamed away", LIMIT, move || {
        let [file, again] = ["f7", "again"].map(|name| folder.join(name));
        for round in 0..50 {
            fs::rename(&file, folder.join("f8")).expect("it is there");
            assert!(!file.exists(), "{round}");
            File::create_new(&file).expect("a file");
        }
        fs::hard_link(&file, &again).expect("a link");
        fs::rename(&file, &again).expect("nothing moves");
        assert!(file.exists() && again.exists());
    });
    let sent = world.mount(0).settled_requests().since(&before);
    // What is replaced is asked for; the name that is free isn't.
    assert!(sent.of("lookup") <= 50 + 6, "{sent:?}");
    within("names made elsewhere", LIMIT, move || {
        for name in ["new", "old"].map(|folder| format!("{folder}/elsewhere")) {
            assert!(!here.join(&name).exists());
            File::create_new(there.join(&name)).expect("a file");
            assert!(here.join(&name).exists(), "{name}");
            fs::remove_file(there.join(&name)).expect("it is there");
            assert!(!here.join(&name).exists(), "{name}");
        }
    });
}

fn acl(path: &Path) -> Result<usize, rustix::io::Errno> {
    rustix::fs::lgetxattr(path, c"system.posix_acl_access", &mut [0_u8; 256])
}

/// What `ls -l` asks of each.
#[test]
fn a_long_listing_asks_for_no_xattrs_of_files_that_have_none() {
    let world = World::start_on("long", &WorldOptions::mounts(2), |export| {
        fill(&export.join("many"), 100);
    });
    let [here, there] = [0, 1].map(|at| world.mount(at).path("many"));
    let before = world.mount(0).settled_requests();
    let folder = here.clone();
    within("a long listing", LIMIT, move || {
        for entry in fs::read_dir(folder).expect("the folder") {
            let path = entry.expect("an entry").path();
            fs::symlink_metadata(&path).expect("its attributes");
            assert_eq!(acl(&path), Err(rustix::io::Errno::NODATA));
        }
    });
    let sent = world.mount(0).settled_requests().since(&before);
    assert_eq!(sent.of("getxattr") + sent.of("listxattr"), 0, "{sent:?}");
    assert!(sent.total() <= 8, "{sent:?}");
    within("an ACL given elsewhere", LIMIT, move || {
        let flags = rustix::fs::XattrFlags::empty();
        // Version 2; its owner, user 1, its group, the mask, others.
        let entries = [(1, 6, -1), (2, 6, 1), (4, 4, -1), (16, 6, -1), (32, 4, -1)];
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            value.extend(u16::to_le_bytes(tag));
            value.extend(u16::to_le_bytes(rights));
            value.extend(i32::to_le_bytes(id));
        }
        let name = c"system.posix_acl_access";
        rustix::fs::lsetxattr(there.join("f7"), name, &value, flags).expect("an ACL");
        assert_eq!(acl(&here.join("f7")), Ok(value.len()));
        assert_eq!(acl(&here.join("f8")), Err(rustix::io::Errno::NODATA));
    });
}

#[test]
fn who_lists_a_large_directory_and_then_looks_at_each_entry_asks_for_many_at_a_time() {
    const FILES: usize = 7_000;
    let world = World::start_on("walk", &WorldOptions::mounts(1), |export| {
        fill(&export.join("many"), FILES);
    });
    let folder = world.mount(0).path("many");
    let before = world.mount(0).settled_requests();
    within("a walk", LIMIT, move || {
        let entries = fs::read_dir(folder).expect("the folder");
        let paths: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert_eq!(paths.len(), FILES);
        for path in paths {
            assert_eq!(
                fs::symlink_metadata(&path).expect("its attributes").len(),
                1
            );
        }
    });
    let sent = world.mount(0).settled_requests().since(&before);
    assert!(sent.total() <= FILES as u64 / 50, "{sent:?}");
}

#[test]
fn a_change_elsewhere_is_seen_after_all_this() {
    let world = World::start_on("recall", &WorldOptions::mounts(2), |export| {
        fs::write(export.join("f"), b"old").expect("a file");
    });
    let (here, there) = (world.mount(0).path("f"), world.mount(1).path("f"));
    within("reads and a write", LIMIT, move || {
        for _ in 0..3 {
            assert_eq!(fs::read(&here).expect("the file"), b"old");
        }
        fs::write(&there, b"newer").expect("a write");
        assert_eq!(fs::read(&here).expect("the file"), b"newer");
        assert_eq!(fs::metadata(&here).expect("the file").len(), 5);
    });
}

/// How many leases the server counts for each mount.
fn leases(world: &World) -> Vec<u64> {
    let status = world.server.command(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let sessions = status["sessions"].as_array().expect("sessions");
    let mut of_each: Vec<(String, u64)> = sessions
        .iter()
        .map(|s| {
            let leases = s["leases"].as_u64().expect("a number");
            (s["mount"].to_string(), leases)
        })
        .collect();
    of_each.sort();
    of_each.into_iter().map(|(_, leases)| leases).collect()
}

/// How many objects each mount has leases of.
fn objects(world: &World) -> Vec<u64> {
    let of = |mount: &Mount| mount.status()["mounts"][0]["leases"]["objects"].as_u64();
    let mounts = world.mounts.iter();
    mounts.map(|mount| of(mount).expect("a number")).collect()
}

#[test]
fn leases_on_removed_files_end_on_both_mounts_and_at_the_server() {
    const REMOVED: usize = 500;
    /// The root and what is looked at to begin with.
    const KEPT: u64 = 10;
    let world = World::start("removed", &WorldOptions::mounts(2));
    let [here, there] = [0, 1].map(|at| world.mount(at).path("many"));
    within("three rounds", LIMIT, move || {
        for round in 0..3 {
            fs::create_dir(&here).expect("a folder");
            for number in 0..REMOVED {
                fs::write(here.join(format!("f{number}")), b"x").expect("a file");
            }
            for number in 0..REMOVED {
                let file = there.join(format!("f{number}"));
                assert_eq!(fs::metadata(&file).expect("the file").len(), 1);
                assert_eq!(fs::read(&file).expect("the file"), b"x");
            }
            // By turns by who has made them and by who has looked at them.
            let folder = [&here, &there][round % 2];
            fs::remove_dir_all(folder).expect("removed");
        }
    });
    let few = || {
        let held = [leases(&world), objects(&world)].concat();
        (held.len() == 4 && held.iter().all(|held| *held <= KEPT)).then_some(())
    };
    let told = || {
        format!(
            "at the server {:?}, here {:?}",
            leases(&world),
            objects(&world)
        )
    };
    eventually("few leases", Duration::from_secs(20), few, told);
}

/// As databases do with their journal, and editors with what they save.
#[test]
fn a_directory_is_synced_after_each_change_without_being_opened_each_time() {
    let world = World::start_on("synced", &WorldOptions::mounts(2), |export| {
        fs::create_dir(export.join("folder")).expect("a folder");
    });
    let [here, there] = [0, 1].map(|at| world.mount(at).path("folder"));
    let save = |dir: &Path| {
        let file = dir.join("journal");
        File::create_new(&file).expect("a file");
        let folder = File::open(dir).expect("the folder");
        folder.sync_all().expect("it is synced");
        fs::remove_file(&file).expect("it is there");
    };
    let dir = here.clone();
    within("the first time", LIMIT, move || save(&dir));
    let before = world.mount(0).settled_requests();
    let dir = here.clone();
    within("many more", LIMIT, move || (0..50).for_each(|_| save(&dir)));
    let sent = world.mount(0).settled_requests().since(&before);
    assert_eq!((sent.of("open"), sent.of("commit")), (0, 50), "{sent:?}");
    within("after a change elsewhere", LIMIT, move || {
        let mode = fs::metadata(&there).expect("the folder").mode();
        fs::set_permissions(&there, Permissions::from_mode(mode ^ 0o1)).expect("its mode");
        save(&here);
    });
    let sent = world.mount(0).settled_requests().since(&before);
    assert_eq!(sent.of("open"), 1, "{sent:?}");
}
