//! Fast forms of common instructions, and which instruction gets which.

mod branch;
mod choose;
mod compute;
mod integer;
mod operand;
mod vector;

pub(crate) use choose::flags_unseen;
pub(crate) use vector::{float_forms, vector_forms, vector_immediate};

use iced_x86::Mnemonic as M;
use operand::{ADD, AND, CMP, OR, SUB, TEST, XOR};

use crate::{
    block::{Handler, Op},
    handler,
    insn::{Insn, Opd, Rep, ZERO},
    lower::Ops,
};

/// Picks a handler by operation and size.
macro_rules! sized {
    ($m:ident::$f:ident, $kind:expr, $size:expr) => {{
        macro_rules! sizes {
            ($k:ident) => {
                match $size {
                    1 => $m::$f::<$k, 1>,
                    2 => $m::$f::<$k, 2>,
                    4 => $m::$f::<$k, 4>,
                    _ => $m::$f::<$k, 8>,
                }
            };
        }
        let handler: Handler = match $kind {
            ADD => sizes!(ADD),
            SUB => sizes!(SUB),
            AND => sizes!(AND),
            OR => sizes!(OR),
            XOR => sizes!(XOR),
            CMP => sizes!(CMP),
            _ => sizes!(TEST),
        };
        handler
    }};
}

macro_rules! plain_sized {
    ($m:ident::$f:ident, $size:expr) => {{
        let handler: Handler = match $size {
            1 => $m::$f::<1>,
            2 => $m::$f::<2>,
            4 => $m::$f::<4>,
            _ => $m::$f::<8>,
        };
        handler
    }};
}

/// Register field of an operand, if it is a general register.
fn register(opd: Opd) -> Option<u8> {
    match opd {
        Opd::R(n) | Opd::R8(n) => Some(n),
        _ => None,
    }
}

/// Base, index, scale and displacement, if the memory operand fits into an op.
fn memory(insn: &Insn) -> Option<(u8, u8, u8, i32)> {
    let disp = i32::try_from(insn.disp).ok()?;
    if insn.addr32 {
        return None;
    }
    match (insn.seg, insn.index) {
        (ZERO, index) => Some((insn.base, index, insn.scale, disp)),
        (seg, ZERO) => Some((insn.base, seg, 0, disp)),
        _ => None,
    }
}

fn with_memory(run: Handler, a: u8, insn: &Insn) -> Option<Op> {
    let (b, c, d, imm) = memory(insn)?;
    Some(Op { run, a, b, c, d, imm })
}

fn small(imm: u64, size: u8) -> Option<i32> {
    let shift = 64 - 8 * u32::from(size);
    i32::try_from((imm << shift) as i64 >> shift).ok()
}

fn word(value: u64) -> Op {
    Op::word(handler::miss, value)
}

fn kind(m: M) -> Option<u8> {
    Some(match m {
        M::Add => ADD,
        M::Sub => SUB,
        M::And => AND,
        M::Or => OR,
        M::Xor => XOR,
        M::Cmp => CMP,
        M::Test => TEST,
        _ => return None,
    })
}

/// Adds the fast form of the first instruction (or a fused pair) of `insns`; how many instructions it took, 0 if there
/// is none.
pub(crate) fn lower(insns: &[Insn], at: usize, out: &mut Ops) -> usize {
    lower_one(insns, at, out).unwrap_or(0)
}

fn lower_one(insns: &[Insn], at: usize, out: &mut Ops) -> Option<usize> {
    let insn = insns.first()?;
    if insn.fp.is_some() {
        out.add(vector::choose(insn)?, &[], at, 1);
        return Some(1);
    }
    let m = insn.code.mnemonic();
    if matches!(m, M::Jmp | M::Call | M::Ret) {
        return lower_jump(insn, m, at, out);
    }
    if insn.counted_branch {
        let links = targets(insn)?;
        let run = branch::conditional(insn.imm2 >> 1);
        out.add_branch(Op { run, a: 0, b: 0, c: 0, d: 0, imm: 0 }, word(links), at, 1);
        return Some(1);
    }
    if !matches!(insn.size, 1 | 2 | 4 | 8) {
        return None;
    }
    if let Some(kind) = kind(m) {
        if let Some(taken) = lower_fused(insns, kind, at, out) {
            return Some(taken);
        }
        return lower_alu(insn, kind, at, out);
    }
    let (op, data) = match m {
        M::Mov => lower_mov(insn),
        _ => lower_other(insn, m).map(|op| (op, None)),
    }
    .or_else(|| {
        let rotates = matches!(m, M::Rol | M::Ror);
        choose::choose(insn, m, rotates && choose::flags_unseen(insns))
    })?;
    out.add(op, data.as_slice(), at, 1);
    Some(1)
}

