//! Exact counts of user instructions by single-stepping.
//!
//! KVM steps by setting the guest's TF, which leaks: PUSHF stores it, exceptions push it, SYSCALL puts it in R11,
//! IRET and SYSRET load another. So SYSCALL and the two returns to user mode are done here, PUSHF is patched up
//! afterwards, and every exception handler of the guest begins with an OUT while user mode is stepped: an exception
//! exits there, and TF is taken out of the frame it pushed. (An INT3 would do on hardware, but QEMU's emulation of
//! SVM does not intercept it, and every KVM exits on OUT.) (Intel SDM vol. 3B, 18.3.1.4; vol. 2,
//! SYSCALL, SYSRET, IRET.)

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use kvm_bindings::{KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, kvm_guest_debug};

use super::{KvmEngine, Return, host};
use crate::{
    address::Gpa,
    engine::{CpuState, EngineError, Exit},
    memory::PAGE,
};
use soft_cpu::state::{Segment, gpr};

const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;
/// RFLAGS bits that IRET and SYSRET to user mode load (no VM, VIF, VIP).
const LOADED: u64 = 0x24_7fd5 | RF;
/// Vectors that push an error code (Intel SDM vol. 3A, table 6-1).
const WITH_ERROR_CODE: [u8; 8] = [8, 10, 11, 12, 13, 14, 17, 21];
/// `out 0xed, al`: a port that neither the platform nor a PC has.
const OUT: [u8; 2] = [0xe6, GUARD_PORT as u8];
const GUARD_PORT: u16 = 0xed;

/// An OUT over the first two bytes of an exception handler.
struct Guard {
    vector: u8,
    handler: u64,
    at: Gpa,
    original: [u8; 2],
}

/// What one step did.
enum Step {
    /// One instruction retired and user mode goes on (or a REP goes on: `false`).
    Retired(u64),
    /// The kernel was entered by an instruction that retired (`true`) or by a fault.
    Entered(bool),
    /// Kernel code moved on.
    Kernel,
    /// Something the caller must see.
    Exit(Return),
}

impl KvmEngine {
    /// Runs until `limit` user instructions have retired, or user mode is left, or an exit.
    pub(super) fn run_user(&mut self, limit: u64) -> Result<Exit, EngineError> {
        self.finish()?;
        let guards = self.place_guards()?;
        let result = self.step_loop(limit, &guards);
        for guard in guards.iter().rev() {
            self.memory.write(guard.at, &guard.original).map_err(unusable)?;
        }
        self.debug(0)?;
        result
    }

    fn step_loop(&mut self, limit: u64, guards: &[Guard]) -> Result<Exit, EngineError> {
        let mut retired = 0;
        while retired < limit {
            if self.kick.take() {
                return Ok(Exit::Interrupted);
            }
            let step = self.step(guards)?;
            let stepped_on = std::mem::take(&mut self.stepped_on);
            let hits = self.hits(stepped_on)?;
            match step {
                Step::Retired(count) => {
                    retired += count;
                    self.counters.user_instructions.0 += count;
                }
                Step::Entered(completed) => {
                    retired += u64::from(completed);
                    self.counters.user_instructions.0 += u64::from(completed);
                    if retired < limit {
                        return Ok(Exit::LeftUser);
                    }
                }
                Step::Kernel => {}
                Step::Exit(result) => {
                    // The exit is finished with stepping off.
                    self.debug(0)?;
                    if let Some(exit) = self.translate(result)? {
                        return Ok(exit);
                    }
                }
            }
            if !hits.is_empty() {
                return Ok(Exit::Watch(hits));
            }
        }
        Ok(Exit::Budget)
    }

