//! Completeness of the table.

use iced_x86::{Code, CpuidFeature, Instruction};

use crate::fp::{FpClass, MemAccess, lookup};

/// Why an encoding of these features has no entry here.
fn reason(code: Code) -> Option<&'static str> {
    use Code::*;
    Some(match code {
        Prefetchnta_m8 | Prefetcht0_m8 | Prefetcht1_m8 | Prefetcht2_m8 => "a hint, done by the core",
        Lfence | Lfence_E9 | Lfence_EA | Lfence_EB | Lfence_EC | Lfence_ED | Lfence_EE | Lfence_EF
        | Mfence | Mfence_F1 | Mfence_F2 | Mfence_F3 | Mfence_F4 | Mfence_F5 | Mfence_F6 | Mfence_F7
        | Sfence | Sfence_F9 | Sfence_FA | Sfence_FB | Sfence_FC | Sfence_FD | Sfence_FE | Sfence_FF => {
            "a fence, done by the core"
        }
        Movnti_m32_r32 | Movnti_m64_r64 => "a store of a general register, done by the core",
        Fstenv_m14byte | Fstenv_m28byte | Fstcw_m2byte | Feni | Fdisi | Fclex | Finit | Fsetpm
        | Fsave_m94byte | Fsave_m108byte | Fstsw_m2byte | Fstsw_AX => {
            "the decoder gives WAIT and the form without wait"
        }
        _ => return None,
    })
}

#[test]
fn every_encoding_of_the_model_has_an_entry_or_a_reason() {
    use CpuidFeature::*;
    let ours = [FPU, FPU287, FPU387, MMX, SSE, SSE2, SSE3, SSSE3, SSE4_1, SSE4_2, FXSR];
    let mut count = 0;
    let mut missing = Vec::new();
    for code in Code::values() {
        let op_code = code.op_code();
        let legacy = matches!(op_code.encoding(), iced_x86::EncodingKind::Legacy);
        if !op_code.mode64() || !legacy || !code.cpuid_features().iter().any(|feature| ours.contains(feature))
        {
            continue;
        }
        let mut insn = Instruction::default();
        insn.set_code(code);
        match (lookup(&insn), reason(code)) {
            (Some(_), None) => count += 1,
            (None, Some(_)) => {}
            (Some(_), Some(reason)) => missing.push(format!("{code:?}: has an entry in spite of: {reason}")),
            (None, None) => missing.push(format!("{code:?}: no entry")),
        }
    }
    println!("{count} codes have an entry");
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(count > 500);
}

/// The size of each memory operand is what iced says of it, and alignment is demanded as the SDM has it.
#[test]
fn memory_operands_have_their_sizes() {
    let mut wrong = Vec::new();
    for (_, insn, entry) in super::encodings::encodings() {
        let size = insn.memory_size().size();
        let is_memory =
            insn.op_kind(0) == iced_x86::OpKind::Memory || insn.op_kind(1) == iced_x86::OpKind::Memory;
        if is_memory && size != usize::from(entry.mem_len) {
            wrong.push(format!("{:?}: {} bytes, iced says {size}", insn.code(), entry.mem_len));
        }
        if is_memory && entry.mem_access == MemAccess::None {
            wrong.push(format!("{:?}: no memory access", insn.code()));
        }
        let unaligned = matches!(
            insn.code(),
            Code::Movups_xmm_xmmm128
                | Code::Movups_xmmm128_xmm
                | Code::Movupd_xmm_xmmm128
                | Code::Movupd_xmmm128_xmm
                | Code::Movdqu_xmm_xmmm128
                | Code::Movdqu_xmmm128_xmm
                | Code::Lddqu_xmm_m128
                | Code::Pcmpestri_xmm_xmmm128_imm8
                | Code::Pcmpestri64_xmm_xmmm128_imm8
                | Code::Pcmpestrm_xmm_xmmm128_imm8
                | Code::Pcmpestrm64_xmm_xmmm128_imm8
                | Code::Pcmpistri_xmm_xmmm128_imm8
                | Code::Pcmpistrm_xmm_xmmm128_imm8
        );
        let aligned = match entry.class {
            FpClass::Sse | FpClass::Mmx => size == 16 && !unaligned,
            FpClass::Fxsave => true,
            FpClass::X87 | FpClass::General => false,
        };
        if is_memory && (entry.align == 16) != aligned {
            wrong.push(format!("{:?}: alignment {}", insn.code(), entry.align));
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
