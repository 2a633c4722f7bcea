//! The way into a case and back, in assembly. Everything is at an absolute address below 2 GiB ([`CONTROL`]),
//! so no register is needed to find it.
//!
//! In: the x87/SSE image, FS and GS base and fifteen registers are loaded; IRETQ then loads RSP, RIP and RFLAGS
//! at once. IRETQ also serialises, which code written through another mapping needs (SDM vol. 3A 9.1.3).
//! Out: an exit stub in the case jumps through its slot to `exit k`; or a signal handler rewrites its context to
//! continue at `rewind_diff_faulted`.

use std::arch::global_asm;

use crate::{case::Fx, layout::CONTROL};

/// The page at [`CONTROL`]. The offsets are in the assembly below; a test holds them together.
#[repr(C)]
pub(super) struct Control {
    pub(super) fx_in: Fx,
    pub(super) fx_out: Fx,
    pub(super) gpr_in: [u64; 16],
    pub(super) gpr_out: [u64; 16],
    /// RIP, CS, RFLAGS, RSP, SS for IRETQ.
    pub(super) frame: [u64; 5],
    pub(super) fs_in: u64,
    pub(super) gs_in: u64,
    pub(super) rflags_out: u64,
    pub(super) fs_out: u64,
    pub(super) gs_out: u64,
    pub(super) exit: u64,
    pub(super) host_rsp: u64,
    pub(super) host_fs: u64,
    pub(super) host_gs: u64,
    /// Nonzero while registers are the case's.
    pub(super) in_case: u64,
    /// Filled by the signal handler: trap number plus one, error code, CR2, RIP.
    pub(super) trap: [u64; 4],
    /// MXCSR for the host's own code.
    pub(super) host_mxcsr: u64,
}

unsafe extern "C" {
    pub(super) fn rewind_diff_enter();
    pub(super) fn rewind_diff_faulted();
    pub(super) fn rewind_diff_exits();
    pub(super) fn rewind_diff_handler();
}

/// Bytes from one exit label to the next.
pub(super) const EXIT_SPACING: u64 = 32;

global_asm!(
    ".globl rewind_diff_enter", ".globl rewind_diff_exits",
    ".globl rewind_diff_faulted", ".globl rewind_diff_handler",
    ".p2align 5",
    "rewind_diff_enter:",
    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
    "rdfsbase rax", "mov qword ptr [{c} + 1376], rax",
    "rdgsbase rax", "mov qword ptr [{c} + 1384], rax",
    "mov qword ptr [{c} + 1368], rsp",
    "mov eax, cs", "mov qword ptr [{c} + 1288], rax",
    "mov eax, ss", "mov qword ptr [{c} + 1312], rax",
    "mov rax, qword ptr [{c} + 1320]", "wrfsbase rax",
    "mov rax, qword ptr [{c} + 1328]", "wrgsbase rax",
    "fxrstor64 [{c}]",
    "mov dword ptr [{c} + 1392], 1",
    "mov rax, qword ptr [{c} + 1024]", "mov rcx, qword ptr [{c} + 1032]",
    "mov rdx, qword ptr [{c} + 1040]", "mov rbx, qword ptr [{c} + 1048]",
    "mov rbp, qword ptr [{c} + 1064]", "mov rsi, qword ptr [{c} + 1072]",
    "mov rdi, qword ptr [{c} + 1080]", "mov r8, qword ptr [{c} + 1088]",
    "mov r9, qword ptr [{c} + 1096]", "mov r10, qword ptr [{c} + 1104]",
    "mov r11, qword ptr [{c} + 1112]", "mov r12, qword ptr [{c} + 1120]",
    "mov r13, qword ptr [{c} + 1128]", "mov r14, qword ptr [{c} + 1136]",
    "mov r15, qword ptr [{c} + 1144]",
    "mov esp, {c} + 1280",
    "iretq",
    // Eight exits, 32 bytes apart; MOV changes no flag.
    ".p2align 5",
    "rewind_diff_exits:",
    "mov dword ptr [{c} + 1360], 0", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 1", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 2", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 3", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 4", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 5", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 6", "jmp 2f", ".p2align 5",
    "mov dword ptr [{c} + 1360], 7", "jmp 2f", ".p2align 5",
    "2:",
    "mov qword ptr [{c} + 1152], rax", "mov qword ptr [{c} + 1160], rcx",
    "mov qword ptr [{c} + 1168], rdx", "mov qword ptr [{c} + 1176], rbx",
    "mov qword ptr [{c} + 1184], rsp", "mov qword ptr [{c} + 1192], rbp",
    "mov qword ptr [{c} + 1200], rsi", "mov qword ptr [{c} + 1208], rdi",
    "mov qword ptr [{c} + 1216], r8", "mov qword ptr [{c} + 1224], r9",
    "mov qword ptr [{c} + 1232], r10", "mov qword ptr [{c} + 1240], r11",
    "mov qword ptr [{c} + 1248], r12", "mov qword ptr [{c} + 1256], r13",
    "mov qword ptr [{c} + 1264], r14", "mov qword ptr [{c} + 1272], r15",
    "mov rsp, qword ptr [{c} + 1368]",
    "pushfq", "pop rax", "mov qword ptr [{c} + 1336], rax",
    "fxsave64 [{c} + 512]",
    "rewind_diff_faulted:",
    "mov rsp, qword ptr [{c} + 1368]",
    "push 2", "popfq",
    "mov dword ptr [{c} + 1392], 0",
    "rdfsbase rax", "mov qword ptr [{c} + 1344], rax",
    "rdgsbase rax", "mov qword ptr [{c} + 1352], rax",
    "mov rax, qword ptr [{c} + 1376]", "wrfsbase rax",
    "mov rax, qword ptr [{c} + 1384]", "wrgsbase rax",
    "fninit",
    "ldmxcsr dword ptr [{c} + 1432]",
    "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
    "ret",
    // Signals arrive with the case's AC flag: clear it before compiled code makes unaligned accesses.
    ".p2align 5",
    "rewind_diff_handler:",
    "pushfq", "and dword ptr [rsp], -0x40001", "popfq",
    "jmp {handler}",
    c = const CONTROL,
    handler = sym super::child::on_signal,
);

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::Control;

    #[test]
    fn offsets_are_what_the_assembly_says() {
        assert_eq!(offset_of!(Control, fx_out), 512);
        assert_eq!(offset_of!(Control, gpr_in), 1024);
        assert_eq!(offset_of!(Control, gpr_out), 1152);
        assert_eq!(offset_of!(Control, frame), 1280);
        assert_eq!(offset_of!(Control, fs_in), 1320);
        assert_eq!(offset_of!(Control, gs_in), 1328);
        assert_eq!(offset_of!(Control, rflags_out), 1336);
        assert_eq!(offset_of!(Control, fs_out), 1344);
        assert_eq!(offset_of!(Control, gs_out), 1352);
        assert_eq!(offset_of!(Control, exit), 1360);
        assert_eq!(offset_of!(Control, host_rsp), 1368);
        assert_eq!(offset_of!(Control, host_fs), 1376);
        assert_eq!(offset_of!(Control, host_gs), 1384);
        assert_eq!(offset_of!(Control, in_case), 1392);
        assert_eq!(offset_of!(Control, host_mxcsr), 1432);
    }
}
