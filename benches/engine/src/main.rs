//! Times the software CPU beside QEMU's emulator with an instruction counter, in one run: the same kernel, entered with
//! the same bytes in memory, the same root and the same jobs. See the README beside this crate.
//!
//! `bench-engine [--guest FOLDER] [--repeat N] [--only NAME]... [--keep]`

mod cpio;
mod qemu;
mod root;
mod soft;
mod took;
mod workload;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail, ensure};
use vmm::KernelFiles;

use crate::{
    soft::Outcome,
    took::Took,
    workload::{ALL, EMPTY, Root, Workload, job},
};

/// RAM of the machine, as its memory map says.
const MEMORY: u64 = 512 << 20;
/// The least ratio that is good enough.
const ENOUGH: f64 = 0.25;

struct Options {
    guest: PathBuf,
    repeat: u32,
    only: Vec<String>,
    keep: bool,
}

fn options(mut list: impl Iterator<Item = String>) -> Result<Options> {
    let top = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut options = Options { guest: top.join("build/guest"), repeat: 2, only: Vec::new(), keep: false };
    while let Some(name) = list.next() {
        let mut value = || list.next().with_context(|| format!("{name} needs a value"));
        match name.as_str() {
            "--guest" => options.guest = value()?.into(),
            "--repeat" => options.repeat = value()?.parse().context("--repeat takes a number")?,
            "--only" => options.only.push(value()?),
            "--keep" => options.keep = true,
            _ => bail!("unknown argument {name}; there are --guest, --repeat, --only and --keep"),
        }
    }
    ensure!(options.repeat > 0, "--repeat must be at least 1");
    for name in &options.only {
        ensure!(ALL.iter().any(|w| w.name == name), "there is no workload {name}");
    }
    Ok(options)
}

/// The least of some times, and what the runs left, which must always be the same.
struct Timed {
    least: Took,
    outcome: Outcome,
}

fn timed(repeat: u32, mut once: impl FnMut() -> Result<(Took, Outcome)>) -> Result<Timed> {
    let (mut least, outcome) = once()?;
    for _ in 1..repeat {
        let (took, again) = once()?;
        ensure!(again == outcome, "two runs of one job differ:\n{outcome:?}\n{again:?}");
        least = least.least(took);
    }
    Ok(Timed { least, outcome })
}

/// Both sides of one job.
struct Pair {
    soft: Timed,
    qemu: Timed,
}

struct Bench {
    options: Options,
    work: PathBuf,
    firmware: PathBuf,
    vmlinux: PathBuf,
    roots: BTreeMap<&'static str, PathBuf>,
}

