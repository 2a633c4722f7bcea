//! Our side: the machine on the `soft` engine, in a process of its own.

use std::{path::Path, process::Command};

use crate::took::{Took, timed};
use anyhow::{Context as _, Result, bail, ensure};
use rewind_platform::{
    job::{Job, JobEnd},
    record::{REC_CONSOLE, REC_OUTPUT, REC_REPORT, REPORT_ENDED, RecordHeader},
};
use vmm::{
    EndReason, EngineKind, KernelFiles, Machine, MachineConfig, RecordSink, RunParameters, Stop, Until,
};

/// What a run left behind, as far as it is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// What the job wrote.
    pub(crate) output: String,
    /// What the kernel or init said.
    pub(crate) console: String,
    /// Wait status of the job.
    pub(crate) status: Option<i32>,
    /// Steps at the last record.
    pub(crate) steps: u64,
}

impl Outcome {
    /// Takes a record.
    pub(crate) fn add(&mut self, header: &RecordHeader, payload: &[u8]) {
        self.steps = header.step;
        match header.kind {
            REC_OUTPUT => self.output.push_str(&String::from_utf8_lossy(payload)),
            REC_CONSOLE => self.console.push_str(&String::from_utf8_lossy(payload)),
            REC_REPORT if header.flags == REPORT_ENDED => {
                self.status = postcard::from_bytes::<JobEnd>(payload).ok().map(|end| end.status);
            }
            _ => {}
        }
    }
}

/// Takes all records of a run.
#[derive(Default)]
struct Sink {
    outcome: Outcome,
    hash: blake3::Hasher,
}

impl RecordSink for Sink {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        self.hash.update(bytemuck::bytes_of(header));
        self.hash.update(payload);
        self.outcome.add(header, payload);
    }
    fn console(&mut self, text: &[u8]) {
        self.outcome.console.push_str(&String::from_utf8_lossy(text));
    }
}

/// Runs a job to its end in this process.
pub(crate) fn run_here(vmlinux: &Path, initramfs: &Path, memory: u64, job: &Job) -> Result<Outcome> {
    let files = KernelFiles::read(vmlinux, initramfs)?;
    let mut machine = Machine::boot(&MachineConfig::new(memory, EngineKind::Soft, files))?;
    machine.set_job(job, &RunParameters::default())?;
    let mut sink = Sink::default();
    loop {
        match machine.run(&Until::END, &mut sink)? {
            Stop::Job => {}
            Stop::End(EndReason::PowerOff) => break,
            stop => bail!("the run stopped with {stop:?}:\n{}", sink.outcome.console),
        }
    }
    let counters = machine.engine().counters();
    eprintln!(
        "{} instructions, {} of them at CPL 3; {} exits; records {}",
        counters.instructions.0,
        counters.user_instructions.0,
        counters.exits,
        sink.hash.finalize().to_hex()
    );
    Ok(sink.outcome)
}

/// Runs a job in a new process of this program and times the whole process.
pub(crate) fn run(vmlinux: &Path, initramfs: &Path, argv: &[&str]) -> Result<(Took, Outcome)> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.arg("--soft").arg(vmlinux).arg(initramfs).args(argv);
    let (took, out) = timed(&mut command)?;
    ensure!(
        out.status.success(),
        "the soft engine's process failed with {}:\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8_lossy(&out.stdout);
    let (head, output) = text.split_once('\n').context("the soft engine's process printed nothing")?;
    let mut numbers = head.split(' ').map(str::parse::<u64>);
    let (Some(Ok(status)), Some(Ok(steps))) = (numbers.next(), numbers.next()) else {
        bail!("the soft engine's process printed {head:?}");
    };
    let outcome =
        Outcome { output: output.to_owned(), console: String::new(), status: Some(status as i32), steps };
    Ok((took, outcome))
}
