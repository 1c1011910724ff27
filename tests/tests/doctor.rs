//! `fsclient doctor` against servers that are there, that let nobody in, that aren't there; and `top` where no terminal is.

use leasefs_tests::mounted::{Binaries, World, WorldOptions};
use serde_json::Value;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// It tries servers side by side.
const LIMIT: Duration = Duration::from_secs(6);

/// What is said of a server, and whether all is well in all.
fn doctor(state: &Path, servers: &[&str]) -> (Vec<Value>, bool) {
    let mut call = Command::new(&Binaries::get().client);
    call.args(["doctor", "--json", "--state"])
        .arg(state)
        .args(servers);
    let begun = Instant::now();
    let output = call.output().expect("it runs");
    assert!(begun.elapsed() < LIMIT, "it took {:?}", begun.elapsed());
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let problem = checks.iter().any(|check| check["level"] == "problem");
    assert_eq!(
        output.status.code(),
        Some(i32::from(problem)),
        "{checks:#?}"
    );
    (checks, !problem)
}

fn of<'a>(checks: &'a [Value], name: &str) -> Vec<&'a Value> {
    let named = |check: &&Value| {
        check["name"]
            .as_str()
            .is_some_and(|all| all.starts_with(name))
    };
    checks.iter().filter(named).collect()
}

fn found(checks: &[Value], name: &str) -> String {
    let found = of(checks, name);
    assert_eq!(found.len(), 1, "{name}: {checks:#?}");
    found[0]["found"].as_str().expect("text").to_owned()
}

#[test]
fn a_server_that_lets_this_client_in_is_found_by_its_enrolment_and_a_dead_mount_is_a_problem() {
    let mut world = World::start("doctor", &WorldOptions::mounts(1));
    let state = world.mount(0).state.clone();
    let (checks, well) = doctor(&state, &[]);
    assert!(well, "{checks:#?}");
    assert!(found(&checks, "server ").contains("lets this client in"));
    assert!(found(&checks, "path to ").contains("get through"));
    let dir = world.mount(0).dir.display().to_string();
    assert_eq!(found(&checks, &format!("mount {dir}")), "is connected");
    let sessions = world.server.command(&["status", "--json"]);
    let sessions: Value = serde_json::from_str(&sessions).expect("JSON");
    let left = sessions["sessions"].as_array().expect("a list");
    assert_eq!(
        left.len(),
        1,
        "the look has left a session behind: {left:#?}"
    );
    world.kill_client(0);
    let (checks, _) = doctor(&state, &[]);
    assert_eq!(
        found(&checks, &format!("mount {dir}")),
        "its daemon has died"
    );
    assert!(found(&checks, "server ").contains("lets this client in"));
}

#[test]
fn who_is_not_enrolled_is_told_so_and_nothing_is_made_for_a_look() {
    let world = World::start("doctor-stranger", &WorldOptions::mounts(0));
    let state = world.sandbox.root().join("no-state");
    let (checks, well) = doctor(&state, &[&world.server.address.to_string()]);
    assert!(!well);
    assert!(
        found(&checks, "server ").contains("isn't enrolled"),
        "{checks:#?}"
    );
    assert!(!state.exists(), "a look has made a state directory");
}

#[test]
fn a_closed_port_a_silent_one_and_an_unknown_name_are_told_apart() {
    let world = World::start("doctor-nobody", &WorldOptions::mounts(0));
    let state = world.sandbox.root().join("no-state");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("bound").to_string();
    let (checks, _) = doctor(&state, &[&address]);
    assert_eq!(found(&checks, "server "), "nothing comes back");
    drop(socket);
    let (checks, _) = doctor(&state, &[&address]);
    assert!(found(&checks, "server ").contains("nothing listens"));
    let (checks, _) = doctor(&state, &["no-such-host.invalid"]);
    assert!(found(&checks, "server ").contains("can't be resolved"));
}

#[test]
fn top_prints_lines_with_rates_where_no_terminal_is_and_ends_after_as_many_looks() {
    let world = World::start("top", &WorldOptions::mounts(1));
    let mount = world.mount(0);
    let options = ["--lines", "--count", "3", "--interval", "0.5"];
    let top = |program: &Path, state: &Path| {
        let mut call = Command::new(program);
        call.arg("top").args(options).arg("--state").arg(state);
        call.stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs")
    };
    let both = [
        top(&Binaries::get().server, &world.server.state),
        top(&Binaries::get().client, &mount.state),
    ];
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        fs::write(mount.path("f"), b"bytes").expect("written");
    }
    for child in both {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("text");
        assert_eq!(
            text.matches("  REQ/S ").count(),
            3,
            "one mount, three looks: {text}"
        );
        let rates = text
            .split("  REQ/S ")
            .skip(1)
            .filter_map(|rest| rest.split_whitespace().next());
        let most = rates
            .map(|rate| rate.replace(',', "").parse::<u64>().expect("a number"))
            .max();
        assert!(most > Some(0), "nothing has happened: {text}");
        assert!(text.contains(&mount.dir.display().to_string()), "{text}");
    }
}
