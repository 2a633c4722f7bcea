//! Robustness: arbitrary bytes as code, page tables, descriptor tables and CPU state, in user and kernel mode, with
//! hooks set at random. Nothing may panic, reach outside guest memory (it lies between pages that cannot be
//! touched), or fail to come back when asked to; and how a run is cut into budgets may not change what it does.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use soft_cpu::{
    Counts, Cpu, CpuidLeaf, Exit, Limits, Region, Stream, Watch, WatchRange,
    state::{CpuState, DescriptorTable, Segment},
};

const PAGE: usize = 4096;
/// Pages of RAM at guest-physical 0.
const RAM: usize = 48;
/// Pages of RAM further up.
const MORE_RAM: usize = 8;
const MORE_AT: u64 = 0x10_0000;
/// Pages that are memory but not RAM (as the control page and the ring are).
const OTHER: usize = 2;
const OTHER_AT: u64 = 0x20_0000;
const PAGES: usize = RAM + MORE_RAM + OTHER;
/// Page tables are pages 1 to 8, top level first; the GDT is page 9, the IDT 10, the TSS 11; code 12 to 19.
const CODE: u64 = 12;
const CODE_PAGES: u64 = 8;
/// Cases of one CPU: what it cached must not matter.
const CASES_PER_CPU: u64 = 64;
/// Looks at whether a case goes on, and how many may pass before it counts as endless.
const TICK: Duration = Duration::from_millis(20);
const PATIENCE: u32 = 6_000;

/// What a fuzz run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases.
    pub cases: u64,
    /// Instructions retired in them.
    pub instructions: u64,
    /// Cases that were run twice, with different budgets, and compared.
    pub compared: u64,
    /// Cases that went on without retiring anything until they were interrupted.
    pub interrupted: u64,
    /// Exits other than budgets.
    pub exits: u64,
}

/// Guest memory between two guard pages.
struct Memory {
    first: NonNull<u8>,
}

impl Memory {
    fn new() -> std::io::Result<Memory> {
        let len = (PAGES + 2) * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let first = at.cast::<u8>().wrapping_add(PAGE);
        // SAFETY: inside the mapping just made.
        if unsafe { libc::mprotect(first.cast(), PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        NonNull::new(first).map(|first| Memory { first }).ok_or_else(|| std::io::Error::other("mapped at 0"))
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are mapped readable and writable while this lives; the CPU does not run meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), PAGES * PAGE) }
    }

    fn regions(&self) -> [Region; 3] {
        // SAFETY: offsets inside the mapping.
        let at = |page: usize| unsafe { self.first.add(page * PAGE) };
        let len = |pages: usize| (pages * PAGE) as u64;
        [
            Region { gpa: 0, len: len(RAM), host: at(0), first_page: Some(0) },
            Region { gpa: MORE_AT, len: len(MORE_RAM), host: at(RAM), first_page: Some(RAM as u64) },
            Region { gpa: OTHER_AT, len: len(OTHER), host: at(RAM + MORE_RAM), first_page: None },
        ]
    }

    fn put(&mut self, at: usize, value: u64) {
        self.bytes()[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let at = self.first.as_ptr().wrapping_sub(PAGE);
        // SAFETY: the mapping made in `new`; the CPU over it is dropped first.
        unsafe { libc::munmap(at.cast(), (PAGES + 2) * PAGE) };
    }
}

