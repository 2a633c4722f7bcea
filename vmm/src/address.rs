//! Distinct types for the three kinds of address and the two kinds of count.

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// Guest-virtual (linear) address.
    Gva, "{:#x}");
number!(
    /// Guest-physical address.
    Gpa, "{:#x}");
number!(
    /// Steps: commits to user mode since boot.
    Step, "{}");
number!(
    /// Retired instructions; a REP instruction counts once.
    Instructions, "{}");
number!(
    /// Retired user-mode conditional branches (Jcc rel8/rel32, taken or not).
    Branches, "{}");
number!(
    /// Virtual nanoseconds since boot.
    VirtualNs, "{}");

/// A place in a run: `step` or `step+n`, n retired user instructions after the step began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The step.
    pub step: Step,
    /// User instructions retired since it began.
    pub offset: Instructions,
}

impl core::fmt::Display for Position {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.offset.0 {
            0 => write!(f, "{}", self.step),
            n => write!(f, "{}+{n}", self.step),
        }
    }
}
