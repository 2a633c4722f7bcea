//! The handlers every block needs: entry, the general instruction, and the ways out.
//!
//! A handler gets the CPU, its op and the current TLB table. In optimised builds it ends in a jump to the next op's
//! handler; with debug assertions it returns the next op to the loop in `run.rs`, which works for both.

use crate::{
    block::{self, Block, Link, Op},
    cpu::Cpu,
    fault::Abort,
    insn::{BASE, Insn},
    tlb::Entry,
};

/// Goes on to an op: by a tail call, or through the loop.
macro_rules! next {
    ($cpu:expr, $op:expr, $tlb:expr) => {{
        let op: *const $crate::block::Op = $op;
        if cfg!(debug_assertions) {
            return op;
        }
        // Inside `unsafe` of the handler: `op` is an op of a live block, not a data slot.
        return ((*op).run)($cpu, op, $tlb);
    }};
}
pub(crate) use next;

/// Where nothing is linked: to the main loop, with RIP at the block's address.
pub(crate) unsafe extern "C" fn miss(cpu: *mut Cpu, _: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU.
    let cpu = unsafe { &mut *cpu };
    cpu.rip = cpu.gpr[BASE as usize];
    std::ptr::null()
}

/// Entry of a block whose bytes may have changed.
pub(crate) unsafe extern "C" fn doubtful(cpu: *mut Cpu, _: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU.
    let cpu = unsafe { &mut *cpu };
    cpu.rip = cpu.gpr[BASE as usize];
    cpu.doubt = true;
    std::ptr::null()
}

/// Entry: takes the block's instructions from the budget.
pub(crate) unsafe extern "C" fn enter(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU and their own op.
    unsafe {
        let count = (*cpu).count.wrapping_add((*op).as_word());
        if count as u32 as i32 >= 0 {
            return out_of_budget(cpu, op, tlb);
        }
        (*cpu).count = count;
        (*cpu).entered = op;
        next!(cpu, op.add(1), tlb)
    }
}

/// Entry of a block that is not compiled yet: as `enter`, and counts.
pub(crate) unsafe extern "C" fn warm_up(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU and their own op; the op before an entry holds the block's address.
    unsafe {
        let block = (*op.sub(1)).as_word() as *mut Block;
        (*block).runs += 1;
        if (*block).runs >= crate::jit::HOT {
            (*cpu).hot_block = block;
            return miss(cpu, op, tlb);
        }
        enter(cpu, op, tlb)
    }
}

#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn out_of_budget(cpu: *mut Cpu, _: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU.
    let cpu = unsafe { &mut *cpu };
    cpu.rip = cpu.gpr[BASE as usize];
    cpu.attention = true;
    cpu.short = true;
    std::ptr::null()
}

impl Cpu {
    /// Executes one instruction of the running block in its general form. On an abort RIP is at it and what did not
    /// run is given back to the budget.
    #[inline]
    pub(crate) fn execute(&mut self, insn: &Insn) -> bool {
        self.rip = self.insn_rip(insn.off);
        self.next_rip = self.rip.wrapping_add(u64::from(insn.len));
        match (insn.run)(self, insn) {
            Ok(()) => true,
            Err(abort) => {
                self.aborted(abort, insn);
                false
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn aborted(&mut self, abort: Abort, insn: &Insn) {
        // SAFETY: called while the block of `insn` runs.
        let Some(block) = (unsafe { self.running() }) else { return };
        let at = block.insns.iter().position(|i| i.off == insn.off).unwrap_or(0);
        let branches = block.insns.iter().filter(|i| i.counted_branch).count() as u64;
        let left = (block.insns.len() - at) as u64;
        self.count = self.count.wrapping_add(left).wrapping_sub(branches << 32);
        self.abort = Some(abort);
        self.attention = true;
    }
}

/// Any instruction that does not end the block. Returns to the loop, so that it may use the stack as it likes.
pub(crate) unsafe extern "C" fn general(cpu: *mut Cpu, op: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU and their own op, whose word is the address of an instruction that lives
    // as long as the block; blocks are only freed between blocks.
    unsafe {
        let insn = &*((*op).as_word() as *const Insn);
        if (*cpu).execute(insn) { op.add(1) } else { std::ptr::null() }
    }
}

/// Any instruction that ends the block.
pub(crate) unsafe extern "C" fn general_end(cpu: *mut Cpu, op: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: as in `general`.
    unsafe {
        let insn = &*((*op).as_word() as *const Insn);
        if (*cpu).execute(insn) {
            (*cpu).rip = (*cpu).next_rip;
        }
        std::ptr::null()
    }
}

/// What a fast handler does when it cannot: the instructions of its op in their general form, then on.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn slow(cpu: *mut Cpu, op: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU and their own op; the running block is the op's.
    unsafe {
        let cpu = &mut *cpu;
        let Some(block) = cpu.running() else { return std::ptr::null() };
        let at = op.offset_from(block.ops.as_ptr()) as usize;
        let covers = block.covers[at];
        let first = usize::from(covers.first);
        for insn in &block.insns[first..first + usize::from(covers.count)] {
            if !cpu.execute(insn) {
                return std::ptr::null();
            }
            if insn.ends {
                cpu.rip = cpu.next_rip;
                return std::ptr::null();
            }
        }
        op.add(usize::from(covers.slots))
    }
}

/// Goes to the op's word from the block's address, inside the page.
pub(crate) unsafe extern "C" fn go_on(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU and their own op; a link slot follows it.
    unsafe {
        let cpu_ref = &mut *cpu;
        let base = &mut cpu_ref.gpr[BASE as usize];
        *base = base.wrapping_add((*op).as_word());
        follow(cpu, op.add(1), tlb)
    }
}

/// Follows a same-page link slot; BASE is already the target's address.
#[inline(always)]
pub(crate) unsafe fn follow(cpu: *mut Cpu, slot: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: the caller passes a link slot of a live block; its target is an entry op or `MISS`.
    unsafe {
        let target = (*slot.cast::<Link>()).target;
        if std::ptr::eq(target, &raw const block::MISS) {
            (*cpu).link_same_page = true;
            return unlinked(cpu, slot, tlb);
        }
        next!(cpu, target, tlb)
    }
}

/// Out to the main loop, which is to fill the link slot.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn unlinked(cpu: *mut Cpu, slot: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU.
    let cpu = unsafe { &mut *cpu };
    cpu.rip = cpu.gpr[BASE as usize];
    cpu.link = slot.cast_mut();
    std::ptr::null()
}

/// Ends the block towards the main loop at the op's word from the block's address.
pub(crate) unsafe extern "C" fn stop_after(cpu: *mut Cpu, op: *const Op, _: *const Entry) -> *const Op {
    // SAFETY: handlers get the running CPU and their own op.
    unsafe {
        let cpu = &mut *cpu;
        cpu.rip = cpu.gpr[BASE as usize].wrapping_add((*op).as_word());
    }
    std::ptr::null()
}
