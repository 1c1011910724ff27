//! What often follows something else is asked for along with it.
//!
//! To open a file the kernel first asks for its attributes, if it may not believe those it has any more, and then for the open; and who
//! makes a new file durable often does the same with its directory next. Each would be a round trip behind the other. Where it
//! went so the last time the second goes with the first. If nobody has needed it by the next time, that was wrong, and isn't done
//! again before it would have been right.

/// What followed the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Habit {
    #[default]
    Unknown,
    /// Nothing yet: the first was asked for alone.
    Alone,
    /// The second.
    Followed,
    /// Nothing yet: both were asked for.
    Along,
}

impl Habit {
    /// The first is about to be asked for: whether the second is to be as well.
    pub fn begins(&mut self) -> bool {
        let along = *self == Self::Followed;
        *self = match along {
            true => Self::Along,
            false => Self::Alone,
        };
        along
    }

    /// The second is wanted.
    pub fn follows(&mut self) {
        if *self != Self::Unknown {
            *self = Self::Followed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_last_time_goes_along_until_that_is_of_no_use() {
        let mut habit = Habit::default();
        let mut begins = |follows| {
            let along = habit.begins();
            if follows {
                habit.follows();
            }
            along
        };
        assert!(!begins(false) && !begins(false) && !begins(true));
        assert!(begins(true) && begins(true));
        assert!(begins(false), "once in vain");
        assert!(!begins(false) && !begins(true) && begins(true));
    }

    #[test]
    fn the_second_without_the_first_tells_nothing() {
        let mut habit = Habit::default();
        habit.follows();
        assert!(!habit.begins());
    }
}
