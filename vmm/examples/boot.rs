//! Boots a kernel and shows its records: for work on the guest kernel and init.
//!
//! `boot --kernel VMLINUX --initramfs CPIO [--memory MIB] [--engine kvm|soft] [--append TEXT] [--trace BITS]
//! [--stop-step N] [--offset N] [--seed N] [--quiet] [-- CMD ARGS...]`

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use rewind_platform::{job::Job, record::*};
use vmm::{
    EngineKind, KernelFiles, Machine, MachineConfig, RecordSink, RunParameters, Stop, Until,
    address::{Instructions, Position, Step},
};

struct Arguments {
    kernel: PathBuf,
    initramfs: PathBuf,
    memory: u64,
    engine: EngineKind,
    append: String,
    trace: u32,
    stop_step: Option<u64>,
    offset: u64,
    seed: u8,
    quiet: bool,
    command: Vec<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut a = Arguments {
        kernel: PathBuf::new(),
        initramfs: PathBuf::new(),
        memory: 256,
        engine: EngineKind::Kvm,
        append: String::new(),
        trace: 0,
        stop_step: None,
        offset: 0,
        seed: 1,
        quiet: false,
        command: Vec::new(),
    };
    let mut list = std::env::args().skip(1);
    while let Some(name) = list.next() {
        let mut value = || list.next().ok_or(format!("{name} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match name.as_str() {
            "--kernel" => a.kernel = value()?.into(),
            "--initramfs" => a.initramfs = value()?.into(),
            "--memory" => a.memory = number(value()?)?,
            "--engine" => {
                a.engine = match value()?.as_str() {
                    "kvm" => EngineKind::Kvm,
                    "soft" => EngineKind::Soft,
                    other => return Err(format!("no engine {other}")),
                }
            }
            "--append" => a.append = value()?,
            "--trace" => a.trace = number(value()?)? as u32,
            "--stop-step" => a.stop_step = Some(number(value()?)?),
            "--offset" => a.offset = number(value()?)?,
            "--seed" => a.seed = number(value()?)? as u8,
            "--quiet" => a.quiet = true,
            "--" => a.command = list.by_ref().collect(),
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    Ok(a)
}

/// Prints records; job output goes to standard output as it is.
struct Printer {
    quiet: bool,
    records: u64,
}

impl RecordSink for Printer {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        self.records += 1;
        if header.kind == REC_OUTPUT || header.kind == REC_CONSOLE {
            print(payload);
        } else if !self.quiet {
            let text: String =
                payload.iter().take(96).flat_map(|b| b.escape_ascii()).map(char::from).collect();
            eprintln!(
                "[step {} now {} kind {} flags {:#x} thread {:016x} tid {} pid {} aux {}] {text}",
                header.step,
                header.now,
                header.kind,
                header.flags,
                header.thread,
                header.tid,
                header.pid,
                header.aux
            );
        }
    }

    fn console(&mut self, text: &[u8]) {
        print(text);
    }
}

fn print(text: &[u8]) {
    // Nobody to tell if standard output is gone.
    let _ = std::io::stdout().write_all(text);
}

fn job(a: &Arguments) -> Job {
    Job {
        argv: a.command.iter().map(|s| s.clone().into_bytes()).collect(),
        env: vec![b"PATH=/usr/bin:/bin:/usr/sbin:/sbin".to_vec(), b"HOME=/root".to_vec()],
        cwd: b"/".to_vec(),
        user: String::new(),
        hostname: "rewind".into(),
        cores: 1,
        seed: [a.seed; 32],
        epoch: 1_700_000_000,
        images: 0,
        tty: false,
        outputs: Vec::new(),
        overlay_bytes: 0,
    }
}

fn run(a: &Arguments) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut files = KernelFiles::read(&a.kernel, &a.initramfs)?;
    if !a.append.is_empty() {
        files.command_line = format!("{} {}", files.command_line, a.append);
    }
    let mut machine = Machine::boot(&MachineConfig::new(a.memory << 20, a.engine, files))?;
    machine.set_job(&job(a), &RunParameters::default())?;
    machine.set_trace_level(a.trace);
    let mut sink = Printer { quiet: a.quiet, records: 0 };
    let until = a.stop_step.map_or(Until::END, |step| {
        Until::position(Position { step: Step(step), offset: Instructions(a.offset) })
    });
    let stop = loop {
        match machine.run(&until, &mut sink)? {
            Stop::Job => eprintln!(
                "init asks for its job at step {}, {} ns; {} exits so far",
                machine.step(),
                machine.now(),
                machine.engine().counters().exits
            ),
            stop => break stop,
        }
    };
    eprintln!("{stop:?}");
    if matches!(stop, Stop::Fault(_) | Stop::Step | Stop::Position) {
        let cpu = machine.cpu()?;
        eprintln!("{} rip {:x} rflags {:x} {:x?}", machine.position(), cpu.rip, cpu.rflags, cpu.gpr);
    }
    eprintln!(
        "step {}, now {} ns, {} exits, {} records",
        machine.step(),
        machine.now(),
        machine.engine().counters().exits,
        sink.records
    );
    Ok(if matches!(stop, Stop::Fault(_)) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn main() -> ExitCode {
    match arguments() {
        Err(error) => {
            eprintln!("boot: {error}");
            ExitCode::from(2)
        }
        Ok(a) => run(&a).unwrap_or_else(|error| {
            eprintln!("boot: {error}");
            ExitCode::FAILURE
        }),
    }
}
