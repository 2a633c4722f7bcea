//! The registers gdb sees: their order, their description, and where they are in a stopped machine.

use std::{fmt::Write as _, num::NonZeroUsize};

use gdbstub::arch::{Arch, RegId, Registers};
use rewind_platform::state::Fact;
use vmm::{Machine, address::Gva, engine::CpuState};

use crate::{
    kernel::{Kernel, Read, ReadError},
    look,
    process::{self, Thread},
};

/// x86-64 with SSE, segment bases and the system call number.
#[derive(Debug)]
pub enum X86_64 {}

/// One register: its number in the layout told to gdb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub usize);

impl RegId for Register {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let (_, size) = place(id)?;
        Some((Register(id), NonZeroUsize::new(size)))
    }
    fn to_raw_id(&self) -> Option<usize> {
        Some(self.0)
    }
}

impl Arch for X86_64 {
    type Usize = u64;
    type Registers = File;
    type BreakpointKind = usize;
    type RegId = Register;
}

const GENERAL: [&str; 16] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
/// Where gdb's general registers are in [`process::UserRegisters::gpr`] (hardware order).
const HARDWARE: [usize; 16] = [0, 3, 1, 2, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
const SEGMENTS: [&str; 6] = ["cs", "ss", "ds", "es", "fs", "gs"];
const CONTROL: [&str; 8] = ["fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop"];

/// Numbers of the first register of each group.
const RIP: usize = 16;
const FLAGS: usize = 17;
const CS: usize = 18;
const ST0: usize = 24;
const FCTRL: usize = 32;
const XMM0: usize = 40;
const MXCSR: usize = 56;
const ORIG_RAX: usize = 57;
const FS_BASE: usize = 58;
const GS_BASE: usize = 59;
/// How many there are.
const COUNT: usize = 60;

/// Bytes of register `number`.
fn size(number: usize) -> usize {
    match number {
        0..=RIP => 8,
        FLAGS..ST0 => 4,
        ST0..FCTRL => 10,
        FCTRL..XMM0 => 4,
        XMM0..MXCSR => 16,
        MXCSR => 4,
        _ => 8,
    }
}

/// Offset and size of a register in [`File`].
pub fn place(number: usize) -> Option<(usize, usize)> {
    (number < COUNT).then(|| ((0..number).map(size).sum(), size(number)))
}

/// All registers in gdb's order.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// Their bytes, back to back.
    pub bytes: Vec<u8>,
}

impl Default for File {
    fn default() -> Self {
        File { bytes: vec![0; (0..COUNT).map(size).sum()] }
    }
}

