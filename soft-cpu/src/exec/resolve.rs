//! Which function executes which instruction.

use iced_x86::{Code, Instruction, Mnemonic as M, OpKind, Register};

use super::{alu, bits, branch, fpu, io, muldiv, segment, shift, stack, string, system, transfer};
use crate::insn::{Insn, Opd};

/// Sets `insn.run`, and sizes the operands do not show; leaves it as it is for what is not an integer or system
/// instruction of the model.
pub(crate) fn resolve(iced: &Instruction, insn: &mut Insn) {
    if let Some(run) = find(iced, insn) {
        insn.run = run;
    }
}

/// XSAVE-era, AVX and other VEX forms share mnemonics with nothing here but BMI, which has general registers only.
fn find(iced: &Instruction, insn: &mut Insn) -> Option<crate::insn::Exec> {
    let m = iced.mnemonic();
    if let Some(run) = arithmetic(m).or_else(|| bit_group(m)) {
        return Some(run);
    }
    moves(iced, m, insn).or_else(|| control(iced, m, insn)).or_else(|| privileged(iced, m, insn))
}

fn arithmetic(m: M) -> Option<crate::insn::Exec> {
    Some(match m {
        M::Add => alu::add,
        M::Adc => alu::adc,
        M::Sub => alu::sub,
        M::Sbb => alu::sbb,
        M::And => alu::and,
        M::Or => alu::or,
        M::Xor => alu::xor,
        M::Cmp => alu::cmp,
        M::Test => alu::test,
        M::Inc => alu::inc,
        M::Dec => alu::dec,
        M::Neg => alu::neg,
        M::Not => alu::not,
        M::Xchg => alu::xchg,
        M::Xadd => alu::xadd,
        M::Cmpxchg => alu::cmpxchg,
        M::Cmpxchg8b => alu::cmpxchg8b,
        M::Cmpxchg16b => alu::cmpxchg16b,
        M::Adcx => alu::adcx,
        M::Adox => alu::adox,
        M::Lahf => alu::lahf,
        M::Sahf => alu::sahf,
        M::Clc => alu::clc,
        M::Stc => alu::stc,
        M::Cmc => alu::cmc,
        M::Cld => alu::cld,
        M::Std => alu::std,
        M::Mul => muldiv::mul,
        M::Imul => muldiv::imul,
        M::Mulx => muldiv::mulx,
        M::Div => muldiv::div,
        M::Idiv => muldiv::idiv,
        _ => return None,
    })
}

fn bit_group(m: M) -> Option<crate::insn::Exec> {
    Some(match m {
        M::Shl | M::Sal => shift::shl,
        M::Shr => shift::shr,
        M::Sar => shift::sar,
        M::Rol => shift::rol,
        M::Ror => shift::ror,
        M::Rcl => shift::rcl,
        M::Rcr => shift::rcr,
        M::Shld => shift::shld,
        M::Shrd => shift::shrd,
        M::Shlx => shift::shlx,
        M::Shrx => shift::shrx,
        M::Sarx => shift::sarx,
        M::Rorx => shift::rorx,
        M::Bt => bits::bt,
        M::Bts => bits::bts,
        M::Btr => bits::btr,
        M::Btc => bits::btc,
        M::Bsf => bits::bsf,
        M::Bsr => bits::bsr,
        M::Tzcnt => bits::tzcnt,
        M::Lzcnt => bits::lzcnt,
        M::Popcnt => bits::popcnt,
        M::Andn => bits::andn,
        M::Bextr => bits::bextr,
        M::Blsi => bits::blsi,
        M::Blsmsk => bits::blsmsk,
        M::Blsr => bits::blsr,
        M::Bzhi => bits::bzhi,
        M::Pdep => bits::pdep,
        M::Pext => bits::pext,
        M::Crc32 => bits::crc32,
        M::Bswap => bits::bswap,
        M::Movbe => bits::movbe,
        _ => return None,
    })
}

fn is_string(iced: &Instruction) -> bool {
    iced.is_string_instruction()
}

