//! Each finding, as it is judged.

use super::*;
use leasefs_protocol::KeyHash;
use std::io::ErrorKind;

fn release(text: &str) -> Result<Release, String> {
    Release::parse(text).ok_or_else(|| "no release".to_owned())
}

#[test]
fn a_kernel_before_6_6_is_a_problem_and_before_6_16_a_warning() {
    assert_eq!(kernel(&release("6.5.0")).level, Level::Problem);
    assert_eq!(kernel(&release("6.12.3-generic")).level, Level::Warning);
    assert_eq!(kernel(&release("6.16.0")).level, Level::Ok);
    assert_eq!(kernel(&Err("?".into())).level, Level::Problem);
}

#[test]
fn a_device_that_is_missing_and_one_that_may_not_be_opened_are_told_apart() {
    assert_eq!(device(&Ok(())).level, Level::Ok);
    let missing = device(&Err(ErrorKind::NotFound));
    let denied = device(&Err(ErrorKind::PermissionDenied));
    assert!(missing.found.contains("not there") && denied.found.contains("may not"));
    assert_eq!(
        (missing.level, denied.level),
        (Level::Problem, Level::Problem)
    );
}

#[test]
fn small_buffers_are_a_warning_that_says_which_sysctl() {
    let wanted = 8 << 20;
    let of = |receive| leasefs_transport::Buffers {
        receive,
        send: wanted,
        wanted,
    };
    assert_eq!(buffers(&Ok(of(wanted))).level, Level::Ok);
    let small = buffers(&Ok(of(212_992)));
    assert_eq!(small.level, Level::Warning);
    assert!(
        small
            .advice
            .is_some_and(|advice| advice.contains("net.core.rmem_max=8388608"))
    );
}

#[test]
fn a_clock_that_is_slewed_faster_than_leases_allow_for_is_a_problem() {
    let of = |boot_us| Clocks {
        boot: Duration::from_micros(boot_us),
        raw: Duration::from_secs(1),
        slept: Duration::ZERO,
    };
    assert_eq!(clock(&of(1_000_400)).level, Level::Ok);
    assert_eq!(clock(&of(999_600)).level, Level::Ok);
    assert_eq!(clock(&of(1_050_000)).level, Level::Problem);
    assert_eq!(clock(&of(950_000)).level, Level::Problem);
}

fn refused(refused: Refused) -> Check {
    let found = ServerFound {
        name: "nas:4430".into(),
        others: Vec::new(),
        enrolled: false,
        reached: Err(refused),
    };
    let checks = server(&found);
    assert_eq!(
        checks.len(),
        1,
        "of a server that isn't reached nothing else is known"
    );
    assert_eq!(checks[0].level, Level::Problem);
    checks[0].clone()
}

#[test]
fn a_server_that_may_be_gone_for_good_is_told_once_by_all_its_names_with_how_to_forget_it() {
    let found = ServerFound {
        name: "nas:4430".into(),
        others: vec!["10.0.0.7:4430".into()],
        enrolled: true,
        reached: Err(Refused::Silent),
    };
    let [check] = &server(&found)[..] else {
        panic!("more than one line")
    };
    assert!(check.found.contains("10.0.0.7:4430"), "{}", check.found);
    let advice = check.advice.as_deref().unwrap_or_default();
    assert!(advice.ends_with("`fsclient forget nas:4430`"), "{advice}");
}

#[test]
fn why_a_server_is_not_reached_is_told_apart_with_what_to_do() {
    let key = KeyHash([7; 32]);
    let all = [
        Refused::Unknown("no such name".into()),
        Refused::Closed,
        Refused::Unroutable("no route".into()),
        Refused::Silent,
        Refused::NotEnrolled,
        Refused::Hello(HelloRefusal::Version {
            expected: 9,
            found: 8,
        }),
        Refused::Hello(HelloRefusal::Revoked(key)),
    ];
    let said: Vec<Check> = all.map(refused).to_vec();
    for (at, check) in said.iter().enumerate() {
        assert!(check.advice.is_some());
        let others = said.iter().skip(at + 1);
        assert!(others.clone().all(|other| other.found != check.found));
    }
}

#[test]
fn a_servers_words_forge_no_line() {
    let hostile = HelloRefusal::Internal("x\n  ok  all is well\u{1b}[2J".into());
    let check = refused(Refused::Hello(hostile));
    assert!(!check.found.contains(['\n', '\u{1b}']), "{:?}", check.found);
}

const NEAR: Reached = Reached {
    rtt: Duration::from_millis(1),
    term: Duration::from_secs(10),
    identity: "squash",
    datagram: 1452,
    route_mtu: None,
};

#[test]
fn a_term_of_few_round_trips_is_a_warning_and_one_that_is_felt_is_another() {
    let of = |rtt, term| {
        let (rtt, term) = (Duration::from_millis(rtt), Duration::from_secs(term));
        let reached = Reached { rtt, term, ..NEAR };
        answers("server nas", &reached)
    };
    assert_eq!(of(1, 10).level, Level::Ok);
    let (far, short) = (of(600, 10), of(600, 4));
    assert_eq!(far.level, Level::Warning);
    assert_eq!(short.level, Level::Warning);
    assert_ne!(far.advice, short.advice);
}

#[test]
fn a_path_that_drops_what_its_route_should_carry_is_a_warning() {
    let of = |datagram, route_mtu| {
        let reached = Reached {
            datagram,
            route_mtu,
            ..NEAR
        };
        path("server nas", &reached).level
    };
    assert_eq!(of(1452, Some(1500)), Level::Ok);
    assert_eq!(
        of(1200, Some(1280)),
        Level::Ok,
        "as small as the route says"
    );
    assert_eq!(of(1200, Some(1500)), Level::Warning);
}

#[test]
fn what_is_kept_and_a_full_disk_are_warnings_and_a_foreign_directory_a_problem() {
    let found = StateFound {
        path: "/s".into(),
        usable: Err("belongs to another user".into()),
        room: Some(1 << 20),
        kept: Ok(2),
    };
    let levels: Vec<Level> = state(&found).iter().map(|check| check.level).collect();
    assert_eq!(levels, [Level::Problem, Level::Warning, Level::Warning]);
}

#[test]
fn a_mount_that_is_not_connected_is_a_problem() {
    let of = |state: &str| {
        mount(&MountFound {
            dir: "/m".into(),
            state: state.into(),
            trouble: None,
        })
    };
    assert_eq!(of("connected").level, Level::Ok);
    for state in ["silent", "disconnected", "dead", "stopped", "hangs"] {
        assert_eq!(of(state).level, Level::Problem, "{state}");
    }
}
