//! `rewind run`.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use rewind_platform::{job::Job, record::RecordHeader};
use run::{
    boot::Kernel,
    clock::Wall,
    home::Home,
    outcome::End,
    record::{Cut, Inputs, Keyframes, Options, Recorded, SLICE, record, record_auto},
    root::Root,
    spec::{Schedule, Spec},
};
use serde_json::json;
use vmm::{Clock, EngineKind, RunParameters};

use crate::{
    context::{self, Engine},
    gather, guest,
    live::Live,
    output, root,
};

/// What a job is made of; also `check`'s options.
#[derive(clap::Args)]
pub(crate) struct JobArgs {
    /// Root of the job: a directory, a tar (docker export or save), or an erofs image
    #[arg(long, value_name = "DIR|TAR|EROFS")]
    pub(crate) root: Option<PathBuf>,
    /// Working directory inside the root
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Add to the environment, which is otherwise the same everywhere
    #[arg(long = "env", value_name = "K=V", value_parser = OsStringValueParser::new().try_map(variable))]
    pub(crate) env: Vec<OsString>,
    /// Run as this user of the root: USER, UID, USER:GROUP or UID:GID
    #[arg(long, value_name = "USER", default_value = "", value_parser = user)]
    pub(crate) user: String,
    /// Cores the job sees; one runs (default: 1, for check 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(rewind_platform::device::CORES_MAX)))]
    pub(crate) cores: Option<u32>,
    /// Seed of everything random in the machine
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Wall clock when the job starts, seconds since 1970; files of the root keep their times, and one changed later is in the
    /// future to `make`
    #[arg(long, value_name = "T", default_value_t = 1_767_225_600, value_parser = clap::value_parser!(i64).range(EPOCHS))]
    pub(crate) epoch: i64,
    /// A file or directory whose content counts as output
    #[arg(long = "out", value_name = "PATH")]
    pub(crate) outputs: Vec<OsString>,
    /// Give the job a terminal
    #[arg(long)]
    pub(crate) tty: bool,
    /// Engine
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) engine: Engine,
    /// What moves the virtual clock besides steps: `work` also counts computing (soft engine)
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) clock: ClockArg,
    /// Memory of the machine: bytes, or with K, M or G
    #[arg(long, value_name = "M", default_value = "1G", value_parser = size)]
    pub(crate) memory: u64,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Wall clocks that the kernel lets be set: not before its own start (a second of virtual time at most), and thirty years
/// before its clock ends (`timespec64_valid_settod`, include/linux/time64.h).
const EPOCHS: std::ops::RangeInclusive<i64> = 1..=(i64::MAX / 1_000_000_000 - 30 * 365 * 86_400 - 1);

/// `--clock`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ClockArg {
    /// `steps`; `work` for a job that computes or waits so long that steps do not move it
    Auto,
    /// Only steps
    Steps,
    /// Also user-mode branches
    Work,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Run even if this run is known, and compare
    #[arg(long)]
    again: bool,
    /// Stop after this much wall time (seconds)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Record without keyframes: smaller, and slower to go back in
    #[arg(long)]
    no_keyframes: bool,
    /// Milliseconds of processor time between keyframes: closer ones make going back quicker and the run larger [default:
    /// 250 where they are cheap, up to 8000 where they are not]
    #[arg(long, value_name = "MS", conflicts_with = "no_keyframes")]
    spacing: Option<u64>,
    /// Print events and the result as JSON instead of the job's output
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds like 2 or 0.5".into())
}

/// `USER[:GROUP]`. The kernel's -1 is nobody's number: for it a change of user means none.
fn user(text: &str) -> Result<String, String> {
    match text.split(':').any(|part| part.parse::<u64>().is_ok_and(|id| id >= u64::from(u32::MAX))) {
        true => Err("numbers of users and groups are below 4294967295".into()),
        false => Ok(text.into()),
    }
}

fn variable(given: OsString) -> Result<OsString, &'static str> {
    if given.as_bytes().contains(&b'=') { Ok(given) } else { Err("give KEY=VALUE") }
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let size = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match size {
        Some(size) if (64 << 20..=64 << 30).contains(&size) && size % (1 << 20) == 0 => Ok(size),
        Some(_) => Err("must be whole MiB, from 64M to 64G".into()),
        None => Err("a size like 512M or 2G".into()),
    }
}