impl Registers for File {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.number(RIP)
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        self.bytes.iter().for_each(|byte| write_byte(Some(*byte)));
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        if bytes.len() > self.bytes.len() {
            return Err(());
        }
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl File {
    /// A register's bytes.
    pub fn get(&self, number: usize) -> Option<&[u8]> {
        let (at, size) = place(number)?;
        self.bytes.get(at..at + size)
    }

    fn set(&mut self, number: usize, value: &[u8]) {
        if let Some((at, size)) = place(number) {
            let length = size.min(value.len());
            self.bytes[at..at + length].copy_from_slice(&value[..length]);
        }
    }

    fn number(&self, number: usize) -> u64 {
        let mut bytes = [0; 8];
        let value = self.get(number).unwrap_or_default();
        let length = value.len().min(8);
        bytes[..length].copy_from_slice(&value[..length]);
        u64::from_le_bytes(bytes)
    }
}

/// Bits of RFLAGS (Intel SDM vol. 1, 3.4.3) and MXCSR (10.2.3).
const EFLAGS: [(u32, &str); 17] = [
    (0, "CF"),
    (2, "PF"),
    (4, "AF"),
    (6, "ZF"),
    (7, "SF"),
    (8, "TF"),
    (9, "IF"),
    (10, "DF"),
    (11, "OF"),
    (14, "NT"),
    (16, "RF"),
    (17, "VM"),
    (18, "AC"),
    (19, "VIF"),
    (20, "VIP"),
    (21, "ID"),
    (1, ""),
];
const CONTROL_FLAGS: [(u32, &str); 14] = [
    (0, "IE"),
    (1, "DE"),
    (2, "ZE"),
    (3, "OE"),
    (4, "UE"),
    (5, "PE"),
    (6, "DAZ"),
    (7, "IM"),
    (8, "DM"),
    (9, "ZM"),
    (10, "OM"),
    (11, "UM"),
    (12, "PM"),
    (15, "FZ"),
];

fn flags(text: &mut String, name: &str, bits: &[(u32, &str)]) {
    let _ = write!(text, "<flags id=\"{name}\" size=\"4\">");
    for (bit, field) in bits {
        let _ = write!(text, "<field name=\"{field}\" start=\"{bit}\" end=\"{bit}\"/>");
    }
    text.push_str("</flags>");
}

/// The target description gdb asks for.
pub fn description() -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
         <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>\
         <feature name=\"org.gnu.gdb.i386.core\">",
    );
    flags(&mut text, "i386_eflags", &EFLAGS);
    let register = |text: &mut String, name: &str, bits: u32, kind: &str| {
        let _ = write!(text, "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"/>");
    };
    for name in GENERAL {
        let kind = if matches!(name, "rbp" | "rsp") { "data_ptr" } else { "int64" };
        register(&mut text, name, 64, kind);
    }
    register(&mut text, "rip", 64, "code_ptr");
    register(&mut text, "eflags", 32, "i386_eflags");
    for name in SEGMENTS {
        register(&mut text, name, 32, "int32");
    }
    for number in 0..8 {
        register(&mut text, &format!("st{number}"), 80, "i387_ext");
    }
    for name in CONTROL {
        register(&mut text, name, 32, "int");
    }
    text.push_str(
        "</feature><feature name=\"org.gnu.gdb.i386.sse\">\
         <vector id=\"v4f\" type=\"ieee_single\" count=\"4\"/><vector id=\"v2d\" type=\"ieee_double\" count=\"2\"/>\
         <vector id=\"v16i8\" type=\"int8\" count=\"16\"/><vector id=\"v8i16\" type=\"int16\" count=\"8\"/>\
         <vector id=\"v4i32\" type=\"int32\" count=\"4\"/><vector id=\"v2i64\" type=\"int64\" count=\"2\"/>\
         <union id=\"vec128\"><field name=\"v4_float\" type=\"v4f\"/><field name=\"v2_double\" type=\"v2d\"/>\
         <field name=\"v16_int8\" type=\"v16i8\"/><field name=\"v8_int16\" type=\"v8i16\"/>\
         <field name=\"v4_int32\" type=\"v4i32\"/><field name=\"v2_int64\" type=\"v2i64\"/>\
         <field name=\"uint128\" type=\"uint128\"/></union>",
    );
    flags(&mut text, "i386_mxcsr", &CONTROL_FLAGS);
    for number in 0..16 {
        register(&mut text, &format!("xmm{number}"), 128, "vec128");
    }
    register(&mut text, "mxcsr", 32, "i386_mxcsr");
    text.push_str("</feature><feature name=\"org.gnu.gdb.i386.linux\">");
    register(&mut text, "orig_rax", 64, "int64");
    text.push_str("</feature><feature name=\"org.gnu.gdb.i386.segments\">");
    register(&mut text, "fs_base", 64, "int64");
    register(&mut text, "gs_base", 64, "int64");
    text.push_str("</feature></target>");
    text
}

/// TIF_NEED_FPU_LOAD (arch/x86/include/asm/thread_info.h): the task's floating-point state is in memory, not in
/// the CPU. `thread_info.flags` is the first word of a task.
const NEED_FPU_LOAD: u64 = 1 << 14;

/// Is the thread's floating-point state in the CPU?
fn fpu_in_cpu(kernel: &Kernel<'_>, thread: &Thread, cpu: &CpuState) -> Read<bool> {
    Ok(process::current(kernel, cpu)? == thread.task && kernel.u64(thread.task)? & NEED_FPU_LOAD == 0)
}

/// Address of the FXSAVE image of a thread that is not in the CPU.
fn fxsave(kernel: &Kernel<'_>, thread: &Thread) -> Read<Gva> {
    let fpu = kernel.address_of(thread.task, Fact::TaskFpu)?;
    let state = Gva(kernel.field(fpu, Fact::FpuFpstate)?);
    kernel.address_of(state, Fact::FpstateRegs)
}

