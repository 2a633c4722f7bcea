//! The checks. Each is a few instructions and says what it saw when it is not what a CPU does.

use kvm_bindings::{KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_USE_HW_BP, KVM_GUESTDBG_USE_SW_BP};
use soft_cpu::state::gpr;

use super::{Check, Line};
use crate::{
    address::{Gpa, Instructions},
    cpu_model::REWIND_V2,
    engine::{Budget, EngineKind, Exit},
    guest_code,
    kvm::debug_stop,
    memory::PageSet,
    micro::{DATA, Micro, SYSCALL_PORT, USER_CODE, kernel_state},
};

const OTHER_KVM: &str = "use a machine whose CPU virtualisation (VMX or SVM) is real, not emulated by its hypervisor; \
                         until then everything works with --engine soft, more slowly";
const NEWER_KERNEL: &str = "use a newer host kernel, or --engine soft";

/// Opening and creating, without a guest.
pub(super) fn opens() -> Line {
    opened(micro().err())
}

/// The line for what came of it.
pub(super) fn opened(failure: Option<String>) -> Line {
    let mend = match &failure {
        Some(text) if text.contains("Permission denied") => {
            "add yourself to the group that owns /dev/kvm (`sudo usermod -aG kvm $USER`) and log in again"
        }
        Some(text) if text.contains("No such file") => {
            "load the module (`sudo modprobe kvm_intel` or `kvm_amd`) and switch virtualisation on in the firmware; \
             in a virtual machine or container, ask for nested virtualisation or /dev/kvm"
        }
        _ => NEWER_KERNEL,
    };
    Line {
        name: "opens".into(),
        tests: "/dev/kvm opens and makes a machine with the CPU model".into(),
        essential: true,
        failure,
        means: "runs use the soft engine, some 10 to 50 times slower".into(),
        mend: mend.into(),
    }
}

pub(super) fn micro() -> Result<Micro, String> {
    Micro::new(EngineKind::Kvm, &REWIND_V2).map_err(|error| error.to_string())
}

const WRONG_RESULTS: &str = "the guest kernel cannot work; runs use the soft engine";

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "syscall",
        tests: "SYSCALL enters the kernel",
        essential: true,
        means: WRONG_RESULTS,
        mend: OTHER_KVM,
        run: syscall,
    },
    Check {
        name: "tsd",
        tests: "RDTSC in a program traps (CR4.TSD)",
        essential: true,
        means: "programs would read the host's clock; runs use the soft engine",
        mend: OTHER_KVM,
        run: tsd,
    },
    Check {
        name: "cpuid",
        tests: "CPUID says what the CPU model says",
        essential: true,
        means: "programs would see this host's CPU; runs use the soft engine",
        mend: OTHER_KVM,
        run: cpuid,
    },
    Check {
        name: "single-step",
        tests: "single steps of a program stop after each instruction",
        essential: true,
        means: "positions inside a step cannot be reached; runs use the soft engine",
        mend: OTHER_KVM,
        run: single_step,
    },
    Check {
        name: "step-leak",
        tests: "stepping leaves no trace in PUSHF, SYSCALL and exceptions",
        essential: true,
        means: "looking at a run would change it; runs use the soft engine",
        mend: OTHER_KVM,
        run: step_leak,
    },
    Check {
        name: "interrupt",
        tests: "one interrupt can be delivered between two instructions of a program",
        essential: true,
        means: "exact preemptions are not possible; runs use the soft engine",
        mend: OTHER_KVM,
        run: interrupt,
    },
    Check {
        name: "dirty-log",
        tests: "the log of written pages has every written page and no other",
        essential: true,
        means: "keyframes would miss memory; runs use the soft engine",
        mend: NEWER_KERNEL,
        run: dirty_log,
    },
    Check {
        name: "emulation",
        tests: "an instruction KVM cannot emulate stops the machine instead of raising #UD",
        essential: true,
        means: "a program could fail without a reason; runs use the soft engine",
        mend: NEWER_KERNEL,
        run: emulation,
    },
    Check {
        name: "page-faults",
        tests: "a page fault has the right address, and touching mapped pages raises none",
        essential: true,
        means: "runs would have different steps each time; runs use the soft engine",
        mend: OTHER_KVM,
        run: page_faults,
    },
    Check {
        name: "kernel-speed",
        tests: "20 million kernel instructions take less than 4 seconds",
        essential: true,
        means: "booting alone would take minutes; runs use the soft engine",
        mend: OTHER_KVM,
        run: kernel_speed,
    },
    Check {
        name: "split-lock",
        tests: "a locked access across two cache lines works",
        essential: false,
        means: "a program that makes one (some old ones do) ends its run with an error",
        mend: "boot the host with split_lock_detect=off, or use --engine soft",
        run: split_lock,
    },
    Check {
        name: "numbers",
        tests: "RCP, RSQRT, x87 functions and undefined flags answer in a guest as in this program",
        essential: false,
        means: "runs recorded on kvm may differ when replayed on soft, in programs that use these",
        mend: "record with --engine soft what is to be replayed with it",
        run: super::numeric::as_here,
    },
    Check {
        name: "write-fault",
        tests: "a read-modify-write raises one page fault, as a write",
        essential: false,
        means: "page faults recorded here may say 'read' where other hosts say 'write'",
        mend: "nothing to do: seen where KVM itself runs inside QEMU's emulator",
        run: write_fault,
    },
    Check {
        name: "int3",
        tests: "INT3 stops, in programs and in the kernel",
        essential: false,
        means: "breakpoints are found by replaying on the soft engine",
        mend: "nothing to do: seen where KVM itself runs inside QEMU's emulator",
        run: int3,
    },
    Check {
        name: "breakpoint",
        tests: "debug registers stop before an instruction",
        essential: false,
        means: "breakpoints are found by replaying on the soft engine",
        mend: "nothing to do; a host with working debug registers is faster at breakpoints",
        run: breakpoint,
    },
    Check {
        name: "data-watch",
        tests: "debug registers stop at a write to memory",
        essential: false,
        means: "blame watches by replaying on the soft engine",
        mend: "nothing to do; a host with working debug registers is faster at blame",
        run: data_watch,
    },
];

