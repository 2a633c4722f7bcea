//! x87 instructions that set, save or restore control, status, tags and the whole state.
//!
//! FOP, FIP, FDP and the selectors FCS and FDS are not in the model and are stored as zeroes.

use iced_x86::Code;

use super::{
    FpClass, FpFault, FpInsn, FpOperands, FpRun, FpState, GprUse,
    lanes::{bytes, load, store},
    save,
};

type Done = Result<(), FpFault>;

/// Bytes of the environment with 32-bit operand size.
const ENV32: usize = 28;
/// Bytes of the environment with 16-bit operand size.
const ENV16: usize = 14;
/// Bytes of the eight registers after the environment.
const REGISTERS: usize = 80;

/// The state after FNINIT. The contents of the registers stay.
fn init(s: &mut FpState) {
    s.fcw = 0x37f;
    s.fsw = 0;
    s.tags = 0;
}

fn fninit(s: &mut FpState, _: &mut FpOperands<'_>) -> Done {
    init(s);
    Ok(())
}

/// Clears the exception flags, SF, ES and B.
fn fnclex(s: &mut FpState, _: &mut FpOperands<'_>) -> Done {
    s.fsw &= 0x7f00;
    Ok(())
}

fn nothing(_: &mut FpState, _: &mut FpOperands<'_>) -> Done {
    Ok(())
}

fn fldcw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.set_words(u16::from_le_bytes(bytes(o.mem)), s.fsw);
    Ok(())
}

fn fnstcw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    store::<2>(o.mem, [u64::from(s.fcw), 0]);
    Ok(())
}

fn fnstsw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    store::<2>(o.mem, [u64::from(s.fsw), 0]);
    Ok(())
}

fn fnstsw_ax(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    o.gpr_out = u64::from(s.fsw);
    Ok(())
}

/// Writes the environment: words of `STEP` bytes, whose upper halves are ones in the 32-bit form.
fn put_environment<const STEP: usize>(s: &FpState, mem: &mut [u8]) {
    let words = [s.fcw, s.fsw, save::full_tags(s)];
    for (i, slot) in mem.chunks_exact_mut(STEP).take(7).enumerate() {
        slot.fill(match i {
            0..3 => 0xff,
            _ => 0,
        });
        if let Some(word) = words.get(i) {
            slot[..2].copy_from_slice(&word.to_le_bytes());
        }
        if i == 6 && STEP == 4 {
            slot[2..].fill(0xff);
        }
    }
}

/// Takes the environment.
fn take_environment<const STEP: usize>(s: &mut FpState, mem: &[u8]) {
    let word = |i: usize| match mem.get(i * STEP..i * STEP + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    };
    s.set_words(word(0), word(1));
    s.tags = save::abridged_tags(word(2));
}

fn fnstenv<const STEP: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    put_environment::<STEP>(s, o.mem);
    s.set_words(s.fcw | 0x3f, s.fsw);
    Ok(())
}

fn fldenv<const STEP: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    take_environment::<STEP>(s, o.mem);
    Ok(())
}

fn fnsave<const STEP: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    put_environment::<STEP>(s, o.mem);
    for (i, slot) in o.mem.get_mut(7 * STEP..).unwrap_or_default().chunks_exact_mut(10).take(8).enumerate() {
        slot.copy_from_slice(&s.x87[(s.top() + i) % 8][..10]);
    }
    init(s);
    Ok(())
}

fn frstor<const STEP: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    take_environment::<STEP>(s, o.mem);
    let top = s.top();
    for (i, slot) in o.mem.get(7 * STEP..).unwrap_or_default().chunks_exact(10).take(8).enumerate() {
        let [low, high] = load::<10>(slot);
        s.x87[(top + i) % 8] = super::lanes::to_bytes([low, high]);
    }
    Ok(())
}

/// The instructions of this file. WAIT is here for its check alone.
pub(super) fn lookup(code: Code) -> Option<FpInsn> {
    let x87 = |run: FpRun| FpInsn::new(FpClass::X87, run);
    Some(match code {
        Code::Fninit => x87(fninit).no_wait(),
        Code::Fnclex => x87(fnclex).no_wait(),
        // 8087 and 287 control of interrupts and mode: no operation since the 387.
        Code::Fneni | Code::Fndisi | Code::Fnsetpm => x87(nothing).no_wait(),
        Code::Wait => x87(nothing),
        Code::Fldcw_m2byte => x87(fldcw).reads(2),
        Code::Fnstcw_m2byte => x87(fnstcw).writes(2).no_wait(),
        Code::Fnstsw_m2byte => x87(fnstsw).writes(2).no_wait(),
        Code::Fnstsw_AX => x87(fnstsw_ax).gpr(GprUse::OutAx).no_wait(),
        Code::Fldenv_m14byte => x87(fldenv::<2>).reads(ENV16 as u16),
        Code::Fldenv_m28byte => x87(fldenv::<4>).reads(ENV32 as u16),
        Code::Fnstenv_m14byte => x87(fnstenv::<2>).writes(ENV16 as u16).no_wait(),
        Code::Fnstenv_m28byte => x87(fnstenv::<4>).writes(ENV32 as u16).no_wait(),
        Code::Frstor_m94byte => x87(frstor::<2>).reads((ENV16 + REGISTERS) as u16),
        Code::Frstor_m108byte => x87(frstor::<4>).reads((ENV32 + REGISTERS) as u16),
        Code::Fnsave_m94byte => x87(fnsave::<2>).writes((ENV16 + REGISTERS) as u16).no_wait(),
        Code::Fnsave_m108byte => x87(fnsave::<4>).writes((ENV32 + REGISTERS) as u16).no_wait(),
        _ => return None,
    })
}