/// Interrupts a case that does not go on, and ends the process if that does not help.
struct Watchdog {
    case: Arc<AtomicU64>,
    flag: Arc<std::sync::Mutex<Arc<AtomicBool>>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watchdog {
    fn start(flag: Arc<AtomicBool>) -> Watchdog {
        let case = Arc::new(AtomicU64::new(0));
        let flag = Arc::new(std::sync::Mutex::new(flag));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen_case, seen_flag, seen_stop) = (case.clone(), flag.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (mut last, mut same) = (u64::MAX, 0);
            while !seen_stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                let now = seen_case.load(Ordering::Relaxed);
                same = if now == last { same + 1 } else { 0 };
                last = now;
                if same > PATIENCE {
                    eprintln!("fuzz: case {now} does not end, and cannot be interrupted");
                    std::process::abort();
                }
                if same > 1
                    && let Ok(flag) = seen_flag.lock()
                {
                    flag.store(true, Ordering::Release);
                }
            }
        });
        Watchdog { case, flag, stop, thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An address of use: of the linear ranges the tables map, of an edge, or anything.
fn address(rng: &mut Rng) -> u64 {
    match rng.u8(..16) {
        0..9 => rng.u64(..PAGES as u64) << 12 | rng.u64(..4096),
        9 => (rng.u64(..PAGES as u64) << 12).wrapping_sub(rng.u64(..16)),
        10 => OTHER_AT + rng.u64(..0x3000),
        11 => (1 << 47) - rng.u64(..32),
        12 => 0xffff_8000_0000_0000u64.wrapping_sub(rng.u64(..32)),
        13 => 0u64.wrapping_sub(rng.u64(..64)),
        14 => rng.u64(..) >> rng.u32(..64),
        _ => rng.u64(..),
    }
}

/// A page-table entry that leads somewhere more often than not.
fn entry(rng: &mut Rng, level: u64) -> u64 {
    let flags = if rng.u8(..8) == 0 { rng.u64(..0x1000) } else { 7 | rng.u64(..2) << 8 | rng.u64(..4) << 5 };
    let target = match (level, rng.u8(..16)) {
        (0..3, 0..13) => 1 + rng.u64(..8),
        (_, 0..13) => rng.u64(..(RAM as u64)),
        (_, 13) => MORE_AT / 4096 + rng.u64(..10),
        (_, 14) => OTHER_AT / 4096 + rng.u64(..3),
        _ => rng.u64(..1 << 40),
    };
    let high = if rng.u8(..16) == 0 { rng.u64(..) << 52 } else { 0 };
    target << 12 | flags | high
}

fn descriptor(rng: &mut Rng) -> u64 {
    match rng.u8(..8) {
        0 => rng.u64(..),
        1 => 0,
        n => {
            let dpl = if rng.bool() { 3 } else { rng.u64(..4) };
            let kind = [0x1b, 0x13, 0x1a, 0x12, 0x09, 0x0b, 0x02, 0x0c, 0x1f][rng.usize(..9)];
            let base = if n < 6 { 0 } else { rng.u64(..1 << 24) };
            0x000f_0000_0000_ffff
                | base << 16
                | kind << 40
                | dpl << 45
                | u64::from(rng.u8(..16) != 0) << 47
                | [2u64, 6, 0, 10][rng.usize(..4)] << 52
        }
    }
}

fn gate(rng: &mut Rng) -> [u64; 2] {
    if rng.u8(..16) == 0 {
        return [rng.u64(..), rng.u64(..)];
    }
    let target =
        if rng.u8(..16) == 0 { address(rng) } else { (CODE + rng.u64(..CODE_PAGES)) << 12 | rng.u64(..4096) };
    let selector = rng.u64(..16) << 3;
    let kind = if rng.u8(..16) == 0 { rng.u64(..32) } else { 14 + rng.u64(..2) };
    let low = target & 0xffff
        | selector << 16
        | rng.u64(..4) << 32
        | kind << 40
        | [0u64, 3][rng.usize(..2)] << 45
        | u64::from(rng.u8(..16) != 0) << 47
        | (target >> 16 & 0xffff) << 48;
    [low, target >> 32]
}

/// Starts of instructions worth having more often than chance does: system ones, strings, prefixes.
const STARTS: [&[u8]; 44] = [
    &[0x0f, 0x01],
    &[0x0f, 0x00],
    &[0x0f, 0x20],
    &[0x0f, 0x22],
    &[0x0f, 0x21],
    &[0x0f, 0x23],
    &[0x0f, 0x30],
    &[0x0f, 0x32],
    &[0x0f, 0x05],
    &[0x48, 0x0f, 0x07],
    &[0x48, 0xcf],
    &[0xcd],
    &[0xcc],
    &[0xf1],
    &[0xf3, 0xa4],
    &[0xf3, 0x48, 0xa5],
    &[0xf3, 0xaa],
    &[0xf2, 0xae],
    &[0xf3, 0xa6],
    &[0xf3, 0x6c],
    &[0xf3, 0x6e],
    &[0xe4],
    &[0xec],
    &[0xee],
    &[0xf4],
    &[0x9d],
    &[0x9c],
    &[0x8e],
    &[0x0f, 0xa2],
    &[0x0f, 0xae],
    &[0x48, 0x0f, 0xc7],
    &[0xff],
    &[0xc8],
    &[0xc9],
    &[0xe2],
    &[0x48, 0xcb],
    &[0x0f, 0xb2],
    &[0xeb, 0xfe],
    &[0x0f, 0x38],
    &[0x66, 0x0f, 0x3a],
    &[0xdd],
    &[0xdb],
    &[0x0f, 0xf7],
    &[0x0f, 0x0b],
];

fn code(rng: &mut Rng, bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let mut put = |byte: u8| {
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
            at += 1;
        };
        match rng.u8(..8) {
            0..3 => STARTS[rng.usize(..STARTS.len())].iter().for_each(|&byte| put(byte)),
            3 => put([0x66, 0xf2, 0xf3, 0x48, 0x4c, 0x64, 0x65, 0x67, 0xf0][rng.usize(..9)]),
            4 => {
                put(0x0f);
                put(rng.u8(..));
            }
            _ => put(rng.u8(..)),
        }
        // A ModRM byte, and a small displacement.
        put(rng.u8(..));
        if rng.bool() {
            put(rng.u8(..));
        }
    }
}

