//! Sets of byte ranges.

use rangemap::RangeSet;
use std::ops::Range;

/// A half-open range of bytes of a file; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// All bytes a file can have.
    pub const ALL: Span = Span {
        start: 0,
        end: u64::MAX,
    };

    /// `len` bytes from `start`; a length of zero means to the end of the file, as with the
    /// kernel's invalidation.
    pub fn new(start: u64, len: u64) -> Self {
        let end = match len {
            0 => u64::MAX,
            _ => start.saturating_add(len),
        };
        Self {
            start: start.min(u64::MAX - 1),
            end,
        }
    }

    /// First byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// Byte behind the last one; `u64::MAX` is the end of the file.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes; 0 stands for all to the end of the file.
    pub fn len_or_rest(self) -> u64 {
        match self.end {
            u64::MAX => 0,
            end => end - self.start,
        }
    }

    /// Number of bytes.
    pub(super) fn len(self) -> u64 {
        self.end - self.start
    }

    /// Its first bytes, so many at most.
    #[must_use]
    pub(super) fn first(self, most: u64) -> Self {
        let end = self.end.min(self.start.saturating_add(most));
        Self { end, ..self }
    }

    /// Whether both have a byte in common.
    pub fn intersects(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The span widened to whole pages of `page` bytes.
    #[must_use]
    pub fn paged(self, page: u64) -> Self {
        Self {
            start: self.start / page * page,
            end: self.end.div_ceil(page).saturating_mul(page),
        }
    }

    fn range(self) -> Range<u64> {
        self.start..self.end
    }
}

/// Most spans kept apart; over it the whole extent counts as contained.
const MAX_SPANS: usize = 256;

/// A set of bytes of a file, as disjoint spans.
///
/// Bounded: when it gets too fragmented it grows to its hull. So it is always a superset of
/// what was put in and not taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spans(RangeSet<u64>);

impl Spans {
    /// Adds a span.
    pub fn insert(&mut self, span: Span) {
        self.0.insert(span.range());
        if self.0.len() > MAX_SPANS {
            self.collapse();
        }
    }

    /// Adds all of `other`.
    pub fn insert_all(&mut self, other: &Spans) {
        other.iter().for_each(|span| self.insert(span));
    }

    /// Takes a span out.
    pub fn remove(&mut self, span: Span) {
        self.0.remove(span.range());
    }

    /// Whether any byte of `span` is in the set.
    pub fn intersects(&self, span: Span) -> bool {
        self.0.overlaps(&span.range())
    }

    /// The part of the set inside `span`.
    #[must_use]
    pub fn within(&self, span: Span) -> Spans {
        let inside = self.0.overlapping(span.range());
        let cut = |part: &Range<u64>| part.start.max(span.start)..part.end.min(span.end);
        Self(inside.map(cut).collect())
    }

    /// The spans in order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.0
            .iter()
            .map(|&Range { start, end }| Span { start, end })
    }

    /// The first bytes of the set that no span of `holes` touches, at most `most` of them.
    pub fn first_outside(&self, holes: impl Iterator<Item = Span>, most: u64) -> Option<Span> {
        let mut free = self.clone();
        holes.for_each(|hole| free.remove(hole));
        free.iter().next().map(|span| span.first(most))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn collapse(&mut self) {
        if let (Some(first), Some(last)) = (self.0.first(), self.0.last()) {
            let hull = first.start..last.end;
            self.0.insert(hull);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(spans: &[(u64, u64)]) -> Spans {
        let mut set = Spans::default();
        for &(start, end) in spans {
            set.insert(Span { start, end });
        }
        set
    }

    #[test]
    fn length_zero_reaches_to_the_end_of_the_file() {
        assert_eq!(Span::new(0, 0), Span::ALL);
        assert_eq!(Span::new(5, 0).len_or_rest(), 0);
        assert_eq!(Span::new(5, 3).len_or_rest(), 3);
    }

    #[test]
    fn a_span_at_the_end_of_the_address_space_is_not_empty() {
        let last = Span::new(u64::MAX, 7);
        assert!(last.start() < last.end());
    }

    #[test]
    fn what_is_in_flight_is_left_out() {
        let todo = set(&[(0, 100)]);
        let holes = [Span::new(0, 10), Span::new(20, 10)];
        let first = todo.first_outside(holes.into_iter(), 64);
        assert_eq!(first, Some(Span::new(10, 10)));
        assert_eq!(todo.first_outside([Span::ALL].into_iter(), 64), None);
        assert_eq!(
            todo.first_outside([].into_iter(), 64),
            Some(Span::new(0, 64))
        );
    }

    #[test]
    fn too_many_fragments_become_their_hull() {
        let mut set = Spans::default();
        for i in 0..=MAX_SPANS as u64 {
            set.insert(Span::new(i * 10, 1));
        }
        assert_eq!(set.iter().count(), 1);
        assert!(set.intersects(Span::new(5, 1)));
    }

    proptest! {
        #[test]
        fn a_set_of_spans_is_a_set_of_bytes(
            ops in prop::collection::vec((any::<bool>(), 0u64..60, 1u64..20), 0..40),
        ) {
            let mut spans = Spans::default();
            let mut bytes = [false; 90];
            for (add, start, len) in ops {
                let span = Span::new(start, len);
                if add { spans.insert(span) } else { spans.remove(span) }
                for byte in &mut bytes[start as usize..(start + len) as usize] {
                    *byte = add;
                }
            }
            for (at, &byte) in bytes.iter().enumerate() {
                prop_assert_eq!(spans.intersects(Span::new(at as u64, 1)), byte);
            }
            let parts: Vec<Span> = spans.iter().collect();
            prop_assert!(parts.windows(2).all(|w| w[0].end < w[1].start));
        }
    }
}