/// Reads all registers of a thread.
pub fn read(machine: &mut Machine, thread: &Thread) -> Read<File> {
    let cpu = machine.cpu().map_err(|_| ReadError::NoFact(Fact::CurrentTask))?;
    let kernel = look::kernel(machine).ok_or(ReadError::NoFact(Fact::CurrentTask))?;
    let user = thread.registers(&kernel, &cpu)?;
    let mut file = File::default();
    for (number, hardware) in HARDWARE.into_iter().enumerate() {
        file.set(number, &user.gpr[hardware].to_le_bytes());
    }
    file.set(RIP, &user.rip.to_le_bytes());
    file.set(FLAGS, &(user.rflags as u32).to_le_bytes());
    // User selectors of this kernel (arch/x86/include/asm/segment.h): the program cannot have others in 64-bit mode.
    file.set(CS, &0x33u32.to_le_bytes());
    file.set(CS + 1, &0x2bu32.to_le_bytes());
    file.set(ORIG_RAX, &user.orig_rax.to_le_bytes());
    file.set(FS_BASE, &user.fs_base.to_le_bytes());
    file.set(GS_BASE, &user.gs_base.to_le_bytes());
    if fpu_in_cpu(&kernel, thread, &cpu)? {
        fpu_of_cpu(&cpu, &mut file);
    } else {
        let mut image = [0; 512];
        kernel.read(fxsave(&kernel, thread)?, &mut image)?;
        fpu_of_image(&image, &mut file);
    }
    Ok(file)
}

fn fpu_of_cpu(cpu: &CpuState, file: &mut File) {
    let top = usize::from(cpu.fsw >> 11 & 7);
    for number in 0..8 {
        file.set(ST0 + number, &cpu.x87[(top + number) % 8][..10]);
    }
    for (number, value) in [cpu.fcw, cpu.fsw, cpu.ftw].into_iter().enumerate() {
        file.set(FCTRL + number, &u32::from(value).to_le_bytes());
    }
    for (number, value) in cpu.xmm.iter().enumerate() {
        let wide = u128::from(value[0]) | u128::from(value[1]) << 64;
        file.set(XMM0 + number, &wide.to_le_bytes());
    }
    file.set(MXCSR, &cpu.mxcsr.to_le_bytes());
}

/// FXSAVE's 64-bit form (Intel SDM vol. 1, 10.5.1).
fn fpu_of_image(image: &[u8; 512], file: &mut File) {
    let word = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
    for number in 0..8 {
        file.set(ST0 + number, &image[32 + number * 16..][..10]);
    }
    let (control, status, short) = (word(0), word(2), image[4]);
    let top = usize::from(status >> 11 & 7);
    // The short tag has a bit for each physical register that is in use.
    let tags = (0..8).fold(0u16, |tags, physical| {
        let st = (physical + 8 - top) % 8;
        let value = &image[32 + st * 16..][..10];
        let tag = if short >> physical & 1 == 0 { 3 } else { tag_of(value) };
        tags | tag << (physical * 2)
    });
    for (number, value) in [control, status, tags].into_iter().enumerate() {
        file.set(FCTRL + number, &u32::from(value).to_le_bytes());
    }
    for number in 0..16 {
        file.set(XMM0 + number, &image[160 + number * 16..][..16]);
    }
    file.set(MXCSR, &image[24..28]);
}

/// Valid, zero or special (Intel SDM vol. 1, 8.1.7).
fn tag_of(value: &[u8]) -> u16 {
    let exponent = u16::from_le_bytes([value[8], value[9]]) & 0x7fff;
    let zero = value[..8].iter().all(|byte| *byte == 0);
    match exponent {
        0 if zero => 1,
        0 | 0x7fff => 2,
        _ if value[7] & 0x80 == 0 => 2,
        _ => 0,
    }
}

