//! The load generator, small: what it does holds, whatever it costs on this machine.

use leasefs_tests::load::{Plan, run};
use leasefs_tests::mounted::within;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const PLAN: Plan = Plan {
    sessions: 50,
    files: 100,
    of_one_client: 8,
    holders: 40,
    idle: Duration::from_secs(4),
    address: IpAddr::V4(Ipv4Addr::LOCALHOST),
};
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn many_sessions_renew_their_leases_give_one_up_and_have_the_rest_again_after_a_restart() {
    let (report, _) = within("a small load", LIMIT, || run(PLAN).expect("all goes well"));
    println!("{report}");
    let value = |what: &str| {
        let row = report.rows.iter().find(|row| row.what.starts_with(what));
        row.unwrap_or_else(|| panic!("nothing on {what}: {report}"))
            .value
    };
    // Of each its files, their directory and the root.
    assert_eq!(value("leases") as usize, PLAN.sessions * (PLAN.files + 2));
    let measured = report.rows.iter().filter(|row| row.target.is_some());
    assert_eq!(measured.count(), 4);
    // A lease that is kept as a tree of its own, or by its name, is noticed here already.
    assert!(value("memory of a lease") < 1000.0, "{report}");
}
