//! How many requests of each kind were answered.

use leasefs_protocol::Request;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every kind of request, as [`Request::kind`] names them.
const KINDS: [&str; 25] = [
    "lookup",
    "getattr",
    "read",
    "write",
    "open",
    "close",
    "create",
    "readdir",
    "setattr",
    "unlink",
    "rename",
    "make",
    "rmdir",
    "link",
    "readlink",
    "getxattr",
    "listxattr",
    "setxattr",
    "removexattr",
    "commit",
    "access",
    "seek",
    "statfs",
    "fallocate",
    "copy_range",
];

/// Counts by kind.
#[derive(Debug, Default)]
pub struct Counters {
    kinds: [AtomicU64; KINDS.len()],
    renewals: AtomicU64,
}

impl Counters {
    /// Counts a request.
    pub fn count(&self, request: &Request) {
        let kind = request.kind();
        let place = KINDS.iter().position(|known| *known == kind);
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
        KINDS
            .iter()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| ((*kind).to_owned(), count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::{Handle, OpenId};

    #[test]
    fn counts_are_told_by_kind_and_kinds_without_any_are_left_out() {
        let counters = Counters::default();
        let object = Handle::new(&[1]).expect("one byte");
        counters.count(&Request::GetAttr { object });
        counters.count(&Request::GetAttr { object });
        counters.count(&Request::Close {
            opens: vec![OpenId(1)],
        });
        let expected = [("close".to_owned(), 1), ("getattr".to_owned(), 2)];
        assert_eq!(counters.by_kind(), BTreeMap::from(expected));
    }
}
