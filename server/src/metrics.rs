//! What a running server tells Prometheus: the account that `fsserver status` is made of, without what
//! has to ask the disk.

use crate::counters::Meters;
use crate::runtime::Snapshot;
use crate::server::Server;
use crate::traffic::Sum;
use leasefs_lease::server::Waiting;
use leasefs_metrics::Page;
use leasefs_protocol::latency::Counts;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What all names begin with.
pub const PREFIX: &str = "leasefs_server";

/// Sessions at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sessions {
    connected: usize,
    away: usize,
    opens: usize,
}

impl Server {
    /// Puts what it looks like now on a page. Never asks the disk, which may hang.
    pub fn tell(&self, page: &mut Page) {
        let snapshot = self.leases.snapshot();
        tell_requests(page, &self.meters, self.records.journal_writes());
        tell_sessions(page, &self.sessions(), &snapshot);
        tell_leases(page, &snapshot);
        tell_waits(page, &snapshot);
        tell_network(page, &self.meters.connections.sum());
        page.gauge(
            "state_unwritable",
            "1 if the state directory couldn't be written when that was last tried: changes and new sessions are refused.",
            f64::from(u8::from(self.records.trouble().is_some())),
        );
        let term = self.settings.term.as_secs_f64();
        page.gauge("term_seconds", "Term of leases.", term);
    }

    fn sessions(&self) -> Sessions {
        let mut sessions = Sessions::default();
        for session in self.sessions.all() {
            match session.link() {
                Some(_) => sessions.connected += 1,
                None => sessions.away += 1,
            }
            sessions.opens += session.opens.len();
        }
        sessions
    }
}

fn tell_requests(page: &mut Page, meters: &Meters, journal: Counts) {
    page.histograms(
        "request_seconds",
        "From when a request had come until its answer was on its way.",
        "kind",
        meters.requests.counts(),
    );
    page.counter(
        "renewals",
        "Keep-alives answered.",
        meters.renewals.load(Ordering::Relaxed),
    );
    page.counter(
        "violations",
        "Connections closed because their client broke the protocol.",
        meters.violations.load(Ordering::Relaxed),
    );
    page.histogram(
        "journal_write_seconds",
        "How long it took to write to the journal, which is not made durable.",
        journal,
    );
    page.histogram(
        "sync_seconds",
        "How long it took the host to make files durable.",
        meters.syncs.counts(),
    );
}

fn tell_sessions(page: &mut Page, sessions: &Sessions, snapshot: &Snapshot) {
    let states = [("connected", sessions.connected), ("away", sessions.away)];
    page.gauges(
        "sessions",
        "Mounts, those without a connection for which it waits among them.",
        "state",
        states.map(|(state, count)| (state, count as f64)),
    );
    let denied = snapshot.sessions.iter().map(|s| s.denied_until);
    page.gauge(
        "sessions_denied",
        "Sessions that get no leases because their client has held others up.",
        denied.flatten().count() as f64,
    );
    page.counter(
        "sessions_expired",
        "How often the leases of a session have ended because its client wasn't heard of in time.",
        snapshot.expired,
    );
    page.gauge(
        "opens",
        "Files that sessions have open.",
        sessions.opens as f64,
    );
}

fn tell_leases(page: &mut Page, snapshot: &Snapshot) {
    let sessions = &snapshot.sessions;
    let leases: usize = sessions.iter().map(|s| s.leases).sum();
    page.gauge(
        "leases",
        "Objects that sessions hold a lease on, each session's counted.",
        leases as f64,
    );
    let open: usize = sessions.iter().map(|s| s.recalls).sum();
    page.gauge(
        "recalls_open",
        "Recalls that are not approved.",
        open as f64,
    );
    page.counter("recalls", "Recalls sent.", snapshot.recalled);
    page.histogram(
        "recall_seconds",
        "From when a recall was sent until it was approved. Others have ended with their session's leases, \
         or were covered by later ones.",
        snapshot.approved,
    );
    page.gauge(
        "term_zero_files",
        "Files that bounce between mounts, and directories where others look: writes to these, or to what is new there, aren't buffered.",
        snapshot.term_zero.len() as f64,
    );
}

fn tell_waits(page: &mut Page, snapshot: &Snapshot) {
    let waiting = snapshot.waiting.iter().map(|(_, waiting)| reason(waiting));
    let levels = ["recall", "turn", "grace"].map(|of| {
        let count = waiting.clone().filter(|reason| *reason == of).count();
        (of, count as f64)
    });
    page.gauges(
        "waiting",
        "Operations that wait: for the approval of a recall, for their turn behind others, for the end of the grace.",
        "reason",
        levels,
    );
    let held = snapshot.locks.iter().filter(|l| l.fence.is_some()).count();
    let wanted = snapshot.locks.len() - held;
    page.gauges(
        "locks",
        "File locks, 4096 of them at most.",
        "state",
        [("held", held as f64), ("waited", wanted as f64)],
    );
    let grace = snapshot.grace_until.map(|at| at.left_at(snapshot.now));
    page.gauge(
        "grace_seconds",
        "What is left of the grace after a restart, in which changes wait.",
        grace.unwrap_or_default().as_secs_f64(),
    );
}

/// What an operation waits for, first of all.
fn reason(waiting: &Waiting) -> &'static str {
    match (waiting.grace, waiting.holders.is_empty()) {
        (true, _) => "grace",
        (false, false) => "recall",
        (false, true) => "turn",
    }
}

fn tell_network(page: &mut Page, sum: &Sum) {
    let traffic = sum.traffic;
    page.counter(
        "connections",
        "Connections of sessions, earlier ones too.",
        sum.begun,
    );
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
    page.gauge(
        "rtt_max_seconds",
        "The longest round-trip time of a connection.",
        sum.slowest.unwrap_or(Duration::ZERO).as_secs_f64(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_lease::server::OpId;
    use leasefs_lease::time::BootTime;
    use leasefs_protocol::{RecallId, SessionId};

    fn waiting(holders: usize, grace: bool) -> Waiting {
        let holder = (SessionId::default(), RecallId(1));
        Waiting {
            op: OpId(1),
            session: SessionId::default(),
            since: BootTime::ZERO,
            holders: vec![holder; holders],
            behind: Vec::new(),
            grace,
            until: None,
        }
    }

    #[test]
    fn what_waits_is_counted_once_under_what_it_waits_for_first() {
        assert_eq!(reason(&waiting(0, false)), "turn");
        assert_eq!(reason(&waiting(2, false)), "recall");
        assert_eq!(reason(&waiting(2, true)), "grace");
    }

    #[test]
    fn a_server_that_has_done_nothing_tells_its_counters_as_zero() {
        let mut page = Page::default();
        tell_requests(&mut page, &Meters::default(), Counts::default());
        tell_network(&mut page, &Sum::default());
        let text = page.text(PREFIX);
        for line in [
            "leasefs_server_violations_total 0",
            "leasefs_server_journal_write_seconds_count 0",
            "leasefs_server_lost_packets_total 0",
            "leasefs_server_rtt_max_seconds 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
