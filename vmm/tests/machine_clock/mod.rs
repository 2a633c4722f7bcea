//! The `work` clock and the no-progress limit. Both need exact cheap counts: the soft engine only.

use rewind_platform::state::{ST_BASE, ST_DEADLINE};
use soft_cpu::state::gpr;
use vmm::{
    Clock, EngineKind, GuestFault, KernelFiles, Machine, MachineConfig, MachineError, Stop, Until,
    address::{Gpa, Instructions},
    guest_code,
    memory::GuestMemory,
    micro::{KERNEL_CODE, MEMORY, USER_CODE, environment, kernel_state, user_state},
};

const STATE_PAGE: u64 = 0x5_0000;

fn config(kind: EngineKind, clock: Clock) -> MachineConfig {
    let files = KernelFiles { vmlinux: [].into(), initramfs: [].into(), command_line: String::new() };
    MachineConfig { clock, ..MachineConfig::new(MEMORY, kind, files) }
}

guest_code!(publish = "mov eax, 0x50", "mov edx, 0xb00", "out dx, eax", "mov edx, 0xb10", "out dx, eax");
// Three instructions and one conditional branch a round.
guest_code!(spin = "2: inc rbx", "cmp rbx, 0", "jnz 2b");

/// A machine in a user program that spins for ever.
fn spinning(clock: Clock) -> Machine {
    let memory = std::sync::Arc::new(GuestMemory::new(MEMORY).unwrap());
    environment(&memory).unwrap();
    crate::machine_ports::write_state_page(&memory);
    memory.write(Gpa(KERNEL_CODE), publish()).unwrap();
    memory.write(Gpa(USER_CODE), spin()).unwrap();
    let mut m = Machine::over(&config(EngineKind::Soft, clock), memory).unwrap();
    m.set_cpu(&kernel_state()).unwrap();
    assert_eq!(m.run(&Until::END, &mut ()).unwrap(), Stop::Job);
    m.set_job(&crate::machine_ports::job(), &vmm::RunParameters::default()).unwrap();
    m.set_cpu(&user_state()).unwrap();
    m
}

#[test]
fn whole_slices_move_time_and_the_deadline_interrupts() {
    let mut m = spinning(Clock::Work { slice: 1000 });
    m.memory().write_u64(Gpa(STATE_PAGE + ST_DEADLINE), 2500).unwrap();
    // The vector's stub writes port 0xf3, which is nobody's; then the spinner goes on until the limit, inside a slice.
    m.set_no_progress_limit(Some(Instructions(30_002)));
    let stop = m.run(&Until::END, &mut ()).unwrap();
    assert!(matches!(stop, Stop::Fault(GuestFault::NoProgress { user: true, .. })), "{stop:?}");
    let rounds = m.cpu().unwrap().gpr[gpr::RBX];
    assert_eq!(m.state_u64(ST_BASE), Some(rounds / 1000 * 1000), "a nanosecond a branch, in whole slices");
    // Three instructions a round, the last round perhaps cut short; the interrupts' are the kernel's.
    assert!((3 * rounds - 2..=3 * rounds).contains(&30_002), "{rounds} rounds");
}

#[test]
fn a_guest_without_steps_is_named() {
    let mut m = spinning(Clock::Steps);
    m.set_no_progress_limit(Some(Instructions(3001)));
    match m.run(&Until::END, &mut ()).unwrap() {
        Stop::Fault(GuestFault::NoProgress { step: 0, instructions: 3001, rip, user: true }) => {
            assert_eq!(rip, USER_CODE + 3);
        }
        other => panic!("{other:?}"),
    }
    assert!(m.ended());
}

#[test]
fn a_slice_needs_branches() {
    let error = Machine::empty(&config(EngineKind::Soft, Clock::Work { slice: 0 })).unwrap_err();
    assert!(matches!(error, MachineError::EmptySlice));
}
