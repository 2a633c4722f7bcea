//! Page tables that the guest changes: a change acts from the next instruction on, with INVLPG or without, however the
//! run is cut into pieces and whatever is forgotten in between.

mod guest;

use guest::{CODE, Guest, PML4, state};
use soft_cpu::{Compile, Exit, Limits, state::CpuState};

/// Pages for code and data of the tests.
const A: u64 = 0x30_0000;
const B: u64 = 0x30_1000;
const OTHER: u64 = 0x40_0000;
/// Start of the upper half.
const HIGH: u64 = 0xffff_8000_0000_0000;

/// Address of the page-table entry of a page of the first 16 MiB.
const fn entry_of(linear: u64) -> u64 {
    0x1_0000 + (linear >> 12) * 8
}

/// What may happen between two pieces of a run.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    /// The pages written are asked for.
    Dirty,
    /// Everything cached is dropped, as after memory was changed from outside.
    Forget,
    /// The state is set again, as when it is restored.
    Restore,
}

/// Runs to HLT in pieces of `piece` instructions.
fn run_in(guest: &mut Guest, piece: Option<u64>, between: Between) -> CpuState {
    loop {
        match guest.cpu.run(&Limits { instructions: piece, ..Limits::default() }) {
            Exit::Budget => match between {
                Between::Nothing => {}
                Between::Dirty => guest.cpu.take_dirty(|_, _| ()),
                Between::Forget => guest.cpu.invalidate(None),
                Between::Restore => {
                    let now = guest.cpu.state();
                    guest.cpu.set_state(&now);
                }
            },
            Exit::Halt => return guest.cpu.state(),
            other => panic!("{other:x?}"),
        }
    }
}

/// Runs a guest, made afresh each time, in all ways there are: the state at the end, which is the same, as the memory
/// is.
fn every_way(make: impl Fn() -> Guest) -> CpuState {
    let mut first = make();
    first.cpu.set_compile(Compile::Never);
    let state = run_in(&mut first, None, Between::Nothing);
    for compile in [Compile::Never, Compile::Hot, Compile::Always] {
        for piece in [None, Some(1), Some(3)] {
            let others = [Between::Nothing, Between::Dirty, Between::Forget, Between::Restore];
            for between in others.into_iter().take(if piece.is_none() { 1 } else { others.len() }) {
                let mut guest = make();
                guest.cpu.set_compile(compile);
                let ended = run_in(&mut guest, piece, between);
                assert_eq!(ended, state, "{compile:?}, pieces of {piece:?}, {between:?}");
                assert!(
                    guest.memory() == first.memory(),
                    "memory: {compile:?}, pieces of {piece:?}, {between:?}"
                );
            }
        }
    }
    state
}

/// In kernel mode at CODE, with RBX to RDI as given: RBX, RCX, RDX, RSI, RDI.
fn guest(code: &[u8], [rbx, rcx, rdx, rsi, rdi]: [u64; 5]) -> Guest {
    let mut guest = Guest::new(code);
    // mov eax, 1; ret and mov eax, 2; ret
    for page in [A, B] {
        guest.write(page, &[0xb8, 1, 0, 0, 0, 0xc3]);
    }
    guest.write(OTHER, &[0xb8, 2, 0, 0, 0, 0xc3]);
    let mut s = state();
    (s.gpr[3], s.gpr[1], s.gpr[2], s.gpr[6], s.gpr[7]) = (rbx, rcx, rdx, rsi, rdi);
    guest.cpu.set_state(&s);
    guest
}

#[test]
fn code_is_found_anew_after_the_page_table_changed() {
    // call rcx; call rbx; invlpg [rbx]; call rcx; mov [rdx], rsi; invlpg [rcx]; call rcx; hlt
    let with = [
        0xff, 0xd1, 0xff, 0xd3, 0x0f, 0x01, 0x3b, 0xff, 0xd1, 0x48, 0x89, 0x32, 0x0f, 0x01, 0x39, 0xff, 0xd1,
        0xf4,
    ];
    // The same without the second INVLPG.
    let without = [0xff, 0xd1, 0xff, 0xd3, 0x0f, 0x01, 0x3b, 0xff, 0xd1, 0x48, 0x89, 0x32, 0xff, 0xd1, 0xf4];
    for code in [&with[..], &without] {
        let ended = every_way(|| guest(code, [A, B, entry_of(B), OTHER | 7, 0]));
        assert_eq!(ended.gpr[0], 2, "the code of the page that is there now");
    }
}

#[test]
fn the_next_instruction_comes_from_the_page_that_is_there_now() {
    // mov [rdx], rsi; mov al, 1; hlt, and in the other page mov al, 2; hlt
    let ended = every_way(|| {
        let mut guest = guest(&[0x48, 0x89, 0x32, 0xb0, 1, 0xf4], [0, 0, entry_of(CODE), OTHER | 7, 0]);
        guest.write(OTHER + 3, &[0xb0, 2, 0xf4]);
        guest
    });
    assert_eq!(ended.gpr[0] & 0xff, 2);
}