pub(super) fn seen(exit: &Exit) -> String {
    match exit {
        Exit::PortOut { port, .. } if *port < 32 => format!("exception {port} instead"),
        Exit::PortOut { port, .. } => format!("port {port:#x} was written instead"),
        Exit::TripleFault => "the CPU shut down".to_owned(),
        Exit::Unsupported { what, bytes, .. } => format!("an instruction failed ({what}; {bytes:02x?})"),
        other => format!("{other:?} instead"),
    }
}

pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Runs until `port` is written.
fn expect_port(m: &mut Micro, port: u16) -> Result<(), String> {
    match m.run().map_err(text)? {
        Exit::PortOut { port: got, .. } if got == port => Ok(()),
        other => Err(seen(&other)),
    }
}

fn run_user(m: &mut Micro, limit: u64) -> Result<Exit, String> {
    m.engine.run(&Budget { user_instructions: Some(Instructions(limit)), ..Budget::default() }).map_err(text)
}

guest_code!(syscall_code = "syscall", "nop", "nop");

fn syscall(m: &mut Micro) -> Result<(), String> {
    m.user(syscall_code()).map_err(text)?;
    expect_port(m, SYSCALL_PORT)?;
    let state = m.engine.cpu().map_err(text)?;
    match state.cs.selector & 3 {
        0 if state.gpr[gpr::RCX] == USER_CODE + 2 => Ok(()),
        0 => Err("RCX does not have the return address".into()),
        cpl => Err(format!("it arrives at privilege level {cpl}")),
    }
}

guest_code!(tsd_code = "rdtsc", "syscall");

fn tsd(m: &mut Micro) -> Result<(), String> {
    m.user(tsd_code()).map_err(text)?;
    match m.run().map_err(text)? {
        Exit::PortOut { port: 13, .. } => Ok(()),
        Exit::PortOut { port: SYSCALL_PORT, .. } => Err("RDTSC answered with the host's time".into()),
        other => Err(seen(&other)),
    }
}

guest_code!(cpuid_code = "cpuid", "out 0x99, al");

fn cpuid(m: &mut Micro) -> Result<(), String> {
    m.kernel(cpuid_code()).map_err(text)?;
    let more = [(7, 1), (0xd, 0), (0xd, 1), (0x15, 0), (0x4000_0001, 0), (0x8000_0005, 0), (0x8000_001e, 0)];
    let leaves = REWIND_V2.leaves.iter().map(|leaf| (leaf.function, leaf.index.unwrap_or(0)));
    for (function, index) in leaves.chain(more) {
        let mut state = kernel_state();
        state.gpr[gpr::RAX] = function.into();
        state.gpr[gpr::RCX] = index.into();
        m.engine.set_cpu(&state).map_err(text)?;
        expect_port(m, 0x99)?;
        let state = m.engine.cpu().map_err(text)?;
        let got = [gpr::RAX, gpr::RBX, gpr::RCX, gpr::RDX].map(|r| state.gpr[r] as u32);
        if got != REWIND_V2.cpuid(function, index) {
            return Err(format!("leaf {function:#x}.{index} is {got:08x?}, not the model's"));
        }
    }
    Ok(())
}