/// The two distances of a conditional branch, base condition true first.
fn targets(jcc: &Insn) -> Option<u64> {
    let taken = i32::try_from(jcc.imm as i64).ok()?;
    let after = i32::from(jcc.off) + i32::from(jcc.len);
    Some(if jcc.imm2 & 1 == 0 { branch::distances(taken, after) } else { branch::distances(after, taken) })
}

fn lower_fused(insns: &[Insn], kind: u8, at: usize, out: &mut Ops) -> Option<usize> {
    let (insn, jcc) = (&insns[0], insns.get(1).filter(|i| i.counted_branch)?);
    let a = register(insn.a)?;
    let op = |run, b, imm| Op { run, a, b, c: 0, d: 0, imm };
    let handler = |immediate| branch::fused(kind, insn.size, jcc.imm2 >> 1, immediate);
    let op = match insn.b {
        Opd::Imm => op(handler(true)?, 0, small(insn.imm, insn.size)?),
        b => op(handler(false)?, register(b)?, 0),
    };
    out.add_branch(op, word(targets(jcc)?), at, 2);
    Some(2)
}

fn lower_alu(insn: &Insn, kind: u8, at: usize, out: &mut Ops) -> Option<usize> {
    let size = insn.size;
    let (op, data) = match (insn.a, insn.b) {
        (Opd::Mem, Opd::Imm) => {
            (with_memory(sized!(integer::alu_mi, kind, size), 0, insn)?, Some(word(insn.imm)))
        }
        (Opd::Mem, b) => (with_memory(sized!(integer::alu_mr, kind, size), register(b)?, insn)?, None),
        (a, Opd::Mem) => (with_memory(sized!(integer::alu_rm, kind, size), register(a)?, insn)?, None),
        (a, Opd::Imm) => {
            let (run, imm) = (sized!(integer::alu_ri, kind, size), small(insn.imm, size)?);
            (Op { run, a: register(a)?, b: 0, c: 0, d: 0, imm }, None)
        }
        (a, b) => {
            let run = sized!(integer::alu_rr, kind, size);
            (Op { run, a: register(a)?, b: register(b)?, c: 0, d: 0, imm: 0 }, None)
        }
    };
    out.add(op, data.as_slice(), at, 1);
    Some(1)
}

fn lower_mov(insn: &Insn) -> Option<(Op, Option<Op>)> {
    let size = insn.size;
    Some(match (insn.a, insn.b) {
        (Opd::Mem, Opd::Imm) => {
            (with_memory(plain_sized!(integer::mov_mi, size), 0, insn)?, Some(word(insn.imm)))
        }
        (Opd::Mem, b) => (with_memory(plain_sized!(integer::mov_mr, size), register(b)?, insn)?, None),
        (a, Opd::Mem) => (with_memory(plain_sized!(integer::mov_rm, size), register(a)?, insn)?, None),
        (a, Opd::Imm) => {
            let (run, imm) = (plain_sized!(integer::mov_ri, size), small(insn.imm, size)?);
            (Op { run, a: register(a)?, b: 0, c: 0, d: 0, imm }, None)
        }
        (a, b) => {
            let run = plain_sized!(integer::mov_rr, size);
            (Op { run, a: register(a)?, b: register(b)?, c: 0, d: 0, imm: 0 }, None)
        }
    })
}

