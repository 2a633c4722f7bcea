//! Cases of several instructions: flags made by one and used by the next (lazy flags, fused compare and branch),
//! branches forward and loops backward, code that changes itself.
//!
//! Four registers are pointers (RBX and RBP to data, RSI and RDI to data for the string instructions) and are
//! written by nothing but the string instructions; RSP by pushes and pops only; R15 counts loops.

use fastrand::Rng;
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, FlowControl, Instruction, InstructionInfoFactory, Mnemonic as M,
    OpAccess, OpKind,
};

use super::{
    Generated,
    build::{Limits, instruction},
    encodings, registers,
    single::{content, patch},
    undefined::{flag, host_is_intel, is_shift, rflags, undefined_flags},
};
use crate::{
    case::{Case, Patch},
    compare::Ignore,
    layout::{CODE, DATA, STACK, exit_stub},
};

/// RBX, RBP.
const BASES: u16 = 1 << 3 | 1 << 5;
/// RSP, RSI, RDI and R15 are not operands either.
const RESERVED: u16 = BASES | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 15;

/// Makes cases of two to twelve instructions.
pub struct Sequences {
    rng: Rng,
    info: InstructionInfoFactory,
    encoder: Encoder,
    /// Everything that may stand in a sequence.
    codes: Vec<Code>,
    /// Those that make or use flags and are cheap: half of all picks.
    flaggy: Vec<Code>,
    branches: Vec<Code>,
    intel: bool,
}

/// What the flags are known to be while a sequence grows.
#[derive(Clone, Copy, Default)]
struct Known {
    /// RFLAGS bits that are undefined here.
    undefined: u64,
}

impl Sequences {
    /// A generator with its own seed.
    pub fn new(seed: u64) -> Self {
        let codes: Vec<Code> = encodings::tested().into_iter().filter(|&code| fits(code)).collect();
        let touches_flags = |code: &Code| {
            use M::{
                Adc, Adcx, Add, Adox, And, Bt, Clc, Cmc, Cmovb, Cmovbe, Cmove, Cmovl, Cmovle, Cmovne, Cmovo,
                Cmovp, Cmovs, Cmp, Comisd, Dec, Imul, Inc, Lahf, Mul, Neg, Or, Popcnt, Ptest, Pushfq, Rcl,
                Rcr, Rol, Sahf, Sar, Sbb, Setb, Setbe, Sete, Setl, Setle, Seto, Setp, Sets, Shl, Shr, Stc,
                Sub, Test, Ucomiss, Xor,
            };
            matches!(
                code.mnemonic(),
                Adc | Add
                    | And
                    | Bt
                    | Cmovb
                    | Cmovbe
                    | Cmove
                    | Cmovl
                    | Cmovle
                    | Cmovne
                    | Cmovo
                    | Cmovp
                    | Cmovs
                    | Cmp
                    | Dec
                    | Inc
                    | Lahf
                    | Neg
                    | Or
                    | Pushfq
                    | Rcl
                    | Rcr
                    | Rol
                    | Sar
                    | Sbb
                    | Setb
                    | Setbe
                    | Sete
                    | Setl
                    | Setle
                    | Seto
                    | Setp
                    | Sets
                    | Shl
                    | Shr
                    | Sub
                    | Test
                    | Xor
                    | Cmc
                    | Stc
                    | Clc
                    | Adcx
                    | Adox
                    | Popcnt
                    | Sahf
                    | Imul
                    | Mul
                    | Comisd
                    | Ucomiss
                    | Ptest
            )
        };
        let flaggy = codes.iter().copied().filter(touches_flags).collect();
        let branches = encodings::tested().into_iter().filter(|code| code.is_jcc_short_or_near()).collect();
        Sequences {
            rng: Rng::with_seed(seed),
            info: InstructionInfoFactory::new(),
            encoder: Encoder::new(64),
            codes,
            flaggy,
            branches,
            intel: host_is_intel(),
        }
    }

    /// The next case.
    pub fn make(&mut self) -> Generated {
        loop {
            if let Some(generated) = self.attempt() {
                return generated;
            }
        }
    }

