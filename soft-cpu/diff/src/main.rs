//! The full differential test: `soft-cpu-diff --cases 10000000 --seed 1`.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use soft_cpu_diff::{
    drive::{Summary, compare_many},
    fuzz,
    generate::{encodings, sequence::Sequences, single::Singles},
    native::Native,
    soft::Tiers,
};

/// Compares the software CPU with the host CPU over generated cases.
#[derive(Parser)]
struct Arguments {
    /// Cases to run; one in four is a sequence of instructions.
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Seed of the cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads, each with cases of its own.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Only encodings whose name (as in `Add_rm32_r32`) contains this; no sequences.
    #[arg(long)]
    only: Option<String>,
    /// Only sequences.
    #[arg(long)]
    sequences: bool,
    /// Where to write the encodings covered, a line each.
    #[arg(long)]
    covered: Option<PathBuf>,
    /// Where to write the mismatches, each with a reproduction.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Instead, run this many cases of arbitrary bytes and states: nothing may break the software CPU.
    #[arg(long, value_name = "CASES")]
    fuzz: Option<u64>,
    /// With --fuzz: the first case.
    #[arg(long, value_name = "CASE", default_value_t = 0, requires = "fuzz")]
    first: u64,
    /// List the encodings of the model that are not compared, with the reason, and end.
    #[arg(long)]
    not_compared: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soft-cpu-diff: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> std::io::Result<bool> {
    if arguments.not_compared {
        for (code, reason) in encodings::not_tested() {
            println!("{code:?}: {reason}");
        }
        return Ok(true);
    }
    if let Some(cases) = arguments.fuzz {
        let tally = fuzz::run(arguments.seed, arguments.first, cases, |tally| {
            if tally.cases.is_multiple_of(100_000) {
                eprintln!("{tally:?}");
            }
        })?;
        println!("{tally:?}");
        return Ok(true);
    }
    let total = Singles::new(arguments.seed, arguments.only.as_deref()).codes().len();
    if total == 0 {
        return Err(std::io::Error::other("no encoding has that in its name; see --not-compared"));
    }
    let jobs = arguments.jobs.max(1);
    let share = |job: u64| arguments.cases / jobs + u64::from(job < arguments.cases % jobs);
    let results: Vec<std::io::Result<Summary>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|job| scope.spawn(move || work(arguments, job, share(job)))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(std::io::Error::other("a worker panicked"))))
            .collect()
    });
    let mut summary = Summary::default();
    for result in results {
        summary.merge(result?);
    }
    for path in [&arguments.report, &arguments.covered].into_iter().flatten() {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
    }
    if let Some(path) = &arguments.report {
        std::fs::write(path, summary.report())?;
    }
    if let Some(path) = &arguments.covered {
        std::fs::write(path, summary.covered())?;
    }
    tell(&summary, arguments, total);
    Ok(summary.mismatches.is_empty())
}

/// Runs the cases of one job: its generators have seeds of their own.
fn work(arguments: &Arguments, job: u64, cases: u64) -> std::io::Result<Summary> {
    let seed = arguments.seed.wrapping_add(job.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut native = Native::new()?;
    let mut soft = Tiers::new();
    let mut singles = Singles::new(seed, arguments.only.as_deref());
    let mut sequences = Sequences::new(seed ^ 0x5eed);
    let mut number = 0u64;
    let make = || {
        number += 1;
        if arguments.only.is_none() && (arguments.sequences || number.is_multiple_of(4)) {
            sequences.make()
        } else {
            singles.make()
        }
    };
    let (mut told, mut known) = (0, 0);
    compare_many(&mut native, &mut soft, cases, make, |summary| {
        // At once, so that a long run need not end to be looked at.
        if summary.mismatches.len() > known {
            known = summary.mismatches.len();
            for (name, mismatch) in &summary.mismatches {
                eprintln!("mismatch in {name}: {}", mismatch.line);
            }
        }
        if summary.cases / 1_000_000 > told {
            told = summary.cases / 1_000_000;
            eprintln!("job {job}: {} cases, {} mismatching", summary.cases, summary.mismatching());
        }
    })
}

fn tell(summary: &Summary, arguments: &Arguments, total: usize) {
    if !summary.mismatches.is_empty() && arguments.report.is_none() {
        println!("{}", summary.report());
    }
    let (encodings, forms) = summary.encodings();
    println!("cases {}", summary.cases);
    println!("encodings {encodings} of {total} ({forms} with register and memory forms apart)");
    println!(
        "completed {}, ended in an exception {}",
        summary.completed(),
        summary.cases - summary.completed()
    );
    println!("encodings that never completed: {}", summary.never_completed().join(" "));
    println!("mismatches {}", summary.mismatching());
}
