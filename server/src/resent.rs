//! What a session may send again after a crash of the host.
//!
//! Neither the disk nor the journal tells what has come of changes that ran before. So what is sent again and isn't
//! known is lost, unless it is numbered at or above a change that has begun since.

use leasefs_lease::planted::{self, Bug};
use leasefs_protocol::Seq;

/// Whether a session may send changes again that ran before a crash of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resent {
    crashed: bool,
    /// The lowest of the changes that have begun since.
    first: Option<Seq>,
}

impl Resent {
    /// The host has crashed: from now on it may.
    pub fn host_crashed(&mut self) {
        *self = Self {
            crashed: true,
            first: None,
        };
    }

    /// A change begins that has never been sent before.
    pub fn begins(&mut self, seq: Seq) {
        if self.crashed {
            self.first = Some(self.first.map_or(seq, |first| first.min(seq)));
        }
    }

    /// Changes below `low` are asked for no more.
    pub fn raise(&mut self, low: Seq) {
        self.crashed &= self.first.is_none_or(|first| first > low);
    }

    /// Whether it may.
    pub fn may_come(&self) -> bool {
        self.crashed
    }

    /// Whether an unknown change that is sent again may have run before the crash.
    pub fn may_have_run(&self, seq: Seq) -> bool {
        self.crashed
            && self.first.is_none_or(|first| seq < first)
            && !planted::is(Bug::RunAfterHostCrash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_first_that_began_since_may_have_run_until_it_is_asked_for_no_more() {
        let mut resent = Resent::default();
        resent.begins(Seq(3));
        assert!(!resent.may_come() && !resent.may_have_run(Seq(1)));
        resent.host_crashed();
        assert!(resent.may_have_run(Seq(9)));
        resent.begins(Seq(7));
        resent.begins(Seq(5));
        resent.begins(Seq(8));
        assert!(resent.may_have_run(Seq(4)) && !resent.may_have_run(Seq(5)));
        resent.raise(Seq(4));
        assert!(resent.may_come());
        resent.raise(Seq(5));
        assert!(!resent.may_come() && !resent.may_have_run(Seq(1)));
    }
}
