//! What an operation may cost at most, counted.
//!
//! A row that needs less than it says here is to be given a lower limit: what was won is not to be lost again unseen.

use super::counts::Costs;
use std::time::Duration;

/// Of a row at the scale `smoke`, for each operation on average.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Of that row.
    pub row: &'static str,
    /// Requests sent.
    pub requests: f64,
    /// Requests of the kernel.
    pub kernel: f64,
    /// Round trips, where one operation waits for the other.
    pub trips: Option<u32>,
}

/// Each row's, once.
#[rustfmt::skip]
pub const LIMITS: [Limit; 27] = [
    //                      requests  of the kernel  round trips
    limit("open",                    0.00,         3.10,     None),
    limit("stat",                    0.00,         0.10,     None),
    limit("read",                    0.00,         1.00,     None),
    limit("ls-cold",                 7.00,       220.00, Some(13)),
    limit("ls",                      0.00,        10.00,     None),
    limit("ls-new",                  4.00,        12.00,  Some(6)),
    limit("open-cold",               1.30,         5.20,  Some(2)),
    limit("read-cold",               1.50,         2.00,     None),
    limit("random-cold",             1.10,         1.30,  Some(1)),
    limit("random16-cold",           1.10,         1.30,     None),
    limit("write-sync",              6.00,         3.00,     None),
    limit("write",                   2.00,       260.00,     None),
    limit("create",                  2.10,         6.50,  Some(1)),
    limit("create4",                 3.70,         7.60,     None),
    limit("rename",                  1.10,         4.10,  Some(1)),
    limit("unlink",                  1.10,         4.10,  Some(1)),
    limit("untar",                   6.90,        24.00,  Some(6)),
    limit("git-clone",              23.50,       150.00,     None),
    limit("git-status",              2.20,       270.00,     None),
    limit("git-status-cold",       180.00,       330.00, Some(42)),
    limit("sqlite",                  9.60,        52.00, Some(13)),
    limit("append-sync",             1.30,         2.50,  Some(1)),
    limit("log",                     1.20,         6.50,  Some(1)),
    limit("scatter-sync",            1.30,        35.00,  Some(1)),
    limit("ping-pong",               5.00,        11.50,  Some(6)),
    limit("appear",                  5.30,        13.00,  Some(7)),
    limit("written-while-read",    200.00,         MANY,     None),
];

/// As often as readers get to it.
const MANY: f64 = f64::INFINITY;

const fn limit(row: &'static str, requests: f64, kernel: f64, trips: Option<u32>) -> Limit {
    Limit {
        row,
        requests,
        kernel,
        trips,
    }
}

impl Limit {
    /// That of a row.
    pub fn of(row: &str) -> Option<&'static Self> {
        LIMITS.iter().find(|limit| limit.row == row)
    }

    /// What of the costs is above it, for people.
    pub fn exceeded(&self, costs: &Costs) -> Vec<String> {
        let counts = [
            ("requests", costs.requests, self.requests),
            ("requests of the kernel", costs.kernel_requests, self.kernel),
        ];
        // Daemons that don't count keep to every limit.
        let above = counts
            .iter()
            .filter(|(_, count, limit)| count > limit || (*limit >= 1.0 && *count == 0.0));
        above
            .map(|(what, count, limit)| format!("{count:.3} {what}, {limit} allowed"))
            .collect()
    }

    /// The same of the time an operation took on a link with that round-trip time: all that is not a whole round
    /// trip is work.
    pub fn too_far(&self, each: Duration, rtt: Duration) -> Option<String> {
        let (allowed, trips) = (self.trips?, round_trips(each, rtt));
        (trips >= f64::from(allowed) + 1.0)
            .then(|| format!("{trips:.1} round trips, {allowed} allowed"))
    }
}

/// How many fit into that time.
pub fn round_trips(time: Duration, rtt: Duration) -> f64 {
    time.as_secs_f64() / rtt.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_row_has_a_limit() {
        let of_rows = ROWS.map(|row| row.name);
        let mut of_limits = LIMITS.map(|limit| limit.row);
        assert!(of_rows.iter().all(|row| Limit::of(row).is_some()));
        of_limits.sort_unstable();
        assert!(of_limits.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn what_is_above_a_limit_is_told() {
        let limit = limit("row", 2.0, 3.0, Some(1));
        let costs = |requests, kernel_requests| Costs {
            operations: 1,
            requests,
            kernel_requests,
            datagrams: 0.0,
            server_us: 0.0,
            client_us: 0.0,
            kinds: BTreeMap::new(),
        };
        assert_eq!(limit.exceeded(&costs(2.0, 3.0)), Vec::<String>::new());
        assert_eq!(
            limit.exceeded(&costs(2.5, 3.0)),
            ["2.500 requests, 2 allowed"]
        );
        assert_eq!(limit.exceeded(&costs(3.0, 4.0)).len(), 2);
        assert_eq!(
            limit.exceeded(&costs(0.0, 0.0)).len(),
            2,
            "nothing was counted"
        );
        let rtt = Duration::from_millis(40);
        assert_eq!(limit.too_far(rtt + rtt / 2, rtt), None);
        assert_eq!(
            limit.too_far(2 * rtt, rtt).as_deref(),
            Some("2.0 round trips, 1 allowed")
        );
    }
}
