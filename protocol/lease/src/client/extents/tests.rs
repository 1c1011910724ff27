use super::*;
use proptest::prelude::*;

const LEN: usize = 64;

/// A file of bytes of which some are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plain([Option<u8>; LEN]);

impl Plain {
    fn put(&mut self, offset: usize, len: usize, byte: u8) {
        self.0[offset..offset + len].fill(Some(byte));
    }

    fn put_under(&mut self, offset: usize, len: usize, byte: u8) {
        for place in &mut self.0[offset..offset + len] {
            place.get_or_insert(byte);
        }
    }
}

fn bytes(len: usize, byte: u8) -> Bytes {
    vec![byte; len].into()
}

fn seen(extents: &Extents) -> Plain {
    let mut plain = Plain([None; LEN]);
    for run in extents.runs(7) {
        assert!(!run.data.is_empty() && run.data.len() <= 7);
        for (at, byte) in run.data.iter().enumerate() {
            let place = &mut plain.0[run.offset as usize + at];
            assert_eq!(place.replace(*byte), None, "told twice");
        }
    }
    plain
}

proptest! {
    #[test]
    fn extents_hold_what_was_put_last(
        puts in prop::collection::vec((0..LEN, 1..LEN, any::<u8>(), any::<bool>()), 0..40),
    ) {
        let (mut extents, mut plain) = (Extents::default(), Plain([None; LEN]));
        for (offset, len, byte, under) in puts {
            let len = len.min(LEN - offset);
            match under {
                true => {
                    extents.put_under(offset as u64, &bytes(len, byte));
                    plain.put_under(offset, len, byte);
                }
                false => {
                    extents.put(offset as u64, bytes(len, byte));
                    plain.put(offset, len, byte);
                }
            }
        }
        prop_assert_eq!(&seen(&extents), &plain);
        let known = plain.0.iter().flatten().count();
        prop_assert_eq!(extents.bytes(), known);
        let mut pieces = extents.pieces.values();
        prop_assert!(pieces.all(|piece| piece.whole <= 2 * piece.len() + 1), "memory");
        for from in 0..LEN {
            let mut into = [0; LEN];
            let mut known = Known::default();
            extents.overlay(from as u64, &mut into[from..], &mut known);
            extents.overlay(from as u64, &mut [], &mut known);
            let all = plain.0[from..].iter().take_while(|byte| byte.is_some()).count();
            prop_assert!(known.covers(all) && (all == LEN - from || !known.covers(all + 1)));
            for (place, byte) in plain.0[from..].iter().enumerate() {
                prop_assert_eq!(into[from + place], byte.unwrap_or(0));
            }
        }
    }
}

#[test]
fn adjacent_pieces_are_sent_together() {
    let mut extents = Extents::default();
    for page in 0..8u8 {
        extents.put(u64::from(page) * 4, bytes(4, page));
    }
    assert_eq!(shape(&extents, 16), [(0, 16), (16, 16)]);
}

fn shape(extents: &Extents, most: usize) -> Vec<(u64, usize)> {
    let runs = extents.runs(most);
    runs.iter()
        .map(|run| (run.offset, run.data.len()))
        .collect()
}

#[test]
fn what_was_written_at_once_is_cut_only_if_it_is_larger_than_a_request() {
    let mut records = Extents::default();
    for record in 0..5 {
        records.put(record * 7, bytes(7, 1));
    }
    assert_eq!(shape(&records, 16), [(0, 14), (14, 14), (28, 7)]);
    let mut large = Extents::default();
    large.put(0, bytes(3, 1));
    large.put(3, bytes(40, 2));
    large.put(43, bytes(8, 3));
    assert_eq!(shape(&large, 16), [(0, 16), (16, 16), (32, 11), (43, 8)]);
}
