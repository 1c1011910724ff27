//! How fast the server takes bytes in, and what follows from it for what may be dirty.
//!
//! What is dirty when somebody else asks for it must be at the server well within a term. So no more is
//! kept than the way there has been seen to take in half of one, from the first byte on: it begins with
//! what any link takes, and grows with what is measured.

use leasefs_lease::time::BootTime;
use leasefs_protocol::limits::{MAX_PAYLOAD, SLOWEST_LINK};
use std::time::Duration;

/// Nor is a link taken for faster before anything is known.
const SLOWEST: f64 = SLOWEST_LINK as f64;
/// Bytes in one request at least, where there are as many.
const LEAST: usize = 32 << 10;
/// Of what is in flight in one request, so that progress is seen on both sides: this part of a term.
const PART: u32 = 40;
/// What was measured counts for this long, and at most for twice as long, while anything is sent.
const LATELY: Duration = Duration::from_secs(2);

/// The best rates of two times, the present and the one before.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes that were sent and answered.
    answered: u64,
    /// Requests with bytes that aren't answered.
    under_way: u32,
    /// When the last of them was, and when it had been sent.
    last: Option<(BootTime, BootTime)>,
    /// Bytes a second.
    best: [f64; 2],
    since: BootTime,
    /// When bytes last came through, to the server or from it.
    progress: BootTime,
}

/// Bytes on their way to the server.
#[derive(Debug)]
pub(crate) struct Sending {
    at: BootTime,
    bytes: usize,
    answered: u64,
    /// When the request before it was answered, and sent; or when this one was sent, if none was under way.
    last: (BootTime, BootTime),
}

impl Pace {
    /// Bytes are sent.
    pub fn sends(&mut self, now: BootTime, bytes: usize) -> Sending {
        let busy = self.last.filter(|_| self.under_way > 0);
        self.under_way += 1;
        Sending {
            at: now,
            bytes,
            answered: self.answered,
            last: busy.unwrap_or((now, now)),
        }
    }

    /// They are at the server.
    pub fn sent(&mut self, now: BootTime, sending: &Sending) {
        self.under_way = self.under_way.saturating_sub(1);
        self.answered += sending.bytes as u64;
        self.last = Some((now, sending.at));
        self.progress = now;
        // Answers that come together were not sent together: the longer time counts.
        let (answered, sent) = sending.last;
        let took = now.since(answered).max(sending.at.since(sent));
        let bytes = self.answered - sending.answered;
        self.measured(now, bytes as f64 / took.as_secs_f64().max(1e-6));
    }

