//! Bytes of a file that lie apart and go in one request.

use super::extents::Run;
use bytes::Bytes;
use leasefs_protocol::change::{Place, WriteAt};
use leasefs_protocol::limits::{MAX_PLACES, SCATTERED};

/// Runs that go in one request, the lowest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch(Vec<Run>);

impl Batch {
    /// Each run alone.
    pub fn apart(runs: Vec<Run>) -> Vec<Self> {
        runs.into_iter().map(Self::from).collect()
    }

    /// As many together as fit into a request of `most` bytes.
    pub fn together(runs: Vec<Run>, most: usize) -> Vec<Self> {
        let most = most.min(SCATTERED);
        let (mut batches, mut bytes) = (Vec::<Self>::new(), 0);
        for run in runs {
            bytes += run.data.len();
            match batches.last_mut() {
                Some(last) if last.0.len() < MAX_PLACES && bytes <= most => last.0.push(run),
                _ => {
                    bytes = run.data.len();
                    batches.push(run.into());
                }
            }
        }
        batches
    }

    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// The same.
    pub fn into_runs(self) -> Vec<Run> {
        self.0
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(|run| run.data.len()).sum()
    }

    /// Whether nothing is left of it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its bytes go.
    pub fn at(&self) -> WriteAt {
        let place = |run: &Run| Place {
            offset: run.offset,
            len: run.data.len() as u64,
        };
        match self.0.as_slice() {
            [run] => WriteAt::Offset(run.offset),
            runs => WriteAt::Places(runs.iter().map(place).collect()),
        }
    }

    /// Its bytes, one run behind the other; a single one's are not copied.
    pub fn data(&self) -> Bytes {
        match self.0.as_slice() {
            [run] => run.data.clone(),
            runs => {
                let mut all = Vec::with_capacity(self.len());
                runs.iter().for_each(|run| all.extend_from_slice(&run.data));
                all.into()
            }
        }
    }

    /// Takes out its first `len` bytes.
    pub fn split_to(&mut self, len: usize) -> Self {
        let mut left = len;
        let fits = |run: &&Run| {
            let rest = left.checked_sub(run.data.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let whole = self.0.iter().take_while(fits).count();
        let rest = self.0.split_off(whole);
        let mut front = std::mem::replace(&mut self.0, rest);
        if let (1.., Some(run)) = (left, self.0.first_mut()) {
            let (offset, data) = (run.offset, run.data.split_to(left));
            run.offset += data.len() as u64;
            front.push(Run { offset, data });
        }
        Self(front)
    }
}

impl From<Run> for Batch {
    fn from(run: Run) -> Self {
        Self(vec![run])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(offset: u64, len: usize) -> Run {
        let data = (0..len).map(|at| (offset as usize + at) as u8).collect();
        Run { offset, data }
    }

    fn apart(lens: &[usize]) -> Vec<Run> {
        let far = |(place, len): (usize, &usize)| run(place as u64 * 1000, *len);
        lens.iter().enumerate().map(far).collect()
    }

    #[test]
    fn one_run_is_a_plain_write_whose_bytes_are_not_copied() {
        let alone = Batch::from(run(7, 3));
        assert_eq!(alone.at(), WriteAt::Offset(7));
        assert_eq!(alone.data().as_ptr(), alone.runs()[0].data.as_ptr());
    }

    #[test]
    fn a_batch_has_as_many_runs_as_fit_and_no_more_than_one_request_may_have() {
        let lens = |batches: &[Batch]| batches.iter().map(Batch::len).collect::<Vec<_>>();
        assert_eq!(
            lens(&Batch::together(apart(&[4, 5, 6, 20]), 10)),
            [9, 6, 20]
        );
        let many = Batch::together(apart(&[1; MAX_PLACES + 1]), 1 << 20);
        assert_eq!(lens(&many), [MAX_PLACES, 1]);
        let large = Batch::together(apart(&[SCATTERED, 1]), 1 << 20);
        assert_eq!(lens(&large), [SCATTERED, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_is_split_off_and_what_is_left_are_all_of_it(
            lens in prop::collection::vec(1_usize..9, 1..6),
            cut in 0_usize..50,
        ) {
            let whole = Batch(apart(&lens));
            let cut = cut.min(whole.len());
            let mut rest = whole.clone();
            let front = rest.split_to(cut);
            prop_assert_eq!(front.len(), cut);
            prop_assert_eq!([front.data(), rest.data()].concat(), whole.data().to_vec());
            prop_assert!(front.runs().iter().chain(rest.runs()).all(|run| !run.data.is_empty()));
            for run in front.runs().iter().chain(rest.runs()) {
                prop_assert_eq!(run.data[0], run.offset as u8, "a byte where it was");
            }
        }
    }
}
