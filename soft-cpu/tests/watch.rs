//! Watches: every access that touches one is reported with its place, no other is, and nothing else changes.

mod guest;

use guest::{CODE, Guest, user_state};
use soft_cpu::{Exit, Kind, Limits, Watch, WatchHit, WatchRange, state::CpuState};

const DATA: u64 = 0x40_0000;

fn watch(at: u64, len: u64) -> Watch {
    Watch { range: WatchRange::Physical(at), len, read: false, write: true, execute: false }
}

/// Runs `code` in user mode for `user` instructions with RDI and RCX given; the hits, and the state after.
fn run(code: &[u8], rdi: u64, rcx: u64, user: u64, watches: &[Watch]) -> (Vec<WatchHit>, CpuState, Vec<u64>) {
    let mut g = Guest::new(code);
    g.cpu.set_watches(watches);
    let mut s = user_state();
    (s.gpr[7], s.gpr[1], s.gpr[0]) = (rdi, rcx, 0x5555_5555_5555_5555);
    g.cpu.set_state(&s);
    let mut hits = Vec::new();
    loop {
        let left = user - g.cpu.counts().user_instructions;
        match g.cpu.run(&Limits { user_instructions: Some(left), ..Limits::default() }) {
            Exit::Watch(found) => hits.extend(found),
            Exit::Budget => break,
            other => panic!("{other:?}"),
        }
    }
    let memory = (0..1024).map(|i| g.get64(DATA + 8 * i)).collect();
    (hits, g.cpu.state(), memory)
}

/// xor ecx, ecx; l: mov [rdi+rcx*8], rcx; inc ecx; cmp ecx, 64; jne l; jmp $
const FILL: [u8; 15] =
    [0x31, 0xc9, 0x48, 0x89, 0x0c, 0xcf, 0xff, 0xc1, 0x83, 0xf9, 0x40, 0x75, 0xf5, 0xeb, 0xfe];

#[test]
fn one_word_of_a_busy_page() {
    let (hits, state, memory) = run(&FILL, DATA, 0, 300, &[watch(DATA + 80, 8)]);
    let expected = WatchHit {
        rip: CODE + 2,
        address: DATA + 80,
        physical: DATA + 80,
        size: 8,
        kind: Kind::Write,
        user: true,
        // The xor, and ten rounds of four.
        since_user: 41,
    };
    assert_eq!(hits, [expected]);
    let (none, same, as_well) = run(&FILL, DATA, 0, 300, &[]);
    assert!(none.is_empty());
    assert_eq!((state, memory), (same, as_well), "looking changes nothing");
}

#[test]
fn a_repeated_store_hits_where_it_passes() {
    // rep stosb; jmp $
    let code = [0xf3, 0xaa, 0xeb, 0xfe];
    let (hits, state, memory) = run(&code, DATA + 4000, 300, 5, &[watch(DATA + 4099, 2)]);
    let places: Vec<_> = hits.iter().map(|hit| (hit.physical, hit.size, hit.since_user)).collect();
    assert_eq!(places, [(DATA + 4099, 1, 0), (DATA + 4100, 1, 0)]);
    let (_, same, as_well) = run(&code, DATA + 4000, 300, 5, &[]);
    assert_eq!((state, memory), (same, as_well));
}

#[test]
fn a_store_across_a_page_hits_the_watch_on_either_side() {
    // mov [rdi], rax; jmp $
    let code = [0x48, 0x89, 0x07, 0xeb, 0xfe];
    for at in [DATA + 4095, DATA + 4096] {
        let (hits, ..) = run(&code, DATA + 4092, 0, 2, &[watch(at, 1)]);
        assert_eq!(hits.len(), 1, "{at:#x}");
        assert_eq!((hits[0].address, hits[0].size), (DATA + 4092, 8));
    }
    let (hits, ..) = run(&code, DATA + 4092, 0, 2, &[watch(DATA + 4100, 1)]);
    assert!(hits.is_empty());
}