#[test]
fn a_read_goes_to_the_page_that_is_there_now() {
    // mov rax, [rdi]; mov [rdx], rsi; mov rbx, [rdi]; hlt
    let code = [0x48, 0x8b, 0x07, 0x48, 0x89, 0x32, 0x48, 0x8b, 0x1f, 0xf4];
    let ended = every_way(|| {
        let mut guest = guest(&code, [0, 0, entry_of(A), OTHER | 7, A + 8]);
        guest.put64(A + 8, 0x1111);
        guest.put64(OTHER + 8, 0x2222);
        guest
    });
    assert_eq!((ended.gpr[0], ended.gpr[3]), (0x1111, 0x2222));
}

#[test]
fn an_accessed_bit_that_was_cleared_is_set_by_the_next_access() {
    // mov rax, [rdi]; and byte [rdx], 0xdf; mov rbx, [rdx]; mov rax, [rdi]; mov rcx, [rdx]; hlt
    let code =
        [0x48, 0x8b, 0x07, 0x80, 0x22, 0xdf, 0x48, 0x8b, 0x1a, 0x48, 0x8b, 0x07, 0x48, 0x8b, 0x0a, 0xf4];
    let ended = every_way(|| guest(&code, [0, 0, entry_of(A), 0, A]));
    assert_eq!((ended.gpr[3] & 0x20, ended.gpr[1] & 0x20), (0, 0x20));
}

#[test]
fn a_write_protection_acts_at_once() {
    // mov [rdi], rax; and byte [rdx], 0xfd; mov [rdi], rax; hlt; the handler: mov rbx, cr2; hlt
    let code = [0x48, 0x89, 0x07, 0x80, 0x22, 0xfd, 0x48, 0x89, 0x07, 0xf4];
    let ended = every_way(|| {
        let mut guest = guest(&code, [0, 0, entry_of(A), 0, A]);
        guest.write(CODE + 0x100, &[0x0f, 0x20, 0xd3, 0xf4]);
        guest.gate(14, CODE + 0x100, 0);
        guest
    });
    assert_eq!(ended.gpr[3], A, "the second store faults");
}

#[test]
fn a_repeated_store_over_its_own_table_goes_on_where_the_table_leads() {
    // rep stosq; hlt: over the page table that maps A and, behind it, B; A leads to the table itself.
    let table = 0x1_1000;
    let make = || {
        let mut guest = guest(&[0xf3, 0x48, 0xab, 0xf4], [0, 512 + 4, 0, 0, A]);
        guest.put64(entry_of(A), table | 7);
        let mut s = guest.cpu.state();
        s.gpr[0] = OTHER | 7;
        guest.cpu.set_state(&s);
        guest
    };
    assert_eq!(every_way(make).gpr[7], B + 32);
    let mut guest = make();
    run_in(&mut guest, None, Between::Nothing);
    // A's own entry leads elsewhere from its store on, so the ones behind it are spared.
    let index = (A >> 12) & 0x1ff;
    assert_eq!(guest.get64(table + 8 * index) & !0x60, OTHER | 7);
    assert_eq!(guest.get64(table + 8 * (index + 1)) & !0x60, B | 7);
    assert_eq!(guest.get64(OTHER + 8 * (index + 1)), OTHER | 7);
    assert_eq!([guest.get64(B + 24), guest.get64(B + 32)], [OTHER | 7, 0]);
}

#[test]
fn a_large_page_moves_as_one() {
    // call rcx; mov [rdx], rsi; invlpg [rbx]; call rcx; hlt: another 4 KiB piece of the same large page.
    let large = 0x80_0000;
    let code = [0xff, 0xd1, 0x48, 0x89, 0x32, 0x0f, 0x01, 0x3b, 0xff, 0xd1, 0xf4];
    let ended = every_way(|| {
        let mut guest =
            guest(&code, [large, large + 0x1000, 0x3000 + 8 * (large >> 21), 0xa0_0000 | 0x87, 0]);
        guest.put64(0x3000 + 8 * (large >> 21), large | 0x87);
        guest.write(large + 0x1000, &[0xb8, 1, 0, 0, 0, 0xc3]);
        guest.write(0xa0_1000, &[0xb8, 2, 0, 0, 0, 0xc3]);
        guest
    });
    assert_eq!(ended.gpr[0], 2);
}

