//! Bytes of a file, where there are any.

use bytes::Bytes;
use rangemap::RangeSet;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// What a piece takes up beside its bytes, about: its place, and what the allocator adds.
const PIECE: usize = 128;

/// Pieces of a file, none of which overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extents {
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
}

/// What is left of bytes that came at once.
#[derive(Clone, Debug)]
struct Piece {
    data: Bytes,
    /// So many they were, and so many stay in memory as long as a part of them is used.
    whole: usize,
}

impl Piece {
    fn new(data: Bytes) -> Self {
        let whole = data.len();
        Self { data, whole }
    }

    /// What of one that begins at `at` lies between two bytes of the file, which it has. Of the memory no more than twice as much
    /// stays.
    fn part(&self, at: u64, from: u64, until: u64) -> Self {
        let data = part(at, &self.data, from, until);
        match data.len() < self.whole / 2 {
            true => Self::new(Bytes::copy_from_slice(&data)),
            false => Self { data, ..*self },
        }
    }
}

impl Deref for Piece {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.data
    }
}

impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

impl Eq for Piece {}

impl Hash for Piece {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.data.hash(state);
    }
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

    /// How much memory they take up, within a factor of two.
    pub fn memory(&self) -> usize {
        self.bytes + self.pieces.len() * PIECE
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
        self.insert(offset, Piece::new(data));
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
        let whole = Piece::new(data.clone());
        for (from, until) in gaps {
            self.insert(from, whole.part(offset, from, until));
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
                self.insert(at, piece.part(at, at, from));
            }
            if behind > until {
                self.insert(until, piece.part(at, until, behind));
            }
        }
    }

    fn insert(&mut self, offset: u64, piece: Piece) {
        self.bytes += piece.len();
        self.pieces.insert(offset, piece);
    }

    /// Pieces that have bytes between two, in order.
    fn overlapping(&self, from: u64, until: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let before = self.pieces.range(..from).next_back();
        let reaches = before.filter(|(at, piece)| from < until && end(**at, piece) > from);
        let inside = self.pieces.range(from..until.max(from));
        let hit = reaches.into_iter().chain(inside);
        hit.map(|(at, piece)| (*at, &piece.data))
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
            let mut rest = piece.data.clone();
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
