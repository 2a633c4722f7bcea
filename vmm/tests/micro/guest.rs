//! A guest of a few pages: page tables, descriptor tables and one handler for every vector that writes a record
//! and lets the program go on. Runs on any engine.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use soft_cpu::state::{CpuState, DescriptorTable, Segment};
use vmm::{
    EngineKind,
    address::Gpa,
    cpu_model::CpuModel,
    engine::{self, Budget, EngineError, Exit},
    memory::GuestMemory,
};

use crate::programs::{self, Program};

/// Guest-physical and, below 2 MiB, linear addresses.
pub(crate) mod at {
    pub(crate) const PML4: u64 = 0x1000;
    pub(crate) const PDPT: u64 = 0x2000;
    pub(crate) const PD: u64 = 0x3000;
    pub(crate) const PT_LOW: u64 = 0x4000;
    /// Maps the test pages.
    pub(crate) const PT_TEST: u64 = 0x5000;
    pub(crate) const GDT: u64 = 0x1_0000;
    pub(crate) const IDT: u64 = 0x1_1000;
    pub(crate) const TSS: u64 = 0x1_2000;
    pub(crate) const STACK_TOP: u64 = 0x1_8000;
    pub(crate) const RSP0_TOP: u64 = 0x1_a000;
    pub(crate) const IST1_TOP: u64 = 0x1_c000;
    pub(crate) const IST2_TOP: u64 = 0x1_e000;
    /// u64: where the next record goes.
    pub(crate) const LOG_NEXT: u64 = 0x1_f000;
    pub(crate) const LOG: u64 = 0x2_0000;
    pub(crate) const HANDLERS: u64 = 0x3_0000;
    /// The program, accessible to user mode.
    pub(crate) const CODE: u64 = 0x4_0000;
    /// A user stack.
    pub(crate) const USER_STACK_TOP: u64 = 0x5_0000;
    /// First of 64 test pages, linear.
    pub(crate) const TEST: u64 = 0x80_0000;
    /// Where they are.
    pub(crate) const TEST_PHYSICAL: u64 = 0x20_0000;
    /// A page of 2 MiB, linear and physical.
    pub(crate) const LARGE: u64 = 0x60_0000;
}

/// Test pages.
pub(crate) const TEST_PAGES: u64 = 64;
/// Bytes of a record.
const RECORD: u64 = 256;
/// Most records.
const RECORDS: u64 = 200;
/// The program writes here when it is done, or the handler when the log is full.
const DONE_PORT: u16 = 0x5e;

/// A program that takes longer hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// What a handler saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    vector: u64,
    pub(crate) error: u64,
    /// After a page fault, else 0.
    cr2: u64,
    /// Relative to the program's start.
    rip: i64,
    cs: u64,
    /// Without the status flags: some are undefined, and differ between vendors.
    pub(crate) rflags: u64,
    rsp: u64,
    ss: u64,
    /// After #DB, else 0.
    dr6: u64,
    pub(crate) gpr: Vec<u64>,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) records: Vec<Record>,
    /// Entries of the test pages that are not as at the start: accessed, dirty, fixed by the handler.
    pub(crate) entries: Vec<(u64, u64)>,
    /// Test pages written: page, sum of what is in them.
    pub(crate) pages: Vec<(u64, u64)>,
    /// How it ended, if not by itself.
    pub(crate) end: String,
}

fn segment(selector: u16, attributes: u16) -> Segment {
    Segment { selector, base: 0, limit: 0xffff_ffff, attributes, unusable: false }
}