fn fill(memory: &mut Memory, rng: &mut Rng) {
    for page in 0..PAGES {
        let at = page * PAGE;
        match page {
            1..9 => {
                let level = (page as u64 - 1).min(3);
                let sparse = rng.u8(..4) == 0;
                for slot in 0..512 {
                    let value = if sparse && rng.bool() { 0 } else { entry(rng, level) };
                    memory.put(at + 8 * slot, value);
                }
                // Low linear addresses mostly lead to themselves.
                if rng.u8(..8) != 0 {
                    match page {
                        1..4 => memory.put(at, ((page as u64 + 1) << 12) | 7),
                        4 => (0..RAM as u64).for_each(|n| memory.put(at + 8 * n as usize, n << 12 | 7)),
                        _ => {}
                    }
                }
            }
            9 => (0..512).for_each(|slot| memory.put(at + 8 * slot, descriptor(rng))),
            10 => (0..256).for_each(|slot| {
                let [low, high] = gate(rng);
                memory.put(at + 16 * slot, low);
                memory.put(at + 16 * slot + 8, high);
            }),
            11 => (0..512)
                .for_each(|slot| memory.put(at + 8 * slot, address(rng) >> 16 << 16 | rng.u64(..0x10000))),
            12..20 => code(rng, &mut memory.bytes()[at..at + PAGE]),
            _ if rng.bool() => rng.fill(&mut memory.bytes()[at..at + PAGE]),
            _ => {}
        }
    }
    // RSP0 and the interrupt stacks are good ones half of the time.
    if rng.bool() {
        for slot in [4, 36, 44, 52] {
            memory.put(11 * PAGE + slot, (20 + rng.u64(..20)) << 12 | 0x800);
        }
    }
}

