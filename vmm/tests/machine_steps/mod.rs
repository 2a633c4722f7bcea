//! Stops at steps and positions; capture and restore between them.

use soft_cpu::state::gpr;
use vmm::{
    EngineKind, Machine, MachineError, Stop, Until,
    address::{Gpa, Instructions, Position, Step},
    guest_code,
    memory::PAGE,
    micro::{USER_CODE, kernel_state},
};

use crate::{common::machine, on_engines};

on_engines!(
    stops_at_the_step_asked_for,
    stops_at_the_position_asked_for,
    a_captured_machine_goes_on_the_same,
    the_past_is_refused,
    stop_soon_stops_at_a_commit,
);

// A kernel that publishes its state page (0x50000), counts a step at each return to user mode and stops when asked.
guest_code!(
    kernel_code = "lea rax, [rip + 3f]",
    "xor edx, edx",
    "mov ecx, 0xc0000082",
    "wrmsr",
    "mov eax, 0x50",
    "mov edx, 0xb00",
    "out dx, eax",
    "3:",
    "inc qword ptr [0x50010]",
    "mov rax, [0x50010]",
    "mov edi, 0xd0000000",
    "cmp rax, [rdi + 8]",
    "jae 4f",
    "cmp dword ptr [rdi + 0x10], 0",
    "je 5f",
    "4: mov edx, 0xb04",
    "out dx, eax",
    "5: mov ecx, 0x20000",
    "mov r11d, 0x202",
    "sysretq",
);
// Seven user instructions a step.
guest_code!(user_code = "inc rbx", "add r12, rbx", "inc rbx", "nop", "nop", "inc rbx", "syscall");

fn start(kind: EngineKind) -> Machine {
    let mut m = machine(kind);
    let memory = m.memory().clone();
    memory.write(Gpa(vmm::micro::KERNEL_CODE), kernel_code()).unwrap();
    memory.write(Gpa(USER_CODE), user_code()).unwrap();
    crate::machine_ports::write_state_page(&memory);
    m.set_cpu(&kernel_state()).unwrap();
    m
}

fn at(step: u64, offset: u64) -> Position {
    Position { step: Step(step), offset: Instructions(offset) }
}

fn stops_at_the_step_asked_for(kind: EngineKind) {
    let mut m = start(kind);
    for step in [1, 2, 5, 100] {
        assert_eq!(m.run(&Until::step(Step(step)), &mut ()).unwrap(), Stop::Step);
        assert_eq!(m.position(), at(step, 0));
        assert_eq!(m.cpu().unwrap().gpr[gpr::RBX], 3 * (step - 1));
    }
}

fn stops_at_the_position_asked_for(kind: EngineKind) {
    let mut m = start(kind);
    for (step, offset, rbx, rip) in [(3, 1, 7, 3), (3, 4, 8, 10), (3, 5, 8, 11), (4, 6, 12, 14)] {
        assert_eq!(m.run(&Until::position(at(step, offset)), &mut ()).unwrap(), Stop::Position);
        assert_eq!(m.position(), at(step, offset));
        let state = m.cpu().unwrap();
        assert_eq!((state.gpr[gpr::RBX], state.rip), (rbx, USER_CODE + rip), "{step}+{offset}");
    }
    // A position its step does not have: the next commit.
    assert_eq!(m.run(&Until::position(at(6, 50)), &mut ()).unwrap(), Stop::Step);
    assert_eq!(m.position(), at(7, 0));
}

fn a_captured_machine_goes_on_the_same(kind: EngineKind) {
    for place in [at(10, 0), at(10, 3), at(11, 6)] {
        let mut first = start(kind);
        first.run(&Until::position(place), &mut ()).unwrap();
        let state = first.capture().unwrap();
        let mut second = machine(kind);
        let mut page = [0; PAGE as usize];
        for number in 0..0x60 {
            first.memory().read(Gpa(number * PAGE), &mut page).unwrap();
            second.memory().write(Gpa(number * PAGE), &page).unwrap();
        }
        second.restore(&state).unwrap();
        assert_eq!(second.position(), place);
        for m in [&mut first, &mut second] {
            m.run(&Until::position(at(40, 2)), &mut ()).unwrap();
        }
        assert_eq!(first.position(), second.position());
        let (a, b) = (first.cpu().unwrap(), second.cpu().unwrap());
        assert_eq!((a.gpr, a.rip, a.rflags), (b.gpr, b.rip, b.rflags));
    }
}

fn the_past_is_refused(kind: EngineKind) {
    let mut m = start(kind);
    m.run(&Until::step(Step(9)), &mut ()).unwrap();
    assert!(matches!(m.run(&Until::step(Step(8)), &mut ()), Err(MachineError::Behind { .. })));
}

fn stop_soon_stops_at_a_commit(kind: EngineKind) {
    let mut m = start(kind);
    m.run(&Until::step(Step(1)), &mut ()).unwrap();
    m.interrupter().stop_soon();
    assert_eq!(m.run(&Until::END, &mut ()).unwrap(), Stop::Interrupted);
    assert_eq!(m.position(), at(2, 0));
}
