//! Bytes of a file, where there are any.

use bytes::Bytes;
use rangemap::RangeSet;
use std::collections::BTreeMap;

/// Pieces of a file, none of which overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extents {
    pieces: BTreeMap<u64, Bytes>,
    bytes: usize,
}

/// Adjacent bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Where they begin.
    pub offset: u64,
    /// The bytes; never none.
    pub data: Bytes,
}

impl Run {
    /// The first byte behind them.
    pub fn end(&self) -> u64 {
        end(self.offset, &self.data)
    }
}

fn end(offset: u64, data: &Bytes) -> u64 {
    offset.saturating_add(data.len() as u64)
}

impl Extents {
    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The first byte behind all of them.
    pub fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(at, piece)| end(*at, piece))
    }

    /// Puts bytes over whatever is there.
    pub fn put(&mut self, offset: u64, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.remove(offset, end(offset, &data));
        self.bytes += data.len();
        self.pieces.insert(offset, data);
    }

    /// Puts bytes where none are.
    pub fn put_under(&mut self, offset: u64, data: &Bytes) {
        let (mut from, until) = (offset, end(offset, data));
        let mut gaps = Vec::new();
        for (at, piece) in self.overlapping(offset, until) {
            if at > from {
                gaps.push((from, at));
            }
            from = from.max(end(at, piece));
        }
        if from < until {
            gaps.push((from, until));
        }
        for (from, until) in gaps {
            self.put(from, part(offset, data, from, until));
        }
    }

    /// Takes away what the other has bytes of.
    pub fn remove_all(&mut self, other: &Self) {
        for (at, piece) in &other.pieces {
            self.remove(*at, end(*at, piece));
        }
    }

    /// Takes away what lies between two bytes.
    fn remove(&mut self, from: u64, until: u64) {
        let hit: Vec<u64> = self.overlapping(from, until).map(|(at, _)| at).collect();
        for at in hit {
            let Some(piece) = self.pieces.remove(&at) else {
                continue;
            };
            self.bytes -= piece.len();
            let behind = end(at, &piece);
            if at < from {
                self.restore(at, part(at, &piece, at, from));
            }
            if behind > until {
                self.restore(until, part(at, &piece, until, behind));
            }
        }
    }

    fn restore(&mut self, offset: u64, data: Bytes) {
        self.bytes += data.len();
        self.pieces.insert(offset, data);
    }

    /// Pieces that have bytes between two, in order.
    fn overlapping(&self, from: u64, until: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let before = self.pieces.range(..from).next_back();
        let reaches = before.filter(|(at, piece)| from < until && end(**at, piece) > from);
        let inside = self.pieces.range(from..until.max(from));
        reaches.into_iter().chain(inside).map(|(at, d)| (*at, d))
    }

    /// Copies what there is of `[offset, offset + into.len())` into place; `known` notes which
    /// bytes are there.
    pub fn overlay(&self, offset: u64, into: &mut [u8], known: &mut Known) {
        let until = offset.saturating_add(into.len() as u64);
        for (at, piece) in self.overlapping(offset, until) {
            let (from, to) = (at.max(offset), end(at, piece).min(until));
            let (begin, stop) = ((from - offset) as usize, (to - offset) as usize);
            if let Some(place) = into.get_mut(begin..stop) {
                place.copy_from_slice(&part(at, piece, from, to));
                known.0.insert(begin..stop);
            }
        }
    }

    /// Everything, adjacent pieces joined up to `most` bytes, and only those cut that are larger: of what was written at
    /// once a lost connection leaves no part. What lies in one piece isn't copied.
    pub fn runs(&self, most: usize) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut open = Joined::default();
        for (at, piece) in &self.pieces {
            let mut rest = piece.clone();
            let mut at = *at;
            while !rest.is_empty() {
                let whole = Some(rest.len()).filter(|len| *len <= most);
                if open.end() != at || open.len + whole.unwrap_or(1) > most {
                    runs.extend(std::mem::take(&mut open).run());
                    open.offset = at;
                }
                let taken = rest.split_to((most - open.len).min(rest.len()));
                at += taken.len() as u64;
                open.add(taken);
            }
        }
        runs.extend(open.run());
        runs
    }
}

/// Adjacent parts of pieces.
#[derive(Default)]
struct Joined {
    offset: u64,
    len: usize,
    parts: Vec<Bytes>,
}

impl Joined {
    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    fn add(&mut self, part: Bytes) {
        self.len += part.len();
        self.parts.push(part);
    }

    fn run(mut self) -> Option<Run> {
        let data = match self.parts.len() {
            0 | 1 => self.parts.pop()?,
            _ => self.parts.concat().into(),
        };
        Some(Run {
            offset: self.offset,
            data,
        })
    }
}

/// The bytes of a piece that begins at `at` between two bytes of the file, which it has.
fn part(at: u64, piece: &Bytes, from: u64, until: u64) -> Bytes {
    piece.slice((from - at) as usize..(until - at) as usize)
}

/// Which bytes of a buffer are known.
#[derive(Clone, Debug, Default)]
pub struct Known(RangeSet<usize>);

impl Known {
    /// Whether the first `len` bytes are known.
    pub fn covers(&self, len: usize) -> bool {
        len == 0
            || self
                .0
                .first()
                .is_some_and(|first| first.start == 0 && first.end >= len)
    }
}

#[cfg(test)]
mod tests;
