//! A place for so many. Whoever comes gets in: where there is no room, one who is there gives way. So
//! nobody is kept out by those who come and stay.
//!
//! Pure. `K` is where somebody comes from, `M` what is put out with him.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Those who are there, in the order they came.
#[derive(Debug)]
pub struct Crowd<K, M> {
    room: usize,
    /// Most from one place.
    share: usize,
    next: u64,
    members: BTreeMap<u64, (K, M)>,
}

impl<K: Copy + Eq + Hash, M> Crowd<K, M> {
    /// Room for `room`, of whom `share` may come from one place.
    pub fn new(room: usize, share: usize) -> Self {
        Self {
            room,
            share,
            next: 0,
            members: BTreeMap::new(),
        }
    }

    /// Lets somebody in, under a number that is never given again. Returns who gave way: of those who
    /// come from where most do, the one who has been there longest.
    pub fn enter(&mut self, from: K, member: M) -> (u64, Option<M>) {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, (from, member));
        let gives_way = match self.members.len() > self.room {
            true => self.oldest_of(self.commonest()),
            false => self.over_its_share(from),
        };
        let put_out = gives_way.and_then(|number| self.members.remove(&number));
        (number, put_out.map(|(_, member)| member))
    }

    /// Somebody has gone, if he hasn't been put out.
    pub fn leave(&mut self, number: u64) {
        self.members.remove(&number);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    fn over_its_share(&self, from: K) -> Option<u64> {
        // Without so many in all there aren't so many from one place.
        if self.members.len() <= self.share {
            return None;
        }
        let here = self.members.values().filter(|(of, _)| *of == from);
        (here.count() > self.share).then(|| self.oldest_of(Some(from)))?
    }

    fn oldest_of(&self, from: Option<K>) -> Option<u64> {
        let mut members = self.members.iter();
        let (number, _) = members.find(|(_, (of, _))| Some(*of) == from)?;
        Some(*number)
    }

    /// Where most come from; of several, where the one comes from who has been here longest.
    fn commonest(&self) -> Option<K> {
        let mut counts: HashMap<K, usize> = HashMap::new();
        for (from, _) in self.members.values() {
            *counts.entry(*from).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let mut places = self.members.values().map(|(from, _)| *from);
        places.find(|from| counts.get(from) == Some(&most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_from_where_most_come_gives_way() {
        let mut crowd = Crowd::new(4, 4);
        for (from, name) in [("far", 1), ("near", 2), ("near", 3), ("far", 4)] {
            assert_eq!(crowd.enter(from, name).1, None);
        }
        assert_eq!(crowd.enter("near", 5).1, Some(2));
        assert_eq!(crowd.enter("far", 6).1, Some(1));
        assert_eq!(
            crowd.enter("elsewhere", 7).1,
            Some(3),
            "of equals the oldest"
        );
        assert_eq!(crowd.len(), 4);
    }

    #[test]
    fn many_from_one_place_never_put_out_the_few() {
        let mut crowd = Crowd::new(8, 8);
        for name in 0..3 {
            crowd.enter(name, name);
        }
        for name in 3..1000 {
            let (_, put_out) = crowd.enter(99, name);
            assert!(put_out.is_none_or(|out| out >= 3), "{put_out:?}");
        }
    }

    #[test]
    fn one_place_has_its_share_at_most() {
        let mut crowd = Crowd::new(8, 2);
        let put_out: Vec<_> = (0..4).map(|name| crowd.enter(1, name).1).collect();
        assert_eq!(put_out, [None, None, Some(0), Some(1)]);
        assert_eq!(crowd.enter(2, 9).1, None);
    }

    #[test]
    fn who_leaves_makes_room_once() {
        let mut crowd = Crowd::new(1, 1);
        let (first, _) = crowd.enter((), 1);
        crowd.leave(first);
        crowd.leave(first);
        assert_eq!(crowd.enter((), 2).1, None);
        assert_eq!(crowd.enter((), 3).1, Some(2));
    }
}
