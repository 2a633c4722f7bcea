//! Properties: what must hold in every schedule.

use std::{fmt, str::FromStr};

use run::outcome::End;

use crate::trial::Trial;

/// A property `check` can judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// Ending, exit status, output and declared outputs are those of schedule 0.
    SameOutcome,
    /// Assertions the program makes of itself.
    Sdk,
    /// No thread is killed by SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGTRAP or SIGSYS.
    NoCrash,
    /// The job ends: no stall, no idling, no time-out.
    NoHang,
}

/// All, in the order they are listed.
pub const ALL: [Property; 4] = [Property::SameOutcome, Property::Sdk, Property::NoCrash, Property::NoHang];

impl Property {
    /// How much a violation says about what went wrong.
    pub fn weight(self) -> u8 {
        match self {
            Property::SameOutcome => 0,
            Property::NoHang => 1,
            Property::Sdk => 2,
            Property::NoCrash => 3,
        }
    }

    /// As the user names it.
    pub fn name(self) -> &'static str {
        match self {
            Property::SameOutcome => "same-outcome",
            Property::Sdk => "sdk",
            Property::NoCrash => "no-crash",
            Property::NoHang => "no-hang",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Property {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        ALL.into_iter()
            .find(|property| property.name() == text)
            .ok_or_else(|| format!("{text} is not a property: {}", ALL.map(Property::name).join(", ")))
    }
}

/// Which of `properties` does `trial` violate? `reference` is schedule 0.
pub fn violated(properties: &[Property], trial: &Trial, reference: &Trial) -> Vec<Property> {
    if trial.starved {
        return Vec::new();
    }
    properties.iter().copied().filter(|property| !holds(*property, trial, reference)).collect()
}

fn holds(property: Property, trial: &Trial, reference: &Trial) -> bool {
    match property {
        Property::SameOutcome => {
            trial.ending == reference.ending
                && trial.output == reference.output
                && trial.outputs == reference.outputs
        }
        Property::Sdk => trial.failed.is_empty(),
        Property::NoCrash => {
            trial.crashes.is_empty() && !matches!(trial.ending, End::KernelPanic(_) | End::GuestFault(_))
        }
        Property::NoHang => !matches!(trial.ending, End::Stalled | End::Idling | End::TimedOut),
    }
}
