//! The host executing one instruction with registers, memory and flags of our choice.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// What an instruction works on: the FXSAVE image, registers, status flags, memory at [RDI].
#[repr(C, align(16))]
pub(super) struct Frame {
    pub(super) fx: [u8; 512],
    pub(super) rax: u64,
    pub(super) rcx: u64,
    pub(super) rdx: u64,
    pub(super) flags: u64,
    pub(super) mem: [u8; 512],
}

/// An executable page.
pub(super) struct Page(*mut u8);

/// End of the instruction being executed, for the handler.
static AFTER: AtomicUsize = AtomicUsize::new(0);
/// MXCSR as the exception left it, or [`NONE`].
static MXCSR: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;

/// Masks all exceptions and continues after the instruction.
extern "C" fn on_exception(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context, whose floating-point state is present on x86-64.
    unsafe {
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        MXCSR.store((*machine.fpregs).mxcsr, Ordering::Relaxed);
        (*machine.fpregs).mxcsr |= 0x1f80;
        machine.gregs[libc::REG_RIP as usize] = AFTER.load(Ordering::Relaxed) as i64;
    }
}

impl Page {
    /// Maps it, and sets the handler of SIGFPE.
    pub(super) fn new() -> Self {
        // SAFETY: a new mapping at no given address; a handler that only touches its context and two atomics.
        unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED, "an executable page");
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_exception as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGFPE, &action, std::ptr::null_mut()), 0);
            Page(page.cast())
        }
    }

    /// Executes `code` with RDI at the memory operand. Gives MXCSR as of #XM if the instruction raised it; then
    /// nothing has changed but that all exceptions are masked in the frame.
    pub(super) fn execute(&self, code: &[u8], frame: &mut Frame) -> Option<u32> {
        // SAFETY: the page is ours and longer than any instruction. The instruction is one of the table with
        // registers RAX, RCX, RDX (and RDI as address) only.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.0, code.len());
            self.0.add(code.len()).write(0xc3);
            AFTER.store(self.0.add(code.len()) as usize, Ordering::Relaxed);
            MXCSR.store(NONE, Ordering::Relaxed);
            core::arch::asm!(
                "push rbx",
                "mov rbx, r8",
                "fxrstor [rbx]",
                "push qword ptr [rbx + 536]",
                "popfq",
                "mov rax, [rbx + 512]",
                "mov rcx, [rbx + 520]",
                "mov rdx, [rbx + 528]",
                "lea rdi, [rbx + 544]",
                "call r9",
                "pushfq",
                "pop qword ptr [rbx + 536]",
                "mov [rbx + 512], rax",
                "mov [rbx + 520], rcx",
                "mov [rbx + 528], rdx",
                "fxsave [rbx]",
                "fninit",
                "push 0x1f80",
                "ldmxcsr [rsp]",
                "pop rax",
                "pop rbx",
                in("r8") &raw mut *frame,
                in("r9") self.0,
                out("rax") _, out("rcx") _, out("rdx") _, out("rdi") _,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            );
        }
        let mxcsr = MXCSR.load(Ordering::Relaxed);
        (mxcsr != NONE).then_some(mxcsr)
    }
}
