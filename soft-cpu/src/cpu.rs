//! The CPU: its state while running, and what the outside can ask of it.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    access::Span,
    block::{Blocks, Op},
    fault::Abort,
    flags::{self, Lazy},
    fp::FpState,
    insn::{BASE, FS, GS},
    jit::{Buffer, Compile},
    memory::{Memory, Region},
    state::CpuState,
    tlb::Tlb,
    watch::{Accessed, Hooks, Stream, Watch, WatchHit},
};

/// One answer of CPUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuidLeaf {
    /// EAX in.
    pub leaf: u32,
    /// ECX in; `None`: any.
    pub subleaf: Option<u32>,
    /// EAX, EBX, ECX, EDX out. OSXSAVE and the like are not derived: the model has none.
    pub registers: [u32; 4],
}

/// What one [`Cpu::run`] may do at most. Each is exact.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Retired instructions, user and kernel; a REP instruction counts once.
    pub instructions: Option<u64>,
    /// Instructions retired at CPL 3.
    pub user_instructions: Option<u64>,
    /// Conditional branches (Jcc) retired at CPL 3, taken or not.
    pub user_branches: Option<u64>,
}

/// Why [`Cpu::run`] returned. RIP is at the next instruction to run unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// OUT or OUTS; it is complete.
    PortOut {
        /// Port.
        port: u16,
        /// Bytes of one element: 1, 2 or 4.
        size: u8,
        /// All elements, little-endian.
        data: Vec<u8>,
    },
    /// IN or INS: answer with [`Cpu::complete_in`].
    PortIn {
        /// Port.
        port: u16,
        /// Bytes: 1, 2 or 4.
        size: u8,
    },
    /// A limit is reached exactly.
    Budget,
    /// Watched accesses by the last instruction.
    Watch(Vec<WatchHit>),
    /// RIP is at a breakpoint; the instruction has not run.
    Breakpoint(u64),
    /// [`Cpu::interrupter`] was used.
    Interrupted,
    /// Shut down.
    TripleFault,
    /// HLT; RIP is after it.
    Halt,
    /// Access to what is not memory; the instruction has not run.
    Mmio {
        /// Guest-physical address.
        address: u64,
        /// Write?
        write: bool,
        /// Bytes.
        size: u8,
    },
    /// What this CPU does not implement; the instruction has not run.
    Unsupported {
        /// Its address.
        rip: u64,
        /// Its first bytes, as far as they could be read.
        bytes: Vec<u8>,
        /// What it is, in words.
        what: String,
    },
    /// Only after [`Cpu::set_exit_on_exception`]: the instruction at RIP raised this; it was not delivered.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code.
        error_code: Option<u32>,
        /// The address, for a page fault.
        cr2: Option<u64>,
    },
}

/// Retired so far, since the CPU was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Instructions at CPL 3.
    pub user_instructions: u64,
    /// Conditional branches at CPL 3.
    pub user_branches: u64,
    /// What `user_instructions` was when CPL last became 3.
    pub user_entered: u64,
}

impl Counts {
    /// Instructions retired at CPL 3 since CPL last became 3.
    pub fn since_user(&self) -> u64 {
        self.user_instructions - self.user_entered
    }
}

/// An instruction outside the CPU model that a guest executed: it raised #UD or, where its name says so, was
/// answered with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideModel {
    /// How often.
    pub count: u64,
    /// Linear address of the first.
    pub first_rip: u64,
    /// The first was at CPL 3.
    pub user: bool,
}

/// Names kept of instructions outside the model.
const MOST_NAMES: usize = 1000;

/// An IN that waits for its value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PendingIn {
    /// To AL, AX or EAX.
    Register(u8),
    /// INS: element size and where it goes.
    String { size: u8, span: Span },
}

