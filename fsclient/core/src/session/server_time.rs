//! The server's clock, as far as its answers tell.
//!
//! Buffered writes get the time at which they were made, though the server sees them later: else a
//! file would seem newer than what was written after it, which misleads `make`.

use leasefs_lease::time::BootTime;
use leasefs_protocol::answer::{Created, Entries, Object, Opened};
use leasefs_protocol::{Reply, Response, Timestamp};

/// Places what is written now between what the server has dated already, as far as this client was
/// told, and what it will date from now on.
#[derive(Debug, Default)]
pub(super) struct ServerTime {
    /// The latest date it has told.
    told: Option<Timestamp>,
    /// Its clock was at least so far ahead of the local boot time, in nanoseconds.
    ahead: i128,
}

const SECOND: i128 = 1_000_000_000;
/// A host dates by its last tick: by so many nanoseconds too early, at most (100 Hz).
const TICK: i128 = 10_000_000;

/// The latest date in an answer. Whatever shows a change has it: what is written behind that must not be
/// dated before.
pub(super) fn latest(reply: &Reply) -> Option<Timestamp> {
    let touched = reply.touched.iter().map(|touched| touched.attr.ctime);
    let asked = match &reply.result {
        Ok(
            Response::Attr(attr)
            | Response::Object(Object { attr, .. })
            | Response::Opened(Opened { attr, .. })
            | Response::Created(Created { attr, .. }),
        ) => Some(attr.ctime),
        Ok(Response::Entries(Entries { entries, .. })) => {
            let nodes = entries.iter().filter_map(|entry| entry.node.as_ref());
            nodes.map(|(_, attr)| attr.ctime).max()
        }
        _ => None,
    };
    touched.chain(asked).max()
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.seconds) * SECOND + i128::from(time.nanos)
}

fn timestamp(nanos: i128) -> Option<Timestamp> {
    Some(Timestamp {
        seconds: i64::try_from(nanos.div_euclid(SECOND)).ok()?,
        nanos: u32::try_from(nanos.rem_euclid(SECOND)).ok()?,
    })
}

impl ServerTime {
    /// An answer has come by now that told this date.
    pub(super) fn heard(&mut self, now: BootTime, date: Timestamp) {
        let ahead = nanos(date) - i128::from(now.as_nanos());
        self.ahead = match self.told {
            Some(_) => self.ahead.max(ahead),
            None => ahead,
        };
        self.told = self.told.max(Some(date));
    }

    /// The date of what is written now; `None` if nothing is known of the server's clock.
    pub(super) fn date(&self, now: BootTime) -> Option<Timestamp> {
        let at_least = timestamp(i128::from(now.as_nanos()) + self.ahead - TICK);
        self.told
            .map(|told| at_least.map_or(told, |time| time.max(told)))
    }

    /// Whether a host may give this date to what is done now, as far as is known: by its last tick.
    pub(super) fn is_of(&self, now: BootTime, date: Timestamp) -> bool {
        let since = |at: Timestamp| nanos(at) - nanos(date);
        self.date(now).is_some_and(|at| since(at) < TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn second(seconds: u64) -> BootTime {
        BootTime::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn without_an_answer_nothing_is_dated() {
        assert_eq!(ServerTime::default().date(second(5)), None);
    }

    #[test]
    fn a_date_is_of_now_for_a_tick_and_while_nothing_shows_that_it_is_not() {
        let mut time = ServerTime::default();
        assert!(!time.is_of(second(5), date(1000)));
        time.heard(second(5), date(1000));
        let later = |milliseconds| second(5) + std::time::Duration::from_millis(milliseconds);
        assert!(time.is_of(later(19), date(1000)));
        assert!(!time.is_of(later(20), date(1000)));
        time.heard(later(10), date(1001));
        assert!(!time.is_of(later(10), date(1000)));
    }

    #[test]
    fn what_is_written_now_is_not_dated_before_what_the_server_has_told() {
        let mut time = ServerTime::default();
        time.heard(second(5), date(1000));
        time.heard(second(5), date(900));
        assert_eq!(time.date(second(5)), Some(date(1000)));
    }

    #[test]
    fn what_is_written_now_is_dated_a_tick_earlier_than_the_server_would_at_the_earliest() {
        let mut time = ServerTime::default();
        time.heard(second(5), date(1000));
        // This answer was three seconds on its way, or of an old change.
        time.heard(second(9), date(1001));
        let expected = Timestamp {
            seconds: 1004,
            nanos: 990_000_000,
        };
        assert_eq!(time.date(second(10)), Some(expected));
    }
}
