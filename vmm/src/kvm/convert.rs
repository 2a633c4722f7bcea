//! [`CpuState`] to and from KVM's structures.

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_SHADOW, Msrs, kvm_debugregs, kvm_dtable, kvm_msr_entry, kvm_regs, kvm_segment,
    kvm_sregs, kvm_vcpu_events, kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use soft_cpu::state::{DescriptorTable, Segment};

use super::host;
use crate::engine::{CpuState, EngineError};

/// Model-specific registers of the model (Intel SDM vol. 4).
mod msr {
    pub(super) const SYSENTER_CS: u32 = 0x174;
    pub(super) const SYSENTER_ESP: u32 = 0x175;
    pub(super) const SYSENTER_EIP: u32 = 0x176;
    pub(super) const MISC_ENABLE: u32 = 0x1a0;
    pub(super) const PAT: u32 = 0x277;
    pub(super) const MTRR_DEF_TYPE: u32 = 0x2ff;
    pub(super) const STAR: u32 = 0xc000_0081;
    pub(super) const LSTAR: u32 = 0xc000_0082;
    pub(super) const CSTAR: u32 = 0xc000_0083;
    pub(super) const SFMASK: u32 = 0xc000_0084;
    pub(super) const KERNEL_GS_BASE: u32 = 0xc000_0102;
    pub(super) const TSC_AUX: u32 = 0xc000_0103;
    /// KVM says "CPUID faulting" here unless told otherwise; the model has none.
    pub(super) const PLATFORM_INFO: u32 = 0xce;
}

/// The registers captured, in this order.
const CAPTURED: [u32; 12] = [
    msr::SYSENTER_CS,
    msr::SYSENTER_ESP,
    msr::SYSENTER_EIP,
    msr::MISC_ENABLE,
    msr::PAT,
    msr::MTRR_DEF_TYPE,
    msr::STAR,
    msr::LSTAR,
    msr::CSTAR,
    msr::SFMASK,
    msr::KERNEL_GS_BASE,
    msr::TSC_AUX,
];

fn entry(index: u32, data: u64) -> kvm_msr_entry {
    kvm_msr_entry { index, data, ..Default::default() }
}

fn msrs(entries: &[kvm_msr_entry]) -> Result<Msrs, EngineError> {
    Msrs::from_entries(entries).map_err(|_| EngineError::Unusable { reason: "too many MSRs".into() })
}

/// All but the x87 and SSE state.
pub(super) fn get_integer(vcpu: &VcpuFd) -> Result<CpuState, EngineError> {
    let regs = vcpu.get_regs().map_err(host("KVM_GET_REGS"))?;
    let sregs = vcpu.get_sregs().map_err(host("KVM_GET_SREGS"))?;
    let debug = vcpu.get_debug_regs().map_err(host("KVM_GET_DEBUGREGS"))?;
    let events = vcpu.get_vcpu_events().map_err(host("KVM_GET_VCPU_EVENTS"))?;
    let mut values = msrs(&CAPTURED.map(|index| entry(index, 0)))?;
    let count = vcpu.get_msrs(&mut values).map_err(host("KVM_GET_MSRS"))?;
    if count != CAPTURED.len() {
        return Err(EngineError::Unusable {
            reason: format!("KVM does not know MSR {:#x}", CAPTURED[count]),
        });
    }
    let value = |index: u32| values.as_slice().iter().find(|e| e.index == index).map_or(0, |e| e.data);
    Ok(CpuState {
        gpr: [
            regs.rax, regs.rcx, regs.rdx, regs.rbx, regs.rsp, regs.rbp, regs.rsi, regs.rdi, regs.r8, regs.r9,
            regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
        ],
        rip: regs.rip,
        rflags: regs.rflags,
        es: segment(&sregs.es),
        cs: segment(&sregs.cs),
        ss: segment(&sregs.ss),
        ds: segment(&sregs.ds),
        fs: segment(&sregs.fs),
        gs: segment(&sregs.gs),
        ldtr: segment(&sregs.ldt),
        tr: segment(&sregs.tr),
        gdtr: DescriptorTable { base: sregs.gdt.base, limit: sregs.gdt.limit },
        idtr: DescriptorTable { base: sregs.idt.base, limit: sregs.idt.limit },
        cr0: sregs.cr0,
        cr2: sregs.cr2,
        cr3: sregs.cr3,
        cr4: sregs.cr4,
        cr8: sregs.cr8,
        efer: sregs.efer,
        star: value(msr::STAR),
        lstar: value(msr::LSTAR),
        cstar: value(msr::CSTAR),
        sfmask: value(msr::SFMASK),
        kernel_gs_base: value(msr::KERNEL_GS_BASE),
        sysenter_cs: value(msr::SYSENTER_CS),
        sysenter_esp: value(msr::SYSENTER_ESP),
        sysenter_eip: value(msr::SYSENTER_EIP),
        pat: value(msr::PAT),
        tsc_aux: value(msr::TSC_AUX),
        misc_enable: value(msr::MISC_ENABLE),
        mtrr_def_type: value(msr::MTRR_DEF_TYPE),
        dr: debug.db,
        dr6: debug.dr6,
        dr7: debug.dr7,
        interrupt_shadow: events.interrupt.shadow != 0,
        ..CpuState::default()
    })
}

