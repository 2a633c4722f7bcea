//! Runs cases on the software CPU: the same pages at the same linear addresses, at CPL 3.

use std::ptr::NonNull;

use soft_cpu::{
    Compile, Cpu, Exit, Limits, Region,
    state::{CpuState, Segment},
};

use crate::{
    case::{Case, End, Outcome, take_changes},
    convert::{put_registers, registers},
    layout::{Access, EXITS, IMAGE, PAGE, SLOTS, SOFT_EXIT, SPANS, background, image_offset},
};

/// Guest-physical address of the image.
const IMAGE_AT: u64 = 0x4_0000;
/// Guest-physical address of the slots page.
const SLOTS_AT: u64 = IMAGE_AT + IMAGE as u64;
/// Bytes of guest memory.
const MEMORY: u64 = SLOTS_AT + PAGE;
/// Cases run by one CPU.
const CASES_PER_CPU: u32 = 500;
/// First page table; the others follow.
const TABLES_AT: u64 = 0x1000;
/// Instructions after which a case counts as hanging.
const PATIENCE: u64 = 20_000;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const USER: u64 = 4;
const ACCESSED_DIRTY: u64 = 0x60;
const NO_EXECUTE: u64 = 1 << 63;

/// One page of guest memory; aligned as the CPU wants it.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE as usize]);

/// The software CPU with the pages of [`crate::layout`].
pub struct Soft {
    cpu: Cpu,
    compile: Compile,
    /// Cases since the CPU was made.
    cases: u32,
    // Owned by the box; reached through `memory_mut` only while the CPU does not run.
    memory: Box<[Page]>,
    background: Vec<u8>,
    base: CpuState,
}

impl crate::drive::Subject for Soft {
    fn run(&mut self, case: &Case) -> Outcome {
        Soft::run(self, case)
    }
}

/// Both tiers of the software CPU: every case runs interpreted and compiled, and both must end alike.
pub struct Tiers {
    interpreted: Soft,
    compiled: Soft,
}

impl Tiers {
    /// Two CPUs at the start of nothing.
    pub fn new() -> Self {
        Tiers { interpreted: Soft::new(), compiled: Soft::with(Compile::Always) }
    }
}

impl Default for Tiers {
    fn default() -> Self {
        Self::new()
    }
}

impl crate::drive::Subject for Tiers {
    fn run(&mut self, case: &Case) -> Outcome {
        let interpreted = self.interpreted.run(case);
        let compiled = self.compiled.run(case);
        if compiled == interpreted {
            return compiled;
        }
        Outcome { end: End::Other("interpreted and compiled code differ"), ..compiled }
    }
}

impl Default for Soft {
    fn default() -> Self {
        Self::new()
    }
}

impl Soft {
    /// A CPU at the start of nothing; every case sets its whole state. It compiles nothing.
    pub fn new() -> Self {
        Soft::with(Compile::Never)
    }

    /// The same with a choice of when blocks are compiled to host code.
    pub fn with(compile: Compile) -> Self {
        let mut memory = vec![Page([0; PAGE as usize]); (MEMORY / PAGE) as usize].into_boxed_slice();
        let host = NonNull::from(&mut memory[0]).cast();
        let cpu = new_cpu(host, compile);
        let mut soft = Soft { cpu, compile, cases: 0, memory, background: background(), base: user_state() };
        soft.build_tables();
        let image = soft.background.clone();
        soft.bytes()[IMAGE_AT as usize..][..IMAGE].copy_from_slice(&image);
        for k in 0..EXITS {
            let target = SOFT_EXIT + 16 * k as u64;
            soft.put(SLOTS_AT + 8 * k as u64, target);
        }
        soft.cpu.invalidate(None);
        soft
    }

    fn bytes(&mut self) -> &mut [u8] {
        let pages = self.memory.len();
        // SAFETY: pages are plain bytes without padding, and `&mut self` means the CPU is not running.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), pages * PAGE as usize) }
    }

