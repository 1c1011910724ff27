//! How many requests of each kind were answered.

use leasefs_protocol::{Change, Query, Request};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

const KINDS: usize = Query::KINDS.len() + Change::KINDS.len();

/// Every kind of request, as [`Request::kind`] names them.
fn kinds() -> impl Iterator<Item = &'static str> {
    Query::KINDS.iter().chain(Change::KINDS).copied()
}

/// Counts by kind.
#[derive(Debug)]
pub struct Counters {
    kinds: [AtomicU64; KINDS],
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
        let place = kinds().position(|known| known == kind);
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
        kinds()
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
