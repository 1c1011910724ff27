//! What follows when a file's attributes are asked for.
//!
//! To open a file the kernel first asks for its attributes, if it may not believe those it has any more, and then for the open: two round
//! trips one after the other, of which the second tells what the first did. Where it went so the last time, the open is
//! made with the attributes. If nobody has needed it by the next time, that was wrong, and isn't done again before it would have been right.

/// What followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Habit {
    #[default]
    Unknown,
    /// Nothing yet: the attributes alone were asked for.
    Looked,
    /// An open for reading.
    Opened,
    /// Nothing yet: it was opened ahead.
    OpenedAhead,
}

impl Habit {
    /// The server is about to be asked for attributes: whether it is to be asked for an open as well.
    pub fn looks(&mut self) -> bool {
        let opened = *self == Self::Opened;
        *self = match opened {
            true => Self::OpenedAhead,
            false => Self::Looked,
        };
        opened
    }

    /// It is opened for reading.
    pub fn opens(&mut self) {
        if *self != Self::Unknown {
            *self = Self::Opened;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_after_it_was_looked_at_is_opened_along_until_that_is_of_no_use() {
        let mut habit = Habit::default();
        let mut looks = |opens| {
            let ahead = habit.looks();
            if opens {
                habit.opens();
            }
            ahead
        };
        assert!(!looks(false) && !looks(false) && !looks(true));
        assert!(looks(true) && looks(true));
        assert!(looks(false), "once in vain");
        assert!(!looks(false) && !looks(true) && looks(true));
    }

    #[test]
    fn an_open_without_a_look_tells_nothing() {
        let mut habit = Habit::default();
        habit.opens();
        assert!(!habit.looks());
    }
}
