//! Watches: every access that touches one is reported with its place, no other is, and nothing else changes.

mod guest;

use guest::{CODE, Guest, user_state};
use soft_cpu::{Compile, Exit, Kind, Limits, Watch, WatchHit, WatchRange, state::CpuState};

const DATA: u64 = 0x40_0000;
/// A second linear page that leads to the page at [`DATA`].
const ALIAS: u64 = 0x60_1000;

fn watch(at: u64, len: u64) -> Watch {
    Watch { range: WatchRange::Physical(at), len, read: false, write: true, execute: false }
}

fn execute(range: WatchRange, len: u64) -> Watch {
    Watch { range, len, read: false, write: false, execute: true }
}

type Ran = (Vec<WatchHit>, CpuState, Vec<u64>);

/// A guest in user mode before `code`, with RDI and RCX given.
fn guest(code: &[u8], rdi: u64, rcx: u64, compile: Compile) -> Guest {
    let mut g = Guest::new(code);
    g.cpu.set_compile(compile);
    // The page-table entry of ALIAS.
    g.put64(0x1_0000 + (ALIAS >> 12) * 8, DATA | 7);
    let mut s = user_state();
    (s.gpr[7], s.gpr[1], s.gpr[0]) = (rdi, rcx, 0x5555_5555_5555_5555);
    s.gpr[6] = DATA + 0x1000;
    g.cpu.set_state(&s);
    g
}

/// Goes on until `user` instructions were retired in user mode since the start; the hits.
fn go_on(g: &mut Guest, user: u64) -> Vec<WatchHit> {
    let mut hits = Vec::new();
    loop {
        let left = user - g.cpu.counts().user_instructions;
        match g.cpu.run(&Limits { user_instructions: Some(left), ..Limits::default() }) {
            Exit::Watch(found) => hits.extend(found),
            Exit::Budget => return hits,
            other => panic!("{other:?}"),
        }
    }
}

fn memory(g: &Guest) -> Vec<u64> {
    (0..1024).map(|i| g.get64(DATA + 8 * i)).collect()
}