pub(super) fn get(vcpu: &VcpuFd) -> Result<CpuState, EngineError> {
    let mut state = get_integer(vcpu)?;
    let xsave = vcpu.get_xsave().map_err(host("KVM_GET_XSAVE"))?;
    let bytes: &[u8] = bytemuck::cast_slice(&xsave.region);
    get_fpu(bytes, &mut state);
    Ok(state)
}

pub(super) fn set(vcpu: &mut VcpuFd, state: &CpuState) -> Result<(), EngineError> {
    vcpu.set_sregs(&sregs_of(state)).map_err(host("KVM_SET_SREGS"))?;
    // Without an in-kernel APIC, KVM_RUN loads CR8 from here.
    vcpu.get_kvm_run().cr8 = state.cr8;
    let mut values = Vec::from(CAPTURED.map(|index| entry(index, msr_of(state, index))));
    values.push(entry(msr::PLATFORM_INFO, 0));
    let wanted = values.len();
    let count = vcpu.set_msrs(&msrs(&values)?).map_err(host("KVM_SET_MSRS"))?;
    if count != wanted {
        let entry = values[count];
        return Err(EngineError::Unusable {
            reason: format!("KVM does not take the value {:#x} for MSR {:#x}", entry.data, entry.index),
        });
    }
    let debug = kvm_debugregs { db: state.dr, dr6: state.dr6, dr7: state.dr7, ..Default::default() };
    vcpu.set_debug_regs(&debug).map_err(host("KVM_SET_DEBUGREGS"))?;
    let mut xsave = kvm_xsave::default();
    set_fpu(bytemuck::cast_slice_mut(&mut xsave.region), state);
    // SAFETY: the guest has no feature with more state than the 4 KiB structure (no AMX is ever enabled).
    unsafe { vcpu.set_xsave(&xsave) }.map_err(host("KVM_SET_XSAVE"))?;
    vcpu.set_regs(&regs_of(state)).map_err(host("KVM_SET_REGS"))?;
    let mut events = kvm_vcpu_events { flags: KVM_VCPUEVENT_VALID_SHADOW, ..Default::default() };
    // KVM's flag for "after MOV SS": blocks interrupts and debug traps for one instruction.
    events.interrupt.shadow = u8::from(state.interrupt_shadow);
    vcpu.set_vcpu_events(&events).map_err(host("KVM_SET_VCPU_EVENTS"))
}

/// General registers, segments and control registers only: what a control transfer changes.
pub(super) fn set_integer(vcpu: &VcpuFd, state: &CpuState) -> Result<(), EngineError> {
    vcpu.set_sregs(&sregs_of(state)).map_err(host("KVM_SET_SREGS"))?;
    vcpu.set_regs(&regs_of(state)).map_err(host("KVM_SET_REGS"))
}

