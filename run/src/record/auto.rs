//! `--clock auto`: the `steps` clock, and for a run under which that clock does not move, the `work` clock.
//!
//! Which of the two a run gets is decided by its inputs alone: the limit is in user instructions, counted exactly.
//! A run whose clock was chosen here is marked (file `auto` beside it): only marked runs are found, so that what else is in
//! the home does not decide.

use vmm::{Clock, EngineKind, address::Instructions};

use super::{Inputs, Options, Recorded, find, record};
use crate::{clock::Wall, error::StageError, spec::Spec};

/// User instructions between two looks at the step: a guest that spins is noticed after one to two times as many.
pub const LIMIT: Instructions = Instructions(1 << 28);

/// Conditional branches of a slice of the `work` clock: 4.2 ms of virtual time.
pub const SLICE: u64 = 1 << 22;

/// The file that marks a run whose clock was chosen for it.
const MARK: &str = "auto";

/// Records the run of a spec under whichever clock moves it, or finds it. The spec's own clock must be `steps`. `again`
/// is told when what was passed to `options.live` so far is to be forgotten: the run begins anew.
pub fn record_auto(
    home: &crate::home::Home,
    inputs: &Inputs<'_>,
    options: &mut Options<'_>,
    again: &dyn Fn(&str),
) -> Result<Recorded, StageError> {
    let spec = Spec { clock: Clock::Work { slice: SLICE }, ..inputs.spec.clone() };
    let work = Inputs { spec, kernel: inputs.kernel, roots: inputs.roots, parent: inputs.parent };
    for inputs in [inputs, &work] {
        let Some(found) = find(home, inputs)?.filter(|found| found.run.path().join(MARK).is_file()) else {
            continue;
        };
        if !options.again {
            return Ok(found);
        }
        if matches!(inputs.spec.clock, Clock::Work { .. }) {
            options.engine = EngineKind::Soft;
            return record(home, inputs, options);
        }
    }
    // From here on a run is recorded, or recorded again to see that its clock moves.
    let asked = std::mem::replace(&mut options.again, true);
    let recorded = choose(home, inputs, &work, options, again);
    options.again = asked;
    let recorded = recorded?;
    if recorded.outcome.end.is_final() {
        crate::durable::touch(&recorded.run.path().join(MARK))?;
    }
    Ok(recorded)
}

fn choose(
    home: &crate::home::Home,
    inputs: &Inputs<'_>,
    work: &Inputs<'_>,
    options: &mut Options<'_>,
    again: &dyn Fn(&str),
) -> Result<Recorded, StageError> {
    options.spin_limit = Some(LIMIT);
    let (began, timeout) = (Wall::now(), options.timeout);
    let left = || timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
    let mut recorded = record(home, inputs, options);
    if let Err(StageError::NoStep { .. }) = recorded
        && options.engine != EngineKind::Soft
    {
        // Only the soft engine counts: it alone may say that the clock does not move.
        again("no step for a while: again on the soft engine, which can tell computing from waiting");
        options.engine = EngineKind::Soft;
        options.timeout = left();
        recorded = record(home, inputs, options);
    }
    options.spin_limit = None;
    options.timeout = left();
    let recorded = match recorded {
        Err(error @ StageError::Spins { .. }) => {
            again(&format!("{error}: again with --clock work"));
            options.engine = EngineKind::Soft;
            record(home, work, options)
        }
        other => other,
    };
    options.timeout = timeout;
    recorded
}