    /// One instruction that may follow: operands within the rules, no undefined flag read.
    fn pick(&mut self, known: &mut Known, branch: bool) -> Option<Instruction> {
        let list = if branch {
            &self.branches
        } else if self.rng.bool() {
            &self.flaggy
        } else {
            &self.codes
        };
        let code = list[self.rng.usize(..list.len())];
        let limits = Limits {
            branch_targets: &[CODE.base + 0x400],
            gprs: !RESERVED,
            bases: Some(BASES),
            no_memory: false,
        };
        let insn = instruction(code, &mut self.rng, &limits)?;
        // Encoded and decoded, so that operand accesses and flags are those of what really runs.
        self.encoder.encode(&insn, CODE.base + 0x400).ok()?;
        let bytes = self.encoder.take_buffer();
        let insn = Decoder::with_ip(64, &bytes, CODE.base + 0x400, DecoderOptions::NONE).decode();
        if insn.is_invalid() || insn.len() != bytes.len() {
            return None;
        }
        let string = insn.is_string_instruction();
        for used in self.info.info(&insn).used_registers() {
            let register = used.register();
            let writes = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            if register.is_gpr() && writes {
                let number = register.full_register().number();
                let allowed = match number {
                    4 => insn.is_stack_instruction(),
                    6 | 7 => string,
                    n => RESERVED >> n & 1 == 0,
                };
                if !allowed {
                    return None;
                }
            }
        }
        // REP counts in RCX are whatever the sequence left there: too long.
        if string && (insn.has_rep_prefix() || insn.has_repne_prefix()) {
            return None;
        }
        if insn.op_count() >= 2
            && insn.op0_kind() == OpKind::Memory
            && matches!(insn.mnemonic(), M::Bt | M::Bts | M::Btr | M::Btc)
            && insn.op1_kind() == OpKind::Register
        {
            return None;
        }
        if !self.intel {
            if rflags(insn.rflags_read()) & known.undefined != 0 {
                return None;
            }
            if matches!(insn.mnemonic(), M::Bsf | M::Bsr | M::Shld | M::Shrd) {
                // A register result may be undefined.
                return None;
            }
            let by_cl = is_shift(&insn) && insn.op_register(insn.op_count() - 1) == iced_x86::Register::CL;
            if !by_cl {
                known.undefined &= !rflags(insn.rflags_written() | insn.rflags_cleared() | insn.rflags_set());
            }
            known.undefined |= undefined_flags(&insn, None);
        }
        Some(insn)
    }

    fn attempt(&mut self) -> Option<Generated> {
        let count = self.rng.usize(2..=10);
        let start = CODE.base + 0x400 + self.rng.u64(..32);
        let mut known = Known::default();
        let mut list: Vec<Instruction> = Vec::new();
        // Index of a branch, and how many instructions it skips.
        let mut skips: Vec<(usize, usize)> = Vec::new();
        while list.len() < count {
            let branch = self.rng.u8(..5) == 0;
            let before = known;
            let insn = (0..200).find_map(|_| {
                known = before;
                self.pick(&mut known, branch)
            })?;
            if branch {
                // What is skipped may or may not define flags: nothing undefined may be around.
                if before.undefined != 0 {
                    known = before;
                    continue;
                }
                skips.push((list.len(), self.rng.usize(1..4)));
            }
            list.push(insn);
        }
        // On a host that is not Intel's, flags undefined on one path and read after the join would differ: walk
        // the list again with the union of both paths.
        let mut ignore = Ignore::default();
        if !self.intel {
            let (at_end, anywhere) = undefined_on_some_way(&list, &skips)?;
            ignore = Ignore { flags: at_end, flags_at_fault: anywhere, ..Ignore::default() };
        }
        let looped = self.rng.u8(..4) == 0 && ignore.flags & flag::CF == 0;
        if looped {
            // DEC defines all flags but CF.
            ignore.flags = 0;
        }
        let mut case = Case { registers: registers::all(&mut self.rng), patches: Vec::new() };
        self.set_up(&mut case);
        let (instructions, bytes) = self.assemble(&list, &skips, start, looped)?;
        if instructions.is_empty() {
            return None;
        }
        let end = start + bytes.len() as u64;
        if end + 16 > CODE.end() {
            return None;
        }
        case.registers.rip = start;
        case.patches.push(Patch { address: start, bytes });
        case.patches.push(Patch { address: end, bytes: exit_stub(0).to_vec() });
        Some(Generated { case, instructions, ignore })
    }

    /// Lays the instructions out and resolves branches: forward by instructions, and with `looped` a
    /// `dec r15; jnz start` at the end, R15 being small.
    fn assemble(
        &mut self,
        list: &[Instruction],
        skips: &[(usize, usize)],
        start: u64,
        looped: bool,
    ) -> Option<(Vec<Instruction>, Vec<u8>)> {
        let mut all: Vec<Instruction> = list.to_vec();
        if looped {
            all.push(Instruction::with1(Code::Dec_rm64, iced_x86::Register::R15).ok()?);
            all.push(Instruction::with_branch(Code::Jne_rel32_64, start).ok()?);
        }
        // Lengths do not depend on the target: short and near forms are kept as they are.
        let mut at = vec![start];
        for insn in &all {
            let ip = *at.last()?;
            let mut insn = *insn;
            if insn.flow_control() == FlowControl::ConditionalBranch {
                insn.set_near_branch64(ip);
            }
            let len = self.encoder.encode(&insn, ip).ok()?;
            drop(self.encoder.take_buffer());
            at.push(ip + len as u64);
        }
        let mut bytes = Vec::new();
        let mut placed = Vec::new();
        for (i, insn) in all.iter().enumerate() {
            let mut insn = *insn;
            if let Some(&(_, skip)) = skips.iter().find(|s| s.0 == i) {
                // Not past the loop's own end.
                insn.set_near_branch64(at[(i + 1 + skip).min(list.len())]);
            }
            self.encoder.encode(&insn, at[i]).ok()?;
            let encoded = self.encoder.take_buffer();
            placed.push(Decoder::with_ip(64, &encoded, at[i], DecoderOptions::NONE).decode());
            bytes.extend(encoded);
        }
        (*at.last()? == start + bytes.len() as u64).then_some((placed, bytes))
    }