fn moves(iced: &Instruction, m: M, insn: &mut Insn) -> Option<crate::insn::Exec> {
    let run: crate::insn::Exec = match m {
        M::Mov => match (insn.a, insn.b) {
            (Opd::Cr(_), _) => end(insn, system::mov_to_control),
            (_, Opd::Cr(_)) => system::mov_from_control,
            (Opd::Dr(_), _) => end(insn, system::mov_to_debug),
            (_, Opd::Dr(_)) => system::mov_from_debug,
            (Opd::Seg(_), _) => end(insn, segment::mov_to),
            (_, Opd::Seg(_)) => segment::mov_from,
            _ => transfer::mov,
        },
        M::Movnti => transfer::mov,
        M::Movzx => transfer::movzx,
        M::Movsx | M::Movsxd => transfer::movsx,
        M::Lea => transfer::lea,
        M::Xlatb => {
            insn.addr32 = matches!(iced.memory_base(), Register::EBX);
            transfer::xlat
        }
        M::Cmova
        | M::Cmovae
        | M::Cmovb
        | M::Cmovbe
        | M::Cmove
        | M::Cmovg
        | M::Cmovge
        | M::Cmovl
        | M::Cmovle
        | M::Cmovne
        | M::Cmovno
        | M::Cmovnp
        | M::Cmovns
        | M::Cmovo
        | M::Cmovp
        | M::Cmovs => transfer::cmov,
        M::Seta
        | M::Setae
        | M::Setb
        | M::Setbe
        | M::Sete
        | M::Setg
        | M::Setge
        | M::Setl
        | M::Setle
        | M::Setne
        | M::Setno
        | M::Setnp
        | M::Setns
        | M::Seto
        | M::Setp
        | M::Sets => transfer::setcc,
        M::Cbw => sized(insn, 2, muldiv::extend_accumulator),
        M::Cwde => sized(insn, 4, muldiv::extend_accumulator),
        M::Cdqe => sized(insn, 8, muldiv::extend_accumulator),
        M::Cwd => sized(insn, 2, muldiv::sign_to_data),
        M::Cdq => sized(insn, 4, muldiv::sign_to_data),
        M::Cqo => sized(insn, 8, muldiv::sign_to_data),
        M::Movsb | M::Movsw | M::Movsq => string::movs,
        M::Movsd if is_string(iced) => string::movs,
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => string::stos,
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => {
            insn.size = insn.src_size;
            string::lods
        }
        M::Cmpsb | M::Cmpsw | M::Cmpsq => string::cmps,
        M::Cmpsd if is_string(iced) => string::cmps,
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => {
            insn.size = insn.src_size;
            string::scas
        }
        M::Push => {
            insn.size = match iced.code() {
                Code::Push_r16 | Code::Push_rm16 | Code::Push_imm16 | Code::Pushw_imm8 => 2,
                Code::Pushw_FS | Code::Pushw_GS => 2,
                _ => 8,
            };
            stack::push
        }
        M::Pop => {
            insn.size = match iced.code() {
                Code::Pop_r16 | Code::Pop_rm16 | Code::Popw_FS | Code::Popw_GS => 2,
                _ => 8,
            };
            insn.ends = matches!(insn.a, Opd::Seg(_));
            stack::pop
        }
        M::Pushf => sized(insn, 2, stack::pushf),
        M::Pushfq => sized(insn, 8, stack::pushf),
        M::Popf => end(insn, stack::popf).and_size(insn, 2),
        M::Popfq => end(insn, stack::popf).and_size(insn, 8),
        M::Enter => {
            insn.size = if iced.code() == Code::Enterw_imm16_imm8 { 2 } else { 8 };
            insn.imm2 = iced.immediate8_2nd();
            stack::enter
        }
        M::Leave => {
            insn.size = if iced.code() == Code::Leavew { 2 } else { 8 };
            stack::leave
        }
        M::Nop
        | M::Endbr64
        | M::Endbr32
        | M::Pause
        | M::Reservednop
        | M::Prefetch
        | M::Prefetchw
        | M::Prefetchwt1
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2
        | M::Prefetchnta
        | M::Lfence
        | M::Sfence
        | M::Mfence => super::nop,
        M::Rdfsbase => transfer::rdfsbase,
        M::Rdgsbase => transfer::rdgsbase,
        M::Wrfsbase => transfer::wrfsbase,
        M::Wrgsbase => transfer::wrgsbase,
        M::Wait => fpu::wait,
        _ => return None,
    };
    Some(run)
}

fn sized(insn: &mut Insn, size: u8, run: crate::insn::Exec) -> crate::insn::Exec {
    insn.size = size;
    run
}

/// An instruction after which the main loop must look at the CPU.
fn end(insn: &mut Insn, run: crate::insn::Exec) -> crate::insn::Exec {
    insn.ends = true;
    run
}

trait AndSize {
    fn and_size(self, insn: &mut Insn, size: u8) -> Self;
}

impl AndSize for crate::insn::Exec {
    fn and_size(self, insn: &mut Insn, size: u8) -> Self {
        insn.size = size;
        self
    }
}

