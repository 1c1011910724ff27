//! `fsclient why`: who holds what of a file, what an access would cost, and that asking costs nobody anything.

use leasefs_tests::mounted::{
    Binaries, Mount, MountOptions, World, WorldOptions, eventually, in_background,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

fn world(name: &str) -> World {
    let options = WorldOptions::mounts(2).term("4s").write_back();
    World::start_on(name, &options, |export| {
        fs::create_dir_all(export.join("dir/sub")).expect("a directory");
        fs::write(export.join("dir/f"), b"bytes").expect("a file");
    })
}

fn ask(path: &Path, options: &[&str]) -> Output {
    let mut call = Command::new(&Binaries::get().client);
    call.arg("why").arg(path).args(options);
    call.output().expect("it runs")
}

fn why(path: &Path) -> Value {
    let output = ask(path, &["--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", path.display());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn refused(path: &Path) -> String {
    let output = ask(path, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", path.display());
    assert!(output.stdout.is_empty());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The one other mount that has something of it.
fn other(why: &Value) -> &Value {
    let others = why["server"]["others"].as_array().expect("a list");
    assert_eq!(others.len(), 1, "{why:#}");
    &others[0]
}

/// Everything that a recall or a grant would change.
fn leases(world: &World) -> Vec<Value> {
    let one = |mount: &Mount| {
        let status = mount.status()["mounts"][0].clone();
        json!([status["leases"], status["recalls_open"]])
    };
    world.mounts.iter().map(one).collect()
}

#[test]
fn who_reads_and_who_writes_elsewhere_is_told_and_asking_recalls_nothing() {
    let world = world("why-held");
    let (here, there) = (world.mount(0).path("dir/f"), world.mount(1).path("dir/f"));
    assert_eq!(fs::read(&there).expect("read"), b"bytes");
    let before = leases(&world);
    let told = why(&here);
    assert_eq!(leases(&world), before, "asking has changed leases");
    let reader = other(&told);
    assert_eq!(reader["leased"], json!(["attrs", "data"]), "{told:#}");
    assert_eq!(reader["exclusive"], json!([]));
    let ago = reader["granted_ms"].as_u64();
    assert!(
        ago.is_some_and(|ms| ms < LIMIT.as_millis() as u64),
        "{told:#}"
    );
    let mount = reader["mount"].as_str().expect("a name");
    assert!(
        mount.ends_with(world.mount(1).dir.to_str().expect("text")),
        "{mount}"
    );
    assert_eq!(told["here"]["leased"], json!([]), "this mount never looked");
    assert_eq!(told["here"]["granted_ms"], Value::Null, "{told:#}");
    assert_eq!(told["server"]["read"]["recalls"], 0);
    assert_eq!(
        told["server"]["write"],
        json!({"recalls": 1, "silent": 0, "at_most_ms": 0})
    );

    fs::write(&there, b"written").expect("written");
    let alone = json!(["attrs", "data"]);
    let own = why(&there);
    assert_eq!(own["here"]["exclusive"], alone, "{own:#}");
    assert_eq!(own["server"]["others"], json!([]), "{own:#}");
    let told = why(&here);
    assert_eq!(other(&told)["exclusive"], alone, "{told:#}");
    assert_eq!(told["server"]["read"]["recalls"], 1);
    let own = why(&there);
    assert_eq!(
        own["here"]["exclusive"], alone,
        "asking has recalled it: {own:#}"
    );
    assert_eq!(own["here"]["recalled"], false);
    assert!(own["here"]["granted_ms"].as_u64().is_some(), "{own:#}");
    let said = ask(&there, &[]).stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("buffered under the lease here"), "{said}");
    assert!(
        said.contains("write lease on attrs, data, granted "),
        "{said}"
    );
}

#[test]
fn a_frozen_holder_is_named_with_how_long_it_can_hold_a_write_up_and_who_waits_for_it() {
    let mut world = world("why-frozen");
    let (here, there) = (world.mount(0).path("dir/f"), world.mount(1).path("dir/f"));
    assert_eq!(fs::read(&there).expect("read"), b"bytes");
    world.mounts[1].freeze();
    let path = here.clone();
    let mut writer = in_background("the write", move || fs::write(path, b"new"));
    let waiting = || {
        let told = why(&here);
        let waits = told["waiting"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        (waits && other(&told)["silent"] == true).then_some(told)
    };
    let told = eventually("the write to wait", LIMIT, waiting, String::new);
    let holder = other(&told);
    assert!(holder["recalled_since_ms"].as_u64().is_some(), "{told:#}");
    assert!(holder["ends_ms"].as_u64() <= Some(4_100), "{told:#}");
    assert_eq!(told["server"]["write"]["silent"], 1);
    let pid = told["waiting"][0]["pid"].as_u64();
    let own = Path::new("/proc/self/task").join(pid.expect("a thread").to_string());
    assert!(
        own.exists(),
        "who waits is a thread of this process: {told:#}"
    );
    world.mounts[1].thaw();
    writer.done_within(LIMIT).0.expect("written");
}

#[test]
fn a_confined_client_learns_nobodys_name_and_nothing_of_what_is_outside() {
    let mut world = world("why-confined");
    fs::write(world.mount(0).path("outside"), "x").expect("a file");
    let options = ["--trust", "--subdir", "/dir"];
    let ticket = world.server.ticket_with(world.server.address, &options);
    let mount = Mount::start(
        &world.sandbox,
        "confined",
        &ticket,
        &MountOptions::default(),
    );
    world.mounts.push(mount);
    assert_eq!(
        fs::read(world.mount(1).path("dir/f")).expect("read"),
        b"bytes"
    );
    let confined = world.mount(2);
    let told = why(&confined.path("f"));
    assert_eq!(other(&told)["mount"], Value::Null, "{told:#}");
    assert_eq!(told["server"]["write"]["recalls"], 1, "how many is told");
    assert!(refused(&confined.path("outside")).contains("no such file"));
    let above = confined.path("../outside");
    assert!(refused(&above).contains("not on a leasefs mount"));
}

#[test]
fn what_is_not_there_or_not_on_a_mount_is_said_and_a_silent_server_is_no_reason_to_wait() {
    let mut world = world("why-nowhere");
    let mount = world.mount(0);
    assert!(refused(&mount.path("dir/none")).contains("no such file"));
    assert!(refused(&mount.path("dir/f/x")).contains("no directory"));
    assert!(refused(Path::new("/proc/version")).contains("not on a leasefs mount"));
    let known = mount.path("dir/f");
    fs::read(&known).expect("read");
    world.server.daemon.signal(rustix::process::Signal::STOP);
    let told = why(&known);
    world.server.daemon.signal(rustix::process::Signal::CONT);
    assert_eq!(told["trouble"], "the server does not answer", "{told:#}");
    assert_eq!(told["here"]["leased"], json!(["attrs", "data"]));
    assert_eq!(told["server"], Value::Null);
}
