//! What a mount tells Prometheus: its status, and how long things took.

use super::status::MountStatus;
use crate::session::Facts;
use leasefs_metrics::Page;
use leasefs_protocol::latency::Counts;
use std::collections::BTreeMap;
use std::time::Duration;

/// What all names begin with.
pub(super) const PREFIX: &str = "leasefs_client";

/// What is measured and not part of the status.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// How long requests took, by kind.
    pub(super) took: Vec<(&'static str, Counts)>,
    /// How long it took until recalls were approved.
    pub(super) approved: Counts,
    /// Of the connection.
    pub(super) facts: Facts,
    /// How often bytes could not be brought in that are still kept.
    pub(super) left_behind: usize,
}

/// Puts what a mount looks like on a page.
pub(super) fn tell(page: &mut Page, status: &MountStatus, measured: &Measured) {
    tell_requests(page, status, measured);
    tell_leases(page, status, measured.approved);
    tell_memory(page, status, measured.left_behind);
    tell_session(page, status);
    tell_network(page, &measured.facts);
}

fn tell_requests(page: &mut Page, status: &MountStatus, measured: &Measured) {
    page.counters(
        "requests",
        "Requests sent, again after a lost connection too; keep-alives apart.",
        "kind",
        counted(&status.session.requests),
    );
    page.histograms(
        "request_seconds",
        "From when a request was to be sent until its answer came.",
        "kind",
        measured.took.iter().copied(),
    );
    page.counter("renewals", "Keep-alives sent.", status.session.renewals);
    page.counter(
        "kernel_requests",
        "Requests of the kernel, what it forgets apart.",
        status.kernel_requests,
    );
    page.counters(
        "cache_answers",
        "Looks into the cache that have saved a request of this kind.",
        "kind",
        counted(&status.cache_answers),
    );
}

fn counted(counts: &BTreeMap<String, u64>) -> impl Iterator<Item = (&String, u64)> {
    counts.iter().map(|(kind, count)| (kind, *count))
}

fn tell_leases(page: &mut Page, status: &MountStatus, approved: Counts) {
    let leases = counted(&status.leases);
    page.gauges(
        "leases",
        "Objects on which leases are held, by what they cover; objects: that have any.",
        "part",
        leases.map(|(part, count)| (part, count as f64)),
    );
    page.gauge(
        "lease_left_seconds",
        "What is left of the leases by this client's clock.",
        seconds(status.lease_ms_left),
    );
    page.gauge(
        "recalls_open",
        "Recalls that are not approved.",
        status.recalls_open as f64,
    );
    page.histogram(
        "recall_seconds",
        "From when a recall came until it was approved.",
        approved,
    );
    let held = status.locks.iter().filter(|l| l.token.is_some()).count();
    let waited = status.locks.len() - held;
    page.gauges(
        "locks",
        "File locks of this mount's processes.",
        "state",
        [("held", held as f64), ("waited", waited as f64)],
    );
}

fn tell_memory(page: &mut Page, status: &MountStatus, left_behind: usize) {
    let memory = &status.memory;
    let uses = [
        ("cached", memory.cached),
        ("clean", memory.clean),
        ("dirty", memory.dirty),
        ("unstable", memory.unstable),
    ];
    page.gauges(
        "memory_bytes",
        "Memory in use; unstable: by what the server has, but not yet its disk.",
        "use",
        uses.map(|(of, bytes)| (of, bytes as f64)),
    );
    page.gauge(
        "memory_limit_bytes",
        "Memory that may be used.",
        memory.limit as f64,
    );
    page.gauge(
        "dirty_bytes",
        "Bytes written that the server doesn't have yet.",
        status.dirty.bytes as f64,
    );
    page.gauge(
        "dirty_files",
        "Files that have such bytes.",
        status.dirty.files as f64,
    );
    page.gauge(
        "undelivered",
        "How often since it was mounted bytes could not be brought to the server that are still kept for recovery.",
        left_behind as f64,
    );
}

fn tell_session(page: &mut Page, status: &MountStatus) {
    let session = &status.session;
    let is = |state: &str| f64::from(u8::from(session.state == state));
    page.gauges(
        "state",
        "1 for how the connection stands; silent: nothing comes.",
        "state",
        ["connected", "silent", "disconnected"].map(|state| (state, is(state))),
    );
    page.counter(
        "reconnects",
        "Connections after the first.",
        session.reconnects,
    );
    let waiting = session.waiting.len() as f64;
    page.gauges(
        "waiting",
        "Requests that have waited longer than 100 ms: for the server's answer, or for a connection that works.",
        "reason",
        [
            ("answer", waiting * is("connected")),
            ("connection", waiting * (1.0 - is("connected"))),
        ],
    );
    page.gauge("opens", "Files open at the server.", session.opens as f64);
}

fn tell_network(page: &mut Page, facts: &Facts) {
    let traffic = facts.traffic;
    page.counter("sent_bytes", "UDP bytes sent.", traffic.bytes_sent);
    page.counter(
        "received_bytes",
        "UDP bytes received.",
        traffic.bytes_received,
    );
    page.counter("sent_packets", "QUIC packets sent.", traffic.packets_sent);
    page.counter(
        "lost_packets",
        "QUIC packets sent that count as lost; what they carried was sent again.",
        traffic.packets_lost,
    );
    page.counter(
        "congestions",
        "How often losses have made the congestion window smaller.",
        traffic.congestions,
    );
    page.gauge(
        "congestion_window_bytes",
        "How much may be under way to the server; 0 without connection.",
        facts.window.unwrap_or(0) as f64,
    );
    page.gauge(
        "rtt_seconds",
        "Round-trip time; 0 without connection.",
        facts.rtt.unwrap_or(Duration::ZERO).as_secs_f64(),
    );
}

fn seconds(millis: u64) -> f64 {
    Duration::from_millis(millis).as_secs_f64()
}
