//! The native executor itself: results known from the manual, and equal results of equal cases.

use soft_cpu_diff::{
    case::{Case, End, Patch, Registers},
    compare::{Ignore, differences},
    generate::single::Singles,
    layout::{CODE, DATA, DATA_READ_ONLY, STACK, exit_stub},
    native::{BATCH, Native, supported},
};

fn code(bytes: &[u8], gpr: &[(usize, u64)]) -> Case {
    let rip = CODE.base + 0x200;
    let mut registers = Registers { rip, rflags: 0x202, ..Registers::default() };
    registers.gpr[4] = STACK.base + 0x1000;
    for &(i, value) in gpr {
        registers.gpr[i] = value;
    }
    let patches = vec![
        Patch { address: rip, bytes: bytes.to_vec() },
        Patch { address: rip + bytes.len() as u64, bytes: exit_stub(0).to_vec() },
    ];
    Case { registers, patches }
}

#[test]
fn known_results() {
    if !supported() {
        eprintln!("skipped: the host kernel has no FSGSBASE for programs");
        return;
    }
    let mut native = Native::new().unwrap();
    let mut run = |case: Case| native.run(&[case]).unwrap().remove(0).unwrap();

    // ADD RAX, RBX with a carry and a zero.
    let out = run(code(&[0x48, 0x01, 0xd8], &[(0, u64::MAX), (3, 1)]));
    assert_eq!((out.end, out.registers.gpr[0], out.registers.rflags & 0x8d5), (End::Exit(0), 0, 0x55));
    // DIV RCX by zero.
    let out = run(code(&[0x48, 0xf7, 0xf1], &[]));
    assert_eq!(out.end, End::Fault { vector: 0, error: 0, cr2: 0 });
    assert_eq!(out.registers.rip, CODE.base + 0x200);
    // MOV [RAX], RAX to a read-only page: a write, in user mode, of a present page.
    let at = DATA_READ_ONLY.base + 0x10;
    let out = run(code(&[0x48, 0x89, 0x00], &[(0, at)]));
    assert_eq!(out.end, End::Fault { vector: 14, error: 7, cr2: at });
    // ... and across two writable pages: 8 bytes change, in two chunks.
    let at = DATA.base + 0xffc;
    let out = run(code(&[0x48, 0x89, 0x00], &[(0, at)]));
    assert_eq!(out.end, End::Exit(0));
    let changed: Vec<_> = out.memory.iter().filter(|c| c.address >= DATA.base).collect();
    assert_eq!(
        changed.iter().map(|c| c.address).collect::<Vec<_>>(),
        [DATA.base + 0xfc0, DATA.base + 0x1000]
    );
    assert_eq!(changed[0].bytes[60..], at.to_le_bytes()[..4]);
    assert_eq!(changed[1].bytes[..4], at.to_le_bytes()[4..]);
    // A jump to itself.
    assert_eq!(run(code(&[0xeb, 0xfe], &[])).end, End::Timeout);
    // PUSH RAX; POP RCX leaves the value in both places.
    let out = run(code(&[0x50, 0x59], &[(0, 0x1234)]));
    assert_eq!((out.registers.gpr[1], out.registers.gpr[4]), (0x1234, STACK.base + 0x1000));
    // FLD1 pushes 1.0.
    let out = run(code(&[0xd9, 0xe8], &[]));
    assert_eq!(out.registers.fx.st(0), [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    // With TF set, a trap after the first instruction.
    let mut traced = code(&[0x48, 0xff, 0xc0, 0x90], &[]);
    traced.registers.rflags |= 0x100;
    let out = run(traced);
    assert_eq!(out.end, End::Fault { vector: 1, error: 0, cr2: 0 });
    assert_eq!((out.registers.gpr[0], out.registers.rip), (1, CODE.base + 0x203));
}

#[test]
fn two_processes_agree() {
    if !supported() {
        eprintln!("skipped: the host kernel has no FSGSBASE for programs");
        return;
    }
    let (mut one, mut two) = (Native::new().unwrap(), Native::new().unwrap());
    let mut singles = Singles::new(7, None);
    let mut completed = 0;
    for _ in 0..100 {
        let made: Vec<_> = (0..BATCH).map(|_| singles.make()).collect();
        let cases: Vec<Case> = made.iter().map(|m| m.case.clone()).collect();
        let (a, b) = (one.run(&cases).unwrap(), two.run(&cases).unwrap());
        for ((made, a), b) in made.iter().zip(a).zip(b) {
            let (a, b) = (a.expect("no crash"), b.expect("no crash"));
            completed += u32::from(matches!(a.end, End::Exit(_)));
            let found = differences(&a, &b, &Ignore::default());
            assert!(found.is_empty(), "{}{found:#?}", made.disassembly());
        }
    }
    // Faults are tested too, but most cases must get through to say anything.
    assert!(completed > 100 * BATCH as u32 / 2, "{completed}");
}