fn segment(rng: &mut Rng, code: bool, user: bool) -> Segment {
    if rng.u8(..16) == 0 {
        let (selector, base, limit) = (rng.u16(..), rng.u64(..), rng.u32(..));
        return Segment { selector, base, limit, attributes: rng.u16(..), unusable: rng.bool() };
    }
    let selector = rng.u16(..16) << 3 | if user { 3 } else { 0 };
    let attributes = if code { 0xa9b } else { 0xc93 } | if user { 0x60 } else { 0 };
    Segment { selector, base: 0, limit: u32::MAX, attributes, unusable: false }
}

fn table(rng: &mut Rng, page: u64) -> DescriptorTable {
    let base = if rng.u8(..16) == 0 { address(rng) } else { page << 12 };
    DescriptorTable { base, limit: if rng.u8(..8) == 0 { rng.u16(..) } else { 0xfff } }
}

fn state(rng: &mut Rng) -> CpuState {
    let user = rng.bool();
    let mut s = CpuState::default();
    for value in &mut s.gpr {
        *value = address(rng);
    }
    if rng.u8(..4) != 0 {
        s.gpr[1] = rng.u64(..64);
    }
    s.gpr[4] = if rng.u8(..8) == 0 { address(rng) } else { (20 + rng.u64(..20)) << 12 | rng.u64(..512) << 3 };
    s.rip =
        if rng.u8(..16) == 0 { address(rng) } else { (CODE + rng.u64(..CODE_PAGES)) << 12 | rng.u64(..4096) };
    s.rflags = rng.u64(..) & if rng.u8(..4) == 0 { u64::MAX } else { !0x1_4100 };
    s.cs = segment(rng, true, user);
    for other in [&mut s.es, &mut s.ss, &mut s.ds, &mut s.fs, &mut s.gs] {
        *other = segment(rng, false, user);
    }
    (s.fs.base, s.gs.base, s.kernel_gs_base) = (address(rng), address(rng), address(rng));
    s.ldtr = segment(rng, false, false);
    s.ldtr.base = 9 << 12;
    s.tr = segment(rng, false, false);
    (s.tr.base, s.tr.limit) = (11 << 12, if rng.u8(..8) == 0 { rng.u32(..) } else { 0xfff });
    (s.gdtr, s.idtr) = (table(rng, 9), table(rng, 10));
    s.cr0 = if rng.u8(..8) == 0 {
        rng.u64(..)
    } else {
        0x8000_0031 | [0, 0x1_0000, 0x5_0002, 8, 4][rng.usize(..5)]
    };
    s.cr3 = if rng.u8(..16) == 0 { rng.u64(..) } else { (1 + u64::from(rng.u8(..8) == 0)) << 12 };
    s.cr4 = if rng.u8(..8) == 0 { rng.u64(..) } else { 0x6a0 | 1 << 16 };
    s.efer = if rng.u8(..8) == 0 { rng.u64(..) } else { 0xd01 };
    (s.star, s.lstar, s.sfmask) = (rng.u64(..), address(rng), rng.u64(..));
    (s.sysenter_cs, s.sysenter_eip, s.sysenter_esp) = (rng.u64(..128), address(rng), address(rng));
    (s.cr2, s.cr8) = (rng.u64(..), rng.u64(..));
    if rng.u8(..4) == 0 {
        s.dr = [address(rng), address(rng), address(rng), address(rng)];
        s.dr7 = rng.u64(..) & 0xffff_ffff;
        s.dr6 = rng.u64(..);
    }
    for register in &mut s.x87 {
        rng.fill(register);
    }
    (s.fcw, s.fsw, s.ftw) = (rng.u16(..), rng.u16(..), rng.u16(..));
    s.mxcsr = if rng.bool() { 0x1f80 } else { rng.u32(..) };
    for register in &mut s.xmm {
        *register = [rng.u64(..), rng.u64(..)];
    }
    s.interrupt_shadow = rng.u8(..8) == 0;
    s
}

