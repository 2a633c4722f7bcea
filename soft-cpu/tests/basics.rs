//! Small guests: budgets, exits, faults, self-modifying code.

mod guest;

use guest::{CODE, Guest, STACK, user_state};
use soft_cpu::{Exit, Limits};

/// mov ecx, n; xor eax, eax; l: add rax, rcx; dec ecx; jnz l; hlt
fn sum(n: u32) -> Vec<u8> {
    let mut code = vec![0xb9];
    code.extend_from_slice(&n.to_le_bytes());
    code.extend_from_slice(&[0x31, 0xc0, 0x48, 0x01, 0xc8, 0xff, 0xc9, 0x75, 0xf9, 0xf4]);
    code
}

#[test]
fn a_loop_sums_and_halts() {
    let mut g = Guest::new(&sum(1000));
    assert_eq!(g.cpu.run(&Limits::default()), Exit::Halt);
    assert_eq!(g.cpu.state().gpr[0], 500_500);
    assert_eq!(g.cpu.counts().instructions, 2 + 3 * 1000 + 1);
}

#[test]
fn every_budget_gives_the_same_states() {
    let mut reference = Guest::new(&sum(50));
    assert_eq!(reference.cpu.run(&Limits::default()), Exit::Halt);
    for budget in [1, 2, 3, 7, 10, 64, 1000] {
        let mut g = Guest::new(&sum(50));
        let limits = Limits { instructions: Some(budget), ..Limits::default() };
        let mut total = 0;
        loop {
            let exit = g.cpu.run(&limits);
            if exit == Exit::Halt {
                break;
            }
            assert_eq!(exit, Exit::Budget);
            total += budget;
            assert_eq!(g.cpu.counts().instructions, total);
        }
        assert_eq!(g.cpu.state(), reference.cpu.state(), "budget {budget}");
        assert_eq!(g.cpu.counts(), reference.cpu.counts());
    }
}

#[test]
fn a_branch_budget_stops_right_after_the_branch() {
    let mut g = Guest::new(&sum(50));
    g.cpu.set_state(&user_state());
    let limits = Limits { user_branches: Some(7), ..Limits::default() };
    assert_eq!(g.cpu.run(&limits), Exit::Budget);
    assert_eq!(g.cpu.counts().user_branches, 7);
    assert_eq!(g.cpu.counts().instructions, 2 + 7 * 3);
    assert_eq!(g.cpu.state().gpr[1], 43);
}

#[test]
fn a_store_into_the_running_block_takes_effect_at_once() {
    // mov byte [rip+1], 0x41 ; the next: mov al, 0 -> mov al, 0x41 ; hlt
    let code = [0xc6, 0x05, 0x01, 0, 0, 0, 0x41, 0xb0, 0x00, 0xf4];
    let mut g = Guest::new(&code);
    assert_eq!(g.cpu.run(&Limits::default()), Exit::Halt);
    assert_eq!(g.cpu.state().gpr[0], 0x41);
}

#[test]
fn a_page_fault_is_delivered_with_its_address_and_code() {
    // mov [rdi], eax ; hlt
    let mut g = Guest::new(&[0x89, 0x07, 0xf4]);
    // handler: hlt
    g.write(CODE + 0x100, &[0xf4]);
    g.gate(14, CODE + 0x100, 0);
    g.put64(0x1_0000 + 0x1000 * 2 + 8 * 5, 0); // 0x405000 is not mapped
    let mut s = user_state();
    s.gpr[7] = 0x40_4ffe;
    g.cpu.set_state(&s);
    assert_eq!(g.cpu.run(&Limits::default()), Exit::Halt);
    let s = g.cpu.state();
    assert_eq!(s.cr2, 0x40_5000);
    let frame = STACK - 0x1_0000 - 48;
    assert_eq!(s.gpr[4], frame);
    assert_eq!(g.get64(frame), 6, "write by the user, not present");
    assert_eq!(g.get64(frame + 8), CODE);
    assert_eq!(g.get64(frame + 24) & 0x1_0000, 0x1_0000, "RF");
    assert_eq!(g.get64(0x40_4ff8) >> 48, 0, "nothing was written to the first page");
    assert_eq!(g.cpu.counts().user_instructions, 0);
}