/// The directory a job over the host's root works in, by its real path.
fn host_cwd(given: Option<&Path>) -> Result<PathBuf> {
    let dir = given.map_or_else(std::env::current_dir, |dir| Ok(dir.into()));
    let dir = dir.context("the working directory is gone: go to another, or give --cwd")?;
    let real = dir.canonicalize().with_context(|| format!("cannot work in {}", dir.display()))?;
    if real.is_dir() { Ok(real) } else { bail!("cannot work in {}: it is no directory", dir.display()) }
}

impl JobArgs {
    /// The engine to use.
    pub(crate) fn engine(&self, home: &Home) -> Result<EngineKind> {
        context::choose(home, self.engine)
    }

    /// Records the run nobody disturbs (or finds it), for whoever runs the job in machines of their own: the clock that
    /// `--clock auto` comes to, and the engine that has it. It is cut off after `timeout` virtual nanoseconds.
    pub(crate) fn settle(
        &self,
        home: &Home,
        kernel: &Kernel,
        roots: &[Root],
        spec: &mut Spec,
        engine: &mut EngineKind,
        timeout: Option<u64>,
    ) -> Result<()> {
        let make = || Ok(kernel.clone());
        let inputs = Inputs { spec: spec.clone(), kernel: &make, roots, parent: None };
        let mut options = Options {
            engine: *engine,
            timeout: None,
            interrupted: context::stopped()?,
            keyframes: Keyframes::Thrifty,
            again: false,
            doubt: false,
            spin_limit: None,
            called: Wall::now(),
            cut: Cut { virtual_ns: timeout, step: None },
            reminder: Some(
                "the job, undisturbed, still runs; if it never ends by itself, --timeout cuts it off (virtual time)",
            ),
            live: &mut |_, _| {},
            notice: &context::notice,
            gather: &gather::of(spec),
        };
        let recorded = match self.clock {
            ClockArg::Auto => record_auto(home, &inputs, &mut options, &context::notice)?,
            ClockArg::Steps | ClockArg::Work => record(home, &inputs, &mut options)?,
        };
        if recorded.outcome.end == End::Interrupted {
            bail!("stopped by Ctrl-C before the undisturbed run had ended");
        }
        spec.clock = recorded.run.spec()?.clock;
        if spec.clock != Clock::Steps {
            *engine = EngineKind::Soft;
        }
        Ok(())
    }

    /// The images of the job; the host's own root as of `moment`.
    pub(crate) fn roots(&self, home: &Home, moment: root::Moment<'_>) -> Result<Vec<Root>> {
        let Some(path) = &self.root else {
            return Ok(vec![root::host(home, &host_cwd(self.cwd.as_deref())?, moment)?]);
        };
        let bar = root::bar();
        let opened = root::open(home, path, Some(&bar));
        bar.finish_and_clear();
        Ok(vec![opened?])
    }

    /// The spec.
    pub(crate) fn spec(&self, kernel: &Kernel, roots: &[Root]) -> Result<Spec> {
        let mut env: Vec<Vec<u8>> = Vec::new();
        for (key, value) in [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("TERM", if self.tty { "xterm-256color" } else { "dumb" }),
        ] {
            if !self
                .env
                .iter()
                .any(|given| given.as_bytes().split(|byte| *byte == b'=').next() == Some(key.as_bytes()))
            {
                env.push(format!("{key}={value}").into_bytes());
            }
        }
        // Of two of one name the later counts, as for env(1).
        let later = |at: usize, given: &OsString| {
            let key =
                |entry: &OsString| entry.as_bytes().split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
            self.env[at + 1..].iter().any(|other| key(other) == key(given))
        };
        for (at, given) in self.env.iter().enumerate() {
            if later(at, given) {
                continue;
            }
            env.push(given.clone().into_vec());
        }
        Ok(Spec {
            platform: rewind_platform::PLATFORM_VERSION,
            cpu_model: vmm::cpu_model::REWIND_V2.name.into(),
            kernel: kernel.kernel,
            initramfs: kernel.initramfs,
            command_line: kernel.command_line.clone(),
            images: roots.iter().map(|root| root.spec.clone()).collect(),
            memory: self.memory,
            clock: match self.clock {
                ClockArg::Auto | ClockArg::Steps => Clock::Steps,
                ClockArg::Work => Clock::Work { slice: SLICE },
            },
            parameters: RunParameters::default(),
            job: Job {
                argv: self.command.iter().cloned().map(OsString::into_vec).collect(),
                env,
                cwd: match (&self.cwd, &self.root) {
                    (cwd, None) => host_cwd(cwd.as_deref())?.into_os_string().into_vec(),
                    (cwd, Some(_)) => {
                        cwd.as_deref().map_or(b"/".to_vec(), |cwd| cwd.as_os_str().as_bytes().to_vec())
                    }
                },
                user: self.user.clone(),
                hostname: "rewind".into(),
                cores: self.cores.unwrap_or(1),
                seed: blake3::derive_key("rewind seed 1", &self.seed.to_le_bytes()),
                epoch: self.epoch,
                images: roots.len() as u32,
                tty: self.tty,
                outputs: self.outputs.iter().cloned().map(OsString::into_vec).collect(),
                overlay_bytes: 0,
            },
            schedule: Schedule::default(),
            outside: None,
        })
    }
}

