//! What is counted while the server runs.

use crate::traffic::Connections;
use leasefs_protocol::Request;
use leasefs_protocol::latency::{ByKind, Histogram};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of all sessions together, ended ones too.
#[derive(Debug, Default)]
pub struct Meters {
    /// How long requests took that were answered, from when they had come.
    pub requests: ByKind,
    /// Keep-alives.
    pub renewals: AtomicU64,
    /// Connections closed because their client broke the protocol.
    pub violations: AtomicU64,
    /// How long it took to make files durable.
    pub syncs: Histogram,
    /// What has passed on connections.
    pub connections: Arc<Connections>,
}

/// Requests of one session, by kind.
#[derive(Debug)]
pub struct Counters {
    kinds: [AtomicU64; Request::KINDS],
    renewals: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            kinds: std::array::from_fn(|_| AtomicU64::default()),
            renewals: AtomicU64::default(),
        }
    }
}

impl Counters {
    /// Counts a request.
    pub fn count(&self, request: &Request) {
        let kind = request.kind();
        let place = Request::kinds().position(|known| known == kind);
        if let Some(count) = place.and_then(|at| self.kinds.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a keep-alive.
    pub fn renewed(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Keep-alives.
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Requests by kind; kinds without any left out.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let counts = self.kinds.iter().map(|count| count.load(Ordering::Relaxed));
        Request::kinds()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| (kind.to_owned(), count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::{Handle, OpenId, query};

    #[test]
    fn counts_are_told_by_kind_and_kinds_without_any_are_left_out() {
        let counters = Counters::default();
        let object = Handle::new(&[1]).expect("one byte");
        let getattr = Request::Query(query::GetAttr { object }.into());
        counters.count(&getattr);
        counters.count(&getattr);
        let opens = vec![OpenId(1)];
        counters.count(&Request::Query(query::Close { opens }.into()));
        let expected = [("close".to_owned(), 1), ("getattr".to_owned(), 2)];
        assert_eq!(counters.by_kind(), BTreeMap::from(expected));
    }
}