guest_code!(step_code = "nop", "inc rbx", "nop", "inc rbx", "syscall");

fn single_step(m: &mut Micro) -> Result<(), String> {
    m.user(step_code()).map_err(text)?;
    for (done, rip) in [(1, 1), (2, 4), (3, 5), (4, 8)] {
        match run_user(m, 1)? {
            Exit::Budget => {}
            other => return Err(seen(&other)),
        }
        let state = m.engine.cpu().map_err(text)?;
        if state.rip != USER_CODE + rip {
            return Err(format!("after {done} steps RIP is at offset {}", state.rip.wrapping_sub(USER_CODE)));
        }
    }
    Ok(())
}

guest_code!(leak_code = "pushfq", "pop rax", "syscall", "nop");
guest_code!(leak_fault_code = "mov rax, [0x40000000]", "nop");

fn step_leak(m: &mut Micro) -> Result<(), String> {
    const TF: u64 = 0x100;
    m.user(leak_code()).map_err(text)?;
    match run_user(m, 10)? {
        Exit::LeftUser => {}
        other => return Err(seen(&other)),
    }
    expect_port(m, SYSCALL_PORT)?;
    let state = m.engine.cpu().map_err(text)?;
    if state.gpr[gpr::RAX] & TF != 0 || state.gpr[gpr::R11] & TF != 0 {
        return Err("the trap flag shows".into());
    }
    m.user(leak_fault_code()).map_err(text)?;
    match run_user(m, 10)? {
        Exit::LeftUser => {}
        other => return Err(seen(&other)),
    }
    expect_port(m, 14)?;
    let frame = m.engine.cpu().map_err(text)?.gpr[gpr::RSP];
    match m.memory.read_u64(Gpa(frame + 24)).map_err(text)? & TF {
        0 => Ok(()),
        _ => Err("the trap flag shows in the frame of a page fault".into()),
    }
}

guest_code!(int3_code = "nop", "int3", "nop");

fn int3(m: &mut Micro) -> Result<(), String> {
    for user in [true, false] {
        let place = if user { m.user(int3_code()) } else { m.kernel(int3_code()) };
        place.map_err(text)?;
        let rip = m.engine.cpu().map_err(text)?.rip;
        let stop = debug_stop(m, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP, None).map_err(text)?;
        // KVM reports the address of the INT3 itself.
        if stop != Some(rip + 1) {
            return Err(format!("it does not stop {}", if user { "in a program" } else { "in the kernel" }));
        }
    }
    Ok(())
}

guest_code!(loop_code = "2: inc rbx", "jmp 2b");

fn interrupt(m: &mut Micro) -> Result<(), String> {
    m.user(loop_code()).map_err(text)?;
    m.engine.inject(0xf3).map_err(text)?;
    expect_port(m, 0xf3)?;
    let state = m.engine.cpu().map_err(text)?;
    match m.memory.read_u64(Gpa(state.gpr[gpr::RSP])).map_err(text)? {
        USER_CODE => Ok(()),
        other => Err(format!("it was delivered at {other:#x}")),
    }
}

guest_code!(
    dirty_code = "mov al, [0x50000]",
    "mov al, [0x54000]",
    "out 0x98, al",
    "mov byte ptr [0x50000], 1",
    "mov byte ptr [0x52fff], 1",
    "mov al, [0x54000]",
    "out 0x99, al"
);

fn dirty_log(m: &mut Micro) -> Result<(), String> {
    m.kernel(dirty_code()).map_err(text)?;
    expect_port(m, 0x98)?;
    let mut pages = PageSet::new(m.memory.pages());
    m.engine.take_dirty(&mut pages).map_err(text)?;
    expect_port(m, 0x99)?;
    pages.clear();
    m.engine.take_dirty(&mut pages).map_err(text)?;
    let data: Vec<u64> = pages.iter().filter(|page| page * 4096 >= DATA).collect();
    if data == [0x50, 0x52] { Ok(()) } else { Err(format!("pages {data:x?} instead of [50, 52]")) }
}

guest_code!(emulation_code = "mov rbx, rsi", "paddd xmm0, [rsi]", "nop");

