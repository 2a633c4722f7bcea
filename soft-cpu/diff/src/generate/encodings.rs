//! Which encodings are tested: every one that 64-bit user mode of the model `rewind-v2` can execute, less the
//! ones listed here with a reason.

use iced_x86::{Code, CpuidFeature as F, Mnemonic as M, OpCodeOperandKind as K};

/// Is the feature in the model, or hidden from CPUID but executed (`BMI`, `ADX`, `MOVBE`, ...)?
fn in_model(feature: F) -> bool {
    matches!(
        feature,
        F::INTEL8086
            | F::INTEL186
            | F::INTEL286
            | F::INTEL386
            | F::INTEL486
            | F::X64
            | F::FPU
            | F::FPU287
            | F::FPU387
            | F::CMOV
            | F::CX8
            | F::CMPXCHG16B
            | F::CPUID
            | F::MSR
            | F::RDPMC
            | F::RDTSCP
            | F::TSC
            | F::SYSCALL
            | F::SEP
            | F::FXSR
            | F::MMX
            | F::SSE
            | F::SSE2
            | F::SSE3
            | F::SSSE3
            | F::SSE4_1
            | F::SSE4_2
            | F::POPCNT
            | F::PREFETCHW
            | F::CLFSH
            | F::FSGSBASE
            | F::MULTIBYTENOP
            | F::PAUSE
            | F::CET_IBT
    ) || hidden(feature)
}

/// Not in CPUID, but the hardware has no way to refuse them.
fn hidden(feature: F) -> bool {
    matches!(feature, F::BMI1 | F::BMI2 | F::LZCNT | F::ADX | F::MOVBE | F::CLFLUSHOPT | F::CLWB)
}

/// Has this host what a hidden encoding needs?
fn host_has(feature: F) -> bool {
    match feature {
        F::BMI1 => is_x86_feature_detected!("bmi1"),
        F::BMI2 => is_x86_feature_detected!("bmi2"),
        F::LZCNT => is_x86_feature_detected!("lzcnt"),
        F::ADX => is_x86_feature_detected!("adx"),
        F::MOVBE => is_x86_feature_detected!("movbe"),
        // Leaf 7 EBX bits 23 and 24; the detection macro does not know them.
        F::CLFLUSHOPT => std::arch::x86_64::__cpuid_count(7, 0).ebx & (1 << 23) != 0,
        F::CLWB => std::arch::x86_64::__cpuid_count(7, 0).ebx & (1 << 24) != 0,
        _ => true,
    }
}

/// Why an encoding of the model is not compared with the host in user mode; `None` if it is.
pub fn excluded(code: Code) -> Option<&'static str> {
    let reason = match code.mnemonic() {
        M::Syscall | M::Sysenter => "enters the host's kernel",
        M::Int => "enters the host's kernel; INT3 is compared",
        M::Int1 => "the host's debugger sees it; in the micro-guests",
        M::Cpuid => "the host's CPUID",
        M::Rdtsc | M::Rdtscp => "the host's time",
        M::Sgdt | M::Sidt | M::Sldt | M::Smsw | M::Str => {
            "the host's tables, or its kernel's emulation (UMIP)"
        }
        M::Lar | M::Lsl | M::Verr | M::Verw => "depends on the host's descriptor tables; in the micro-guests",
        M::Lfs | M::Lgs | M::Lss => "loads a segment; in the micro-guests",
        M::Iret | M::Iretd | M::Iretq | M::Retf => "loads CS; in the micro-guests",
        M::Call | M::Jmp if is_far(code) => "loads CS; in the micro-guests",
        M::Pop if matches!(code, Code::Popq_FS | Code::Popq_GS | Code::Popw_FS | Code::Popw_GS) => {
            "loads a segment; in the micro-guests"
        }
        M::Mov if matches!(code, Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16) => {
            "loads a segment; in the micro-guests"
        }
        M::Prefetchwt1 => "not in the model",
        M::Xbegin | M::Xabort => "not in the model",
        _ if !code.cpuid_features().iter().all(|&f| host_has(f)) => "this host does not have it",
        _ => return None,
    };
    Some(reason)
}

fn is_far(code: Code) -> bool {
    code.is_jmp_far() || code.is_call_far() || code.is_jmp_far_indirect() || code.is_call_far_indirect()
}

/// Is `code` an encoding of the model in 64-bit mode, tested or excluded?
pub fn is_in_model(code: Code) -> bool {
    let op = code.op_code();
    op.is_instruction()
        && op.mode64()
        && !matches!(code, Code::INVALID | Code::DeclareByte | Code::DeclareWord | Code::DeclareDword)
        && code.cpuid_features().iter().all(|&f| in_model(f))
        // AMD's 64-bit mode takes the 66 prefix of near branches; the model is Intel's, which ignores it.
        && op.intel_decoder64()
        // Needs an option of the decoder: not in today's 64-bit mode.
        && op.decoder_option() == 0
        // FWAIT and the next instruction under one name.
        && !matches!(
            code.mnemonic(),
            M::Fstenv | M::Fsave | M::Fstcw | M::Fstsw | M::Fclex | M::Finit | M::Fdisi | M::Feni | M::Fsetpm
        )
        && !op.op_kinds().iter().any(|&k| matches!(k, K::tr_reg | K::bnd_reg))
}

/// The encodings tested.
pub fn tested() -> Vec<Code> {
    Code::values().filter(|&c| is_in_model(c) && excluded(c).is_none()).collect()
}

/// The encodings of the model not tested, with the reason.
pub fn not_tested() -> Vec<(Code, &'static str)> {
    Code::values().filter(|&c| is_in_model(c)).filter_map(|c| Some((c, excluded(c)?))).collect()
}