fn lower_jump(insn: &Insn, m: M, at: usize, out: &mut Ops) -> Option<usize> {
    let after = insn.off + u16::from(insn.len);
    let push = m == M::Call;
    if !matches!(
        insn.run as usize,
        r if r == crate::exec::branch::jmp as *const () as usize
            || r == crate::exec::branch::call as *const () as usize
            || r == crate::exec::branch::ret as *const () as usize
    ) {
        return None;
    }
    match (m, insn.a) {
        (M::Ret, Opd::None) => {
            out.add(Op { run: branch::ret, a: 0, b: 0, c: 0, d: 0, imm: 0 }, &[], at, 1);
        }
        (M::Jmp | M::Call, Opd::Imm) => {
            let imm = i32::try_from(insn.imm as i64).ok()?;
            let run: Handler = if push { branch::call } else { branch::jmp };
            let [a, b] = after.to_le_bytes();
            out.add_linked(Op { run, a, b, c: 0, d: 0, imm }, 1, at, 1);
        }
        (M::Jmp | M::Call, Opd::R(a)) => {
            let run: Handler = if push { branch::indirect_r::<1> } else { branch::indirect_r::<0> };
            out.add(Op { run, a, b: 0, c: 0, d: 0, imm: i32::from(after) }, &[], at, 1);
        }
        (M::Jmp | M::Call, Opd::Mem) => {
            let run: Handler = if push { branch::indirect_m::<1> } else { branch::indirect_m::<0> };
            out.add(with_memory(run, 0, insn)?, &[word(u64::from(after))], at, 1);
        }
        _ => return None,
    }
    Some(1)
}

fn lower_other(insn: &Insn, m: M) -> Option<Op> {
    let (size, from) = (insn.size, insn.src_size);
    let two = |run: Handler| Some(Op { run, a: register(insn.a)?, b: register(insn.b)?, c: 0, d: 0, imm: 0 });
    let one = |run: Handler, imm: i32| Some(Op { run, a: register(insn.a)?, b: 0, c: 0, d: 0, imm });
    let loads = insn.b == Opd::Mem;
    match m {
        M::Movzx if size >= 4 && matches!(from, 1 | 2) => {
            if loads {
                return with_memory(plain_sized!(integer::zero_rm, from), register(insn.a)?, insn);
            }
            two(plain_sized!(integer::zero_rr, from))
        }
        M::Movsx | M::Movsxd if size >= 4 => {
            let run: Handler = match (loads, from, size) {
                (false, 1, 4) => integer::sign_rr::<1, 4>,
                (false, 1, _) => integer::sign_rr::<1, 8>,
                (false, 2, 4) => integer::sign_rr::<2, 4>,
                (false, 2, _) => integer::sign_rr::<2, 8>,
                (false, _, 4) => integer::sign_rr::<4, 4>,
                (false, _, _) => integer::sign_rr::<4, 8>,
                (true, 1, 4) => integer::sign_rm::<1, 4>,
                (true, 1, _) => integer::sign_rm::<1, 8>,
                (true, 2, 4) => integer::sign_rm::<2, 4>,
                (true, 2, _) => integer::sign_rm::<2, 8>,
                (true, _, 4) => integer::sign_rm::<4, 4>,
                (true, _, _) => integer::sign_rm::<4, 8>,
            };
            if loads { with_memory(run, register(insn.a)?, insn) } else { two(run) }
        }
        M::Lea if insn.seg == ZERO && size >= 4 => {
            with_memory(plain_sized!(integer::lea, size), register(insn.a)?, insn)
        }
        M::Push if size == 8 && matches!(insn.a, Opd::R(_)) => one(integer::push::<8>, 0),
        M::Pop if size == 8 && matches!(insn.a, Opd::R(_)) => one(integer::pop::<8>, 0),
        M::Inc if size >= 4 && matches!(insn.a, Opd::R(_)) => {
            one(if size == 4 { integer::step::<1, 4> } else { integer::step::<1, 8> }, 0)
        }
        M::Dec if size >= 4 && matches!(insn.a, Opd::R(_)) => {
            one(if size == 4 { integer::step::<0, 4> } else { integer::step::<0, 8> }, 0)
        }
        M::Shl | M::Sal | M::Shr | M::Sar
            if size >= 4 && matches!(insn.a, Opd::R(_)) && insn.b == Opd::Imm =>
        {
            let count = insn.imm & u64::from(size * 8 - 1);
            if count == 0 {
                return None;
            }
            let run: Handler = match (m, size) {
                (M::Shr, 4) => integer::shift::<1, 4>,
                (M::Shr, _) => integer::shift::<1, 8>,
                (M::Sar, 4) => integer::shift::<2, 4>,
                (M::Sar, _) => integer::shift::<2, 8>,
                (_, 4) => integer::shift::<0, 4>,
                _ => integer::shift::<0, 8>,
            };
            one(run, count as i32)
        }
        M::Nop | M::Reservednop | M::Endbr64 if insn.rep == Rep::No || m == M::Endbr64 => {
            Some(Op { run: integer::nop, a: 0, b: 0, c: 0, d: 0, imm: 0 })
        }
        _ => None,
    }
}
