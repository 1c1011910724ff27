use super::*;
use std::ffi::OsStr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

const RACE: Duration = Duration::from_millis(500);

/// Stops the attacker also when the check panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `attacker` over and over while `check` runs, for a bounded time.
fn race(attacker: impl Fn() + Sync, mut check: impl FnMut()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                attacker();
            }
        });
        let _stop = Stop(&stop);
        let end = Instant::now() + RACE;
        while Instant::now() < end && !attack.is_finished() {
            check();
        }
    });
}

#[test]
fn forged_foreign_and_truncated_handles_are_stale_everywhere() {
    let w = world();
    let mut forged = w.root().as_bytes().to_vec();
    *forged.last_mut().expect("bytes") ^= 1;
    let forged = Handle::new(&forged).expect("fits");
    let (who, n, stale) = (w.who(0), name("n"), Err(Refusal::Stale));
    for bad in [
        forged,
        Handle::new(b"").expect("fits"),
        Handle::new(&[0; 64]).expect("fits"),
    ] {
        assert_eq!(w.store.check(&bad), stale);
        assert_eq!(w.store.getattr(&bad).map(drop), stale);
        assert_eq!(w.store.lookup(&who, &bad, &n).map(drop), stale);
        assert_eq!(w.store.peek(&bad, &n).map(drop), stale);
        assert_eq!(w.store.unlink(&who, &bad, &n, None), stale);
        assert_eq!(w.store.open_object(&who, &bad, 0).map(drop), stale);
        assert_eq!(w.store.link(&who, &bad, &w.root(), &n).map(drop), stale);
        assert_eq!(w.store.readlink(&bad).map(drop), stale);
        assert_eq!(w.store.listxattr(&who, &bad).map(drop), stale);
    }
}

#[test]
fn a_symlink_is_never_followed_whichever_operation_meets_it() {
    let w = world();
    let outside = w.scratch.path().join("outside");
    std::fs::write(&outside, b"secret").expect("write");
    std::os::unix::fs::symlink(&outside, w.path("link")).expect("symlink");
    let (root, who) = (w.root(), w.who(0));
    let link = w.look("link");
    let looped = Err(errno(libc::ELOOP));
    assert_eq!(w.store.open_object(&who, &link, 0).map(drop), looped);
    let flags = (libc::O_RDWR | libc::O_TRUNC) as u32;
    let created = w
        .store
        .create(&who, &root, &name("link"), 0o600, 0, flags)
        .map(drop);
    assert_eq!(created, looped);
    let set = leasefs_protocol::SetAttr {
        size: Some(0),
        ..Default::default()
    };
    assert!(w.store.setattr(&who, &link, None, &set).is_err());
    let inside = w.store.lookup(&who, &link, &name("x"));
    assert_eq!(inside, Err(errno(libc::ENOTDIR)));
    assert_eq!(std::fs::read(&outside).expect("read"), b"secret");
}

#[test]
fn swapping_a_file_for_a_symlink_never_lets_an_open_out() {
    let w = world();
    let outside = w.scratch.path().join("outside");
    std::fs::write(&outside, b"secret").expect("write");
    std::fs::write(w.path("victim"), b"public").expect("write");
    std::os::unix::fs::symlink(&outside, w.path("evil")).expect("symlink");
    let (victim, evil) = (w.path("victim"), w.path("evil"));
    let (who, root, n) = (w.who(0), w.root(), name("victim"));
    let mut opened = 0;
    race(
        || {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            let cwd = rustix::fs::CWD;
            rustix::fs::renameat_with(cwd, &victim, cwd, &evil, exchange).expect("swap");
        },
        || {
            let flags = libc::O_RDWR as u32;
            if let Ok(found) = w.store.create(&who, &root, &n, 0o600, 0, flags) {
                let data = w.store.read(&found.open, 0, 100).expect("read");
                assert_eq!(data, b"public");
                opened += 1;
            }
        },
    );
    assert!(opened > 0, "the race was never run");
    assert_eq!(std::fs::read(&outside).expect("read"), b"secret");
}