/// Tables at `at` (three pages) that map the first page of the upper half to `page`, global.
fn upper_half(guest: &mut Guest, top: u64, at: u64, page: u64) {
    guest.put64(top + 8 * 256, at | 7);
    guest.put64(at, (at + 0x1000) | 7);
    guest.put64(at + 0x1000, (at + 0x2000) | 7);
    guest.put64(at + 0x2000, page | 0x107);
}

#[test]
fn global_pages_are_those_of_the_tables_in_use() {
    // mov rax, [rdi]; mov cr3, rbx; mov rcx, [rdi]; mov [rdi], rcx; mov cr3, rdx; mov rsi, [rdi]; hlt
    let code = [
        0x48, 0x8b, 0x07, 0x0f, 0x22, 0xdb, 0x48, 0x8b, 0x0f, 0x48, 0x89, 0x0f, 0x0f, 0x22, 0xda, 0x48, 0x8b,
        0x37, 0xf4,
    ];
    let second = 0x50_0000;
    for same in [false, true] {
        let ended = every_way(|| {
            let mut guest = guest(&code, [second, 0, PML4, 0, HIGH]);
            guest.put64(second, 0x2007);
            upper_half(&mut guest, PML4, 0x51_0000, A);
            if same {
                guest.put64(second + 8 * 256, 0x51_0007);
            } else {
                upper_half(&mut guest, second, 0x52_0000, B);
            }
            guest.put64(A, 0x1111);
            guest.put64(B, 0x2222);
            guest
        });
        let other = if same { 0x1111 } else { 0x2222 };
        assert_eq!((ended.gpr[0], ended.gpr[1], ended.gpr[6]), (0x1111, other, 0x1111));
    }
}

#[test]
fn a_page_that_was_a_table_is_an_ordinary_one_again() {
    // A table is used, its entry is taken away, and its page is filled many times over: what it holds is what was
    // stored last, and the next use as a table is seen again.
    // mov rax, [rdi]; mov qword [rdx], 0; l: mov [rbx+rcx*8], rcx; dec ecx; jnz l; mov [rdx], rsi; mov rax, [rdi]; hlt
    let table = 0x1_3000;
    let linear = 0x60_0000;
    let code = [
        0x48, 0x8b, 0x07, 0x48, 0xc7, 0x02, 0, 0, 0, 0, 0x48, 0x89, 0x0c, 0xcb, 0xff, 0xc9, 0x75, 0xf8, 0x48,
        0x89, 0x32, 0x48, 0x8b, 0x07, 0xf4,
    ];
    let ended = every_way(|| {
        let mut guest = guest(&code, [table, 511, 0x3000 + 8 * 3, 0x1_3007, linear]);
        // Its first entry is not overwritten by the loop, which ends at 1.
        guest.put64(table, OTHER | 7);
        guest.put64(OTHER, 0x3333);
        guest
    });
    assert_eq!(ended.gpr[0], 0x3333);
}

#[test]
fn code_in_a_page_of_tables_is_decoded_anew_after_a_store_whose_walk_wrote_there() {
    // In the page that maps itself: mov byte [rdi], 2; mov al, 1; hlt, where RDI is that 1. The walk of the store sets the
    // dirty bit in the same page.
    const HERE: u64 = 0x1_0e00;
    let ended = every_way(|| {
        let mut guest = guest(&[0xff, 0xe3], [HERE, 0, 0, 0, HERE + 4]);
        guest.write(HERE, &[0xc6, 0x07, 2, 0xb0, 1, 0xf4]);
        guest
    });
    assert_eq!(ended.gpr[0] & 0xff, 2);
}

#[test]
fn what_a_device_writes_is_what_is_run_and_walked_next() {
    for compile in [Compile::Never, Compile::Hot, Compile::Always] {
        // call rbx; mov rdx, [rdi]; out 0x80, al; call rbx; mov rsi, [rdi]; hlt
        let code = [0xff, 0xd3, 0x48, 0x8b, 0x17, 0xe6, 0x80, 0xff, 0xd3, 0x48, 0x8b, 0x37, 0xf4];
        let mut guest = guest(&code, [A, 0, 0, 0, B]);
        guest.cpu.set_compile(compile);
        guest.put64(B, 0x1111);
        guest.put64(OTHER, 0x2222);
        assert!(matches!(guest.cpu.run(&Limits::default()), Exit::PortOut { .. }));
        let before = guest.cpu.state();
        assert_eq!((before.gpr[0], before.gpr[2]), (1, 0x1111));
        // mov eax, 3; ret, and the page table's entry of B
        guest.write_as_device(A, &[0xb8, 3, 0, 0, 0, 0xc3]);
        guest.write_as_device(entry_of(B), &(OTHER | 0x27).to_le_bytes());
        let ended = run_in(&mut guest, None, Between::Nothing);
        assert_eq!((ended.gpr[0], ended.gpr[6]), (3, 0x2222), "{compile:?}");
    }
}