fn emulation(m: &mut Micro) -> Result<(), String> {
    m.user(emulation_code()).map_err(text)?;
    let mut state = m.engine.cpu().map_err(text)?;
    state.gpr[gpr::RSI] = DATA;
    m.engine.set_cpu(&state).map_err(text)?;
    // A page where nothing is: KVM must emulate what touches it.
    m.map(DATA, 0xe000_0000, 7).map_err(text)?;
    match m.run().map_err(text)? {
        Exit::Unsupported { .. } => Ok(()),
        other => Err(seen(&other)),
    }
}

guest_code!(
    touch_code = "mov ecx, 64",
    "2: mov eax, [rsi]",
    "inc dword ptr [rsi]",
    "add rsi, 4096",
    "dec ecx",
    "jnz 2b",
    "mov eax, [0x40000000]",
    "nop"
);

fn page_faults(m: &mut Micro) -> Result<(), String> {
    m.user(touch_code()).map_err(text)?;
    let mut state = m.engine.cpu().map_err(text)?;
    state.gpr[gpr::RSI] = DATA;
    m.engine.set_cpu(&state).map_err(text)?;
    expect_port(m, 14)?;
    let state = m.engine.cpu().map_err(text)?;
    let code = m.memory.read_u64(Gpa(state.gpr[gpr::RSP])).map_err(text)?;
    if state.cr2 != 0x4000_0000 || code != 5 {
        return Err(format!("address {:#x}, error code {code} instead of 0x40000000, 5", state.cr2));
    }
    Ok(())
}

guest_code!(speed_code = "mov ecx, 10000000", "2: dec ecx", "jnz 2b", "out 0x99, al");

fn kernel_speed(m: &mut Micro) -> Result<(), String> {
    m.kernel(speed_code()).map_err(text)?;
    expect_port(m, 0x99)
}

// The four bytes lie around the end of a 64-byte line.
guest_code!(split_lock_code = "mov dword ptr [0x3003e], 5", "lock inc dword ptr [0x3003e]", "syscall");

fn split_lock(m: &mut Micro) -> Result<(), String> {
    m.user(split_lock_code()).map_err(text)?;
    expect_port(m, SYSCALL_PORT)?;
    match m.memory.read_u32(Gpa(DATA + 0x3e)).map_err(text)? {
        6 => Ok(()),
        other => Err(format!("the result is {other} instead of 6")),
    }
}

guest_code!(write_fault_code = "add dword ptr [0x41008], 1", "nop");

fn write_fault(m: &mut Micro) -> Result<(), String> {
    m.user(write_fault_code()).map_err(text)?;
    m.map(0x41000, 0, 0).map_err(text)?;
    expect_port(m, 14)?;
    let state = m.engine.cpu().map_err(text)?;
    let code = m.memory.read_u64(Gpa(state.gpr[gpr::RSP])).map_err(text)?;
    match (state.cr2, code) {
        (0x41008, 6) => Ok(()),
        (0x41008, 4) => Err("it is reported as a read first".into()),
        (at, code) => Err(format!("address {at:#x}, error code {code}")),
    }
}

fn breakpoint(m: &mut Micro) -> Result<(), String> {
    m.user(step_code()).map_err(text)?;
    // DR7: L0, G0; R/W0 = 00 (execution), LEN0 = 00.
    let registers = [USER_CODE + 4, 0, 0, 0, 0, 0, 0, 0x403];
    let control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
    match debug_stop(m, control, Some(registers)).map_err(text)? {
        Some(rip) if rip == USER_CODE + 4 => Ok(()),
        Some(rip) => Err(format!("it stops at offset {}", rip.wrapping_sub(USER_CODE))),
        None => Err("it does not stop".into()),
    }
}

guest_code!(watch_code = "nop", "mov dword ptr [0x30040], 1", "nop", "syscall");

fn data_watch(m: &mut Micro) -> Result<(), String> {
    m.user(watch_code()).map_err(text)?;
    // DR7: L0, G0; R/W0 = 01 (write), LEN0 = 11 (four bytes).
    let registers = [DATA + 0x40, 0, 0, 0, 0, 0, 0, 0x000d_0403];
    let control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
    match debug_stop(m, control, Some(registers)).map_err(text)? {
        Some(rip) if rip == USER_CODE + 12 => Ok(()),
        Some(rip) => Err(format!("it stops at offset {}", rip.wrapping_sub(USER_CODE))),
        None => Err("it does not stop".into()),
    }
}
