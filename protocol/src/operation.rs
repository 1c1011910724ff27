//! What all operations have in common.

use crate::answer::Answer;
use serde::{Deserialize, Serialize};

/// Something a client asks for, by itself: numbers and callers stand in the frame.
pub trait Operation {
    /// What it is answered unless it is refused.
    type Answer: Answer;
}

/// The operations of one kind, each with its answer and its name in logs and counters.
macro_rules! operations {
    ($(#[$doc:meta])* $kind:ident { $($operation:ident => $answer:ty, $name:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(test, derive(proptest_derive::Arbitrary))]
        pub enum $kind {
            $(#[doc = concat!("[`", stringify!($operation), "`]")] $operation($operation),)*
        }

        impl $kind {
            /// The names of all, as [`Self::kind`] gives them.
            pub const KINDS: &[&str] = &[$($name),*];

            /// Its name in logs and counters.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$operation(_) => $name,)*
                }
            }

            /// Whether this can be its answer.
            pub fn is_answered_by(&self, response: &$crate::Response) -> bool {
                match self {
                    $(Self::$operation(_) => <$answer as $crate::Answer>::is(response),)*
                }
            }
        }

        $(
            impl $crate::Operation for $operation {
                type Answer = $answer;
            }

            impl From<$operation> for $kind {
                fn from(operation: $operation) -> Self {
                    Self::$operation(operation)
                }
            }
        )*
    };
}

pub(crate) use operations;

/// What must be on the server's disk when the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
pub enum Durability {
    /// Nothing.
    None,
    /// The data and what is needed to read it back (`O_DSYNC`, `fdatasync`).
    Data,
    /// All metadata too (`O_SYNC`, `fsync`).
    All,
}

/// `O_TRUNC` (asm-generic/fcntl.h; the same on every architecture we build for).
pub const O_TRUNC: u32 = 0o1000;

/// Flags of an open of what exists: access mode, `O_APPEND`, `O_DIRECTORY`, `O_SYNC`… Never `O_TRUNC`: what
/// truncates is another operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(proptest_derive::Arbitrary))]
#[serde(from = "u32")]
pub struct OpenFlags(#[cfg_attr(test, proptest(strategy = "0..O_TRUNC"))] u32);

impl From<u32> for OpenFlags {
    fn from(flags: u32) -> Self {
        Self(flags & !O_TRUNC)
    }
}

impl OpenFlags {
    /// As `open(2)` has them.
    pub fn bits(self) -> u32 {
        self.0
    }
}