/// A software x86-64 CPU.
///
/// Field order: what the fast handlers touch comes first.
#[repr(C)]
pub struct Cpu {
    /// General registers, then the pseudo registers of `insn.rs`.
    pub(crate) gpr: [u64; 32],
    pub(crate) lazy: Lazy,
    /// Low half: `1 << 31` plus the instructions that may still run; high half: conditional branches so far.
    pub(crate) count: u64,
    /// Entry op of the running block.
    pub(crate) entered: *const Op,
    /// Jump-cache tags for the low and the high half of the address space.
    pub(crate) jump_tags: [u64; 2],
    pub(crate) jump_cache: *const crate::block::Jump,
    /// A link slot to fill when the block at `rip` is known.
    pub(crate) link: *mut Op,
    /// `link` leads to the page it is in, so it is valid whatever the translation.
    pub(crate) link_same_page: bool,
    pub(crate) rip: u64,
    pub(crate) next_rip: u64,
    /// RFLAGS without the status flags, bit 1 set.
    pub(crate) rflags: u64,
    /// CPL is 3.
    pub(crate) user: bool,
    /// Something other than the next block must be looked at.
    pub(crate) attention: bool,
    /// The running block has one instruction; hooks may record.
    pub(crate) alone: bool,
    pub(crate) alignment_checked: bool,
    /// The block just entered may not be what memory holds.
    pub(crate) doubt: bool,
    /// A block did not fit into the budget.
    pub(crate) short: bool,
    /// A repeated instruction stopped in between: it is not counted.
    pub(crate) partial: bool,
    /// What the last instruction was, for the single-step trap: a MOV or POP to SS, SYSCALL or SYSRET, IRET, INT n.
    pub(crate) stack_loaded: bool,
    pub(crate) system_call: bool,
    pub(crate) returned: bool,
    pub(crate) software_interrupt: bool,
    /// CR0 and CR4 allow SSE instructions.
    pub(crate) sse_on: bool,
    pub(crate) fp: FpState,
    pub(crate) tlb: Tlb,
    pub(crate) abort: Option<Abort>,
    pub(crate) fault_address: u64,
    /// Segments, control registers, MSRs. General registers, RIP, RFLAGS and FP state here are stale while
    /// running.
    pub(crate) sys: CpuState,
    pub(crate) memory: Memory,
    pub(crate) blocks: Blocks,
    pub(crate) compile: Compile,
    pub(crate) code_buffer: Option<Buffer>,
    /// There was no room for compiled code.
    pub(crate) code_full: bool,
    /// A block that has become worth compiling.
    pub(crate) hot_block: *mut crate::block::Block,
    pub(crate) hooks: Hooks,
    pub(crate) pending: Option<Exit>,
    pub(crate) pending_in: Option<PendingIn>,
    /// #DB causes (DR6 bits) of the instruction being executed.
    pub(crate) debug_cause: u64,
    /// Last exit was at this breakpoint: run past it.
    pub(crate) resume_at: Option<u64>,
    /// Instructions to run one at a time before blocks are tried again.
    pub(crate) steps: u64,
    pub(crate) counts: Counts,
    pub(crate) exit_on_exception: bool,
    pub(crate) cpuid: Vec<CpuidLeaf>,
    pub(crate) physical_mask: u64,
    pub(crate) gigabyte_pages: bool,
    /// Instructions outside the model, by name.
    pub(crate) outside_model: BTreeMap<String, OutsideModel>,
    pub(crate) interrupt: Arc<AtomicBool>,
}

// SAFETY: the raw pointers lead into boxes this value owns and into guest memory, which the creator promised to
// keep mapped; nothing is tied to a thread.
unsafe impl Send for Cpu {}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("rip", &self.rip).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Cpu {
    /// A CPU over `regions`, answering CPUID from `cpuid`.
    ///
    /// # Safety
    /// Every region must stay mapped readable and writable as long as the CPU lives, its addresses and lengths
    /// be multiples of 4096, and `first_page + len / 4096` stay below 2^24.
    pub unsafe fn new(regions: &[Region], cpuid: &[CpuidLeaf]) -> Self {
        let memory = Memory::new(regions);
        let leaf = |leaf: u32| cpuid.iter().find(|l| l.leaf == leaf).map_or([0; 4], |l| l.registers);
        let bits = match leaf(0x8000_0008)[0] & 0xff {
            bits @ 32..=52 => bits,
            _ => 46,
        };
        let blocks = Blocks::new(memory.pages());
        let jump_cache = blocks.jump_cache();
        let mut cpu = Cpu {
            gpr: [0; 32],
            lazy: Lazy::default(),
            count: 0,
            entered: std::ptr::null(),
            jump_tags: [0; 2],
            jump_cache,
            link: std::ptr::null_mut(),
            link_same_page: false,
            rip: 0,
            next_rip: 0,
            rflags: 2,
            user: false,
            attention: false,
            alone: false,
            alignment_checked: false,
            doubt: false,
            short: false,
            partial: false,
            stack_loaded: false,
            system_call: false,
            returned: false,
            software_interrupt: false,
            sse_on: false,
            fp: FpState::default(),
            tlb: Tlb::new(),
            abort: None,
            fault_address: 0,
            sys: CpuState::default(),
            memory,
            blocks,
            compile: Compile::default(),
            code_buffer: None,
            code_full: false,
            hot_block: std::ptr::null_mut(),
            hooks: Hooks::default(),
            pending: None,
            pending_in: None,
            debug_cause: 0,
            resume_at: None,
            steps: 0,
            counts: Counts::default(),
            exit_on_exception: false,
            cpuid: cpuid.to_vec(),
            physical_mask: (1 << bits) - 1,
            gigabyte_pages: leaf(0x8000_0001)[3] & 1 << 26 != 0,
            outside_model: BTreeMap::new(),
            interrupt: Arc::new(AtomicBool::new(false)),
        };
        cpu.set_state(&CpuState::default());
        cpu
    }

