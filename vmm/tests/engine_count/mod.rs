//! Exact counts of user instructions, and the one interrupt.

use soft_cpu::state::gpr;
use vmm::{
    EngineKind,
    address::{Gpa, Instructions},
    engine::{Budget, Exit},
    guest_code,
    micro::{DATA, KERNEL_STACK, Micro, SYSCALL_PORT, USER_CODE, USER_STACK},
};

use crate::{common::micro, on_engines};

on_engines!(
    stops_after_exactly_n,
    rep_counts_once,
    pushf_does_not_see_the_count,
    system_call_does_not_see_the_count,
    fault_does_not_see_the_count,
    counting_begins_in_the_kernel,
    interrupt_is_taken_at_user_mode,
);

fn run_user(m: &mut Micro, limit: u64) -> Exit {
    m.engine.run(&Budget { user_instructions: Some(Instructions(limit)), ..Budget::default() }).unwrap()
}

/// Runs on until a port is written, whatever is counted on the way.
fn run_to_port(m: &mut Micro, limit: u64) -> u16 {
    let mut exit = run_user(m, limit);
    while exit == Exit::LeftUser {
        exit = m.run().unwrap();
    }
    match exit {
        Exit::PortOut { port, .. } => port,
        other => panic!("{other:?}"),
    }
}

guest_code!(count_code = "2: inc rbx", "dec rcx", "jnz 2b", "syscall");

fn stops_after_exactly_n(kind: EngineKind) {
    for (limit, rbx, rip) in [(1, 1, 3), (2, 1, 6), (3, 1, 0), (4, 2, 3), (30, 10, 8)] {
        let mut m = micro(kind);
        m.user(count_code()).unwrap();
        let mut state = m.engine.cpu().unwrap();
        state.gpr[gpr::RCX] = 10;
        m.engine.set_cpu(&state).unwrap();
        let before = m.engine.counters().user_instructions.0;
        assert_eq!(run_user(&mut m, limit), Exit::Budget, "limit {limit}");
        let state = m.engine.cpu().unwrap();
        assert_eq!((state.gpr[gpr::RBX], state.rip), (rbx, USER_CODE + rip), "limit {limit}");
        assert_eq!(state.rflags & 0x100, 0, "TF is not left behind");
        assert_eq!(m.engine.counters().user_instructions.0 - before, limit);
    }
}

guest_code!(rep_code = "mov ecx, 100", "mov edi, 0x30000", "mov al, 7", "rep stosb", "inc rbx", "nop");

fn rep_counts_once(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(rep_code()).unwrap();
    assert_eq!(run_user(&mut m, 5), Exit::Budget);
    let state = m.engine.cpu().unwrap();
    assert_eq!((state.gpr[gpr::RCX], state.gpr[gpr::RBX]), (0, 1));
    assert_eq!(m.memory.read_u64(Gpa(DATA + 92)).unwrap(), 0x0707_0707_0707_0707);
}

guest_code!(pushf_code = "pushfq", "pop rax", "pushfq", "popfq", "nop");

fn pushf_does_not_see_the_count(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(pushf_code()).unwrap();
    assert_eq!(run_user(&mut m, 5), Exit::Budget);
    let state = m.engine.cpu().unwrap();
    assert_eq!(state.gpr[gpr::RAX], 0x202);
    assert_eq!(m.memory.read_u64(Gpa(USER_STACK - 8)).unwrap(), 0x202);
    assert_eq!(state.rip, USER_CODE + 5);
}

guest_code!(syscall_code = "nop", "syscall", "nop", "nop");

fn system_call_does_not_see_the_count(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(syscall_code()).unwrap();
    assert_eq!(run_to_port(&mut m, 10), SYSCALL_PORT);
    let state = m.engine.cpu().unwrap();
    assert_eq!((state.gpr[gpr::RCX], state.gpr[gpr::R11]), (USER_CODE + 3, 0x202));
    assert_eq!(state.cs.selector & 3, 0);
    // Exactly at the system call.
    let mut m = micro(kind);
    m.user(syscall_code()).unwrap();
    assert_eq!(run_user(&mut m, 2), Exit::Budget);
    let state = m.engine.cpu().unwrap();
    assert_eq!((state.cs.selector & 3, state.gpr[gpr::RCX]), (0, USER_CODE + 3));
}

guest_code!(fault_code = "nop", "mov rax, [0x40000000]", "nop");

fn fault_does_not_see_the_count(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(fault_code()).unwrap();
    let before = m.engine.counters().user_instructions.0;
    assert_eq!(run_to_port(&mut m, 10), 14);
    let frame = m.engine.cpu().unwrap().gpr[gpr::RSP];
    assert_eq!(frame, KERNEL_STACK - 48);
    let words: Vec<u64> = (0..4).map(|i| m.memory.read_u64(Gpa(frame + 8 * i)).unwrap()).collect();
    // Present, user read; RIP of the faulting instruction; flags without TF (RF as hardware pushes it).
    assert_eq!((words[0], words[1], words[3] & !(1 << 16)), (5, USER_CODE + 1, 0x202));
    assert_eq!(
        m.engine.counters().user_instructions.0 - before,
        1,
        "the faulting instruction did not retire"
    );
}

fn counting_begins_in_the_kernel(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(syscall_code()).unwrap();
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }));
    // SYSRET, then two instructions.
    assert_eq!(run_user(&mut m, 1), Exit::Budget);
    let state = m.engine.cpu().unwrap();
    assert_eq!((state.rip, state.cs.selector & 3, state.rflags), (USER_CODE + 4, 3, 0x202));
    // The same by IRET, from an exception that was mended.
    let mut m = micro(kind);
    m.user(fault_code()).unwrap();
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 14, .. }));
    let frame = m.engine.cpu().unwrap().gpr[gpr::RSP];
    m.memory.write_u64(Gpa(frame + 8), USER_CODE).unwrap();
    assert_eq!(run_user(&mut m, 1), Exit::Budget);
    let state = m.engine.cpu().unwrap();
    assert_eq!((state.rip, state.cs.selector, state.ss.selector), (USER_CODE + 1, 0x33, 0x2b));
    assert_eq!(state.gpr[gpr::RSP], USER_STACK);
}

fn interrupt_is_taken_at_user_mode(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(count_code()).unwrap();
    let mut state = m.engine.cpu().unwrap();
    state.gpr[gpr::RCX] = 10;
    m.engine.set_cpu(&state).unwrap();
    assert_eq!(run_user(&mut m, 4), Exit::Budget);
    m.engine.inject(0xf3).unwrap();
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 0xf3, .. }));
    let frame = m.engine.cpu().unwrap().gpr[gpr::RSP];
    assert_eq!(m.memory.read_u64(Gpa(frame)).unwrap(), USER_CODE + 3, "between two instructions");
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }), "and the program goes on");
    assert_eq!(m.engine.cpu().unwrap().gpr[gpr::RBX], 10);
}
