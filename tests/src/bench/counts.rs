//! What work has cost, as daemons and the kernel tell it.

use crate::mounted::Requests;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// What the daemons of a system have done so far.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Requests its clients have sent.
    pub requests: Requests,
    /// Requests the kernel has made of its clients.
    pub kernel: u64,
    /// UDP datagrams sent and received by the clients; a batch that is sent or received at once is one.
    pub datagrams: u64,
    /// Processor time of the server.
    pub server: Duration,
    /// Processor time of the clients.
    pub clients: Duration,
}

/// What some operations have cost, each on average.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Costs {
    /// How many they were.
    pub operations: u64,
    /// Requests sent.
    pub requests: f64,
    /// Requests of the kernel.
    pub kernel_requests: f64,
    /// Datagrams, to and fro.
    pub datagrams: f64,
    /// Microseconds of processor time at the server.
    pub server_us: f64,
    /// Microseconds of processor time at the clients.
    pub client_us: f64,
    /// Requests sent by all of them, by kind.
    pub kinds: BTreeMap<String, u64>,
}

impl Counters {
    /// What so many operations have cost that were made since `earlier`.
    pub fn since(&self, earlier: &Self, operations: u64) -> Costs {
        let each = |sum: f64| sum / operations.max(1) as f64;
        let micros =
            |now: Duration, then: Duration| each(now.saturating_sub(then).as_secs_f64() * 1e6);
        let requests = self.requests.since(&earlier.requests);
        Costs {
            operations,
            requests: each(requests.total() as f64),
            kernel_requests: each(self.kernel.saturating_sub(earlier.kernel) as f64),
            datagrams: each(self.datagrams.saturating_sub(earlier.datagrams) as f64),
            server_us: micros(self.server, earlier.server),
            client_us: micros(self.clients, earlier.clients),
            kinds: requests.0,
        }
    }
}

/// Processor time that a process has used.
///
/// # Errors
/// If there is none.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: it writes `clock`, which is one.
    let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes `time`, which is one.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// If there is none.
pub fn resident(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// UDP datagrams that went in and out where that process has its network.
///
/// # Errors
/// If there is none.
pub fn datagrams(pid: u32) -> io::Result<u64> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/snmp"))?;
    in_and_out(&table).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn in_and_out(table: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let named = names.split_whitespace().zip(values.split_whitespace());
    let counted = named.filter(|(name, _)| matches!(*name, "InDatagrams" | "OutDatagrams"));
    counted.map(|(_, value)| value.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_what_has_grown_for_each_operation() {
        let requests = |reads| {
            Requests(BTreeMap::from([
                ("read".to_owned(), reads),
                ("open".to_owned(), 3),
            ]))
        };
        let earlier = Counters {
            requests: requests(1),
            kernel: 10,
            server: Duration::from_micros(50),
            ..Counters::default()
        };
        let later = Counters {
            requests: requests(5),
            kernel: 30,
            server: Duration::from_micros(90),
            ..earlier.clone()
        };
        let costs = later.since(&earlier, 4);
        assert_eq!(
            (costs.requests, costs.kernel_requests, costs.client_us),
            (1.0, 5.0, 0.0)
        );
        assert!((costs.server_us - 10.0).abs() < 1e-6, "{costs:?}");
        assert_eq!(costs.kinds, BTreeMap::from([("read".to_owned(), 4)]));
    }

    #[test]
    fn datagrams_are_found_by_the_names_of_their_columns() {
        let table = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams\nUdp: 7 1 0 5\nUdpLite: InDatagrams\nUdpLite: 9\n";
        assert_eq!(in_and_out(table), Some(12));
        assert_eq!(in_and_out("Tcp: a\nTcp: 1\n"), None);
    }

    #[test]
    fn a_process_that_works_uses_processor_time() {
        let pid = std::process::id();
        let before = cpu_time(pid).expect("this process");
        while cpu_time(pid).expect("this process") == before {}
        assert!(resident(pid).expect("this process") > 1 << 20);
    }
}