/// Runs `code` in user mode for `user` instructions with RDI and RCX given; the hits, and the state after. Compiled code
/// and interpreted code come to the same.
fn run(code: &[u8], rdi: u64, rcx: u64, user: u64, watches: &[Watch]) -> Ran {
    let once = |compile| {
        let mut g = guest(code, rdi, rcx, compile);
        g.cpu.set_watches(watches);
        let hits = go_on(&mut g, user);
        (hits, g.cpu.state(), memory(&g))
    };
    let ran = once(Compile::Never);
    for compile in [Compile::Hot, Compile::Always] {
        assert_eq!(once(compile), ran, "{compile:?}");
    }
    ran
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

#[test]
fn a_repeated_move_hits_what_it_reads_and_what_it_writes() {
    // rep movsq; jmp $: from DATA + 0x1000 to RDI.
    let code = [0xf3, 0x48, 0xa5, 0xeb, 0xfe];
    let read = Watch {
        range: WatchRange::Virtual(DATA + 0x1000 + 8 * 100 + 3),
        len: 1,
        read: true,
        write: true,
        execute: false,
    };
    let (hits, state, memory) = run(&code, DATA, 200, 5, &[read, watch(DATA + 8 * 150, 16)]);
    let places: Vec<_> = hits.iter().map(|hit| (hit.address, hit.size, hit.kind, hit.since_user)).collect();
    let expected = [
        (DATA + 0x1000 + 800, 8, Kind::Read, 0),
        (DATA + 1200, 8, Kind::Write, 0),
        (DATA + 1208, 8, Kind::Write, 0),
    ];
    assert_eq!(places, expected);
    assert_eq!((state.gpr[1], state.gpr[7]), (0, DATA + 1600));
    let (none, same, as_well) = run(&code, DATA, 200, 5, &[]);
    assert!(none.is_empty());
    assert_eq!((state, memory), (same, as_well));
}

#[test]
fn a_repeated_store_over_a_large_watch_reports_every_element() {
    // rep stosb; jmp $: more hits than are handed over at once.
    let code = [0xf3, 0xaa, 0xeb, 0xfe];
    let (hits, state, memory) = run(&code, DATA, 5000, 5, &[watch(DATA + 1000, 3500)]);
    let places: Vec<_> = hits.iter().map(|hit| hit.physical).collect();
    assert_eq!(places, (DATA + 1000..DATA + 4500).collect::<Vec<_>>());
    assert!(hits.iter().all(|hit| hit.rip == CODE && hit.since_user == 0), "it is one instruction");
    let (_, same, as_well) = run(&code, DATA, 5000, 5, &[]);
    assert_eq!((state, memory), (same, as_well));
}

#[test]
fn a_store_across_pages_that_are_not_neighbours_hits_the_page_it_touches() {
    // mov [rdi], rax; jmp $: four bytes at the end of the page before ALIAS, four at the start of DATA.
    let code = [0x48, 0x89, 0x07, 0xeb, 0xfe];
    for (at, hit) in [(DATA, true), (DATA + 3, true), (DATA + 4, false), (ALIAS, false)] {
        let (hits, ..) = run(&code, ALIAS - 4, 0, 2, &[watch(at, 1)]);
        let found: Vec<_> = hits.iter().map(|hit| (hit.address, hit.physical, hit.size)).collect();
        let expected = if hit { vec![(ALIAS - 4, ALIAS - 4, 8)] } else { vec![] };
        assert_eq!(found, expected, "{at:#x}");
    }
}

#[test]
fn a_physical_watch_sees_every_mapping_and_a_linear_one_its_own() {
    // mov [rdi], rax; mov [rdi + ALIAS - DATA], rax; jmp $
    let mut code = vec![0x48, 0x89, 0x07, 0x48, 0x89, 0x87];
    code.extend(((ALIAS - DATA) as u32).to_le_bytes());
    code.extend([0xeb, 0xfe]);
    let places = |watch| -> Vec<_> {
        let (hits, ..) = run(&code, DATA + 64, 0, 3, &[watch]);
        hits.iter().map(|hit| (hit.address, hit.physical)).collect()
    };
    assert_eq!(places(watch(DATA + 64, 8)), [(DATA + 64, DATA + 64), (ALIAS + 64, DATA + 64)]);
    let linear =
        |at| Watch { range: WatchRange::Virtual(at), len: 8, read: false, write: true, execute: false };
    assert_eq!(places(linear(ALIAS + 64)), [(ALIAS + 64, DATA + 64)]);
    assert_eq!(places(linear(DATA + 64)), [(DATA + 64, DATA + 64)]);
}

#[test]
fn a_read_watch_sees_reads_and_a_write_watch_a_read_and_write_as_one() {
    // mov rax, [rdi]; add [rdi], rcx; cmp [rdi], rcx; jmp $
    let code = [0x48, 0x8b, 0x07, 0x48, 0x01, 0x0f, 0x48, 0x39, 0x0f, 0xeb, 0xfe];
    let kinds = |read, write| -> Vec<_> {
        let watch = Watch { range: WatchRange::Virtual(DATA), len: 8, read, write, execute: false };
        let (hits, ..) = run(&code, DATA, 5, 4, &[watch]);
        hits.iter().map(|hit| (hit.rip - CODE, hit.kind)).collect()
    };
    assert_eq!(kinds(true, false), [(0, Kind::Read), (6, Kind::Read)]);
    assert_eq!(kinds(false, true), [(3, Kind::Write)]);
    assert_eq!(kinds(true, true), [(0, Kind::Read), (3, Kind::Write), (6, Kind::Read)]);
    assert_eq!(kinds(false, false), []);
}

#[test]
fn an_execute_watch_reports_each_instruction_that_begins_in_it() {
    // The loop of FILL begins at 2 and has four instructions: at 2, 6, 8 and 11.
    let ran = |watch| run(&FILL, DATA, 0, 1 + 3 * 4, &[watch]);
    let (plain, ..) = run(&FILL, DATA, 0, 1 + 3 * 4, &[]);
    assert!(plain.is_empty());
    for range in [WatchRange::Virtual(CODE + 6), WatchRange::Physical(CODE + 6)] {
        let (hits, state, memory) = ran(execute(range, 3));
        let places: Vec<_> = hits.iter().map(|hit| (hit.rip - CODE, hit.kind, hit.since_user)).collect();
        let expected: Vec<_> = (0..3)
            .flat_map(|round| [(6, Kind::Execute, 2 + 4 * round), (8, Kind::Execute, 3 + 4 * round)])
            .collect();
        assert_eq!(places, expected, "{range:?}");
        assert!(hits.iter().all(|hit| hit.physical == hit.rip && hit.user));
        let (_, same, as_well) = run(&FILL, DATA, 0, 1 + 3 * 4, &[]);
        assert_eq!((state, memory), (same, as_well));
    }
    // An instruction is where it begins: its other bytes do not count.
    assert!(ran(execute(WatchRange::Virtual(CODE + 7), 1)).0.is_empty());
}

#[test]
fn a_watch_taken_away_and_set_again_while_the_loop_runs() {
    // xor ecx, ecx; l: mov [rdi], rcx; inc rcx; jmp l: three instructions a round.
    let code = [0x31, 0xc9, 0x48, 0x89, 0x0f, 0x48, 0xff, 0xc1, 0xeb, 0xf8];
    for compile in [Compile::Never, Compile::Hot, Compile::Always] {
        let mut g = guest(&code, DATA, 0, compile);
        // Long enough to be compiled before anything is watched.
        assert!(go_on(&mut g, 1 + 3 * 1000).is_empty());
        for round in 1..4 {
            g.cpu.set_watches(&[watch(DATA, 8)]);
            let hits = go_on(&mut g, 1 + 3 * (2000 * round - 500));
            assert_eq!(hits.len(), if round == 1 { 500 } else { 1500 }, "{compile:?}");
            let before: Vec<_> = hits.windows(2).map(|two| two[1].since_user - two[0].since_user).collect();
            assert!(before.iter().all(|&between| between == 3), "{compile:?}");
            g.cpu.set_watches(&[]);
            assert!(go_on(&mut g, 1 + 3 * (2000 * round)).is_empty());
        }
        assert_eq!(g.cpu.state().gpr[1], 6000);
        assert_eq!(g.get64(DATA), 5999);
        // Between watches set for another range nothing is reported either.
        g.cpu.set_watches(&[watch(DATA + 8, 8)]);
        assert!(go_on(&mut g, 1 + 3 * 7000).is_empty());
    }
}

#[test]
fn a_breakpoint_stops_compiled_code_before_the_instruction() {
    for compile in [Compile::Never, Compile::Hot, Compile::Always] {
        let mut g = guest(&FILL, DATA, 0, compile);
        go_on(&mut g, 1 + 4 * 20);
        g.cpu.set_breakpoints(&[CODE + 8]);
        for round in 20..23 {
            assert_eq!(g.cpu.run(&Limits::default()), Exit::Breakpoint(CODE + 8));
            assert_eq!(g.cpu.state().gpr[1], round + 1, "{compile:?}: the one before has run, it has not");
        }
        g.cpu.set_breakpoints(&[]);
        assert!(go_on(&mut g, 1 + 4 * 40).is_empty());
    }
}