    /// The complete architectural state.
    pub fn state(&self) -> CpuState {
        let mut state = self.sys.clone();
        state.gpr.copy_from_slice(&self.gpr[..16]);
        state.rip = self.rip;
        state.rflags = self.rflags();
        state.fs.base = self.gpr[FS as usize];
        state.gs.base = self.gpr[GS as usize];
        self.fp.store(&mut state);
        state
    }

    /// Replaces the complete architectural state; translations are dropped, decoded code is kept.
    pub fn set_state(&mut self, state: &CpuState) {
        self.sys = state.clone();
        self.gpr[..16].copy_from_slice(&state.gpr);
        self.gpr[16..].fill(0);
        self.gpr[FS as usize] = state.fs.base;
        self.gpr[GS as usize] = state.gs.base;
        self.rip = state.rip;
        self.set_rflags(state.rflags);
        self.fp = FpState::from_state(state);
        self.user = state.cs.selector & 3 == 3;
        self.counts.user_entered = self.counts.user_instructions;
        self.pending = None;
        self.pending_in = None;
        self.abort = None;
        self.resume_at = None;
        self.debug_cause = 0;
        self.steps = 0;
        self.stack_loaded = false;
        self.update_debug_registers();
        self.update_alignment();
        self.update_sse();
        self.flush_tlb_all();
    }

    /// All of RFLAGS.
    pub(crate) fn rflags(&self) -> u64 {
        self.rflags | self.lazy.status()
    }

    /// Sets all of RFLAGS as given (bit 1 forced, reserved bits dropped).
    pub(crate) fn set_rflags(&mut self, value: u64) {
        const KNOWN: u64 = flags::TF
            | flags::IF
            | flags::DF
            | flags::IOPL
            | flags::NT
            | flags::RF
            | flags::AC
            | flags::VIF_VIP
            | flags::ID;
        self.rflags = value & KNOWN | 2;
        self.lazy.set(value);
    }

    /// After a change of CR0 or CR4.
    pub(crate) fn update_sse(&mut self) {
        // EM and TS clear, OSFXSR set.
        self.sse_on = self.sys.cr0 & 0xc == 0 && self.sys.cr4 & 1 << 9 != 0;
    }

    /// Current privilege level.
    pub(crate) fn cpl(&self) -> u8 {
        if self.user { 3 } else { 0 }
    }

    /// Linear address of the instruction being executed.
    pub(crate) fn insn_rip(&self, off: u16) -> u64 {
        self.gpr[BASE as usize].wrapping_add(u64::from(off))
    }

    /// Faults end [`Cpu::run`] with [`Exit::Exception`] instead of being delivered. For tests.
    pub fn set_exit_on_exception(&mut self, on: bool) {
        self.exit_on_exception = on;
    }

    /// Retired so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Instructions outside the CPU model that were executed (and raised #UD, or were answered with a
    /// constant), by name, with how often.
    pub fn outside_model(&self) -> &BTreeMap<String, OutsideModel> {
        &self.outside_model
    }

    /// Adds the bits of the RAM pages written since last asked to `words` (bit i of word j: page 64 j + i), and
    /// forgets them.
    pub fn take_dirty(&mut self, mut each: impl FnMut(usize, u64)) {
        for (i, word) in self.memory.dirty.iter_mut().enumerate() {
            if *word != 0 {
                each(i, std::mem::take(word));
            }
        }
        self.tlb.flush_writes();
    }

