//! Delivery of exceptions and interrupts through the IDT (SDM vol. 3A chapter 6).

use crate::{
    access::canonical,
    cpu::{Cpu, Exit},
    fault::{self, Abort, coded, gp},
    flags,
    insn::R,
    state::Segment,
};

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A fault of the instruction at RIP.
    Fault,
    /// A trap after an instruction (RIP is the next).
    Trap,
    /// INT n, INT3: gate privilege is checked.
    Software,
    /// From outside.
    External,
}

impl Cpu {
    /// Delivers an event; `Some` if the CPU shuts down or cannot go on.
    pub(crate) fn deliver(&mut self, vector: u8, code: Option<u32>, source: Source) -> Option<Exit> {
        // No block runs; its own accesses are recorded as they are.
        self.entered = std::ptr::null();
        let accesses = self.hooks.accesses.len();
        self.alone = true;
        self.hooks.begin();
        let exit = self.deliver_alone(vector, code, source);
        self.alone = false;
        self.finish_stream(accesses, true);
        exit
    }

    fn deliver_alone(&mut self, vector: u8, code: Option<u32>, source: Source) -> Option<Exit> {
        let (mut vector, mut code, mut source) = (vector, code, source);
        loop {
            if vector == fault::PF && source != Source::Software && source != Source::External {
                self.sys.cr2 = self.fault_address;
            }
            match self.enter_gate(vector, code, source) {
                Ok(()) => return None,
                Err(Abort::Exception { vector: second, code: second_code }) => {
                    let first =
                        if source == Source::Fault || source == Source::Trap { Some(vector) } else { None };
                    if first == Some(fault::DF) {
                        return Some(Exit::TripleFault);
                    }
                    if first.is_some_and(|first| doubles(first, second)) {
                        (vector, code) = (fault::DF, Some(0));
                    } else {
                        (vector, code) = (second, second_code);
                    }
                    source = Source::Fault;
                }
                // `Alone` is only asked of blocks.
                Err(Abort::Alone | Abort::Stop) => return self.pending.take(),
            }
        }
    }

    pub(crate) fn enter_gate(&mut self, vector: u8, code: Option<u32>, source: Source) -> R {
        let software = source == Source::Software;
        let external = u32::from(!software);
        let index = u32::from(vector) * 8 + 2 + external;
        let offset = u64::from(vector) * 16;
        if offset + 15 > u64::from(self.sys.idtr.limit) {
            return Err(gp(index));
        }
        let at = self.sys.idtr.base.wrapping_add(offset);
        let low = self.load_system(at, 8)?;
        let kind = low >> 40 & 0x1f;
        if kind != 14 && kind != 15 {
            return Err(gp(index));
        }
        if software && ((low >> 45 & 3) as u8) < self.cpl() {
            return Err(gp(index));
        }
        if low >> 47 & 1 == 0 {
            return Err(coded(fault::NP, index));
        }
        let high = self.load_system(at.wrapping_add(8), 8)?;
        let target = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
        let selector = (low >> 16) as u16;
        if selector & !3 == 0 {
            return Err(gp(external));
        }
        let selector_code = u32::from(selector & !3) | external;
        let mut d = self.descriptor(selector, gp(selector_code))?;
        let conforming = d.kind() & 4 != 0;
        if !d.is_code() || d.dpl() > self.cpl() || !d.long() || d.low >> 54 & 1 != 0 {
            return Err(gp(selector_code));
        }
        if !d.present() {
            return Err(coded(fault::NP, selector_code));
        }
        let inner = self.user && !conforming;
        if inner && d.dpl() != 0 {
            return Err(self.unsupported("interrupt gate to privilege level 1 or 2"));
        }
        let ist = low >> 32 & 7;
        let mut rsp = self.gpr[4];
        if ist != 0 || inner {
            let slot = if ist != 0 { 36 + 8 * (ist - 1) } else { 4 };
            if self.sys.tr.unusable || slot + 7 > u64::from(self.sys.tr.limit) {
                return Err(coded(fault::TS, u32::from(self.sys.tr.selector & !3) | external));
            }
            rsp = self.load_system(self.sys.tr.base.wrapping_add(slot), 8)?;
        }
        rsp &= !15;
        let mut image = self.rflags();
        match source {
            Source::Fault if vector != fault::DB => image |= flags::RF,
            _ => {}
        }
        let words = [
            u64::from(code.unwrap_or(0)),
            self.rip,
            u64::from(self.sys.cs.selector),
            image,
            self.gpr[4],
            u64::from(self.sys.ss.selector),
        ];
        let words = if code.is_some() { &words[..] } else { &words[1..] };
        let top = rsp.wrapping_sub(words.len() as u64 * 8);
        if !canonical(top) || !canonical(rsp.wrapping_sub(1)) {
            return Err(coded(fault::SS, external));
        }
        let user_after = self.user && !inner;
        if !canonical(target) {
            return Err(gp(external));
        }
        // Before the frame is looked up, as it may change how that goes.
        self.mark_accessed(selector, &mut d)?;
        let span = self.span(top, words.len() * 8, true, user_after, true)?;
        let mut bytes = [0; 48];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        span.write_bytes(&bytes[..words.len() * 8]);
        let privilege = if user_after { 3 } else { 0 };
        if inner {
            self.sys.ss = Segment { unusable: true, ..Segment::default() };
        }
        self.sys.cs = d.segment(selector & !3 | privilege);
        self.gpr[4] = top;
        self.rip = target;
        let mut cleared = flags::TF | flags::NT | flags::RF | flags::VM;
        if kind == 14 {
            cleared |= flags::IF;
        }
        self.rflags &= !cleared;
        self.sys.interrupt_shadow = false;
        if inner {
            self.set_user(false);
        }
        Ok(())
    }

    /// Changes between CPL 3 and CPL 0.
    pub(crate) fn set_user(&mut self, user: bool) {
        self.user = user;
        self.attention = true;
        self.update_jump_tags();
        self.update_alignment();
    }
}

/// Does a second exception while delivering the first make a double fault (SDM table 6-5)?
fn doubles(first: u8, second: u8) -> bool {
    let contributory = |v: u8| matches!(v, fault::DE | fault::TS | fault::NP | fault::SS | fault::GP);
    contributory(first) && contributory(second)
        || first == fault::PF && (contributory(second) || second == fault::PF)
}