    /// What has become of them isn't known, or they were refused.
    pub fn not_sent(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Bytes have come from the server.
    pub fn received(&mut self, now: BootTime) {
        self.progress = now;
    }

    /// Nothing has come through yet: that counts from now.
    pub fn begins(&mut self, now: BootTime) {
        self.progress = now;
    }

    /// When bytes last came through.
    pub fn progress(&self) -> BootTime {
        self.progress
    }

    fn measured(&mut self, now: BootTime, rate: f64) {
        if now.since(self.since) >= LATELY {
            self.best = [0.0, self.best[0]];
            self.since = now;
        }
        self.best[0] = self.best[0].max(rate);
    }

    /// Bytes a second that the server takes in, as far as was measured lately.
    pub fn rate(&self) -> Option<f64> {
        let [now, before] = self.best;
        Some(now.max(before)).filter(|rate| *rate > 0.0)
    }

    /// How many bytes are flushed within half of this term.
    pub fn may_be_dirty(&self, term: Duration) -> usize {
        self.within(term / 2)
    }

    /// How many bytes a request should have.
    pub fn request(&self, term: Duration) -> usize {
        const PAGE: usize = 4096;
        let most = self.within(term / PART) / PAGE * PAGE;
        most.clamp(LEAST, MAX_PAYLOAD)
    }

    fn within(&self, time: Duration) -> usize {
        let rate = self.rate().unwrap_or_default().max(SLOWEST);
        (rate * time.as_secs_f64()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);
    const KIB: usize = 1 << 10;

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(millis * 1_000_000)
    }

    /// A link that takes so many bytes a second, and its answers so long to come.
    struct Link {
        rate: u64,
        back: u64,
        free: u64,
    }

    impl Link {
        /// When the answer to bytes that are sent now comes.
        fn answer(&mut self, now: u64, bytes: usize) -> u64 {
            self.free = self.free.max(now) + bytes as u64 * 1_000 / self.rate;
            self.free + self.back
        }
    }

    /// Sends so much through the link in rounds of what may be dirty; returns when that was through, and
    /// the longest that a round took.
    fn flush(pace: &mut Pace, link: &mut Link, mut now: u64, mut bytes: usize) -> (u64, u64) {
        let mut longest = 0;
        while bytes > 0 {
            let begun = now;
            let mut round = pace.may_be_dirty(TERM).min(bytes);
            bytes -= round;
            let mut under_way = Vec::new();
            while round > 0 {
                let len = pace.request(TERM).min(round);
                round -= len;
                under_way.push((pace.sends(at(now), len), link.answer(now, len)));
            }
            for (sending, answered) in under_way {
                now = answered;
                pace.sent(at(now), &sending);
            }
            longest = longest.max(now - begun);
        }
        (now, longest)
    }

    #[test]
    fn no_more_is_dirty_than_goes_within_half_a_term_from_the_first_byte_on() {
        for (rate, back) in [
            (250_000, 300),
            (1_250_000, 100),
            (60_000, 600),
            (125_000_000, 20),
        ] {
            let mut pace = Pace::default();
            let mut link = Link {
                rate,
                back,
                free: 0,
            };
            let (_, longest) = flush(&mut pace, &mut link, 0, 64 << 20);
            assert!(
                longest <= 5_000 + back + 100,
                "{rate} B/s: a round took {longest} ms"
            );
        }
    }

    #[test]
    fn a_fast_link_is_known_for_one_after_a_few_round_trips() {
        let mut pace = Pace::default();
        let mut link = Link {
            rate: 125_000_000,
            back: 20,
            free: 0,
        };
        let (took, _) = flush(&mut pace, &mut link, 0, 8 << 20);
        assert!(took < 300, "{took} ms");
        assert!(pace.may_be_dirty(TERM) > 64 << 20);
        assert_eq!(pace.request(TERM), MAX_PAYLOAD);
    }

    #[test]
    fn a_link_that_grows_slow_is_known_for_one_soon() {
        let mut pace = Pace::default();
        let mut link = Link {
            rate: 12_500_000,
            back: 20,
            free: 0,
        };
        let (now, _) = flush(&mut pace, &mut link, 0, 32 << 20);
        assert!(pace.may_be_dirty(TERM) > 32 << 20);
        link.rate = 250_000;
        let (now, _) = flush(&mut pace, &mut link, now, 2 << 20);
        let (_, longest) = flush(&mut pace, &mut link, now, 4 << 20);
        assert!(longest <= 5_100, "a round took {longest} ms");
    }

    #[test]
    fn answers_that_come_together_say_nothing_of_a_fast_link() {
        let mut pace = Pace::default();
        let sent: Vec<Sending> = (0..16).map(|i| pace.sends(at(i), 64 * KIB)).collect();
        // The server's disk stood still for 10 s.
        for sending in sent.iter().take(15) {
            pace.sent(at(10_000), sending);
        }
        let late = pace.sends(at(10_000), 64 * KIB);
        pace.sent(at(10_001), &sent[15]);
        pace.sent(at(10_002), &late);
        let rate = pace.rate().expect("measured");
        assert!(rate < 200_000.0, "{rate} B/s");
    }

    #[test]
    fn small_requests_now_and_then_leave_room_to_grow_again() {
        let mut pace = Pace::default();
        for second in 0..60 {
            let sending = pace.sends(at(second * 1_000), 100);
            pace.sent(at(second * 1_000 + 20), &sending);
        }
        assert_eq!(pace.may_be_dirty(TERM), 256_000);
        assert_eq!(pace.request(TERM), LEAST);
        let mut link = Link {
            rate: 125_000_000,
            back: 20,
            free: 0,
        };
        flush(&mut pace, &mut link, 60_000, 8 << 20);
        assert!(pace.may_be_dirty(TERM) > 64 << 20);
    }

    #[test]
    fn what_is_given_up_says_nothing() {
        let mut pace = Pace::default();
        let _given_up = pace.sends(at(0), 1 << 20);
        pace.not_sent();
        assert_eq!(pace.rate(), None);
        let sending = pace.sends(at(100_000), 1 << 20);
        pace.sent(at(100_100), &sending);
        assert!(
            pace.rate().is_some_and(|rate| rate > 10_000_000.0),
            "{pace:?}"
        );
    }
}
