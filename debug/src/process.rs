//! Threads and processes, from the kernel's task list.

use rewind_platform::state::Fact;
use vmm::{
    address::{Gpa, Gva},
    engine::CpuState,
};

use crate::kernel::{Kernel, Read, ReadError, read_virtual};

/// More tasks than a guest can have (PID_MAX_LIMIT is 4 million; a list longer than this is damaged or circular).
const MOST_TASKS: usize = 1 << 20;
/// PF_KTHREAD (include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

/// User registers of a thread as the debugger shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRegisters {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8..R15.
    pub gpr: [u64; 16],
    /// Instruction pointer.
    pub rip: u64,
    /// Flags.
    pub rflags: u64,
    /// System call number when in one, else `u64::MAX`.
    pub orig_rax: u64,
    /// FS base: the thread pointer.
    pub fs_base: u64,
    /// GS base.
    pub gs_base: u64,
}

/// One user thread.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Address of its task_struct.
    pub task: Gva,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub parent: u32,
    /// Program name, at most 15 bytes.
    pub comm: String,
    /// Thread name in the creation tree; 0 outside the job.
    pub name: u64,
    /// Address of its mm_struct; `None` once it has exited.
    pub mm: Option<Gva>,
    /// Root of its page tables.
    pub root: Option<Gpa>,
    /// Task state: 0 = runnable (include/linux/sched.h, TASK_*).
    pub state: u32,
    /// Own system calls entered.
    pub syscalls: u64,
}

impl Thread {
    /// Reads its memory.
    pub fn read(&self, kernel: &Kernel<'_>, at: Gva, out: &mut [u8]) -> Read<()> {
        read_virtual(kernel.memory(), self.root.ok_or(ReadError::Unmapped(at))?, at, out)
    }

    /// Where the kernel saved its user registers at entry (struct pt_regs).
    pub fn saved_registers(&self, kernel: &Kernel<'_>) -> Read<Gva> {
        let stack = kernel.field(self.task, Fact::TaskStack)?;
        let size = kernel.fact(Fact::PtRegsSize)?;
        Ok(Gva(stack.wrapping_add(kernel.fact(Fact::ThreadSize)?).wrapping_sub(size)))
    }

    /// User registers: the CPU's own for the thread that is on it in user mode, else those saved at kernel entry. All
    /// zero and in no system call for a thread that has ended and given its kernel stack back.
    pub fn registers(&self, kernel: &Kernel<'_>, cpu: &CpuState) -> Read<UserRegisters> {
        let thread = kernel.address_of(self.task, Fact::TaskThread)?;
        let on_cpu = current(kernel, cpu)? == self.task;
        let at_entry = on_cpu && cpu.cs.selector & 3 == 0 && cpu.rip == cpu.lstar && cpu.lstar != 0;
        if at_entry {
            // SYSCALL has just retired and nothing was pushed yet: RCX and R11 hold RIP and RFLAGS (Intel SDM).
            return Ok(UserRegisters {
                gpr: cpu.gpr,
                rip: cpu.gpr[1],
                rflags: cpu.gpr[11],
                orig_rax: cpu.gpr[0],
                fs_base: cpu.fs.base,
                gs_base: cpu.gs.base,
            });
        }
        if on_cpu && cpu.cs.selector & 3 == 3 {
            return Ok(UserRegisters {
                gpr: cpu.gpr,
                rip: cpu.rip,
                rflags: cpu.rflags,
                orig_rax: u64::MAX,
                fs_base: cpu.fs.base,
                gs_base: cpu.gs.base,
            });
        }
        let (fs_base, gs_base) = if on_cpu {
            // In the kernel the user's GS base is swapped out.
            (cpu.fs.base, cpu.kernel_gs_base)
        } else {
            (kernel.field(thread, Fact::ThreadFsBase)?, kernel.field(thread, Fact::ThreadGsBase)?)
        };
        if kernel.field(self.task, Fact::TaskStack)? == 0 {
            // put_task_stack (kernel/fork.c), from the switch away from a dead task on.
            let (gpr, rip, rflags) = ([0; 16], 0, 0);
            return Ok(UserRegisters { gpr, rip, rflags, orig_rax: u64::MAX, fs_base, gs_base });
        }
        let at = self.saved_registers(kernel)?.0;
        // struct pt_regs, arch/x86/include/asm/ptrace.h.
        let mut words = [0u64; 21];
        let mut bytes = [0u8; 21 * 8];
        kernel.read(Gva(at), &mut bytes)?;
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        }
        let [
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            orig,
            rip,
            _,
            flags,
            rsp,
            _,
        ] = words;
        Ok(UserRegisters {
            gpr: [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15],
            rip,
            rflags: flags,
            orig_rax: orig,
            fs_base,
            gs_base,
        })
    }
}