/// Writes the registers that differ. False if one cannot be changed where the thread is.
pub fn write(machine: &mut Machine, thread: &Thread, new: &File) -> Read<bool> {
    let missing = || ReadError::NoFact(Fact::CurrentTask);
    let old = read(machine, thread)?;
    let mut cpu = machine.cpu().map_err(|_| missing())?;
    let memory = machine.memory().clone();
    let kernel = look::kernel(machine).ok_or_else(missing)?;
    let on_cpu = process::current(&kernel, &cpu)? == thread.task;
    let in_cpu = on_cpu && cpu.cs.selector & 3 == 3;
    let fpu_in_cpu = fpu_in_cpu(&kernel, thread, &cpu)?;
    let mut writes: Vec<(Gva, Vec<u8>)> = Vec::new();
    let frame = thread.saved_registers(&kernel)?;
    let image = fxsave(&kernel, thread)?;
    let mut all = true;
    for number in (0..COUNT).filter(|number| old.get(*number) != new.get(*number)) {
        let (value, bytes) = (new.number(number), new.get(number).unwrap_or_default().to_vec());
        match number {
            0..16 if in_cpu => cpu.gpr[HARDWARE[number]] = value,
            RIP if in_cpu => cpu.rip = value,
            // Only the status flags, TF and DF are a program's to set.
            FLAGS if in_cpu => cpu.rflags = cpu.rflags & !0xdd5 | value & 0xdd5,
            FS_BASE if on_cpu => cpu.fs.base = value,
            GS_BASE if in_cpu => cpu.gs.base = value,
            GS_BASE if on_cpu => cpu.kernel_gs_base = value,
            ORIG_RAX if in_cpu => {}
            0..16 => writes.push((Gva(frame.0 + 8 * PT_REGS[number]), bytes)),
            RIP => writes.push((Gva(frame.0 + 8 * 16), bytes)),
            FLAGS => writes.push((Gva(frame.0 + 8 * 18), bytes)),
            ORIG_RAX => writes.push((Gva(frame.0 + 8 * 15), bytes)),
            FS_BASE | GS_BASE => {
                let within = if number == FS_BASE { Fact::ThreadFsBase } else { Fact::ThreadGsBase };
                let at = kernel.address_of(thread.task, Fact::TaskThread)?;
                writes.push((kernel.address_of(at, within)?, bytes));
            }
            XMM0..MXCSR if fpu_in_cpu => {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
                cpu.xmm[number - XMM0] = [word(0), word(8)];
            }
            MXCSR if fpu_in_cpu => cpu.mxcsr = value as u32 & 0xffff,
            XMM0..MXCSR => writes.push((Gva(image.0 + 160 + 16 * (number - XMM0) as u64), bytes)),
            MXCSR => writes.push((Gva(image.0 + 24), bytes)),
            _ => all = false,
        }
    }
    let root = kernel.root()?;
    for (at, bytes) in writes {
        write_virtual(&memory, root, at, &bytes)?;
    }
    machine.set_cpu(&cpu).map_err(|_| missing())?;
    Ok(all)
}

/// Index of gdb's general registers in struct pt_regs (arch/x86/include/asm/ptrace.h).
const PT_REGS: [u64; 16] = [10, 5, 11, 12, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];

/// Writes virtual memory by the page tables at `root`.
pub fn write_virtual(
    memory: &vmm::memory::GuestMemory,
    root: vmm::address::Gpa,
    at: Gva,
    bytes: &[u8],
) -> Read<()> {
    let mut done = 0;
    while done < bytes.len() {
        let here = Gva(at.0.wrapping_add(done as u64));
        let piece = ((4096 - here.0 % 4096) as usize).min(bytes.len() - done);
        let physical = crate::kernel::translate(memory, root, here).ok_or(ReadError::Unmapped(here))?;
        memory.write(physical, &bytes[done..done + piece]).map_err(|_| ReadError::Unmapped(here))?;
        done += piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_description() {
        let text = description();
        let names: Vec<&str> =
            text.split("<reg name=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(names.len(), COUNT);
        for (number, name) in [
            (RIP, "rip"),
            (FLAGS, "eflags"),
            (CS, "cs"),
            (ST0, "st0"),
            (FCTRL, "fctrl"),
            (XMM0, "xmm0"),
            (MXCSR, "mxcsr"),
            (ORIG_RAX, "orig_rax"),
            (FS_BASE, "fs_base"),
            (GS_BASE, "gs_base"),
        ] {
            assert_eq!(names[number], name);
        }
        assert_eq!(place(RIP), Some((128, 8)));
        assert_eq!(place(COUNT), None);
        assert_eq!(File::default().bytes.len(), 560);
    }

    #[test]
    fn tags_of_a_saved_image_are_those_of_the_cpu() {
        let mut image = [0; 512];
        image[2..4].copy_from_slice(&(6u16 << 11).to_le_bytes());
        image[4] = 0b1100_0000; // R6 (ST0) and R7 (ST1)
        image[32..42].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]); // 1.0
        let mut file = File::default();
        fpu_of_image(&image, &mut file);
        // R6 valid (0), R7 zero (1), the others empty (3).
        assert_eq!(file.number(FCTRL + 2), 0b01_00_11_11_11_11_11_11);
    }
}