    fn put(&mut self, at: u64, value: u64) {
        self.bytes()[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn get(&mut self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes()[at as usize..at as usize + 8]);
        u64::from_le_bytes(bytes)
    }

    /// Four-level tables, accessed and dirty everywhere so that no case changes them.
    fn build_tables(&mut self) {
        let mut next = TABLES_AT + PAGE;
        let mut at = IMAGE_AT;
        let mut pages = Vec::new();
        for span in SPANS {
            let bits = match span.access {
                Access::ReadOnly => NO_EXECUTE,
                Access::ReadWrite => NO_EXECUTE | WRITABLE,
                Access::All => WRITABLE,
            };
            for page in 0..span.pages {
                pages.push((span.base + page * PAGE, at, bits));
                at += PAGE;
            }
        }
        pages.push((SLOTS, SLOTS_AT, NO_EXECUTE));
        for (linear, physical, bits) in pages {
            let mut table = TABLES_AT;
            for level in [39, 30, 21] {
                let entry = table + (linear >> level & 511) * 8;
                if self.get(entry) == 0 {
                    self.put(entry, next | PRESENT | WRITABLE | USER | ACCESSED_DIRTY);
                    next += PAGE;
                    assert!(next <= IMAGE_AT, "the page tables run into the image");
                }
                table = self.get(entry) & !0xfff;
            }
            self.put(table + (linear >> 12 & 511) * 8, physical | bits | PRESENT | USER | ACCESSED_DIRTY);
        }
    }

    fn load(&mut self, case: &Case) {
        // Decoded code of earlier cases is kept by the CPU, and all of it is looked at when the page changes.
        self.cases += 1;
        if self.cases > CASES_PER_CPU {
            self.cases = 0;
            self.cpu = new_cpu(NonNull::from(&mut self.memory[0]).cast(), self.compile);
        }
        for patch in &case.patches {
            for (i, &byte) in patch.bytes.iter().enumerate() {
                let at = image_offset(patch.address + i as u64).expect("patches are inside the image");
                self.bytes()[IMAGE_AT as usize + at] = byte;
            }
        }
        self.invalidate_code();
        let mut state = self.base.clone();
        put_registers(&case.registers, &mut state);
        self.cpu.set_state(&state);
    }

    /// The code pages were written from outside.
    fn invalidate_code(&mut self) {
        self.cpu.invalidate(Some(&mut (IMAGE_AT / PAGE..IMAGE_AT / PAGE + SPANS[0].pages)));
    }

    /// Runs a case in one go.
    pub fn run(&mut self, case: &Case) -> Outcome {
        self.load(case);
        let exit = self.cpu.run(&Limits { instructions: Some(PATIENCE), ..Limits::default() });
        self.outcome(exit)
    }

    /// Runs a case one instruction at a time. Also says how many instructions it was.
    pub fn run_stepwise(&mut self, case: &Case) -> (Outcome, u64) {
        self.load(case);
        let before = self.cpu.counts().instructions;
        let mut exit = Exit::Budget;
        for _ in 0..PATIENCE {
            exit = self.cpu.run(&Limits { instructions: Some(1), ..Limits::default() });
            if exit != Exit::Budget {
                break;
            }
        }
        let count = self.cpu.counts().instructions - before;
        (self.outcome(exit), count)
    }

    /// Instructions retired so far.
    pub fn instructions(&self) -> u64 {
        self.cpu.counts().instructions
    }

    fn outcome(&mut self, exit: Exit) -> Outcome {
        let mut state = self.cpu.state();
        let end = match exit {
            Exit::Exception { vector: 14, .. }
                if state.rip >= SOFT_EXIT && state.rip < SOFT_EXIT + 16 * EXITS as u64 =>
            {
                End::Exit(((state.rip - SOFT_EXIT) / 16) as u32)
            }
            Exit::Exception { vector: 3, .. } => {
                // The exit is at INT3; delivered, RIP would be behind it.
                state.rip += 1;
                End::Fault { vector: 3, error: 0, cr2: 0 }
            }
            Exit::Exception { vector, error_code, cr2 } => End::Fault {
                vector: vector.into(),
                error: error_code.unwrap_or(0).into(),
                cr2: cr2.unwrap_or(0),
            },
            Exit::Budget => End::Timeout,
            Exit::Unsupported { .. } => End::Other("unsupported"),
            Exit::Mmio { .. } => End::Other("access outside memory"),
            Exit::PortIn { .. } | Exit::PortOut { .. } => End::Other("port"),
            Exit::Halt => End::Other("halt"),
            _ => End::Other("another exit"),
        };
        let registers = registers(&state);
        let mut memory = Vec::new();
        let background = std::mem::take(&mut self.background);
        take_changes(&mut self.bytes()[IMAGE_AT as usize..][..IMAGE], &background, |chunk| {
            memory.push(chunk)
        });
        self.background = background;
        Outcome { end, registers, memory }
    }
}

/// A CPU over the memory at `host`, which must be `MEMORY` bytes, page-aligned, and outlive it.
fn new_cpu(host: NonNull<u8>, compile: Compile) -> Cpu {
    let region = Region { gpa: 0, len: MEMORY, host, first_page: Some(0) };
    // SAFETY: called only by `Soft`, with its own memory, which lives as long as the CPU and never moves.
    let mut cpu = unsafe { Cpu::new(&[region], &[]) };
    cpu.set_exit_on_exception(true);
    cpu.set_compile(compile);
    cpu
}

/// User mode as Linux has it: 64-bit code, null data segments, alignment checks possible.
fn user_state() -> CpuState {
    let segment =
        |selector, attributes| Segment { selector, base: 0, limit: 0xffff_ffff, attributes, unusable: false };
    let null = Segment { unusable: true, ..Segment::default() };
    CpuState {
        cs: segment(0x33, 0xafb),
        ss: segment(0x2b, 0xcf3),
        ds: null,
        es: null,
        fs: null,
        gs: null,
        // PE, MP, ET, NE, WP, AM, PG.
        cr0: 0x8005_0033,
        cr3: TABLES_AT,
        // PAE, OSFXSR, OSXMMEXCPT, FSGSBASE.
        cr4: 0x1_0620,
        // SCE, LME, LMA, NXE.
        efer: 0xd01,
        ..CpuState::default()
    }
}