    fn step(&mut self, guards: &[Guard]) -> Result<Step, EngineError> {
        // With stepping off, KVM shows the guest's own TF.
        self.debug(0)?;
        let regs = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?;
        let user = self.vcpu.get_sregs().map_err(host("KVM_GET_SREGS"))?.ss.dpl == 3;
        let instruction = self.decode(regs.rip);
        let own_tf = regs.rflags & TF != 0;
        match instruction.mnemonic() {
            Mnemonic::Syscall if user && !own_tf => return self.syscall(&instruction),
            Mnemonic::Sysretq | Mnemonic::Iretq if !user && self.return_to_user(&instruction)? => {
                return Ok(Step::Kernel);
            }
            _ => {}
        }
        // POPF may set the guest's own TF: the trap is then due after the next instruction.
        let sets_tf = matches!(instruction.code(), Code::Popfq | Code::Popfw)
            && self.read_virtual(regs.rsp).is_some_and(|image| image & TF != 0);
        let step_flag = if own_tf && user { 0 } else { KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP };
        self.debug(step_flag)?;
        let result = self.enter()?;
        match result {
            Return::Out { port: GUARD_PORT, .. } if user => {
                self.debug(0)?;
                self.unfinished = true;
                self.finish()?;
                let mut regs = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?;
                let handler = regs.rip.wrapping_sub(OUT.len() as u64);
                let guard = guards.iter().find(|g| g.handler == handler);
                let vector = guard.ok_or_else(|| unusable("an exception arrived at no handler"))?.vector;
                regs.rip = handler;
                self.vcpu.set_regs(&regs).map_err(host("KVM_SET_REGS"))?;
                if !own_tf {
                    self.clear_pushed_tf(WITH_ERROR_CODE.contains(&vector))?;
                }
                // Traps come after their instruction, faults before.
                let software =
                    matches!(instruction.mnemonic(), Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3);
                Ok(Step::Entered(matches!(vector, 1 | 3 | 4) || software && vector != 13))
            }
            Return::Debug { rip, dr6, .. } if dr6 & (1 << 14) != 0 => {
                self.debug(0)?;
                self.stepped_on = dr6 & super::DR6_HITS;
                if matches!(instruction.mnemonic(), Mnemonic::Pushfq | Mnemonic::Pushf) && !own_tf {
                    self.clear_top_tf()?;
                }
                if sets_tf {
                    let mut regs = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?;
                    regs.rflags |= TF;
                    self.vcpu.set_regs(&regs).map_err(host("KVM_SET_REGS"))?;
                }
                if !user {
                    return Ok(Step::Kernel);
                }
                if rip == regs.rip && (instruction.has_rep_prefix() || instruction.has_repne_prefix()) {
                    return Ok(Step::Retired(0));
                }
                // MOV SS and POP SS hold the trap back until the next instruction has retired too.
                let loads_ss = instruction.op0_register() == Register::SS
                    && matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Pop);
                Ok(Step::Retired(if loads_ss { 2 } else { 1 }))
            }
            Return::Interrupted => {
                self.vcpu.set_kvm_immediate_exit(0);
                Ok(Step::Kernel)
            }
            other => Ok(Step::Exit(other)),
        }
    }

    /// Sets KVM's debug control: stepping or not, and always the watches and breakpoints.
    pub(super) fn debug(&mut self, control: u32) -> Result<(), EngineError> {
        let control = if self.pieces.is_empty() {
            control
        } else {
            control | KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP
        };
        if control == 0 && self.debug_control == 0 {
            return Ok(());
        }
        self.debug_control = control;
        let mut debug = kvm_guest_debug { control, ..Default::default() };
        debug.arch.debugreg = self.pieces.registers();
        self.vcpu.set_guest_debug(&debug).map_err(host("KVM_SET_GUEST_DEBUG"))
    }

    /// SYSCALL as the CPU does it.
    fn syscall(&mut self, instruction: &Instruction) -> Result<Step, EngineError> {
        let mut state = self.cpu_now()?;
        state.gpr[gpr::RCX] = state.rip + instruction.len() as u64;
        state.gpr[gpr::R11] = state.rflags & !RF;
        state.rflags &= !(state.sfmask | RF);
        state.rip = state.lstar;
        let selector = (state.star >> 32) as u16 & !3;
        state.cs = Segment { selector, base: 0, limit: u32::MAX, attributes: 0xa9b, unusable: false };
        state.ss = Segment { selector: selector + 8, attributes: 0xc93, ..state.cs };
        self.place_cpu(&state)?;
        Ok(Step::Entered(true))
    }

    /// SYSRETQ or IRETQ to user mode. `false`: not one that is done here; let the CPU do it.
    fn return_to_user(&mut self, instruction: &Instruction) -> Result<bool, EngineError> {
        let mut state = self.cpu_now()?;
        let user_code = Segment { selector: 0, base: 0, limit: u32::MAX, attributes: 0xafb, unusable: false };
        if instruction.mnemonic() == Mnemonic::Sysretq {
            let selector = (state.star >> 48) as u16;
            state.rip = state.gpr[gpr::RCX];
            state.rflags = state.gpr[gpr::R11] & LOADED & !RF | 2;
            state.cs = Segment { selector: (selector + 16) | 3, ..user_code };
            state.ss = Segment { selector: (selector + 8) | 3, attributes: 0xcf3, ..user_code };
        } else {
            let frame = state.gpr[gpr::RSP];
            let mut word = [0; 5];
            for (i, word) in word.iter_mut().enumerate() {
                let Some(value) = self.read_virtual(frame.wrapping_add(8 * i as u64)) else {
                    return Ok(false);
                };
                *word = value;
            }
            let [rip, cs, rflags, rsp, ss] = word;
            if cs & 3 != 3 {
                return Ok(false);
            }
            let (Some(code), Some(data)) =
                (self.descriptor(&state, cs as u16), self.descriptor(&state, ss as u16))
            else {
                return Ok(false);
            };
            state.rip = rip;
            state.rflags = rflags & LOADED | 2;
            state.gpr[gpr::RSP] = rsp;
            (state.cs, state.ss) = (code, data);
        }
        let canonical = ((state.rip << 16) as i64 >> 16) as u64 == state.rip;
        if !canonical || state.cs.attributes & 0x2fb != 0x2fb || state.ss.attributes & 0xfb != 0xf3 {
            return Ok(false);
        }
        self.place_cpu(&state)?;
        Ok(true)
    }

    fn cpu_now(&self) -> Result<CpuState, EngineError> {
        super::convert::get_integer(&self.vcpu)
    }

    fn place_cpu(&mut self, state: &CpuState) -> Result<(), EngineError> {
        super::convert::set_integer(&self.vcpu, state)
    }

    /// The segment a selector loads from the GDT; `None` for an LDT selector, beyond the limit or not flat.
    fn descriptor(&self, state: &CpuState, selector: u16) -> Option<Segment> {
        let offset = selector & !7;
        if selector & 4 != 0 || offset == 0 || offset + 7 > state.gdtr.limit {
            return None;
        }
        let d = self.read_virtual(state.gdtr.base + u64::from(offset))?;
        // Flat: base 0, limit 4 GiB.
        if d & 0xff0f_00ff_ffff_ffff != 0x000f_0000_0000_ffff {
            return None;
        }
        let attributes = (d >> 40 & 0xff | d >> 44 & 0xf00) as u16 | 1;
        Some(Segment { selector, base: 0, limit: u32::MAX, attributes, unusable: false })
    }

    /// Takes TF out of the flags in the exception frame on top of the stack.
    fn clear_pushed_tf(&mut self, error_code: bool) -> Result<(), EngineError> {
        let rsp = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?.rsp;
        self.clear_tf_at(rsp.wrapping_add(if error_code { 24 } else { 16 }))
    }

    fn clear_top_tf(&mut self) -> Result<(), EngineError> {
        let rsp = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?.rsp;
        self.clear_tf_at(rsp)
    }

    /// TF is bit 0 of the second byte of a flags image.
    fn clear_tf_at(&mut self, image: u64) -> Result<(), EngineError> {
        let at = self.physical(image.wrapping_add(1));
        let at = at.ok_or_else(|| unusable("pushed flags are not in memory"))?;
        let mut byte = [0];
        self.memory.read(at, &mut byte).map_err(unusable)?;
        self.memory.write(at, &[byte[0] & !1]).map_err(unusable)
    }

    /// Guest-physical address of a linear one, by the guest's page tables.
    fn physical(&self, linear: u64) -> Option<Gpa> {
        let translation = self.vcpu.translate_gva(linear).ok()?;
        (translation.valid != 0).then_some(Gpa(translation.physical_address))
    }

    fn read_virtual(&self, linear: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_bytes(linear, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// Reads as far as mapped; `true` if all of it.
    fn read_bytes(&self, linear: u64, out: &mut [u8]) -> bool {
        let first = ((PAGE - linear % PAGE) as usize).min(out.len());
        let (before, after) = out.split_at_mut(first);
        let read = |at: u64, out: &mut [u8]| {
            out.is_empty() || self.physical(at).is_some_and(|at| self.memory.read(at, out).is_ok())
        };
        read(linear, before) && read(linear.wrapping_add(first as u64), after)
    }

    fn decode(&self, rip: u64) -> Instruction {
        let mut bytes = [0; 15];
        // What is not mapped reads as zeros; the CPU itself faults on it.
        self.read_bytes(rip, &mut bytes);
        Decoder::with_ip(64, &bytes, rip, DecoderOptions::NONE).decode()
    }

    fn place_guards(&mut self) -> Result<Vec<Guard>, EngineError> {
        let idt = self.vcpu.get_sregs().map_err(host("KVM_GET_SREGS"))?.idt;
        let mut guards: Vec<Guard> = Vec::new();
        for vector in 0..32u8 {
            let offset = u16::from(vector) * 16;
            if offset + 15 > idt.limit {
                break;
            }
            let gate = idt.base + u64::from(offset);
            let (Some(low), Some(high)) = (self.read_virtual(gate), self.read_virtual(gate + 8)) else {
                continue;
            };
            // Not present.
            if low & 1 << 47 == 0 {
                continue;
            }
            let handler = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
            let Some(at) = self.physical(handler) else { continue };
            if handler % PAGE > PAGE - OUT.len() as u64 || guards.iter().any(|g| g.handler == handler) {
                continue;
            }
            let mut original = [0; 2];
            self.memory.read(at, &mut original).map_err(unusable)?;
            self.memory.write(at, &OUT).map_err(unusable)?;
            guards.push(Guard { vector, handler, at, original });
        }
        Ok(guards)
    }
}

fn unusable(what: impl ToString) -> EngineError {
    EngineError::Unusable { reason: format!("while single-stepping: {}", what.to_string()) }
}