fn hooks(cpu: &mut Cpu, rng: &mut Rng, on: bool) {
    let watches = if on { rng.usize(..4) } else { 0 };
    let watches: Vec<Watch> = (0..watches)
        .map(|_| {
            let at = address(rng);
            Watch {
                range: if rng.bool() { WatchRange::Virtual(at) } else { WatchRange::Physical(at) },
                len: if rng.u8(..8) == 0 { rng.u64(..) } else { rng.u64(..64) },
                read: rng.bool(),
                write: rng.bool(),
                execute: rng.u8(..4) == 0,
            }
        })
        .collect();
    cpu.set_watches(&watches);
    let breakpoints: Vec<u64> = (0..if on { rng.usize(..3) } else { 0 }).map(|_| address(rng)).collect();
    cpu.set_breakpoints(&breakpoints);
    let stream = if on { [Stream::Off, Stream::All, Stream::User][rng.usize(..3)] } else { Stream::Off };
    cpu.set_access_stream(stream);
}

/// What one run of a case came to.
#[derive(Debug, PartialEq)]
struct Ran {
    exits: Vec<String>,
    state: CpuState,
    counts: Counts,
    memory: Vec<u8>,
}

/// Most exits of a case.
const EXITS: usize = 40;

/// Runs until `total` instructions are retired, in pieces; `piece` is asked for the length of each before it.
fn drive(cpu: &mut Cpu, total: u64, mut piece: impl FnMut(&mut Cpu) -> u64) -> (Vec<String>, bool) {
    let start = cpu.counts().instructions;
    let mut exits = Vec::new();
    while exits.len() < EXITS {
        let left = total.saturating_sub(cpu.counts().instructions - start);
        if left == 0 {
            break;
        }
        let limits = Limits { instructions: Some(piece(cpu).clamp(1, left)), ..Limits::default() };
        let exit = cpu.run(&limits);
        match &exit {
            Exit::Budget => continue,
            Exit::Interrupted => return (exits, true),
            Exit::PortIn { .. } => cpu.complete_in(0x1234_5678),
            _ => {}
        }
        let last = matches!(exit, Exit::TripleFault | Exit::Mmio { .. } | Exit::Unsupported { .. });
        exits.push(format!("{exit:x?}"));
        if last {
            break;
        }
    }
    (exits, false)
}