/// The task on the CPU.
pub fn current(kernel: &Kernel<'_>, _cpu: &CpuState) -> Read<Gva> {
    Ok(Gva(kernel.u64(Gva(kernel.fact(Fact::CurrentTask)?))?))
}

/// All user threads, in task-list order (by process start), threads of a process together.
pub fn threads(kernel: &Kernel<'_>) -> Read<Vec<Thread>> {
    let mut out = Vec::new();
    let (tasks, node) = (kernel.fact(Fact::TaskTasks)?, kernel.fact(Fact::TaskThreadNode)?);
    let init = kernel.fact(Fact::InitTask)?;
    let mut leader = kernel.u64(Gva(init.wrapping_add(tasks)))?.wrapping_sub(tasks);
    let mut seen = 0;
    while leader != init {
        let signal = Gva(kernel.field(Gva(leader), Fact::TaskSignal)?);
        let head = kernel.address_of(signal, Fact::SignalThreadHead)?;
        let mut at = kernel.u64(head)?;
        while at != head.0 {
            let task = Gva(at.wrapping_sub(node));
            if let Some(thread) = thread(kernel, task)? {
                out.push(thread);
            }
            seen += 1;
            if seen > MOST_TASKS {
                return Err(ReadError::Damaged { what: "thread list", at: head });
            }
            at = kernel.u64(Gva(at))?;
        }
        seen += 1;
        if seen > MOST_TASKS {
            return Err(ReadError::Damaged { what: "task list", at: Gva(init) });
        }
        leader = kernel.u64(Gva(leader.wrapping_add(tasks)))?.wrapping_sub(tasks);
    }
    Ok(out)
}

/// The thread of a task; `None` for one of the kernel's own.
pub fn thread(kernel: &Kernel<'_>, task: Gva) -> Read<Option<Thread>> {
    if kernel.field32(task, Fact::TaskFlags)? & PF_KTHREAD != 0 {
        return Ok(None);
    }
    let mm = kernel.field(task, Fact::TaskMm)?;
    let comm = kernel.string(kernel.address_of(task, Fact::TaskComm)?, 16)?;
    let parent = Gva(kernel.field(task, Fact::TaskRealParent)?);
    let root = if mm == 0 {
        None
    } else {
        let pgd = kernel.field(Gva(mm), Fact::MmPgd)?;
        Some(Gpa(pgd.wrapping_sub(kernel.fact(Fact::PageOffset)?)))
    };
    Ok(Some(Thread {
        task,
        tid: kernel.field32(task, Fact::TaskPid)?,
        pid: kernel.field32(task, Fact::TaskTgid)?,
        parent: kernel.field32(parent, Fact::TaskTgid)?,
        comm: String::from_utf8_lossy(&comm).into_owned(),
        name: kernel.field(task, Fact::TaskRewindName)?,
        mm: (mm != 0).then_some(Gva(mm)),
        root,
        state: kernel.field32(task, Fact::TaskState)?,
        syscalls: kernel.field(task, Fact::TaskRewindSyscall)?,
    }))
}