fn is_near(iced: &Instruction) -> bool {
    matches!(
        iced.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 | OpKind::Register
    ) || iced.is_jmp_near_indirect()
        || iced.is_call_near_indirect()
}

fn control(iced: &Instruction, m: M, insn: &mut Insn) -> Option<crate::insn::Exec> {
    if iced.is_jcc_short_or_near() {
        return Some(branch::jcc);
    }
    let run: crate::insn::Exec = match m {
        M::Jmp if is_near(iced) => branch::jmp,
        M::Call if is_near(iced) => branch::call,
        M::Jmp | M::Call => {
            insn.imm2 = u8::from(m == M::Call);
            // The memory operand is offset and selector.
            insn.size = match iced.code() {
                Code::Jmp_m1616 | Code::Call_m1616 => 2,
                Code::Jmp_m1632 | Code::Call_m1632 => 4,
                _ => 8,
            };
            segment::far_jump
        }
        M::Ret => branch::ret,
        M::Retf => {
            insn.size = match iced.code() {
                Code::Retfw | Code::Retfw_imm16 => 2,
                Code::Retfd | Code::Retfd_imm16 => 4,
                _ => 8,
            };
            segment::far_return
        }
        M::Loop | M::Loope | M::Loopne => {
            insn.imm2 = match m {
                M::Loope => 1,
                M::Loopne => 2,
                _ => 0,
            };
            insn.addr32 = matches!(
                iced.code(),
                Code::Loop_rel8_64_ECX | Code::Loope_rel8_64_ECX | Code::Loopne_rel8_64_ECX
            );
            branch::count_loop
        }
        M::Jrcxz => branch::jrcxz,
        M::Jecxz => {
            insn.addr32 = true;
            branch::jrcxz
        }
        M::Int | M::Int3 | M::Int1 => end(insn, system::int),
        M::Syscall => end(insn, system::syscall),
        M::Sysretq => end(insn, system::sysret).and_size(insn, 8),
        M::Sysret => end(insn, system::sysret).and_size(insn, 4),
        M::Sysenter => end(insn, system::sysenter),
        M::Sysexitq => end(insn, system::sysexit).and_size(insn, 8),
        M::Sysexit => end(insn, system::sysexit).and_size(insn, 4),
        M::Iretq => end(insn, system::iret).and_size(insn, 8),
        M::Iretd => end(insn, system::iret).and_size(insn, 4),
        M::Iret => end(insn, system::iret).and_size(insn, 2),
        _ => return None,
    };
    Some(run)
}

fn privileged(iced: &Instruction, m: M, insn: &mut Insn) -> Option<crate::insn::Exec> {
    let run: crate::insn::Exec = match m {
        M::In => {
            insn.size = iced.op0_register().size() as u8;
            end(insn, io::input)
        }
        M::Out => {
            insn.src_size = iced.op1_register().size() as u8;
            end(insn, io::output)
        }
        M::Insb | M::Insw | M::Insd => end(insn, io::ins),
        M::Outsb | M::Outsw | M::Outsd => {
            insn.size = insn.src_size;
            end(insn, io::outs)
        }
        M::Cli => stack::cli,
        M::Sti => end(insn, stack::sti),
        M::Hlt => end(insn, system::hlt),
        M::Swapgs => system::swapgs,
        M::Invlpg => end(insn, system::invlpg),
        M::Invd | M::Wbinvd => system::cache,
        M::Clflush | M::Clflushopt | M::Clwb => system::clflush,
        M::Clts => system::clts,
        M::Smsw => system::smsw,
        M::Lmsw => end(insn, system::lmsw),
        M::Cpuid => system::cpuid,
        M::Rdtsc | M::Rdtscp => system::rdtsc,
        M::Rdpid => system::rdpid,
        M::Rdpmc => system::rdpmc,
        M::Rdmsr => system::rdmsr,
        M::Wrmsr => end(insn, system::wrmsr),
        M::Lgdt => segment::lgdt,
        M::Lidt => segment::lidt,
        M::Sgdt => segment::sgdt,
        M::Sidt => segment::sidt,
        M::Lldt => segment::lldt,
        M::Ltr => segment::ltr,
        M::Sldt => segment::sldt,
        M::Str => segment::str_,
        M::Lar => segment::lar,
        M::Lsl => segment::lsl,
        M::Verr => segment::verr,
        M::Verw => segment::verw,
        M::Lss | M::Lfs | M::Lgs => {
            insn.imm2 = match m {
                M::Lss => 2,
                M::Lfs => 4,
                _ => 5,
            };
            end(insn, segment::load_far)
        }
        _ => return None,
    };
    Some(run)
}
