//! What most commands need: the home, a run by its prefix, a timeline, Ctrl-C.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

use anyhow::{Context as _, Result};
use run::{
    error::StageError,
    home::{Home, RunDir},
    seek::{self, Timeline},
    spec::ImageSpec,
    trace::TraceReader,
};
use vmm::EngineKind;

use crate::output;

/// The home of the environment.
pub(crate) fn home() -> Result<Home> {
    Ok(Home::open(&Home::default_path()?)?)
}

/// The one run that begins with `prefix`.
pub(crate) fn find(home: &Home, prefix: &str) -> Result<RunDir> {
    Ok(home.run(home.find(prefix)?)?)
}

/// The trace of a run that is read as a whole: a finished one's must be all there, of another one what there is is said to
/// be no more.
pub(crate) fn trace(run: &RunDir) -> Result<TraceReader> {
    let (trace, whole) = trace_left(run)?;
    whole?;
    Ok(trace)
}

/// As [`trace`], for showing record by record: what is left of a trace that was cut, and the error to end with once that is
/// shown.
pub(crate) fn trace_left(run: &RunDir) -> Result<(TraceReader, Result<(), StageError>)> {
    let (trace, outcome) = (run.trace()?, run.outcome()?);
    if let Some(why) = seek::unfinished(run)? {
        notice(&format!("run {} was not finished: {why}; what is on disk of it is shown", run.id()));
    }
    let whole = seek::is_whole(run, &trace, outcome.as_ref());
    Ok((trace, whole))
}

/// A run, opened for going about in it.
pub(crate) fn timeline<'h>(home: &'h Home, prefix: &str, engine: Option<EngineKind>) -> Result<Timeline<'h>> {
    let run = find(home, prefix)?;
    let image = |spec: &ImageSpec, source: &str| again(home, spec, source);
    Ok(Timeline::open(home, run, engine, &image, &notice)?)
}

/// A run, opened for a throw-away fork that may go on otherwise and read what the run did not.
pub(crate) fn throw_away<'h>(
    home: &'h Home,
    prefix: &str,
    engine: Option<EngineKind>,
) -> Result<Timeline<'h>> {
    let run = find(home, prefix)?;
    let image = |spec: &ImageSpec, source: &str| again(home, spec, source);
    let rest = |source: &str, origin: &[u8]| crate::root::rest(home, source, origin);
    Ok(Timeline::open_beyond(home, run, engine, &image, &rest, &notice)?)
}

/// The image a run was recorded with, from where it was.
pub(crate) fn again(home: &Home, _spec: &ImageSpec, source: &str) -> std::io::Result<run::root::Root> {
    crate::root::again(home, source, None).map_err(|error| std::io::Error::other(format!("{error:#}")))
}

/// Something the user may want to know, on standard error. What was said last is not said again: several parts of a command
/// may come upon the same thing.
pub(crate) fn notice(text: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != text {
        text.clone_into(&mut last);
        output::say!("rewind: {text}");
    }
}

/// The status after Ctrl-C: 128 and SIGINT, as a shell says it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Set by Ctrl-C; a second one ends the program at once.
pub(crate) fn interrupted() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    set_by(signal_hook::consts::SIGINT, &flag)?;
    Ok(flag)
}

/// As [`interrupted`], set by SIGTERM too: for what would leave something half done.
pub(crate) fn stopped() -> Result<Arc<AtomicBool>> {
    let flag = interrupted()?;
    set_by(signal_hook::consts::SIGTERM, &flag)?;
    Ok(flag)
}

fn set_by(signal: i32, flag: &Arc<AtomicBool>) -> Result<()> {
    // In this order: at the first one the flag is still unset and the program goes on.
    signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone())
        .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
        .with_context(|| format!("cannot watch for signal {signal}"))?;
    Ok(())
}

/// Ctrl-C ends this program at once, whatever it does, with [`INTERRUPTED`]: for what leaves nothing behind.
pub(crate) fn end_at_interrupt() -> Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(
        signal_hook::consts::SIGINT,
        i32::from(INTERRUPTED),
        always,
    )
    .context("cannot watch for Ctrl-C")?;
    Ok(())
}

/// Ctrl-C does not end this program: the gdb it serves gets it too and says what to do.
pub(crate) fn interrupt_is_gdbs() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, flag.clone())
        .context("cannot watch for Ctrl-C")?;
    Ok(flag)
}

/// An engine by name; `auto` is none.
pub(crate) fn engine(name: Engine) -> Option<EngineKind> {
    match name {
        Engine::Auto => None,
        Engine::Kvm => Some(EngineKind::Kvm),
        Engine::Soft => Some(EngineKind::Soft),
    }
}

/// The engine for a new run; says in one line which and why when that was left to us.
pub(crate) fn choose(home: &Home, name: Engine) -> Result<EngineKind> {
    let asked = engine(name);
    let choice = vmm::selftest::choose(asked, &home.cache("")).map_err(anyhow::Error::msg)?;
    if asked.is_none() {
        notice(&format!("engine {}", choice.why));
    }
    Ok(choice.engine)
}

/// `--engine`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Engine {
    /// The fastest one this host can be trusted with.
    Auto,
    /// The host's KVM.
    Kvm,
    /// The software CPU.
    Soft,
}