#[test]
fn moving_a_directory_away_while_it_is_walked_never_leads_out() {
    let w = world();
    std::fs::create_dir_all(w.path("a/b")).expect("mkdir");
    std::fs::create_dir(w.path("c")).expect("mkdir");
    std::fs::write(w.scratch.path().join("secret"), b"").expect("write");
    let (from, to) = (w.path("a/b"), w.path("c/b"));
    let (who, b) = (w.who(0), w.look("a/b"));
    race(
        || {
            std::fs::rename(&from, &to).expect("there");
            std::fs::rename(&to, &from).expect("back");
        },
        || {
            // `..` isn't even a name; nothing else leads upwards.
            assert_eq!(w.store.lookup(&who, &b, &name("secret")), Ok(None));
            assert!(w.store.getattr(&b).is_ok());
        },
    );
    assert_eq!(Name::new(b".."), Err(Refusal::Invalid));
}

/// A tmpfs mounted for one test.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: PathBuf) -> Self {
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "leasefs-test"])
            .arg(&at)
            .status();
        assert!(mount.expect("mount").success(), "mounting needs root");
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// Before or after the store was opened, what is mounted inside is out of reach.
fn mount_is_not_crossed(mount_first: bool) {
    let scratch = Scratch::new();
    let at = scratch.export().join("m");
    std::fs::create_dir(&at).expect("mkdir");
    std::fs::write(at.join("covered"), b"").expect("write");
    let early = mount_first.then(|| Mounted::tmpfs(at.clone()));
    let store = open_store(&scratch);
    let mounted = early.unwrap_or_else(|| Mounted::tmpfs(at.clone()));
    std::fs::write(at.join("foreign"), b"").expect("write");
    let w = World { scratch, store };
    let (who, root) = (w.who(0), w.root());
    let m = w.look("m");
    let found = |text: &str| w.store.lookup(&who, &m, &name(text)).expect("lookup");
    assert!(found("covered").is_some());
    assert!(found("foreign").is_none());
    let (open, _) = w.store.open_object(&who, &root, 0).expect("open");
    let listing = w.store.readdir(&open, 0, true).expect("readdir");
    assert_eq!(listing.entries[0].node.expect("node").0, m);
    drop(mounted);
}

#[test]
fn a_mount_inside_the_export_is_not_crossed() {
    mount_is_not_crossed(true);
}

#[test]
fn a_mount_that_appears_later_is_not_crossed_either() {
    mount_is_not_crossed(false);
}

/// A btrfs in a file of the scratch folder.
fn btrfs(scratch: &Scratch) -> Mounted {
    let (image, at) = (scratch.path().join("image"), scratch.export());
    let file = std::fs::File::create(&image).expect("an image");
    file.set_len(128 << 20).expect("room");
    run("mkfs.btrfs", &["-q".as_ref(), image.as_ref()]);
    let options = ["-o".as_ref(), "loop".as_ref()];
    run(
        "mount",
        &[options[0], options[1], image.as_ref(), at.as_ref()],
    );
    Mounted(at)
}

fn run(program: &str, args: &[&OsStr]) {
    let status = std::process::Command::new(program).args(args).status();
    assert!(status.expect(program).success(), "{program} {args:?}");
}

/// Its objects would have the inode numbers of others.
#[test]
fn a_subvolume_inside_the_export_is_not_crossed() {
    let scratch = Scratch::new();
    let mounted = btrfs(&scratch);
    let inside = scratch.export().join("inside");
    let create = ["subvolume".as_ref(), "create".as_ref(), inside.as_ref()];
    run("btrfs", &create);
    std::fs::create_dir(scratch.export().join("plain")).expect("mkdir");
    let store = open_store(&scratch);
    let w = World { scratch, store };
    let (who, root) = (w.who(0), w.root());
    let xdev = Err(Refusal::Host(libc::EXDEV as u16));
    assert_eq!(w.store.lookup(&who, &root, &name("inside")), xdev);
    assert!(w.store.lookup(&who, &root, &name("plain")).is_ok());
    let (open, _) = w.store.open_object(&who, &root, 0).expect("open");
    let listing = w.store.readdir(&open, 0, true).expect("readdir");
    let known = |text: &str| {
        let mut entries = listing.entries.iter();
        let entry = entries.find(|entry| entry.name.0 == text.as_bytes());
        entry.expect("listed").node.is_some()
    };
    assert!(known("plain") && !known("inside"));
    drop((open, w.store));
    drop(mounted);
}
