//! What is set of a dirty file, dates, mode and owner, and goes to the server with its bytes.

use leasefs_protocol::{Attr, SetAttr};

/// There are bytes to go along whenever there is something that no round has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    next: SetAttr,
    /// With the round under way.
    sent: SetAttr,
}

impl Sets {
    /// Something is set.
    pub fn set(&mut self, set: SetAttr) {
        self.next = set.behind(self.next);
    }

    /// The file is written to: that dates it anew.
    pub fn written(&mut self) {
        (self.next.mtime, self.sent.mtime) = (None, None);
    }

    /// A round begins, and takes it along.
    pub fn begin_round(&mut self) -> SetAttr {
        self.sent = std::mem::take(&mut self.next);
        self.sent
    }

    /// The round has ended; `again`: some of it goes once more with the next, and this has to go along again.
    /// Returns what is at the server now.
    pub fn end_round(&mut self, again: bool) -> SetAttr {
        let sent = std::mem::take(&mut self.sent);
        match again {
            true => {
                self.next = self.next.behind(sent);
                SetAttr::default()
            }
            false => sent,
        }
    }

    /// The bytes it would go with are given up.
    pub fn give_up(&mut self) {
        self.next = SetAttr::default();
    }

    /// Whether something goes with the round under way.
    pub fn are_under_way(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.next.is_empty() && self.sent.is_empty()
    }

    /// A file's attributes with it.
    pub fn applied(&self, attr: Attr) -> Attr {
        self.next.behind(self.sent).applied(attr).unwrap_or(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasefs_protocol::{SetTime, Timestamp};

    fn mode(mode: u16) -> SetAttr {
        SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        }
    }

    fn dated(seconds: i64) -> SetAttr {
        let mtime = Some(SetTime::At(Timestamp { seconds, nanos: 0 }));
        SetAttr {
            mtime,
            ..SetAttr::default()
        }
    }

    #[test]
    fn what_is_set_last_counts() {
        let mut sets = Sets::default();
        sets.set(mode(0o600));
        sets.set(dated(7));
        sets.set(mode(0o640));
        assert_eq!(sets.begin_round(), mode(0o640).behind(dated(7)));
        assert_eq!(sets.begin_round(), SetAttr::default());
    }

    #[test]
    fn what_is_sent_again_stays_below_what_was_set_meanwhile() {
        let mut sets = Sets::default();
        sets.set(mode(0o600).behind(dated(7)));
        sets.begin_round();
        sets.set(mode(0o640));
        sets.end_round(true);
        assert_eq!(sets.begin_round(), mode(0o640).behind(dated(7)));
        sets.end_round(false);
        assert!(sets.is_empty());
    }

    #[test]
    fn a_write_dates_the_file_anew_whatever_was_set_or_is_sent_again() {
        let mut sets = Sets::default();
        sets.set(mode(0o600).behind(dated(7)));
        sets.begin_round();
        sets.set(dated(8));
        sets.written();
        sets.end_round(true);
        assert_eq!(sets.begin_round(), mode(0o600));
    }
}
