//! The same machine under QEMU's emulator: the memory the monitor prepared as a file that is QEMU's RAM, own firmware
//! that enters the kernel, and simple ISA devices where the platform's ports are.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytemuck::Zeroable as _;
use rewind_platform::{
    PLATFORM_VERSION,
    control::{CTL_JOB_LEN, CTL_RING_HEAD},
    job::Job,
    layout::{CONTROL_BASE, CONTROL_SIZE, JOB_OFFSET, RING_CAPACITY, RING_OFFSET},
    port,
    record::RecordHeader,
};
use vmm::{EngineKind, KernelFiles, Machine, MachineConfig, address::Gpa, memory::PAGE};

use crate::{
    root::output_of,
    soft::Outcome,
    took::{Took, timed},
};

/// QEMU's RAM: up to behind the control slot, so that this is plain memory. The kernel uses what the memory map says.
const RAM_MIB: u64 = 3500;

/// Writes the memory of a machine about to enter its kernel to a sparse file, the job already in its place, and the
/// firmware that enters it to a second file.
pub(crate) fn prepare(
    files: KernelFiles,
    memory: u64,
    job: &Job,
    firmware_source: &Path,
    work: &Path,
) -> Result<(PathBuf, PathBuf)> {
    let mut machine = Machine::boot(&MachineConfig::new(memory, EngineKind::Soft, files))?;
    let (image, firmware) = (work.join("memory.raw"), work.join("firmware.bin"));
    let file = File::create(&image).with_context(|| format!("cannot create {}", image.display()))?;
    file.set_len(RAM_MIB << 20)?;
    let mut page = [0; PAGE as usize];
    for index in 0..memory / PAGE {
        let at = machine.memory().address_of(index);
        machine.memory().read(at, &mut page)?;
        if page.iter().any(|&b| b != 0) {
            file.write_all_at(&page, at.0)?;
        }
    }
    // The ring is empty and large: left as a hole.
    for offset in (0..CONTROL_SIZE.min(RING_OFFSET)).step_by(PAGE as usize) {
        machine.memory().read(Gpa(CONTROL_BASE + offset), &mut page)?;
        if page.iter().any(|&b| b != 0) {
            file.write_all_at(&page, CONTROL_BASE + offset)?;
        }
    }
    let job = postcard::to_allocvec(job)?;
    file.write_all_at(&job, CONTROL_BASE + JOB_OFFSET)?;
    file.write_all_at(&(job.len() as u64).to_le_bytes(), CONTROL_BASE + CTL_JOB_LEN)?;

    let cpu = machine.cpu()?;
    let (object, linked) = (work.join("firmware.o"), work.join("firmware.elf"));
    let mut assemble = Command::new("as");
    assemble.args(["--64", "-o"]).arg(&object);
    for (name, value) in [
        ("PORT", port::PLATFORM.into()),
        ("ENTRY", cpu.rip),
        ("PML4", cpu.cr3),
        ("ZERO_PAGE", cpu.gpr[6]),
        ("GDT", cpu.gdtr.base),
        ("GDT_LIMIT", cpu.gdtr.limit.into()),
    ] {
        assemble.args(["--defsym", &format!("{name}={value:#x}")]);
    }
    output_of(assemble.arg(firmware_source))?;
    output_of(Command::new("ld").args(["-Ttext", "0xf0000", "-o"]).arg(&linked).arg(&object))?;
    output_of(Command::new("objcopy").args(["-O", "binary", "-j", ".text"]).arg(&linked).arg(&firmware))?;
    let len = fs::metadata(&firmware)?.len();
    ensure!(len == 0x1_0000, "the firmware has {len} bytes, not 64 KiB");
    Ok((image, firmware))
}

/// Runs a prepared machine to its end and times the whole process.
pub(crate) fn run(image: &Path, firmware: &Path, work: &Path) -> Result<(Took, Outcome)> {
    let console = work.join("console.txt");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-icount", "shift=0,sleep=off", "-cpu", "Nehalem"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-m", &format!("{RAM_MIB}M"), "-machine", "pc,memory-backend=ram,pit=off,hpet=off", "-object"])
        .arg(format!("memory-backend-file,id=ram,size={RAM_MIB}M,mem-path={},share=on", image.display()))
        .arg("-bios")
        .arg(firmware)
        .arg("-chardev")
        .arg(format!("file,id=console,path={}", console.display()));
    // The kernel reads the version as four bytes, and of all simple devices only the data port of a disk answers four:
    // the firmware has asked for the sector that begins with the version.
    let disk = work.join("version.raw");
    let mut sector = vec![0; 512];
    sector[..4].copy_from_slice(&PLATFORM_VERSION.to_le_bytes());
    fs::write(&disk, sector)?;
    qemu.args([
        "-device",
        &format!("isa-ide,id=platform,iobase={:#x},iobase2=0xb46,irq=14", port::PLATFORM),
        "-drive",
    ])
    .arg(format!("if=none,id=version,format=raw,file={}", disk.display()))
    .args(["-device", "ide-hd,bus=platform.0,drive=version"]);
    qemu.args(["-device", &format!("isa-debugcon,iobase={:#x},chardev=console", port::CONSOLE)])
        .args(["-device", &format!("isa-debug-exit,iobase={:#x},iosize=4", port::END)]);
    let (took, out) = timed(&mut qemu).context("scripts/setup.sh installs QEMU")?;
    // The device ends QEMU with twice the value written and one.
    let expected = (port::END_POWER_OFF << 1 | 1) as i32;
    if out.status.code() != Some(expected) {
        let console = fs::read(&console).unwrap_or_default();
        let told = outcome(image).map(|o| o.console).unwrap_or_default();
        bail!(
            "QEMU ended with {} instead of the guest's power off:\n{}{}{told}",
            out.status,
            String::from_utf8_lossy(&out.stderr),
            String::from_utf8_lossy(&console)
        );
    }
    Ok((took, outcome(image)?))
}

/// What the guest left in the trace ring, which nobody drained.
fn outcome(image: &Path) -> Result<Outcome> {
    let file = File::open(image)?;
    let mut head = [0; 8];
    file.read_exact_at(&mut head, CONTROL_BASE + CTL_RING_HEAD)?;
    let head = u64::from_le_bytes(head);
    ensure!(head <= RING_CAPACITY, "the guest wrote {head} bytes of records, more than the ring holds");
    let mut ring = vec![0; head as usize];
    file.read_exact_at(&mut ring, CONTROL_BASE + RING_OFFSET)?;
    let mut outcome = Outcome::default();
    let mut at = 0;
    const HEADER: usize = size_of::<RecordHeader>();
    while at + HEADER <= ring.len() {
        let mut header = RecordHeader::zeroed();
        bytemuck::bytes_of_mut(&mut header).copy_from_slice(&ring[at..at + HEADER]);
        let payload = ring.get(at + HEADER..at + HEADER + header.payload_len as usize);
        outcome.add(&header, payload.context("a record is cut short")?);
        ensure!(header.len as usize >= HEADER, "a record has an impossible length");
        at += header.len as usize;
    }
    Ok(outcome)
}
