//! How long the session's leases are valid, by the client's own clock.

use crate::planted::{self, Bug};
use crate::time::{BootTime, shortened};
use std::marker::PhantomData;
use std::time::Duration;

/// A difference of both clocks' advance that only a suspend (or a stopped VM) explains.
const JUMP: Duration = Duration::from_millis(50);

/// The client's view of its session's expiry.
///
/// The term counts from the moment a request was *sent* whose reply renews, shortened by drift
/// and a guard; the server counts from the moment it *answered*, lengthened by drift. So the
/// client's view always ends first.
///
/// All durations follow from the term `T`:
///
/// | | | 10 s | 2 s |
/// | --- | --- | --- | --- |
/// | guard | `T / 50`: the clocks' granularity | 200 ms | 40 ms |
/// | kernel guard | `T / 8`, at least `min(T / 4, 500 ms)`: how late a requester may take up a reply | 1.25 s | 500 ms |
/// | sweep lead | `T / 10`: time to drop everything when out of contact | 1 s | 200 ms |
/// | keep-alive | when the newest renewal is older than `T / 3` | 3.3 s | 667 ms |
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionClock {
    term: Duration,
    drift_ppm: u32,
    /// When the request was sent whose reply renewed last; `None` without valid leases.
    renewed: Option<BootTime>,
    /// Renewals by requests sent before this don't count: the leases they renew were dropped.
    void_before: BootTime,
    /// How far CLOCK_BOOTTIME was seen ahead of CLOCK_MONOTONIC at most.
    ahead: Option<Duration>,
    /// Whether the machine is about to sleep, or sleeps.
    asleep: bool,
}

/// What a renewal means for the leases held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// They go on.
    Extends,
    /// The session begins anew: what was held before has expired, or nothing was. Everything
    /// still cached must go ([`super::Leases::expire`]) before anything is cached again.
    Begins,
    /// It says nothing new.
    Stale,
}

/// Proof that the session's leases are valid at the moment it was made.
///
/// It borrows the clock and can't be sent to another thread, so it can't outlive an `.await`
/// of a task that may move. Cached data is read only with it.
#[derive(Debug)]
pub struct Live<'a> {
    kernel: Duration,
    not_send: PhantomData<(&'a SessionClock, *const ())>,
}

impl Live<'_> {
    /// The timeout the kernel may be given for what a lease covers: what is left, less the
    /// kernel guard. May be zero.
    pub fn kernel_timeout(&self) -> Duration {
        self.kernel
    }
}

impl SessionClock {
    /// A clock of a session that has no valid leases.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in that leases are valid for `term` from `sent`, when the request was sent.
    ///
    /// A request sent when the leases had already ended by this clock can't extend them: what
    /// happened in between is unknown. It begins the session anew.
    pub fn renew(&mut self, sent: BootTime, term: Duration, drift_ppm: u32) -> Renewal {
        if sent < self.void_before || self.renewed.is_some_and(|newest| sent <= newest) {
            return Renewal::Stale;
        }
        let goes_on = self.expiry().is_some_and(|expiry| sent < expiry);
        self.term = term;
        self.drift_ppm = drift_ppm;
        self.renewed = Some(sent);
        match goes_on {
            true => Renewal::Extends,
            false => Renewal::Begins,
        }
    }

    /// Ends the leases at `now`; only requests sent from now on renew.
    pub fn end(&mut self, now: BootTime) {
        self.renewed = None;
        self.void_before = self.void_before.max(now);
    }

    /// The machine is about to sleep, or awake again. What the kernel is told before it sleeps would count
    /// on when it wakes.
    pub fn set_asleep(&mut self, asleep: bool) {
        self.asleep = asleep;
    }

    /// Whether the machine is about to sleep, or sleeps.
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// When the leases end; `None` if there are none.
    pub fn expiry(&self) -> Option<BootTime> {
        let valid = shortened(self.term, self.drift_ppm).saturating_sub(self.guard());
        self.renewed.map(|sent| sent + valid)
    }

    /// What is left of the leases' time; zero if they have ended.
    pub fn remaining(&self, now: BootTime) -> Duration {
        self.expiry()
            .map_or(Duration::ZERO, |expiry| expiry.left_at(now))
    }

    /// When a client without contact drops everything, so that it is done before the expiry.
    pub fn sweep_at(&self) -> Option<BootTime> {
        self.expiry().map(|expiry| expiry - self.term / 10)
    }

    /// When a keep-alive is due unless another reply renews before.
    pub fn keep_alive_at(&self) -> Option<BootTime> {
        self.renewed.map(|sent| sent + self.term / 3)
    }

