//! The programs, in assembly. Conventions:
//!
//! - R15 is where a program goes on after an exception that the handler cannot repair. A page fault in a test page
//!   is repaired (the page becomes present, writable, executable, accessible to user mode) and retried; #DB, #BP
//!   and `int 0x32` go on where they are.
//! - `int 0x32` writes a record of all registers; `int 0x30` ends the program; `int 0x33` goes on at R15 at CPL 0.
//! - Test page n is at 0x800000 + 0x1000 n.

use std::arch::global_asm;

use crate::guest::at;

/// Bytes from one vector's stub to the next.
pub(crate) const STUB_SPACING: u64 = 16;

/// One micro-guest.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) code: &'static [u8],
    /// Privilege level it starts at.
    pub(crate) cpl: u8,
    /// Page-table entries of the first test pages, without the address; the others are not present.
    pub(crate) entries: &'static [u64],
    /// Needs debug registers that fire: some hosts' virtual machines have none.
    pub(crate) debug_registers: bool,
}

impl Program {
    /// Page-table entry of a test page at the start.
    pub(crate) fn entry(&self, page: u64) -> u64 {
        match self.entries.get(page as usize) {
            None | Some(0) => 0,
            Some(bits) => (at::TEST_PHYSICAL + page * 4096) | bits,
        }
    }
}

unsafe extern "C" {
    static micro_handlers_start: u8;
    static micro_handlers_end: u8;
}

fn blob(start: &'static u8, end: &'static u8) -> &'static [u8] {
    let (start, end) = (std::ptr::from_ref(start), std::ptr::from_ref(end));
    // SAFETY: both are labels of one read-only assembly block, start before end.
    unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

/// The stubs of 64 vectors and the handler behind them; position-independent, runs at `at::HANDLERS`.
pub(crate) fn handlers() -> &'static [u8] {
    // SAFETY: the labels are defined below and are read-only bytes.
    unsafe { blob(&micro_handlers_start, &micro_handlers_end) }
}

// Frame after the stub's pushes: [rsp] vector, error, rip, cs, rflags, rsp, ss.
// Record: 0 vector, 1 error, 2 rip, 3 cs, 4 rflags, 5 rsp, 6 ss, 7 cr2, 8 dr6, 16.. general registers.
global_asm!(
    ".pushsection .rodata.micro, \"a\"",
    ".p2align 4",
    // Global: whoever uses them may be compiled into another object file.
    ".globl micro_handlers_start, micro_handlers_end",
    "micro_handlers_start:",
    ".set v, 0",
    ".rept 64",
    // Vectors with an error code: 8, 10 to 14, 17, 21.
    ".if v == 8 || (v >= 10 && v <= 14) || v == 17 || v == 21",
    ".else",
    "push 0",
    ".endif",
    "push v",
    "jmp micro_common",
    ".p2align 4",
    ".set v, v + 1",
    ".endr",
    "micro_common:",
    "cld",
    "push rdi", "push rax",
    "mov rdi, [{log_next}]",
    "mov rax, [rsp]", "mov [rdi + 128], rax",
    "mov [rdi + 136], rcx", "mov [rdi + 144], rdx", "mov [rdi + 152], rbx",
    "mov qword ptr [rdi + 160], 0",
    "mov [rdi + 168], rbp", "mov [rdi + 176], rsi",
    "mov rax, [rsp + 8]", "mov [rdi + 184], rax",
    "mov [rdi + 192], r8", "mov [rdi + 200], r9", "mov [rdi + 208], r10", "mov [rdi + 216], r11",
    "mov [rdi + 224], r12", "mov [rdi + 232], r13", "mov [rdi + 240], r14",
    // R15 is an address in the program.
    "mov qword ptr [rdi + 248], 0",
    "mov rax, [rsp + 16]", "mov [rdi], rax",
    "mov rax, [rsp + 24]", "mov [rdi + 8], rax",
    "mov rax, [rsp + 32]", "mov [rdi + 16], rax",
    "mov rax, [rsp + 40]", "mov [rdi + 24], rax",
    "mov rax, [rsp + 48]", "mov [rdi + 32], rax",
    "mov rax, [rsp + 56]", "mov [rdi + 40], rax",
    "mov rax, [rsp + 64]", "mov [rdi + 48], rax",
    "mov rax, cr2", "mov [rdi + 56], rax",
    "mov rax, dr6", "mov [rdi + 64], rax",
    "mov eax, 0xffff0ff0", "mov dr6, rax",
    "add rdi, 256", "mov [{log_next}], rdi",
    "mov eax, 1",
    "cmp rdi, {log_full}", "jae 9f",
    "mov eax, [rsp + 16]",
    "cmp eax, 0x30", "mov edi, 0", "je 8f",
    "cmp eax, 0x32", "je 5f",
    "cmp eax, 1", "je 7f",
    "cmp eax, 3", "je 5f",
    "cmp eax, 0x33", "je 6f",
    "cmp eax, 14", "jne 4f",
    "mov rax, cr2", "sub rax, {test}", "cmp rax, 64 * 4096", "jae 4f",
    "and eax, 0xfffff000",
    "lea rdi, [rax + {test_physical} + 7]",
    "shr eax, 9", "mov [rax + {pt_test}], rdi",
    "mov rax, cr2", "invlpg [rax]",
    "jmp 5f",
    // Go on at R15.
    "4:", "mov [rsp + 32], r15",
    "5:", "pop rax", "pop rdi", "add rsp, 16", "iretq",
    // Go on at R15, at CPL 0.
    "6:", "mov [rsp + 32], r15", "mov qword ptr [rsp + 40], 0x10", "mov qword ptr [rsp + 64], 0x18",
    "jmp 5b",
    // A breakpoint on an instruction is a fault: with RF it runs.
    "7:", "or dword ptr [rsp + 48], 0x10000", "jmp 5b",
    "8:", "mov eax, edi",
    "9:", "mov dx, 0x5e", "out dx, al", "hlt",
    "micro_handlers_end:",
    ".popsection",
    log_next = const at::LOG_NEXT,
    log_full = const at::LOG + 190 * 256,
    test = const at::TEST,
    test_physical = const at::TEST_PHYSICAL,
    pt_test = const at::PT_TEST,
);

