//! One direction of a link: what goes in comes out later, in order, and no faster than the line carries it. Pure.

use super::Shape;
use crate::rng::Rng;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What waits for the line to be free is dropped beyond this, or beyond a round trip's worth.
const LEAST_QUEUE: u64 = 256 << 10;
/// Never more packets than these are under way.
const MOST_PACKETS: usize = 1 << 16;

/// A line and what is on it.
#[derive(Debug)]
pub(super) struct Line<P> {
    delay: Duration,
    /// Bytes per second.
    rate: Option<u64>,
    loss_ppm: usize,
    /// The longest that something may wait before its first byte goes out.
    patience: Duration,
    free: Option<Instant>,
    under_way: VecDeque<(Instant, P)>,
    chance: Rng,
}

impl<P> Line<P> {
    /// An empty line. The same seed loses the same.
    pub fn new(shape: &Shape, seed: u64) -> Self {
        let rate = shape.rate.map(|bits| (bits / 8).max(1));
        let queue = |rate: u64| Duration::from_secs_f64(LEAST_QUEUE as f64 / rate as f64);
        Self {
            delay: shape.rtt / 2,
            rate,
            loss_ppm: (shape.loss * 1e6) as usize,
            patience: rate.map_or(Duration::ZERO, |rate| queue(rate).max(shape.rtt)),
            free: None,
            under_way: VecDeque::new(),
            chance: Rng::new(seed),
        }
    }

    /// Takes in a packet that is so long on the wire. It may be lost.
    pub fn send(&mut self, now: Instant, bytes: u64, packet: P) {
        let lost = self.chance.below(1_000_000) < self.loss_ppm;
        if lost || self.under_way.len() >= MOST_PACKETS {
            return;
        }
        let begin = self.free.map_or(now, |free| free.max(now));
        if begin - now > self.patience {
            return;
        }
        let takes = self
            .rate
            .map(|rate| Duration::from_secs_f64(bytes as f64 / rate as f64));
        let sent = begin + takes.unwrap_or_default();
        self.free = Some(sent);
        self.under_way.push_back((sent + self.delay, packet));
    }

    /// When the next packet comes out.
    pub fn next_due(&self) -> Option<Instant> {
        self.under_way.front().map(|(due, _)| *due)
    }

    /// The next packet, if it has come out.
    pub fn receive(&mut self, now: Instant) -> Option<P> {
        self.next_due().filter(|due| *due <= now)?;
        self.under_way.pop_front().map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            rtt: Duration::from_millis(20),
            // 1000 bytes a millisecond.
            rate: Some(8_000_000),
            loss: 0.0,
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_packet_comes_out_after_half_the_round_trip_and_its_own_length() {
        let (mut line, now) = (Line::new(&shape(), 0), Instant::now());
        line.send(now, 1000, 'a');
        assert_eq!(line.next_due(), Some(now + 11 * MS));
        assert_eq!(line.receive(now + 10 * MS), None);
        assert_eq!(line.receive(now + 11 * MS), Some('a'));
        assert_eq!(line.receive(now + 99 * MS), None);
    }

    #[test]
    fn packets_sent_at_once_come_out_in_order_at_the_rate_of_the_line() {
        let (mut line, now) = (Line::new(&shape(), 0), Instant::now());
        line.send(now, 1000, 'a');
        line.send(now, 3000, 'b');
        assert_eq!(line.receive(now + 12 * MS), Some('a'));
        assert_eq!(line.receive(now + 12 * MS), None);
        assert_eq!(line.receive(now + 14 * MS), Some('b'));
    }

    #[test]
    fn a_line_that_was_idle_carries_the_next_packet_at_once() {
        let (mut line, now) = (Line::new(&shape(), 0), Instant::now());
        line.send(now, 1000, 'a');
        line.send(now + 500 * MS, 1000, 'b');
        assert_eq!(line.receive(now + 11 * MS), Some('a'));
        assert_eq!(line.next_due(), Some(now + 511 * MS));
    }

    #[test]
    fn what_the_queue_has_no_room_for_is_dropped() {
        let (mut line, now) = (Line::new(&shape(), 0), Instant::now());
        for number in 0..1000 {
            line.send(now, 1000, number);
        }
        let arrived = std::iter::from_fn(|| line.receive(now + 5000 * MS)).count() as u64;
        assert_eq!(arrived, LEAST_QUEUE / 1000 + 1);
    }

    #[test]
    fn as_much_is_lost_as_was_asked_for() {
        let shape = Shape {
            rate: None,
            loss: 0.1,
            ..shape()
        };
        let (mut line, now) = (Line::new(&shape, 7), Instant::now());
        for number in 0..10_000 {
            line.send(now, 1000, number);
        }
        let arrived = std::iter::from_fn(|| line.receive(now + 10 * MS)).count();
        assert!((8_800..9_200).contains(&arrived), "{arrived}");
    }
}