    /// Proof that leases are valid at `now`. `now` must be read after everything that excludes
    /// their loss (the lock on what is cached) has been taken.
    pub fn witness(&self, now: BootTime) -> Option<Live<'_>> {
        let remaining = self.remaining(now);
        (remaining > Duration::ZERO).then(|| Live {
            kernel: match self.asleep && !planted::is(Bug::TimeoutsBeforeSleep) {
                true => Duration::ZERO,
                false if planted::is(Bug::WholeTermTimeout) => self.term,
                false => remaining.saturating_sub(self.kernel_guard()),
            },
            not_send: PhantomData,
        })
    }

    /// Compares both clocks. True if `boot` has advanced further than `monotonic` since the last
    /// look: the machine slept, the kernel's timeouts stood still, everything must be dropped.
    ///
    /// `boot` must be read first: time that passes between the two reads then only makes it seem less
    /// far ahead, and the most that was ever seen is what counts.
    pub fn has_jumped(&mut self, boot: BootTime, monotonic: BootTime) -> bool {
        let ahead = boot.since(monotonic);
        let most = self.ahead.map_or(ahead, |most| most.max(ahead));
        let before = self.ahead.replace(most);
        before.is_some_and(|before| ahead.saturating_sub(before) > JUMP)
            && !planted::is(Bug::SuspendUnnoticed)
    }

    /// The term as last granted; zero before.
    pub fn term(&self) -> Duration {
        self.term
    }

    fn guard(&self) -> Duration {
        self.term / 50
    }

    fn kernel_guard(&self) -> Duration {
        let least = (self.term / 4).min(Duration::from_millis(500));
        (self.term / 8).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(millis * 1_000_000)
    }

    fn renewed(sent: u64) -> SessionClock {
        let mut clock = SessionClock::new();
        assert_eq!(clock.renew(at(sent), TERM, 1_000), Renewal::Begins);
        clock
    }

    #[test]
    fn leases_end_a_term_after_the_request_was_sent_less_drift_and_guard() {
        let clock = renewed(1_000);
        assert_eq!(clock.expiry(), Some(at(1_000 + 10_000 - 10 - 200)));
        assert!(clock.witness(at(10_789)).is_some());
        assert!(clock.witness(at(10_790)).is_none());
    }

    #[test]
    fn without_a_renewal_nothing_is_live() {
        assert!(SessionClock::new().witness(at(0)).is_none());
    }

    #[test]
    fn a_renewal_that_was_sent_earlier_changes_nothing() {
        let mut clock = renewed(1_000);
        assert_eq!(clock.renew(at(999), TERM, 1_000), Renewal::Stale);
        assert_eq!(clock.renew(at(2_000), TERM, 1_000), Renewal::Extends);
        assert_eq!(clock.expiry(), Some(at(11_790)));
    }

    #[test]
    fn a_request_sent_after_the_leases_ended_begins_anew() {
        let mut clock = renewed(1_000);
        assert_eq!(clock.renew(at(10_790), TERM, 1_000), Renewal::Begins);
    }

    #[test]
    fn a_request_sent_in_time_extends_although_its_reply_comes_after_the_end() {
        let mut clock = renewed(1_000);
        assert!(clock.witness(at(11_000)).is_none());
        assert_eq!(clock.renew(at(10_000), TERM, 1_000), Renewal::Extends);
        assert!(clock.witness(at(11_000)).is_some());
    }

    #[test]
    fn what_was_dropped_is_not_revived_by_a_reply_under_way() {
        let mut clock = renewed(1_000);
        clock.end(at(9_000));
        assert_eq!(clock.renew(at(8_999), TERM, 1_000), Renewal::Stale);
        assert!(clock.witness(at(9_001)).is_none());
        assert_eq!(clock.renew(at(9_000), TERM, 1_000), Renewal::Begins);
    }

    #[test]
    fn from_before_sleep_until_after_it_the_kernel_is_told_nothing_to_believe() {
        let mut clock = renewed(1_000);
        let told = |clock: &SessionClock| clock.witness(at(1_001)).map(|l| l.kernel_timeout());
        clock.set_asleep(true);
        assert_eq!(told(&clock), Some(Duration::ZERO));
        assert_eq!(clock.renew(at(2_000), TERM, 1_000), Renewal::Extends);
        assert_eq!(told(&clock), Some(Duration::ZERO));
        clock.set_asleep(false);
        assert!(told(&clock) > Some(Duration::ZERO));
    }

    #[test]
    fn the_kernel_gets_less_than_what_is_left() {
        let long = renewed(0);
        let timeout =
            |clock: &SessionClock, now| clock.witness(at(now)).map(|l| l.kernel_timeout());
        assert_eq!(
            timeout(&long, 0),
            Some(Duration::from_millis(9_790 - 1_250))
        );
        assert_eq!(timeout(&long, 9_000), Some(Duration::ZERO));
        let mut short = SessionClock::new();
        short.renew(at(0), Duration::from_secs(2), 0);
        assert_eq!(timeout(&short, 0), Some(Duration::from_millis(1_960 - 500)));
    }

    #[test]
    fn keep_alive_and_sweep_come_in_time() {
        let clock = renewed(0);
        assert_eq!(clock.keep_alive_at(), Some(at(0) + TERM / 3));
        assert_eq!(clock.sweep_at(), Some(at(9_790 - 1_000)));
    }

    #[test]
    fn clocks_read_far_apart_are_no_jump() {
        let mut clock = SessionClock::new();
        assert!(!clock.has_jumped(at(5_000), at(1_000)));
        assert!(!clock.has_jumped(at(6_000), at(2_500)));
        assert!(!clock.has_jumped(at(7_000), at(3_000)));
    }

    #[test]
    fn only_a_suspend_is_a_jump() {
        let mut clock = SessionClock::new();
        assert!(!clock.has_jumped(at(5_000), at(1_000)));
        assert!(!clock.has_jumped(at(65_010), at(61_000)));
        assert!(clock.has_jumped(at(70_000), at(61_001)));
        assert!(!clock.has_jumped(at(70_001), at(61_002)));
    }
}