/// The GDT: null, kernel code and data, user 32-bit code, user data and code as SYSRET wants them, TSS, and some
/// to fail with.
const DESCRIPTORS: [u64; 16] = [
    0,
    0,
    0x00af_9b00_0000_ffff,                   // 0x10: kernel code
    0x00cf_9300_0000_ffff,                   // 0x18: kernel data
    0x00cf_fb00_0000_ffff,                   // 0x20: user code, 32 bits
    0x00cf_f300_0000_ffff,                   // 0x28: user data
    0x00af_fb00_0000_ffff,                   // 0x30: user code
    0,                                       // 0x38: unused
    0x0000_8900_0000_0067 | (at::TSS << 16), // 0x40: TSS (its high half is zero)
    0,
    0x00cf_7300_0000_ffff,                    // 0x50: data, not present
    0x00cf_f112_3456_5678,                    // 0x58: data, read-only, base 0x123456, limit 0xf5678 pages
    0x00cf_9900_0000_ffff,                    // 0x60: code, execute-only, DPL 0
    0x00cf_ff00_0000_ffff,                    // 0x68: conforming code, DPL 3
    0x00af_fb00_0000_ffff & !(1 << 47),       // 0x70: user code, not present
    0x0000_8200_0000_0017 | (0x1_4000 << 16), // 0x78: LDT (high half is beyond the limit: #GP to load)
];

struct Guest {
    memory: Arc<GuestMemory>,
}

impl Guest {
    fn put(&self, at: u64, value: u64) {
        self.memory.write_u64(Gpa(at), value).expect("inside RAM");
    }

    fn tables(&self) {
        const ALL: u64 = 7;
        self.put(at::PML4, at::PDPT | ALL);
        self.put(at::PDPT, at::PD | ALL);
        self.put(at::PD, at::PT_LOW | ALL);
        self.put(at::PD + 8 * (at::LARGE >> 21), at::LARGE | 0x80 | ALL);
        self.put(at::PD + 8 * (at::TEST >> 21), at::PT_TEST | ALL);
        for page in 1..512 {
            let address = page << 12;
            let user = (at::CODE..at::USER_STACK_TOP).contains(&address);
            self.put(at::PT_LOW + 8 * page, address | if user { ALL } else { 3 });
        }
    }

    fn descriptors(&self, handlers: &[u8]) {
        for (i, descriptor) in DESCRIPTORS.iter().enumerate() {
            self.put(at::GDT + 8 * i as u64, *descriptor);
        }
        // RSP0, IST1, IST2.
        self.put(at::TSS + 4, at::RSP0_TOP);
        self.put(at::TSS + 0x24, at::IST1_TOP);
        self.put(at::TSS + 0x2c, at::IST2_TOP);
        self.memory.write(Gpa(at::TSS + 0x66), &0x68u16.to_le_bytes()).expect("inside RAM");
        self.memory.write(Gpa(at::HANDLERS), handlers).expect("inside RAM");
        for vector in 0..64u64 {
            let stub = at::HANDLERS + vector * programs::STUB_SPACING;
            // Double faults on their own stack; #BP and what the programs call from user mode have DPL 3.
            let stack: u64 = if vector == 8 { 2 } else { 1 };
            let dpl: u64 = if matches!(vector, 3 | 4 | 0x30 | 0x32 | 0x33) { 3 } else { 0 };
            let present: u64 = u64::from(vector != 0x35);
            let kind: u64 = match vector {
                0x34 => 6,
                0x36 => 0xf,
                _ => 0xe,
            };
            let low = stub & 0xffff
                | 0x10 << 16
                | stack << 32
                | kind << 40
                | dpl << 45
                | present << 47
                | (stub >> 16 & 0xffff) << 48;
            self.put(at::IDT + 16 * vector, low);
            self.put(at::IDT + 16 * vector + 8, stub >> 32);
        }
        self.put(at::LOG_NEXT, at::LOG);
    }

    fn read(&self, at: u64) -> u64 {
        self.memory.read_u64(Gpa(at)).expect("inside RAM")
    }
}

/// Byte `i` of test page `page` at the start.
fn pattern(page: u64, i: u64) -> u8 {
    (page * 37 + i * 11 + 5) as u8
}

fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, &b| (sum ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// The state every program starts in, at its privilege level.
fn start(program: &Program) -> CpuState {
    let user = program.cpl == 3;
    let data = segment(if user { 0x2b } else { 0x18 }, if user { 0xcf3 } else { 0xc93 });
    let mut state = CpuState {
        cs: if user { segment(0x33, 0xafb) } else { segment(0x10, 0xa9b) },
        ss: data,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ldtr: Segment { unusable: true, limit: 0, ..segment(0, 0x82) },
        tr: Segment { selector: 0x40, base: at::TSS, limit: 0x67, attributes: 0x8b, unusable: false },
        gdtr: DescriptorTable { base: at::GDT, limit: (DESCRIPTORS.len() * 8 - 1) as u16 },
        idtr: DescriptorTable { base: at::IDT, limit: 64 * 16 - 1 },
        // PE, MP, ET, NE, WP, AM, PG.
        cr0: 0x8005_0033,
        cr3: at::PML4,
        // PAE, PGE, OSFXSR, OSXMMEXCPT, FSGSBASE.
        cr4: 0x1_06a0,
        // SCE, LME, LMA, NXE.
        efer: 0xd01,
        rip: at::CODE,
        rflags: 2,
        ..CpuState::default()
    };
    state.gpr[4] = if user { at::USER_STACK_TOP } else { at::STACK_TOP };
    state
}

/// Runs a program on an engine.
pub(crate) fn run(kind: EngineKind, program: &Program) -> Result<Outcome, EngineError> {
    let memory = Arc::new(GuestMemory::new(64 << 20).expect("64 MiB of memory"));
    let guest = Guest { memory: Arc::clone(&memory) };
    guest.tables();
    guest.descriptors(programs::handlers());
    memory.write(Gpa(at::CODE), program.code).expect("inside RAM");
    for page in 0..TEST_PAGES {
        let bytes: Vec<u8> = (0..4096).map(|i| pattern(page, i)).collect();
        memory.write(Gpa(at::TEST_PHYSICAL + page * 4096), &bytes).expect("inside RAM");
        guest.put(at::PT_TEST + 8 * page, program.entry(page));
    }
    let model = CpuModel::by_name("rewind-v2").expect("the model exists");
    let mut engine = engine::create(kind, &memory, model)?;
    engine.set_cpu(&start(program))?;
    let mut end = String::new();
    let interrupt = engine.interrupter();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if ended.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            interrupt();
        }
    });
    match engine.run(&Budget::default()) {
        Ok(Exit::PortOut { port: DONE_PORT, data, .. }) if data == [0] => {}
        Ok(Exit::PortOut { port: DONE_PORT, data, .. }) => end = format!("stopped by the handler: {data:?}"),
        Ok(other) => end = format!("{other:x?}"),
        // The processor may refuse a state (an entry that fails): that is how it ended, too.
        Err(error) => end = error.to_string(),
    }
    drop(done);
    watchdog.join().expect("the watchdog does not panic");
    Ok(outcome(&guest, program, end))
}

fn outcome(guest: &Guest, program: &Program, end: String) -> Outcome {
    const KEPT_FLAGS: u64 = !0x8d5;
    let count = (guest.read(at::LOG_NEXT).wrapping_sub(at::LOG) / RECORD).min(RECORDS);
    let records = (0..count).map(|i| {
        let word = |n: u64| guest.read(at::LOG + i * RECORD + 8 * n);
        Record {
            vector: word(0),
            error: word(1),
            cr2: if word(0) == 14 { word(7) } else { 0 },
            rip: word(2).wrapping_sub(at::CODE) as i64,
            cs: word(3),
            rflags: word(4) & KEPT_FLAGS,
            rsp: word(5),
            ss: word(6),
            dr6: if word(0) == 1 { word(8) } else { 0 },
            gpr: (16..32).map(word).collect(),
        }
    });
    let records = records.collect();
    let mut entries = Vec::new();
    let mut pages = Vec::new();
    for page in 0..TEST_PAGES {
        let entry = guest.read(at::PT_TEST + 8 * page);
        if entry != program.entry(page) {
            entries.push((page, entry));
        }
        let mut bytes = [0; 4096];
        guest.memory.read(Gpa(at::TEST_PHYSICAL + page * 4096), &mut bytes).expect("inside RAM");
        if (0..4096).any(|i| bytes[i as usize] != pattern(page, i)) {
            pages.push((page, sum(&bytes)));
        }
    }
    let large = guest.read(at::PD + 8 * (at::LARGE >> 21));
    if large != at::LARGE | 0x87 {
        entries.push((1000, large));
    }
    Outcome { records, entries, pages, end }
}