    /// Follows which bytes of these RAM pages (indices, ascending; at most 65,535) are written from now on; forgets what
    /// was noted of others.
    pub fn follow_writes(&mut self, pages: &[u64]) {
        let of = self.memory.pages();
        self.memory.marks.follow(pages, of);
        self.tlb.flush_writes();
    }

    /// What was noted of this RAM page does not count any more: it was written from outside.
    pub fn follow_no_more(&mut self, page: u64) {
        self.memory.marks.drop_page(page);
    }

    /// Each page followed, with the byte ranges of it that were written since then, by the CPU. A store that did not
    /// happen in the end may be among them.
    pub fn written(&self, each: impl FnMut(u64, Vec<Range<u16>>)) {
        self.memory.marks.written(each);
    }

    /// Guest memory was changed from outside. `pages`: RAM page indices; `None`: everything.
    /// Decoded code is checked against the new bytes before it is used again, not thrown away.
    pub fn invalidate(&mut self, pages: Option<&mut dyn Iterator<Item = u64>>) {
        match pages {
            None => self.doubt_all_code(),
            Some(pages) => {
                for page in pages {
                    if page < self.memory.pages() as u64 && self.memory.has_code(page) {
                        self.doubt_code(page);
                    }
                }
            }
        }
        self.flush_tlb_all();
    }

    /// A device wrote these RAM pages while the CPU was stopped: code decoded from them is checked against the new bytes
    /// before it is used again, and translations that may come from them are found again.
    pub fn written_from_outside(&mut self, pages: impl Iterator<Item = u64>) {
        let mut tables = false;
        let all = self.memory.pages() as u64;
        for page in pages.filter(|page| *page < all) {
            if self.memory.has_code(page) {
                self.doubt_code(page);
            }
            tables |= self.memory.is_table(page);
        }
        if tables {
            self.flush_tlb_all();
        }
    }

    /// Replaces the watches.
    pub fn set_watches(&mut self, watches: &[Watch]) {
        self.hooks.set_watches(watches);
        self.flush_tlb_all();
    }

    /// Replaces the breakpoints (linear addresses).
    pub fn set_breakpoints(&mut self, at: &[u64]) {
        self.hooks.set_breakpoints(at);
        self.resume_at = None;
        self.flush_tlb_all();
    }

    /// Starts or stops recording accesses. Each [`Cpu::run`] appends; take them with [`Cpu::take_accesses`]. Slow:
    /// use it for a window.
    pub fn set_access_stream(&mut self, stream: Stream) {
        self.hooks.stream = stream;
        self.flush_tlb_all();
    }

    /// The recorded accesses, in order.
    pub fn take_accesses(&mut self) -> Vec<Accessed> {
        std::mem::take(&mut self.hooks.accesses)
    }

    /// A handle other threads can use to make `run` return [`Exit::Interrupted`] within some ten milliseconds.
    pub fn interrupter(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.interrupt)
    }

    /// Takes the interrupt request, if there is one.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed) && self.interrupt.swap(false, Ordering::AcqRel)
    }

    /// Counts an instruction outside the model.
    #[cold]
    pub(crate) fn report(&mut self, what: String) {
        // A guest could make up a name for each of 2^32 MSRs.
        if self.outside_model.len() >= MOST_NAMES && !self.outside_model.contains_key(&what) {
            return;
        }
        let (first_rip, user) = (self.rip, self.user);
        self.outside_model.entry(what).or_insert(OutsideModel { count: 0, first_rip, user }).count += 1;
    }

    /// Drops every translation.
    pub(crate) fn flush_tlb_all(&mut self) {
        self.tlb.flush_all();
        self.bump_jumps(true, true);
    }

    /// MOV to CR3: drops translations of non-global pages.
    pub(crate) fn flush_tlb_non_global(&mut self) {
        self.tlb.flush_non_global();
        let (low, high) = (true, self.blocks.local_high_code);
        self.bump_jumps(low, high);
    }

    /// INVLPG.
    pub(crate) fn flush_tlb_page(&mut self, linear: u64) {
        let large = self.tlb.flush_page(linear);
        let high = linear >> 63 != 0;
        // Of a large page, code may have run in another 4 KiB.
        if large || self.blocks.may_have_run(linear) {
            self.bump_jumps(!high, high);
        }
    }
}