/// Runs `count` cases from the `first` on. What is left in memory by one case goes into the next, so it begins where
/// memory was last cleared before.
///
/// # Errors
/// The host gave no memory.
///
/// # Panics
/// A case went differently in pieces: a fault of the software CPU.
pub fn run(seed: u64, first: u64, count: u64, mut progress: impl FnMut(&Tally)) -> std::io::Result<Tally> {
    // Each case has its own seed.
    let rng_of = |case: u64| Rng::with_seed(seed.wrapping_add(case.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let clears = |case: u64, rng: &mut Rng| rng.u8(..8) == 0 || case == 0;
    let begin = (0..=first).rev().find(|&case| clears(case, &mut rng_of(case))).unwrap_or(0);
    let mut memory = Memory::new()?;
    let mut tally = Tally::default();
    let mut cpu = new_cpu(&memory);
    let watchdog = Watchdog::start(cpu.interrupter());
    for case in begin..first.saturating_add(count) {
        watchdog.case.store(case, Ordering::Relaxed);
        let mut rng = rng_of(case);
        if case % CASES_PER_CPU == CASES_PER_CPU - 1 {
            cpu = new_cpu(&memory);
            if let Ok(mut flag) = watchdog.flag.lock() {
                *flag = cpu.interrupter();
            }
        }
        if clears(case, &mut rng) {
            memory.bytes().fill(0);
        }
        fill(&mut memory, &mut rng);
        let begin = state(&mut rng);
        let before = memory.bytes().to_vec();
        let instructions = cpu.counts().instructions;
        let total = rng.u64(1..600);
        let compare = rng.bool();
        hooks(&mut cpu, &mut rng, !compare);
        cpu.invalidate(None);
        cpu.set_state(&begin);
        if compare {
            let mut once = |memory: &mut Memory, piece: &mut dyn FnMut(&mut Cpu) -> u64| {
                memory.bytes().copy_from_slice(&before);
                cpu.invalidate(None);
                cpu.set_state(&begin);
                let from = cpu.counts();
                let (exits, interrupted) = drive(&mut cpu, total, piece);
                let to = cpu.counts();
                let counts = Counts {
                    instructions: to.instructions - from.instructions,
                    user_instructions: to.user_instructions - from.user_instructions,
                    user_branches: to.user_branches - from.user_branches,
                    ..Counts::default()
                };
                let ran = Ran { exits, state: cpu.state(), counts, memory: memory.bytes().to_vec() };
                (ran, interrupted)
            };
            let (whole, cut) = once(&mut memory, &mut |_| u64::MAX);
            let (pieces, cut_too) = once(&mut memory, &mut |cpu| {
                forget(cpu, &mut rng);
                rng.u64(1..8)
            });
            tally.exits += whole.exits.len() as u64;
            if cut || cut_too {
                tally.interrupted += 1;
            } else {
                tally.compared += 1;
                assert_eq!(whole.exits, pieces.exits, "seed {seed} case {case}: exits in pieces");
                assert_eq!(whole.counts, pieces.counts, "seed {seed} case {case}: counts after pieces");
                assert_eq!(whole.state, pieces.state, "seed {seed} case {case}: state after pieces");
                assert!(whole.memory == pieces.memory, "seed {seed} case {case}: memory after pieces");
            }
        } else {
            let pieces = 1 + rng.usize(..4);
            for _ in 0..pieces {
                let (exits, interrupted) = drive(&mut cpu, total, |_| rng.u64(1..200));
                tally.exits += exits.len() as u64;
                tally.interrupted += u64::from(interrupted);
                outside(&mut cpu, &mut memory, &mut rng);
            }
        }
        tally.cases += 1;
        tally.instructions += cpu.counts().instructions.saturating_sub(instructions);
        progress(&tally);
    }
    Ok(tally)
}

/// Now and then drops what the CPU has cached, which nothing may depend on.
fn forget(cpu: &mut Cpu, rng: &mut Rng) {
    match rng.u8(..16) {
        0 => cpu.take_dirty(|_, _| ()),
        1 => cpu.invalidate(None),
        2 => {
            let _ = cpu.translate(address(rng));
        }
        _ => {}
    }
}

/// What a monitor does to a CPU between two runs.
fn outside(cpu: &mut Cpu, memory: &mut Memory, rng: &mut Rng) {
    cpu.take_accesses();
    match rng.u8(..8) {
        0 => cpu.take_dirty(|_, _| ()),
        1 => {
            let _ = cpu.inject(rng.u8(..));
        }
        2 => {
            let page = rng.u64(..PAGES as u64 + 8);
            if (page as usize) < RAM {
                code(rng, &mut memory.bytes()[page as usize * PAGE..][..PAGE]);
            }
            cpu.invalidate(Some(&mut std::iter::once(page)));
        }
        3 => {
            let now = cpu.state();
            cpu.set_state(&now);
        }
        4 => {
            let _ = cpu.translate(address(rng));
        }
        5 => hooks(cpu, rng, true),
        6 => cpu.set_state(&state(rng)),
        _ => {}
    }
}

fn new_cpu(memory: &Memory) -> Cpu {
    let leaves = [CpuidLeaf { leaf: 0x8000_0008, subleaf: None, registers: [0x302e, 0, 0, 0] }];
    // SAFETY: the memory outlives the CPU (declared before it in `run`), is page-aligned and has few pages.
    unsafe { Cpu::new(&memory.regions(), &leaves) }
}