    fn set_up(&mut self, case: &mut Case) {
        let rng = &mut self.rng;
        let registers = &mut case.registers;
        registers.rflags &= !(flag::TF | flag::AC);
        registers.gpr[3] = DATA.base + 0x400 + rng.u64(..0x400);
        registers.gpr[5] = DATA.base + 0x1400 + rng.u64(..0x400);
        registers.gpr[6] = DATA.base + 0x300 + rng.u64(..0x100);
        registers.gpr[7] = DATA.base + 0x1300 + rng.u64(..0x100);
        registers.gpr[4] = STACK.base + 0x1000 + rng.u64(..0x100) * 8;
        registers.gpr[15] = rng.u64(1..4);
        // Around the page boundary now and then.
        if rng.u8(..8) == 0 {
            registers.gpr[3] = DATA.base + 0x1000 - rng.u64(..0x20);
        }
        let near = registers.gpr[3];
        let bytes = content(iced_x86::MemorySize::Packed128_Float32, rng);
        patch(case, near, &bytes);
    }
}

/// The flags undefined at the end, and at any place, on some of the ways through. `None` if an instruction reads
/// one.
fn undefined_on_some_way(list: &[Instruction], skips: &[(usize, usize)]) -> Option<(u64, u64)> {
    let mut at = vec![0u64; list.len() + 1];
    for (i, insn) in list.iter().enumerate() {
        if rflags(insn.rflags_read()) & at[i] != 0 {
            return None;
        }
        let by_cl = is_shift(insn) && insn.op_register(insn.op_count() - 1) == iced_x86::Register::CL;
        let mut after = at[i];
        if !by_cl {
            after &= !rflags(insn.rflags_written() | insn.rflags_cleared() | insn.rflags_set());
        }
        after |= undefined_flags(insn, None);
        at[i + 1] |= after;
        if let Some(&(_, skip)) = skips.iter().find(|s| s.0 == i) {
            at[(i + 1 + skip).min(list.len())] |= at[i];
        }
    }
    Some((at[list.len()], at.iter().fold(0, |sum, flags| sum | flags)))
}

/// May this encoding stand in a sequence?
fn fits(code: Code) -> bool {
    use iced_x86::OpCodeOperandKind as K;
    let op = code.op_code();
    let odd = matches!(
        code.mnemonic(),
        M::Popf
            | M::Popfq
            | M::Enter
            | M::Leave
            | M::Ret
            | M::Call
            | M::Jmp
            | M::Fxsave
            | M::Fxsave64
            | M::Fxrstor
            | M::Fxrstor64
            | M::Fnsave
            | M::Frstor
            | M::Fldenv
            | M::Fnstenv
            | M::Ldmxcsr
            | M::Wrfsbase
            | M::Wrgsbase
            | M::Xlatb
            | M::Maskmovq
            | M::Maskmovdqu
            | M::Int3
            | M::Push
            | M::Pop
            | M::Std
            | M::Ud0
            | M::Ud1
            | M::Ud2
            | M::Loop
            | M::Loope
            | M::Loopne
            | M::Jecxz
            | M::Jrcxz
            | M::Div
            | M::Idiv
            | M::Hlt
            | M::In
            | M::Out
            | M::Cvtpi2ps
            | M::Cvtpi2pd
    );
    let privileged = op.op_kinds().iter().any(|&k| matches!(k, K::cr_reg | K::dr_reg | K::mem_offs))
        || (op.cpl0() && !op.cpl3());
    let stack_ok = matches!(code, Code::Push_r64 | Code::Pop_r64 | Code::Push_rm64 | Code::Pushq_imm8);
    let prefetch_nop = format!("{code:?}").ends_with("_0F0D");
    (!odd || stack_ok)
        && !prefetch_nop
        && code != Code::Movsxd_r16_rm16
        && !privileged
        && !code.is_jcc_short_or_near()
        && !code.is_jmp_short_or_near()
}