fn regs_of(state: &CpuState) -> kvm_regs {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    kvm_regs {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rsp,
        rbp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip: state.rip,
        rflags: state.rflags,
    }
}

fn sregs_of(state: &CpuState) -> kvm_sregs {
    kvm_sregs {
        es: kvm_segment_of(&state.es),
        cs: kvm_segment_of(&state.cs),
        ss: kvm_segment_of(&state.ss),
        ds: kvm_segment_of(&state.ds),
        fs: kvm_segment_of(&state.fs),
        gs: kvm_segment_of(&state.gs),
        ldt: kvm_segment_of(&state.ldtr),
        tr: kvm_segment_of(&state.tr),
        gdt: kvm_dtable { base: state.gdtr.base, limit: state.gdtr.limit, ..Default::default() },
        idt: kvm_dtable { base: state.idtr.base, limit: state.idtr.limit, ..Default::default() },
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        cr8: state.cr8,
        efer: state.efer,
        // The APIC is off (bit 11 clear): KVM derives the CPUID bit from it, and its page is not there.
        apic_base: 0xfee0_0100,
        interrupt_bitmap: [0; 4],
    }
}

fn msr_of(state: &CpuState, index: u32) -> u64 {
    match index {
        msr::SYSENTER_CS => state.sysenter_cs,
        msr::SYSENTER_ESP => state.sysenter_esp,
        msr::SYSENTER_EIP => state.sysenter_eip,
        msr::MISC_ENABLE => state.misc_enable,
        msr::PAT => state.pat,
        msr::MTRR_DEF_TYPE => state.mtrr_def_type,
        msr::STAR => state.star,
        msr::LSTAR => state.lstar,
        msr::CSTAR => state.cstar,
        msr::SFMASK => state.sfmask,
        msr::KERNEL_GS_BASE => state.kernel_gs_base,
        msr::TSC_AUX => state.tsc_aux,
        _ => 0,
    }
}

fn segment(s: &kvm_segment) -> Segment {
    let bit = |value: u8, at: u16| u16::from(value & 1) << at;
    if s.unusable != 0 {
        // VMX keeps the attributes of such a segment, SVM drops some: neither matters.
        let (selector, base, limit) = (s.selector, s.base, s.limit);
        return Segment { selector, base, limit, attributes: 0, unusable: true };
    }
    Segment {
        selector: s.selector,
        base: s.base,
        limit: s.limit,
        attributes: u16::from(s.type_ & 15)
            | bit(s.s, 4)
            | u16::from(s.dpl & 3) << 5
            | bit(s.present, 7)
            | bit(s.avl, 8)
            | bit(s.l, 9)
            | bit(s.db, 10)
            | bit(s.g, 11),
        unusable: false,
    }
}

fn kvm_segment_of(s: &Segment) -> kvm_segment {
    let bit = |at: u16| (s.attributes >> at & 1) as u8;
    kvm_segment {
        base: s.base,
        limit: s.limit,
        selector: s.selector,
        type_: (s.attributes & 15) as u8,
        present: bit(7),
        dpl: (s.attributes >> 5 & 3) as u8,
        db: bit(10),
        s: bit(4),
        l: bit(9),
        g: bit(11),
        avl: bit(8),
        unusable: u8::from(s.unusable),
        padding: 0,
    }
}

/// Offsets in the FXSAVE area (Intel SDM vol. 1, 10.5.1), and of XSTATE_BV in the XSAVE header behind it.
mod fx {
    pub(super) const FCW: usize = 0;
    pub(super) const FSW: usize = 2;
    pub(super) const FTW: usize = 4;
    pub(super) const MXCSR: usize = 24;
    pub(super) const MXCSR_MASK: usize = 28;
    pub(super) const ST: usize = 32;
    pub(super) const XMM: usize = 160;
    pub(super) const XSTATE_BV: usize = 512;
}