macro_rules! programs {
    ($($name:ident: cpl $cpl:literal, entries $entries:expr, debug $debug:literal, [$($line:literal),* $(,)?];)*) => {
        $(global_asm!(
            ".pushsection .rodata.micro, \"a\"",
            ".p2align 4",
            concat!(".globl micro_", stringify!($name), "_start, micro_", stringify!($name), "_end"),
            concat!("micro_", stringify!($name), "_start:"),
            $($line,)*
            "int 0x30",
            concat!("micro_", stringify!($name), "_end:"),
            ".popsection",
        );)*

        /// All programs.
        pub(crate) fn all() -> Vec<Program> {
            vec![$({
                unsafe extern "C" {
                    #[link_name = concat!("micro_", stringify!($name), "_start")]
                    static START: u8;
                    #[link_name = concat!("micro_", stringify!($name), "_end")]
                    static END: u8;
                }
                Program {
                    name: stringify!($name),
                    // SAFETY: labels of the block above.
                    code: unsafe { blob(&START, &END) },
                    cpl: $cpl,
                    entries: $entries,
                    debug_registers: $debug,
                }
            }),*]
        }
    };
}

/// Present, writable, user.
const RW: u64 = 7;
/// Present, read-only, user.
const RO: u64 = 5;
/// Present, writable, supervisor.
const SUPERVISOR: u64 = 3;
/// Not executable.
const NX: u64 = 1 << 63;
/// A reserved bit with 46 physical address bits.
const RESERVED: u64 = 1 << 50;