impl Bench {
    fn new(options: Options) -> Result<Bench> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        // QEMU's RAM is a file: it should lie in memory.
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let work = base.join(format!("bench-engine-{}", std::process::id()));
        fs::create_dir_all(&work)?;
        let init = options.guest.join("initramfs.cpio");
        let init = fs::read(&init)
            .with_context(|| format!("cannot read {}; run scripts/build-guest.sh", init.display()))?;
        let mut roots = BTreeMap::new();
        let guest = here.join("guest");
        for (name, bytes) in [
            ("small", root::small(&init, &guest, &work)?),
            ("compiler", root::compiler(&init, &guest, &work)?),
        ] {
            let path = work.join(format!("{name}.cpio"));
            fs::write(&path, bytes)?;
            roots.insert(name, path);
        }
        let vmlinux = options.guest.join("vmlinux");
        Ok(Bench { options, work, firmware: here.join("firmware.S"), vmlinux, roots })
    }

    fn root(&self, root: Root) -> &Path {
        &self.roots[match root {
            Root::Small => "small",
            Root::Compiler => "compiler",
        }]
    }

    /// Runs one job on both sides, one after the other.
    fn pair(&self, root: Root, argv: &[&str]) -> Result<Pair> {
        let initramfs = self.root(root);
        let repeat = self.options.repeat;
        let soft = timed(repeat, || soft::run(&self.vmlinux, initramfs, argv))?;
        let qemu = timed(repeat, || {
            let files = KernelFiles::read(&self.vmlinux, initramfs)?;
            let (image, firmware) = qemu::prepare(files, MEMORY, &job(argv), &self.firmware, &self.work)?;
            qemu::run(&image, &firmware, &self.work)
        })?;
        for (side, outcome) in [("soft", &soft.outcome), ("QEMU", &qemu.outcome)] {
            ensure!(
                outcome.status == Some(0),
                "{argv:?} ended with status {:?} on {side}:\n{}{}",
                outcome.status,
                outcome.output,
                outcome.console
            );
        }
        ensure!(
            soft.outcome.output == qemu.outcome.output,
            "{argv:?} printed different things.\nsoft:\n{}\nQEMU:\n{}",
            soft.outcome.output,
            qemu.outcome.output
        );
        Ok(Pair { soft, qemu })
    }

    fn run(&self) -> Result<bool> {
        let wanted: Vec<&Workload> = ALL
            .iter()
            .filter(|w| self.options.only.is_empty() || self.options.only.iter().any(|name| name == w.name))
            .collect();
        let mut empty: BTreeMap<&Path, Pair> = BTreeMap::new();
        let mut ratios = Vec::new();
        println!("seconds of processor time (wall time); steps on soft and QEMU; what the job printed");
        println!("{:<20} {:>17} {:>17}", "workload", "soft", "QEMU");
        for workload in wanted {
            let root = self.root(workload.root);
            if !empty.contains_key(root) {
                empty.insert(root, self.pair(workload.root, EMPTY)?);
            }
            let base = &empty[root];
            let own;
            let (pair, soft, qemu) = if workload.beyond_boot {
                own = self.pair(workload.root, workload.argv)?;
                let soft = own.soft.least.beyond(base.soft.least);
                let qemu = own.qemu.least.beyond(base.qemu.least);
                (&own, soft, qemu)
            } else {
                (base, base.soft.least, base.qemu.least)
            };
            let printed = &pair.soft.outcome.output;
            if let Some(prints) = workload.prints {
                ensure!(printed == prints, "{} printed {printed:?}, not {prints:?}", workload.name);
            }
            let (soft_cpu, qemu_cpu) = (soft.cpu.as_secs_f64(), qemu.cpu.as_secs_f64());
            ensure!(soft_cpu > 0.0 && qemu_cpu > 0.0, "{} took no time beyond the boot", workload.name);
            println!(
                "{:<20} {soft_cpu:>8.3} ({:>6.3}) {qemu_cpu:>8.3} ({:>6.3})  {} {}; {}",
                workload.name,
                soft.wall.as_secs_f64(),
                qemu.wall.as_secs_f64(),
                pair.soft.outcome.steps,
                pair.qemu.outcome.steps,
                printed.trim().replace('\n', ", ")
            );
            ratios.push((workload.name, qemu_cpu / soft_cpu));
        }
        for (name, ratio) in &ratios {
            println!("ratio {name} {ratio:.2}");
        }
        Ok(ratios.iter().all(|(_, ratio)| *ratio >= ENOUGH))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.options.keep {
            // What is left behind is only disk space; there is nobody to tell.
            let _ = fs::remove_dir_all(&self.work);
        }
    }
}

/// The process that is timed on our side: `--soft VMLINUX INITRAMFS PROGRAM ARGS...`.
fn soft_process(arguments: &[String]) -> Result<()> {
    let [vmlinux, initramfs, argv @ ..] = arguments else {
        bail!("--soft takes a kernel, an initramfs and a job")
    };
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let outcome = soft::run_here(Path::new(vmlinux), Path::new(initramfs), MEMORY, &job(&argv))?;
    let status = outcome.status.with_context(|| format!("the job did not end:\n{}", outcome.console))?;
    print!("{} {}\n{}", status, outcome.steps, outcome.output);
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == "--soft" => soft_process(rest).map(|()| true),
        _ => options(arguments.into_iter()).and_then(Bench::new).and_then(|bench| bench.run()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("bench-engine: a ratio is below {ENOUGH}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("bench-engine: {error:#}");
            ExitCode::from(2)
        }
    }
}
