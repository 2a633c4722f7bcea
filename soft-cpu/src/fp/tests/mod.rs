//! The table against the host executing the real instructions.

mod encodings;
mod host;
mod table;
mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use iced_x86::{Code, Instruction, OpKind};

use self::{
    encodings::{by_table, decoded, encodings, hide, image, make_valid},
    host::{Frame, Page},
    values::{Random, extended, quad, state},
};
use super::{FpClass, FpFault, FpInsn, FpState, lookup};

const STATUS: u32 = 0x8d5;

/// The host executes one instruction at a time: there is one handler of SIGFPE.
static HOST: Mutex<()> = Mutex::new(());

/// Result, FXSAVE image, RAX RCX RDX, memory, flags.
type Outcome = (Result<(), FpFault>, [u8; 512], [u64; 3], [u8; 512], u32);

/// Executes `bytes` on both sides from a random state, with `change` applied to it. Some(text) if they differ.
fn compare(
    page: &Page,
    r: &mut Random,
    bytes: &[u8],
    insn: &Instruction,
    entry: &FpInsn,
    mut s: FpState,
) -> (Option<String>, bool) {
    let mut frame = Frame {
        fx: image(&s),
        rax: r.pick(&[5, 16, 0, u64::MAX, 3]) ^ (r.pick(&[0, u64::MAX]) & r.next()),
        rcx: r.next(),
        rdx: r.pick(&[5, 16, 0, u64::MAX - 3, 9]) ^ (r.pick(&[0, u64::MAX]) & r.next()),
        flags: r.next() & u64::from(STATUS) | 2,
        mem: [0; 512],
    };
    for slot in frame.mem.chunks_exact_mut(8) {
        slot.copy_from_slice(&quad(r).to_le_bytes());
    }
    if r.below(2) == 0 {
        frame.mem[..10].copy_from_slice(&extended(r)[..10]);
    }
    make_valid(insn.code(), &mut frame.mem);
    let before = s.clone();
    let mut gpr = [frame.rax, frame.rcx, frame.rdx];
    let mut mem = frame.mem;
    let mut flags = frame.flags as u32 & STATUS;
    let raised = page.execute(bytes, &mut frame);
    let outcome = by_table(insn, entry, &mut s, &mut gpr, &mut mem, &mut flags);
    let expected = match raised {
        Some(mxcsr) => {
            frame.fx[24..28].copy_from_slice(&mxcsr.to_le_bytes());
            Err(FpFault::SimdException)
        }
        None => Ok(()),
    };
    let mut ours = image(&s);
    // FOP, FIP and FDP are not in the model; MXCSR_MASK is fixed.
    for image in [&mut ours, &mut frame.fx] {
        image[6..24].fill(0);
        image[28..32].fill(0);
        image[416..].fill(0);
    }
    hide(insn.code(), &mut frame.mem);
    hide(insn.code(), &mut mem);
    let theirs =
        (expected, frame.fx, [frame.rax, frame.rcx, frame.rdx], frame.mem, frame.flags as u32 & STATUS);
    let ours = (outcome, ours, gpr, mem, flags);
    if ours == theirs {
        return (None, raised.is_some());
    }
    let place = ours.1.iter().zip(&theirs.1).position(|(a, b)| a != b);
    let show = |x: &Outcome| {
        let at = place.unwrap_or(0) & !15;
        let mxcsr = u32::from_le_bytes([x.1[24], x.1[25], x.1[26], x.1[27]]);
        format!(
            "{:?} mxcsr {mxcsr:x} fcw, fsw {:02x?} image[{at}] {:02x?} gpr {:x?} flags {:x} mem {:02x?}",
            x.0,
            &x.1[..6],
            &x.1[at..at + 16],
            x.2,
            x.4,
            &x.3[..16]
        )
    };
    let text = format!(
        "{:?} {bytes:02x?}\n  before xmm0..3 {:x?} mxcsr {:x} fcw {:x} fsw {:x} mem {:02x?}\n  ours   {}\n  theirs {}",
        insn.code(),
        &before.xmm[..3],
        before.mxcsr,
        before.fcw,
        before.fsw,
        &frame.mem[..16],
        show(&ours),
        show(&theirs),
    );
    (Some(text), raised.is_some())
}

/// Compares all encodings that `wanted` takes, `rounds` times each, from states that `prepare` makes.
fn compare_all(
    rounds: usize,
    wanted: impl Fn(&FpInsn) -> bool,
    prepare: impl Fn(&mut Random, &FpInsn) -> FpState,
) -> (usize, usize, BTreeSet<Code>) {
    let lock = HOST.lock();
    let page = Page::new();
    let mut r = Random(0x9e37_79b9_7f4a_7c15);
    let (mut cases, mut faults, mut codes, mut mismatches) = (0, 0, BTreeSet::new(), BTreeMap::new());
    for (bytes, insn, entry) in encodings() {
        if !wanted(&entry) {
            continue;
        }
        codes.insert(insn.code());
        let imm = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Immediate8);
        let mut found = None;
        for _ in 0..rounds {
            let (mut bytes, mut insn, mut entry) = (bytes.clone(), insn, entry);
            if imm && let Some(last) = bytes.last_mut() {
                *last = if r.below(2) == 0 { r.below(20) as u8 } else { r.next() as u8 };
                insn = decoded(&bytes).expect("decodes with any immediate");
                entry = lookup(&insn).expect("is in the table with any immediate");
            }
            let s = prepare(&mut r, &entry);
            let (difference, raised) = compare(&page, &mut r, &bytes, &insn, &entry, s);
            cases += 1;
            faults += usize::from(raised);
            found = found.or(difference);
        }
        if let Some(text) = found {
            mismatches.entry(insn.code()).or_insert(text);
        }
    }
    drop(lock);
    let shown = mismatches.values().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(mismatches.is_empty(), "{} codes differ: {:?}\n{shown}", mismatches.len(), mismatches.keys());
    (cases, faults, codes)
}

/// SSE exceptions are masked here; half of the x87 cases have some unmasked: the state is taken before anything
/// reports them.
#[test]
fn every_encoding_does_what_the_host_does() {
    let (cases, faults, codes) =
        compare_all(25, |_| true, |r, entry| state(r, matches!(entry.class, FpClass::X87)));
    println!("{cases} cases of {} codes", codes.len());
    assert!(codes.len() > 500, "only {} codes", codes.len());
    assert_eq!(faults, 0, "all SSE exceptions were masked");
}

/// #XM: when, which flags, and that nothing else changes.
#[test]
fn unmasked_sse_exceptions_are_the_hosts() {
    let (cases, faults, codes) = compare_all(
        100,
        |entry| matches!(entry.class, FpClass::Sse | FpClass::Mmx),
        |r, _| {
            let mut s = state(r, false);
            // The flags of masked exceptions and of some that are unmasked may be set before.
            let masks = r.next() as u32 & r.pick(&[0x1f80, 0, 0x0f80, 0x1980]);
            s.mxcsr = s.mxcsr & !0x1f80 | masks;
            s
        },
    );
    println!("{cases} cases of {} codes, {faults} raise #XM", codes.len());
    assert!(faults > cases / 100, "only {faults} of {cases} cases raise #XM");
}