programs! {
    // One fault with W=1 for every read-modify-write, whether or not it will write.
    rmw_user: cpl 3, entries &[], debug false, [
        "mov ecx, 5", "mov eax, 0x11111111", "xor edx, edx", "xor ebx, ebx",
        "add dword ptr [0x800010], 1",
        "lock inc dword ptr [0x801010]",
        "not byte ptr [0x802010]",
        "xchg [0x803010], ecx",
        "xadd [0x804010], ecx",
        "cmpxchg [0x805010], ecx",
        "bts dword ptr [0x806010], 3",
        "bt dword ptr [0x807010], 3",
        "cmpxchg8b [0x808010]",
        "cmpxchg16b [0x809010]",
        "shl dword ptr [0x80a010], 1",
        "sete byte ptr [0x80b010]",
        "neg qword ptr [0x80c010]",
        "sub rax, [0x80d010]",
        "test dword ptr [0x80e010], 1",
        "shld dword ptr [0x80f010], eax, 3",
        // Across two absent pages.
        "add qword ptr [0x810ffc], 1",
        "lock xadd [0x812ffe], ebx",
        "int 0x32",
    ];
    rmw_kernel: cpl 0, entries &[], debug false, [
        "mov ecx, 5", "mov eax, 0x11111111", "xor edx, edx", "xor ebx, ebx",
        "add dword ptr [0x800010], 1",
        "lock inc dword ptr [0x801010]",
        "cmpxchg [0x805010], ecx",
        "bt dword ptr [0x807010], 3",
        "cmpxchg16b [0x809010]",
        "add qword ptr [0x810ffc], 1",
        "int 0x32",
    ];
    // A fault with P=1 on read-only pages; nothing is written, nothing else changes.
    rmw_read_only: cpl 3, entries &[RO; 16], debug false, [
        "mov ecx, 5", "mov eax, 0x11111111", "xor edx, edx", "xor ebx, ebx",
        "add dword ptr [0x800010], 1",
        "cmpxchg [0x801010], ecx",
        "cmpxchg8b [0x802010]",
        "bts dword ptr [0x803010], 3",
        "xchg [0x804010], cl",
        "bt dword ptr [0x805010], 3",
        "mov [0x806010], rax",
        "mov rsi, 0x807010", "mov rdi, 0x808010", "movsq",
        "int 0x32",
    ];
    // Order: PUSH reads then writes; POP reads the stack, then writes with the new RSP in its address.
    stack: cpl 3, entries &[], debug false, [
        "mov r14, rsp",
        "mov rsp, 0x801000", "push rax",
        "mov rsp, 0x801000", "pop rax",
        "mov rsp, 0x804000", "push qword ptr [0x802010]",
        "mov rsp, 0x805000", "pop qword ptr [0x806010]",
        "mov rsp, 0x807ff8", "pop qword ptr [rsp + 0x10]",
        "mov rsp, 0x80a004", "push rax", "mov rsp, 0x80affc", "pop rax",
        "mov rsp, 0x80d000", "pushfq", "mov rsp, 0x80d000", "mov rbp, 0x80e008", "leave",
        "mov rsp, 0x811000", "mov rbp, 0x812018", "enter 0x20, 3",
        "mov rsp, 0x814000", "enter 0x3000, 0",
        "mov rsp, r14", "int 0x32",
    ];
    // CALL and RET through memory and stack that are not there. Page 1 gets the target first.
    calls: cpl 3, entries &[0, RW, 0, RW], debug false, [
        "mov r14, rsp",
        "lea rax, [rip + 2f]", "mov [0x801008], rax",
        "mov rsp, 0x801000", "call qword ptr [0x801008]",
        "2:", "int 0x32",
        "mov rsp, 0x803000", "call 3f",
        "3:", "int 0x32",
        "lea rax, [rip + 4f]", "mov rsp, 0x805000", "push rax", "mov rsp, 0x804ff8", "ret",
        "4:", "int 0x32",
        // A target that is not mapped: the fault is at the target, with the call done.
        "mov rsp, 0x806800", "lea r15, [rip + 5f]", "mov eax, 0x900000", "call rax",
        "5:", "int 0x32",
        // Not canonical: the fault is at the branch.
        "mov rsp, 0x807800", "push rax", "lea r15, [rip + 6f]", "mov rax, 0x800000000000", "jmp rax",
        "6:", "mov rsp, r14", "int 0x32",
    ];
    strings: cpl 3, entries &[], debug false, [
        "mov esi, 0x800010", "mov edi, 0x801010", "movsb",
        "mov esi, 0x802010", "mov edi, 0x803010", "movsq",
        "mov esi, 0x804010", "mov edi, 0x805010", "cmpsd",
        "mov edi, 0x806010", "stosq",
        "mov esi, 0x807010", "lodsd",
        "mov edi, 0x808010", "scasw",
        // From one page into the next: progress at each fault.
        "mov esi, 0x809ffd", "mov edi, 0x80c000", "mov ecx, 7", "rep movsb",
        "mov edi, 0x80effc", "mov ecx, 3", "rep stosd",
        "mov esi, 0x810ff8", "mov edi, 0x812ffc", "mov ecx, 3", "repe cmpsd",
        "mov edi, 0x814ffe", "mov ecx, 5", "mov eax, 0x77", "repne scasb",
        // Backward, and not at all.
        "std", "mov edi, 0x817001", "mov ecx, 4", "rep stosb", "cld",
        "xor ecx, ecx", "mov edi, 0x818000", "rep stosb",
        "int 0x32",
    ];
    // Loads and stores across two pages: which half faults first, and nothing partially written.
    splits: cpl 3, entries &[0, 0, RW, 0, 0, RW, RW, RO, 0, 0, RW, 0], debug false, [
        "mov rax, 0x1122334455667788",
        "mov rbx, [0x800ffc]",
        "mov [0x802ffc], rax",
        "mov [0x804ffa], rax",
        "mov [0x806fff], ax",
        "movdqu xmm0, [0x808ff8]",
        "movdqu [0x80aff1], xmm0",
        "movups [0x80cff8], xmm0",
        "fld tbyte ptr [0x80effc]",
        "fstp tbyte ptr [0x810ffc]",
        "int 0x32",
    ];
    // Instruction fetch: across a page, into a page that is not executable, into one that is not user's.
    fetch: cpl 3, entries &[RW, 0, RW | NX, SUPERVISOR, RW, RW | NX], debug false, [
        // mov eax, 0x44332211 across pages 0 and 1; ret in page 1.
        "mov word ptr [0x800ffd], 0x11b8", "mov byte ptr [0x800fff], 0x22",
        "mov word ptr [0x801000], 0x4433", "mov byte ptr [0x801002], 0xc3",
        "mov eax, 0x800ffd", "call rax", "int 0x32",
        // ret in pages 2 and 3: not executable, supervisor's.
        "mov byte ptr [0x802010], 0xc3", "mov eax, 0x802010", "call rax",
        "mov eax, 0x803010", "lea r15, [rip + 2f]", "call rax", "2:",
        // The first byte of a two-byte instruction at the end of page 4; page 5 is not executable.
        "mov word ptr [0x804ffe], 0x6690", "mov byte ptr [0x804fff], 0x66",
        "mov word ptr [0x805000], 0xc390", "mov eax, 0x804ffe", "call rax",
        "mov rsp, 0x50000", "int 0x32",
    ];
    fetch_kernel: cpl 0, entries &[RW, 0, SUPERVISOR | NX, RW], debug false, [
        "mov word ptr [0x800ffd], 0x11b8", "mov byte ptr [0x800fff], 0x22",
        "mov eax, 0xc34433", "mov [0x803000], eax",
        "mov esi, 0x803000", "mov edi, 0x801000", "mov ecx, 4", "rep movsb",
        "mov eax, 0x800ffd", "call rax", "int 0x32",
        "mov byte ptr [0x802010], 0xc3", "mov eax, 0x802010", "call rax",
        "int 0x32",
    ];
    wide: cpl 3, entries &[], debug false, [
        "fninit",
        "fxsave64 [0x800f00]", "fxrstor64 [0x800f00]",
        "lea r15, [rip + 2f]", "fxsave64 [0x804f08]", "2:",
        "fnsave [0x806fc0]", "frstor [0x806fc0]",
        "fnstenv [0x808ff0]", "fldenv [0x808ff0]",
        // Bits far away, both ways.
        "mov rax, 0x8000 * 3 + 5", "bt [0x80a010], rax",
        "mov rax, -0x8000 * 2", "btc [0x810010], rax",
        "mov eax, -1", "bts [0x812000], eax", "bts [0x813000], ax",
        // Explicit lengths do not narrow the access.
        "mov eax, 1", "mov edx, 1", "pcmpestri xmm0, [0x814ff8], 0",
        "pcmpistrm xmm0, [0x816ff8], 0",
        // Byte by byte under a mask across a page.
        "pcmpeqb xmm1, xmm1", "mov edi, 0x818ff8", "maskmovdqu xmm0, xmm1",
        "xor eax, eax", "mov ebx, 0x81a000", "xlatb",
        "movnti [0x81bffe], eax",
        "int 0x32",
    ];
    // CLFLUSH is a load as to faults; PREFETCH never faults.
    clflush: cpl 3, entries &[], debug false, [
        "clflush [0x81d000]", "prefetcht0 [0x81e000]", "int 0x32",
    ];
    // Reserved bits of MXCSR in an FXSAVE image: #GP, after the page faults.
    mxcsr_reserved: cpl 3, entries &[], debug false, [
        "lea r15, [rip + 2f]", "fxrstor64 [0x802f00]", "2:",
        "int 0x32",
    ];
    // Protection: what the error code says of each kind of page.
    protection_user: cpl 3, entries &[RO, SUPERVISOR, RW | RESERVED, RW | NX, RW | 0x8, 1, RO | NX], debug false, [
        "mov eax, [0x800000]", "mov [0x800000], eax",
        "mov eax, [0x801000]", "mov [0x801004], eax",
        "mov eax, [0x802000]",
        "mov eax, [0x803000]", "mov [0x803000], eax",
        "mov [0x804000], eax",
        "mov [0x805000], eax",
        "mov eax, [0x806000]", "mov [0x806000], eax",
        // Kernel memory, and an address above.
        "lea r15, [rip + 2f]", "mov eax, [0x10000]", "2:",
        "lea r15, [rip + 3f]", "mov rbx, 0xffff800000000000", "mov [rbx], eax", "3:",
        "lea r15, [rip + 4f]", "mov rbx, 0x0000800000000000", "mov [rbx], eax", "4:",
        "lea r15, [rip + 5f]", "mov rbp, 0x0000800000000000", "mov [rbp], eax", "5:",
        "lea r15, [rip + 6f]", "mov rbx, 0x00007ffffffffffc", "mov rax, [rbx]", "6:",
        "int 0x32",
    ];
    protection_kernel: cpl 0, entries &[RO, SUPERVISOR, RW | RESERVED, RO, 1, SUPERVISOR & !2], debug false, [
        "mov eax, [0x800000]", "mov [0x800000], eax",
        "mov [0x801004], eax",
        "mov eax, [0x802000]",
        "mov [0x805000], eax",
        // Without WP the kernel may write anything.
        "mov rax, cr0", "btr rax, 16", "mov cr0, rax",
        "mov [0x803000], eax", "mov [0x804000], eax",
        "mov rax, cr0", "bts rax, 16", "mov cr0, rax",
        "int 0x32",
    ];
    // Accessed and dirty bits: see `entries` of the outcome.
    accessed_dirty: cpl 0, entries &[RW, RW, RW, RO, RW, RW, RW, RW], debug false, [
        "mov eax, [0x800000]",
        "mov [0x801000], eax",
        "cmp eax, [0x802000]", "mov [0x802000], eax",
        "mov eax, [0x803000]",
        // A comparison that fails still writes; a conditional move that moves nothing still reads.
        "xor eax, eax", "mov ecx, 1", "lock cmpxchg [0x804100], ecx",
        "cmp ecx, 1", "cmovne eax, [0x805000]",
        // A block decoded ahead, or a NOP with a memory operand, touches nothing.
        "nop dword ptr [0x806000]", "lea rax, [0x806000]",
        "mov eax, [0x600000]", "int 0x32",
        "mov [0x600008], eax",
        "int 0x32",
    ];
    // Changed entries: not used before INVLPG has said so is allowed; after it, they must be.
    remap: cpl 0, entries &[RW, RW, RO], debug false, [
        "mov eax, [0x800000]",
        "mov rbx, [0x5008]", "mov [0x5000], rbx", "invlpg [0x800000]",
        "mov ecx, [0x800000]",
        "and qword ptr [0x5008], -2", "invlpg [0x801000]", "mov edx, [0x801000]",
        "or qword ptr [0x5010], 2", "mov rax, cr3", "mov cr3, rax", "mov [0x802000], edx",
        // Code in a page that is exchanged for another one, at the same address.
        "mov dword ptr [0x800100], 0xc303b0", // mov al, 3; ret
        "mov eax, 0x800100", "call rax", "mov r8, rax",
        "mov qword ptr [0x5000], 0x203007", "invlpg [0x800000]",
        "mov dword ptr [0x800100], 0xc304b0", // mov al, 4; ret
        "mov eax, 0x800100", "call rax", "mov r9, rax",
        "int 0x32",
    ];
    // As `remap`, of pages that ran before other pages were invalidated, and of pages that were read before they ran.
    remap_code: cpl 0, entries &[RW, RW, RW, RW], debug false, [
        "mov dword ptr [0x800100], 0xc301b0", // mov al, 1; ret
        "mov dword ptr [0x801100], 0xc302b0",
        "mov dword ptr [0x802100], 0xc303b0",
        "mov dword ptr [0x803100], 0xc304b0",
        "xor eax, eax", "xor ebp, ebp",
        "mov ebx, 0x800100", "mov esi, 0x801100",
        "call rbx", "mov r8, rax", "call rsi", "mov r9, rax",
        "invlpg [0x801000]",
        "call rbx", "mov r10, rax",
        // Page 0 is what page 2 was.
        "mov qword ptr [0x5000], 0x202007", "invlpg [0x800000]",
        "call rbx", "mov r11, rax",
        // Page 1 is read, run, and then what page 3 was.
        "mov ecx, [0x801100]", "call rsi", "mov r12, rax",
        "mov qword ptr [0x5008], 0x203007", "invlpg [0x801000]",
        "call rsi", "mov r13, rax",
        // And by CR3, all of them back.
        "mov qword ptr [0x5000], 0x200007", "mov qword ptr [0x5008], 0x201007", "mov rax, cr3", "mov cr3, rax",
        "xor eax, eax", "call rbx", "mov edx, eax", "call rsi", "mov r14, rax",
        "int 0x32",
    ];
    // A large page: invalidated by another of its addresses, all of it is (SDM volume 3, 4.10.4.1).
    remap_large: cpl 0, entries &[], debug false, [
        "xor eax, eax",
        "mov dword ptr [0x605100], 0xc305b0", "mov ebx, 0x605100", "call rbx", "mov r8, rax",
        "mov eax, [0x3018]", "xor eax, 0x200000", "mov [0x3018], eax",
        "invlpg [0x600000]",
        "mov dword ptr [0x605100], 0xc306b0", "call rbx", "mov r9, rax",
        "mov eax, [0x3018]", "xor eax, 0x200000", "mov [0x3018], eax", "invlpg [0x600000]",
        "call rbx", "mov r10, rax",
        "int 0x32",
    ];
    exceptions_user: cpl 3, entries &[RW, RW], debug false, [
        "lea r15, [rip + 2f]", "xor ecx, ecx", "div ecx", "2:",
        "lea r15, [rip + 2f]", "mov eax, 0x80000000", "cdq", "mov ecx, -1", "idiv ecx", "2:",
        "lea r15, [rip + 2f]", "ud2", "2:",
        "int3",
        "lea r15, [rip + 2f]", "int 0x31", "2:",
        "lea r15, [rip + 2f]", "int 0x34", "2:",
        "lea r15, [rip + 2f]", "int 0x35", "2:",
        "lea r15, [rip + 2f]", "int 0x80", "2:",
        "lea r15, [rip + 2f]", "hlt", "2:",
        "lea r15, [rip + 2f]", "cli", "2:",
        "lea r15, [rip + 2f]", "mov rax, cr0", "2:",
        "lea r15, [rip + 2f]", "mov dr7, rax", "2:",
        "lea r15, [rip + 2f]", "in al, 0x60", "2:",
        "lea r15, [rip + 2f]", "mov ecx, 0xc0000080", "rdmsr", "2:",
        "lea r15, [rip + 2f]", "swapgs", "2:",
        "lea r15, [rip + 2f]", "sysretq", "2:",
        "lea r15, [rip + 2f]", "invlpg [0x800000]", "2:",
        "lea r15, [rip + 2f]", "lidt [0x800000]", "2:",
        "lea r15, [rip + 2f]", ".byte 0xf0, 0x90", "2:",                        // lock nop
        "lea r15, [rip + 2f]", ".byte 0xf0, 0x01, 0xc0", "2:",                  // lock add eax, eax
        "lea r15, [rip + 2f]", ".byte 0x06", "2:",                              // push es
        "lea r15, [rip + 2f]", ".byte 0xc5, 0xf8, 0x77", "2:",                  // vzeroupper
        "lea r15, [rip + 2f]", ".byte 0x0f, 0x01, 0xd0", "2:",                  // xgetbv
        // Sixteen bytes are too long.
        "lea r15, [rip + 2f]", ".fill 15, 1, 0x66", "nop", "2:",
        "lea r15, [rip + 2f]", "mov eax, 0x800008", "movaps xmm0, [rax]", "2:",
        "lea r15, [rip + 2f]", "cmpxchg16b [0x800008]", "2:",
        "int 0x32",
    ];
    // Alignment checks at CPL 3 with AC.
    alignment: cpl 3, entries &[RW, RW], debug false, [
        "pushfq", "or dword ptr [rsp], 0x40000", "popfq",
        "lea r15, [rip + 2f]", "mov eax, [0x800001]", "2:",
        "lea r15, [rip + 2f]", "movsd xmm0, [0x800004]", "2:",
        "movdqu xmm0, [0x800010]",
        "mov ax, [0x800002]",
        "pushfq", "and dword ptr [rsp], ~0x40000", "popfq",
        "int 0x32",
    ];
    float_exceptions: cpl 3, entries &[RW], debug false, [
        // x87 zero divide, unmasked: at the next waiting instruction.
        "fninit", "fldz", "fld1", "mov dword ptr [0x800000], 0x37b", "fldcw [0x800000]",
        "fdiv st(0), st(1)", "fnstsw ax",
        "lea r15, [rip + 2f]", "fwait", "2:",
        "lea r15, [rip + 2f]", "emms", "2:",
        "fnclex", "fwait",
        // SSE: zero divide unmasked; the result is not written.
        "mov dword ptr [0x800000], 0x1d80", "ldmxcsr [0x800000]",
        "xorps xmm1, xmm1", "mov eax, 0x3f800000", "movd xmm0, eax",
        "lea r15, [rip + 2f]", "divss xmm0, xmm1", "2:",
        "movd ebx, xmm0", "stmxcsr [0x800004]", "mov ecx, [0x800004]",
        // Reserved bits of MXCSR.
        "mov dword ptr [0x800000], 0xffff0000",
        "lea r15, [rip + 2f]", "ldmxcsr [0x800000]", "2:",
        "int 0x32",
    ];
    exceptions_kernel: cpl 0, entries &[RW, RW], debug false, [
        "lea r15, [rip + 2f]", "mov eax, 0x50", "mov ds, ax", "2:",             // not present
        "lea r15, [rip + 2f]", "mov eax, 0x60", "mov ds, ax", "2:",             // execute-only
        "lea r15, [rip + 2f]", "mov eax, 0x1f8", "mov es, ax", "2:",            // beyond the limit
        "lea r15, [rip + 2f]", "mov eax, 0x14", "mov fs, ax", "2:",             // no LDT
        "lea r15, [rip + 2f]", "mov eax, 0x28", "mov ss, ax", "2:",             // DPL 3 at CPL 0
        "lea r15, [rip + 2f]", "mov eax, 0x50", "mov ss, ax", "2:",             // not present
        "xor eax, eax", "mov ss, ax", "mov eax, 0x18", "mov ss, ax",            // null is allowed at CPL 0
        "lea r15, [rip + 2f]", "mov eax, 0x40", "ltr ax", "2:",                 // busy
        "lea r15, [rip + 2f]", "mov eax, 0x30", "ltr ax", "2:",                 // no TSS
        "lea r15, [rip + 2f]", "mov eax, 0x40", "lldt ax", "2:",                // no LDT
        "xor eax, eax", "lldt ax",
        "lea r15, [rip + 2f]", "mov rax, cr0", "btr rax, 0", "mov cr0, rax", "2:", // PG without PE
        "lea r15, [rip + 2f]", "mov rax, cr0", "bts rax, 29", "mov cr0, rax", "2:", // NW without CD
        "lea r15, [rip + 2f]", "mov rax, cr4", "bts rax, 15", "mov cr4, rax", "2:", // reserved
        "lea r15, [rip + 2f]", "mov rax, cr4", "btr rax, 5", "mov cr4, rax", "2:", // PAE in long mode
        "lea r15, [rip + 2f]", "mov rax, 0x100000000", "mov dr7, rax", "2:",
        "lea r15, [rip + 2f]", ".byte 0x0f, 0x20, 0xc8", "2:",                  // mov rax, cr1
        // TS: #NM.
        "mov rax, cr0", "bts rax, 3", "mov cr0, rax",
        "lea r15, [rip + 2f]", "movaps xmm0, xmm1", "2:",
        "lea r15, [rip + 2f]", "fld1", "2:",
        "lea r15, [rip + 2f]", "fwait", "2:",
        "lea r15, [rip + 2f]", "fxsave64 [0x800000]", "2:",
        "clts", "movaps xmm0, xmm1",
        // EM: #UD for SSE, #NM for x87.
        "mov rax, cr0", "bts rax, 2", "mov cr0, rax",
        "lea r15, [rip + 2f]", "movaps xmm0, xmm1", "2:",
        "lea r15, [rip + 2f]", "fld1", "2:",
        "mov rax, cr0", "btr rax, 2", "mov cr0, rax",
        // OSFXSR off: #UD.
        "mov rax, cr4", "btr rax, 9", "mov cr4, rax",
        "lea r15, [rip + 2f]", "movaps xmm0, xmm1", "2:",
        "mov rax, cr4", "bts rax, 9", "mov cr4, rax",
        // Software interrupts at CPL 0 ignore the gate's DPL; a trap gate leaves IF alone.
        "sti", "lea r15, [rip + 2f]", "int 0x31", "2:", "lea r15, [rip + 2f]", "int 0x36", "2:", "cli",
        "lea r15, [rip + 2f]", "int 0x40", "2:",                                 // beyond the limit
        "lea r15, [rip + 2f]", "mov rbx, 0x0000800000000000", "mov [rbx], eax", "2:",
        "int 0x32",
    ];
    // What some emulators let pass: a null SS of another RPL, reserved bits of CR3.
    reserved_kernel: cpl 0, entries &[], debug false, [
        "lea r15, [rip + 2f]", "mov eax, 3", "mov ss, ax", "2:",
        "lea r15, [rip + 2f]", "mov rax, cr3", "bts rax, 60", "mov cr3, rax", "2:",
        "int 0x32",
    ];
    // IRETQ and far returns that fail, and one that goes to user mode and back.
    iret: cpl 0, entries &[RW, RW], debug false, [
        "lea r15, [rip + 2f]", "push 0x18", "push rsp", "push 2", "push 0x18", "push r15", "iretq", "2:", // data as CS
        "mov rsp, 0x18000",
        "lea r15, [rip + 2f]", "push 0x18", "push rsp", "push 2", "push 0", "push r15", "iretq", "2:", // null CS
        "mov rsp, 0x18000",
        "lea r15, [rip + 2f]", "push 0x2b", "push rsp", "push 2", "push 0x73", "push r15", "iretq", "2:", // not present
        "mov rsp, 0x18000",
        "lea r15, [rip + 2f]", "push 0x18", "push rsp", "push 2", "push 0x33", "push r15", "iretq", "2:", // SS of CPL 0
        "mov rsp, 0x18000",
        "lea r15, [rip + 2f]", "push 0x18", "push rsp", "push 2", "push 0x10",
        "mov rax, 0x800000000000", "push rax", "iretq", "2:",                    // not canonical
        "mov rsp, 0x18000",
        "lea r15, [rip + 2f]", "push 0x18", "push rsp", "pushfq", "or dword ptr [rsp], 0x4000", "popfq",
        "push 2", "push 0x10", "push r15", "iretq", "2:",                        // NT
        "mov rsp, 0x18000", "push 2", "popfq",
        // Within CPL 0: RSP and SS are popped too.
        "mov rax, rsp", "lea rbx, [rip + 2f]", "push 0x18", "push rax", "push 0x402", "push 0x10", "push rbx", "iretq",
        "2:", "int 0x32", "cld",
        // RETFQ within CPL 0.
        "push 0x10", "lea rbx, [rip + 2f]", "push rbx", "retfq", "2:", "int 0x32",
        // To user mode with IOPL, IF, ID and AC; POPF there cannot change IF or IOPL.
        "lea rbx, [rip + 3f]", "push 0x2b", "push 0x50000", "push 0x243202", "push 0x33", "push rbx", "iretq",
        "3:", "int 0x32", "push 0x40", "popfq", "int 0x32",
        "lea r15, [rip + 4f]", "int 0x33", "4:", "mov rsp, 0x18000", "int 0x32",
    ];
    // SYSCALL and SYSRET: selectors, RCX, R11, flags.
    syscall: cpl 0, entries &[RW], debug false, [
        "mov ecx, 0xc0000081", "xor eax, eax", "mov edx, 0x00200010", "wrmsr",
        "lea rax, [rip + 7f]", "xor edx, edx", "mov ecx, 0xc0000082", "wrmsr",
        "mov ecx, 0xc0000084", "mov eax, 0x47700", "wrmsr",
        "lea rcx, [rip + 3f]", "mov r11, 0x243ed7", "mov rsp, 0x50000", "sysretq",
        "3:", "int 0x32", "mov ebp, 1", "syscall",
        "int 0x32", "mov ebp, 2", "stc", "std", "syscall",
        "cld", "int 0x32", "int 0x30",
        // The entry.
        "7:", "int 0x32",
        "cmp ebp, 2", "je 8f",
        "sysretq",
        // Once by IRETQ.
        "8:", "mov rbx, rsp", "mov rsp, 0x18000",
        "push 0x2b", "push rbx", "push r11", "push 0x33", "push rcx", "iretq",
    ];
    // SYSCALL without SCE; SYSRET to a non-canonical address (the fault is at CPL 0 on Intel).
    syscall_off: cpl 0, entries &[RW], debug false, [
        "mov ecx, 0xc0000080", "rdmsr", "btr eax, 0", "wrmsr",
        "lea r15, [rip + 2f]", "syscall", "2:",
        "lea r15, [rip + 2f]", "sysretq", "2:",
        "int 0x32",
    ];
    // Segment registers in 64-bit mode: bases, null selectors, LAR, LSL, VERR, VERW.
    segments: cpl 3, entries &[RW, RW], debug false, [
        "mov eax, 0x800100", "wrfsbase rax", "mov eax, 0x800200", "wrgsbase rax",
        "mov qword ptr fs:[8], 0x1234", "mov rbx, gs:[-0xf8]",
        "rdfsbase rcx", "rdgsbase rdx", "int 0x32",
        // Loading a selector loads the descriptor's base.
        "mov eax, 0x2b", "mov fs, ax", "mov eax, 0x5b", "mov gs, ax",
        "rdfsbase rcx", "rdgsbase rdx", "mov ax, gs", "int 0x32",
        "lea r15, [rip + 2f]", "mov eax, 0x18", "mov ds, ax", "2:",
        "lea r15, [rip + 2f]", "mov eax, 0x53", "mov es, ax", "2:",
        "lea r15, [rip + 2f]", "xor eax, eax", "mov ss, ax", "2:",
        "lea r15, [rip + 2f]", "mov eax, 0x33", "mov cs, ax", "2:",              // #UD
        "mov eax, 0x33", "mov ds, ax", "mov eax, 0x6b", "mov es, ax",
        "xor eax, eax", "mov ds, ax", "mov eax, 3", "mov es, ax", "mov ax, es", "int 0x32",
        "mov eax, 0x12345678", "lar eax, [rip + 9f]", "setz bl", "int 0x32",
        "mov ecx, 0x5b", "lar eax, ecx", "setz bl", "lsl edx, ecx", "setz bh", "int 0x32",
        "mov ecx, 0x40", "lar eax, ecx", "setz bl", "lsl edx, ecx", "setz bh", "int 0x32", // TSS, DPL 0
        "mov ecx, 0x6b", "lar eax, ecx", "setz bl", "lsl edx, ecx", "setz bh", "int 0x32", // conforming
        "mov ecx, 0x2000", "lar eax, ecx", "setz bl", "lsl edx, ecx", "setz bh", "int 0x32",
        "mov ecx, 0x5b", "verr cx", "setz al", "verw cx", "setz ah", "int 0x32",
        "mov ecx, 0x2b", "verr cx", "setz al", "verw cx", "setz ah", "int 0x32",
        "mov ecx, 0x18", "verr cx", "setz al", "verw cx", "setz ah", "int 0x32",
        "mov ecx, 0x33", "verr cx", "setz al", "verw cx", "setz ah", "int 0x32",
        "jmp 8f", "9:", ".short 0x33, 0", "8:",
    ];
    bad_base: cpl 3, entries &[], debug false, [
        "lea r15, [rip + 2f]", "mov rax, 0x800000000000", "wrfsbase rax", "2:",
        "int 0x32",
    ];
    segments_kernel: cpl 0, entries &[RW, RW], debug false, [
        "mov ecx, 0xc0000100", "mov eax, 0x800010", "xor edx, edx", "wrmsr",
        "mov ecx, 0xc0000102", "mov eax, 0x800020", "wrmsr",
        "mov ecx, 0xc0000101", "mov eax, 0x800030", "wrmsr",
        "mov rbx, fs:[0]", "mov rsi, gs:[0]", "swapgs", "mov rdi, gs:[0]",
        "rdgsbase r8", "mov ecx, 0xc0000102", "rdmsr", "int 0x32",
        "mov eax, 0x2b", "mov fs, ax", "rdfsbase r8", "int 0x32",
        "sldt eax", "str ebx", "smsw ecx", "int 0x32",
        "mov ecx, 0x60", "lar eax, ecx", "setz bl", "verr cx", "setz bh", "int 0x32",
        "mov ecx, 0x50", "lar eax, ecx", "setz bl", "lsl edx, ecx", "int 0x32",
        "mov ecx, 0x40", "lar eax, ecx", "setz bl", "lsl edx, ecx", "int 0x32",
    ];
    msrs: cpl 0, entries &[], debug false, [
        "lea r15, [rip + 2f]", "mov ecx, 0x12345", "rdmsr", "2:",
        "lea r15, [rip + 2f]", "mov ecx, 0x12345", "wrmsr", "2:",
        "lea r15, [rip + 2f]", "mov ecx, 0xc0000080", "mov eax, 0xffffffff", "wrmsr", "2:",
        "mov ecx, 0xc0000080", "rdmsr", "int 0x32",
        "mov ecx, 0xc0000103", "mov eax, 7", "xor edx, edx", "wrmsr", "rdmsr", "int 0x32",
        "mov ecx, 0x277", "rdmsr", "int 0x32",
        "mov ecx, 0x174", "mov eax, 0x10", "xor edx, edx", "wrmsr", "rdmsr", "int 0x32",
    ];
    // Bases that are not canonical, LME cleared while paging, a memory type that does not exist.
    bad_msrs: cpl 0, entries &[], debug false, [
        "lea r15, [rip + 2f]", "mov ecx, 0xc0000100", "xor eax, eax", "mov edx, 0x8000", "wrmsr", "2:",
        "lea r15, [rip + 2f]", "mov ecx, 0xc0000082", "wrmsr", "2:",
        "lea r15, [rip + 2f]", "mov ecx, 0xc0000080", "mov eax, 0xc01", "xor edx, edx", "wrmsr", "2:",
        "lea r15, [rip + 2f]", "mov ecx, 0x277", "mov eax, 2", "wrmsr", "2:",
        "int 0x32",
    ];
    // NXE off: bit 63 is reserved.
    no_nxe: cpl 0, entries &[RW | NX], debug false, [
        "mov ecx, 0xc0000080", "rdmsr", "btr eax, 11", "wrmsr",
        "mov rax, cr3", "mov cr3, rax",
        "mov eax, [0x800000]", "int 0x32",
    ];
    // The trap flag: a trap after each instruction, and where there is none.
    trap_flag: cpl 3, entries &[RW], debug false, [
        "pushfq", "pop rbx", "or ebx, 0x100", "push rbx", "popfq",
        "nop", "mov eax, 1", "add eax, eax", "jmp 2f", "nop", "2:",
        "pushfq", "pop rcx",
        "mov esi, 0x800000", "mov edi, 0x800100", "mov ecx, 3", "rep movsb",
        "int3",
        "lea r15, [rip + 3f]", "ud2", "3:",
        "cmp eax, 2", "je 4f", "nop", "4:",
        "and ebx, ~0x100", "push rbx", "popfq",
        "nop",
        "int 0x32",
    ];
    // INT1: a trap without its bit in DR6.
    int1: cpl 3, entries &[], debug false, [
        "lea r15, [rip + 2f]", ".byte 0xf1", "2:", "int 0x32",
    ];
    trap_flag_kernel: cpl 0, entries &[RW], debug false, [
        // Into user mode by SYSRET with TF, back by SYSCALL, which masks it.
        "mov ecx, 0xc0000081", "xor eax, eax", "mov edx, 0x00200010", "wrmsr",
        "lea rax, [rip + 7f]", "xor edx, edx", "mov ecx, 0xc0000082", "wrmsr",
        "mov ecx, 0xc0000084", "mov eax, 0x47700", "wrmsr",
        "lea rcx, [rip + 3f]", "mov r11, 0x302", "mov rsp, 0x50000", "sysretq",
        "3:", "nop", "nop", "syscall", "nop", "int 0x30",
        "7:", "nop", "mov rbx, rsp", "mov rsp, 0x18000",
        // MOV SS holds the trap off for one instruction.
        "pushfq", "or dword ptr [rsp], 0x100", "popfq",
        "mov eax, 0x18", "mov ss, ax", "nop", "nop",
        "pushfq", "and dword ptr [rsp], ~0x100", "popfq",
        // IRETQ that sets TF: the trap comes after the next instruction.
        "push 0x2b", "push rbx", "push r11", "push 0x33", "push rcx", "iretq",
    ];
    debug_registers: cpl 0, entries &[RW, RW], debug true, [
        "lea rax, [rip + 2f]", "mov dr0, rax",
        "mov eax, 0x800010", "mov dr1, rax",
        "mov eax, 0x800020", "mov dr2, rax",
        "mov eax, 0x801000", "mov dr3, rax",
        // 0: execute; 1: write, 4 bytes; 2: read or write, 8 bytes; 3: write, 1 byte.
        "mov eax, 0x1bd00755", "mov dr7, rax",
        "nop",
        "2:", "mov eax, 1",
        "mov eax, [0x800010]", "mov [0x800010], eax", "mov [0x800012], al", "mov [0x80000c], rax",
        "mov eax, [0x800020]", "mov [0x800026], ax", "mov eax, [0x80001c]",
        "mov [0x800fff], ax", "lock inc byte ptr [0x801000]",
        "mov esi, 0x800018", "mov edi, 0x800ff8", "mov ecx, 2", "rep movsq",
        "mov rax, dr7", "mov rbx, dr6", "int 0x32",
        "xor eax, eax", "mov dr7, rax", "mov [0x800010], eax", "int 0x32",
        // General detect.
        "mov eax, 0x2400", "mov dr7, rax", "mov rax, dr0", "int 0x32",
        "xor eax, eax", "mov dr7, rax",
    ];
    // A fault while delivering a fault.
    double_fault: cpl 0, entries &[], debug false, [
        // #GP's gate not present: #NP inside #GP is a double fault.
        "btr qword ptr [0x11000 + 13 * 16], 47",
        "lea r15, [rip + 2f]", "mov rbx, 0x0000800000000000", "mov [rbx], eax", "2:",
        "bts qword ptr [0x11000 + 13 * 16], 47",
        // #PF with a stack that is not there.
        "mov rax, [0x12024]", "mov qword ptr [0x12024], 0x900000",
        "lea r15, [rip + 2f]", "mov eax, [0x900000]", "2:",
        "mov qword ptr [0x12024], 0x1c000",
        "int 0x32",
    ];
    triple_fault: cpl 0, entries &[], debug false, [
        "sub rsp, 16", "mov word ptr [rsp], 0", "lidt [rsp]", "ud2",
    ];
    cpuid: cpl 3, entries &[], debug false, [
        "xor eax, eax", "cpuid", "int 0x32",
        "mov eax, 1", "cpuid", "int 0x32",
        "mov eax, 7", "xor ecx, ecx", "cpuid", "int 0x32",
        "mov eax, 0x80000001", "cpuid", "int 0x32",
        "mov eax, 0x80000008", "cpuid", "int 0x32",
        "mov eax, 0x40000000", "cpuid", "int 0x32",
    ];
}