/// `--spacing`.
pub(crate) fn spaced(milliseconds: Option<u64>) -> Keyframes {
    milliseconds.map_or(Keyframes::Thrifty, |ms| Keyframes::Every(Duration::from_millis(ms)))
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let called = Wall::now();
    let home = context::home()?;
    let kernel = guest::kernel(&home)?;
    let roots = args.job.roots(&home, root::Moment::Moving)?;
    let spec = args.job.spec(&kernel, &roots)?;
    let live = Live::new(args.json);
    let mut show = |header: &RecordHeader, payload: &[u8]| live.show(header, payload);
    let mut options = Options {
        engine: args.job.engine(&home)?,
        timeout: args.timeout,
        interrupted: context::stopped()?,
        keyframes: if args.no_keyframes { Keyframes::Never } else { spaced(args.spacing) },
        again: args.again,
        doubt: args.again,
        spin_limit: None,
        called,
        cut: Cut::default(),
        reminder: None,
        live: &mut show,
        notice: &context::notice,
        gather: &gather::of(&spec),
    };
    let make = || Ok(kernel.clone());
    let inputs = Inputs { spec, kernel: &make, roots: &roots, parent: None };
    let recorded = match args.job.clock {
        ClockArg::Auto => record_auto(&home, &inputs, &mut options, &|why| live.begin_anew(why))?,
        ClockArg::Steps | ClockArg::Work => record(&home, &inputs, &mut options)?,
    };
    if recorded.found {
        // The same as if it had run: its output again.
        for record in context::trace(&recorded.run)?.iter() {
            let record = record?;
            live.show(&record.header, &record.payload);
        }
    }
    finish(&recorded, args.json)?;
    Ok(ExitCode::from(recorded.outcome.end.exit_status()))
}

/// Decisions not reached that are listed.
const MOST_MISSED: usize = 2;

/// The last line.
pub(crate) fn finish(recorded: &Recorded, as_json: bool) -> Result<()> {
    let (outcome, recording) = (&recorded.outcome, &recorded.recording);
    let virtual_ns = outcome.virtual_ns.saturating_sub(outcome.started_ns);
    if as_json {
        let mut value = crate::cmd::ls::outcome_json(outcome);
        value.insert("kind".into(), "run".into());
        value.insert("run".into(), recorded.run.id().to_string().into());
        value.insert("engine".into(), recording.engine.name().into());
        value.insert("wall_ms".into(), recording.wall_ms.into());
        value.insert("first_event_ms".into(), json!(recording.first_event_ms));
        value.insert("found".into(), recorded.found.into());
        return output::json(&value.into());
    }
    if let Some(detail) = outcome.end.detail() {
        output::say!("rewind: {}", output::printable(detail));
    }
    for missed in outcome.missed.iter().take(MOST_MISSED) {
        output::say!("rewind: decision not reached: {missed}");
    }
    if outcome.missed.len() > MOST_MISSED {
        output::say!(
            "rewind: and {} more decisions were not reached (--json lists them)",
            outcome.missed.len() - MOST_MISSED
        );
    }
    for out in &outcome.outputs {
        let hash =
            out.hash.map_or("not there, or nothing that can be read".into(), |hash| run::id::hex(&hash[..8]));
        output::say!("out {}  {hash}", output::printable(&String::from_utf8_lossy(&out.path)));
    }
    output::say!(
        "run {}  {}  {} steps  virtual {}  wall {}  {}{}",
        recorded.run.id(),
        outcome.end.word(),
        outcome.steps,
        output::seconds(virtual_ns),
        output::seconds(recording.wall_ms * 1_000_000),
        recording.engine.name(),
        if recorded.found { "  (recorded before; --again runs it again)" } else { "" },
    );
    Ok(())
}