fn get_fpu(area: &[u8], state: &mut CpuState) {
    let word = |at: usize| u16::from_le_bytes([area[at], area[at + 1]]);
    state.fcw = word(fx::FCW);
    state.fsw = word(fx::FSW);
    state.mxcsr = u32::from(word(fx::MXCSR)) | u32::from(word(fx::MXCSR + 2)) << 16;
    let top = usize::from(state.fsw >> 11 & 7);
    state.ftw = 0;
    for physical in 0..8usize {
        let at = fx::ST + 16 * (physical.wrapping_sub(top) & 7);
        let value = &mut state.x87[physical];
        value[..10].copy_from_slice(&area[at..at + 10]);
        let tag = if area[fx::FTW] >> physical & 1 == 0 { 3 } else { tag_of(value) };
        state.ftw |= tag << (2 * physical);
    }
    for (i, xmm) in state.xmm.iter_mut().enumerate() {
        let at = fx::XMM + 16 * i;
        *xmm = std::array::from_fn(|half| {
            u64::from_le_bytes(std::array::from_fn(|byte| area[at + 8 * half + byte]))
        });
    }
}

fn set_fpu(area: &mut [u8], state: &CpuState) {
    let mut put = |at: usize, bytes: &[u8]| area[at..at + bytes.len()].copy_from_slice(bytes);
    put(fx::FCW, &state.fcw.to_le_bytes());
    put(fx::FSW, &state.fsw.to_le_bytes());
    put(fx::MXCSR, &state.mxcsr.to_le_bytes());
    put(fx::MXCSR_MASK, &0xffffu32.to_le_bytes());
    let top = usize::from(state.fsw >> 11 & 7);
    let mut valid = 0u8;
    for physical in 0..8usize {
        put(fx::ST + 16 * (physical.wrapping_sub(top) & 7), &state.x87[physical][..10]);
        if state.ftw >> (2 * physical) & 3 != 3 {
            valid |= 1 << physical;
        }
    }
    put(fx::FTW, &[valid]);
    for (i, xmm) in state.xmm.iter().enumerate() {
        put(fx::XMM + 16 * i, &xmm[0].to_le_bytes());
        put(fx::XMM + 16 * i + 8, &xmm[1].to_le_bytes());
    }
    // x87 and SSE state are both present.
    put(fx::XSTATE_BV, &3u64.to_le_bytes());
}

/// Tag of a register that is not empty: 0 valid, 1 zero, 2 special (Intel SDM vol. 1, 8.1.7).
fn tag_of(value: &[u8; 16]) -> u16 {
    let exponent = u16::from_le_bytes([value[8], value[9]]) & 0x7fff;
    let mantissa = u64::from_le_bytes(std::array::from_fn(|i| value[i]));
    match (exponent, mantissa >> 63) {
        (0, _) if mantissa == 0 => 1,
        (0, _) | (0x7fff, _) | (_, 0) => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fpu_survives_a_round_trip() {
        let mut state = CpuState { fsw: 5 << 11, fcw: 0x27f, mxcsr: 0x1fa0, ..CpuState::default() };
        for (i, xmm) in state.xmm.iter_mut().enumerate() {
            *xmm = [i as u64, !(i as u64)];
        }
        // R5 = 1.0, R6 = 0, R7 = infinity, the others empty.
        state.x87[5][7..10].copy_from_slice(&[0x80, 0xff, 0x3f]);
        state.x87[7][7..10].copy_from_slice(&[0x80, 0xff, 0x7f]);
        state.ftw = 0b10_01_00_11_11_11_11_11;
        let mut area = [0u8; 4096];
        set_fpu(&mut area, &state);
        let mut back = CpuState::default();
        get_fpu(&area, &mut back);
        assert_eq!(back, state);
        assert_eq!(area[fx::ST..fx::ST + 10], state.x87[5][..10], "ST0 is the register at TOP");
    }

    #[test]
    fn segments_survive_a_round_trip() {
        let s = Segment { selector: 0x33, base: 7, limit: u32::MAX, attributes: 0xafb, unusable: false };
        assert_eq!(segment(&kvm_segment_of(&s)), s);
    }
}
