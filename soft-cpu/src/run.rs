//! The main loop: budgets, blocks, events, single steps.

use crate::{
    block::{self, Block, Op},
    cpu::{Counts, Cpu, Exit, Limits},
    event::Source,
    fault::{self, Abort},
    flags,
    insn::BASE,
    watch::{Kind, Stream, WatchHit},
};

/// Instructions run before the interrupt request is looked at again.
const CHUNK: u64 = 1 << 22;

/// Bit 31: set while budget is left.
const BUDGET_BIAS: u64 = 1 << 31;

impl Cpu {
    /// Runs until an [`Exit`].
    pub fn run(&mut self, limits: &Limits) -> Exit {
        let start = self.counts;
        self.hooks.hits.clear();
        loop {
            if !self.hooks.hits.is_empty() {
                return Exit::Watch(std::mem::take(&mut self.hooks.hits));
            }
            if let Some(exit) = self.pending.take() {
                return exit;
            }
            if self.take_interrupt() {
                return Exit::Interrupted;
            }
            let left = self.left(limits, start);
            if left == 0 {
                return Exit::Budget;
            }
            let exit = if self.must_step() { self.step() } else { self.run_blocks(left.min(CHUNK), left) };
            if let Some(exit) = exit {
                return exit;
            }
        }
    }

    /// Instructions that may run before a limit must be looked at again.
    fn left(&self, limits: &Limits, start: Counts) -> u64 {
        let mut left = u64::MAX;
        if let Some(n) = limits.instructions {
            left = n.saturating_sub(self.counts.instructions - start.instructions);
        }
        if let Some(n) = limits.user_instructions {
            let user = n.saturating_sub(self.counts.user_instructions - start.user_instructions);
            if self.user || user == 0 {
                left = left.min(user);
            }
        }
        if let Some(n) = limits.user_branches {
            // No instruction is more than one branch.
            let branches = n.saturating_sub(self.counts.user_branches - start.user_branches);
            if self.user || branches == 0 {
                left = left.min(branches);
            }
        }
        left
    }

    /// The next instruction needs the main loop's eye before and after.
    fn must_step(&self) -> bool {
        self.steps > 0
            || self.rflags & (flags::TF | flags::RF) != 0
            || self.sys.interrupt_shadow
            || match self.hooks.stream {
                Stream::Off => false,
                Stream::All => true,
                Stream::User => self.user,
            }
            || self.hooks.steps_page(self.rip)
    }

    /// Runs blocks until something other than the next block must be looked at.
    fn run_blocks(&mut self, chunk: u64, left: u64) -> Option<Exit> {
        let user = self.user;
        self.count = BUDGET_BIAS + chunk;
        self.attention = false;
        self.short = false;
        self.link = std::ptr::null_mut();
        loop {
            let rip = self.rip;
            let key = block::jump_key(rip, self.jump_tags[(rip >> 63) as usize]);
            let jump = self.blocks.jump(rip);
            let entry = if jump.key == key && !self.doubt {
                self.fill_link(rip, jump.target);
                jump.target
            } else {
                self.doubt = false;
                match self.block_at(rip, false) {
                    Ok(found) => self.remember(rip, found),
                    Err(abort) => {
                        self.abort = Some(abort);
                        break;
                    }
                }
            };
            self.gpr[BASE as usize] = rip;
            self.go(entry);
            if !self.hot_block.is_null() {
                let block = std::mem::replace(&mut self.hot_block, std::ptr::null_mut());
                // SAFETY: the block whose entry led out just now.
                unsafe {
                    (*block).enter = crate::handler::enter;
                    (*block).ops[1].run = crate::handler::enter;
                }
                self.compile_block(block);
            }
            if self.attention {
                break;
            }
            // The next instruction is not to be fetched yet: that may set accessed bits, and fault.
            if self.count & 0xffff_ffff == BUDGET_BIAS {
                break;
            }
            if self.hooks.steps_page(self.rip) {
                break;
            }
        }
        self.settle(user, chunk);
        if self.short && left < block::MAX_INSNS as u64 {
            self.steps = left;
        }
        self.handle_abort()
    }

    /// Puts a block into the jump cache and the link that led here; its entry.
    fn remember(&mut self, rip: u64, found: *const Block) -> *const Op {
        // SAFETY: `block_at` returns a live block.
        let block = unsafe { &*found };
        let entry = block.entry();
        if block.second_page.is_none() {
            let key = block::jump_key(rip, self.jump_tags[(rip >> 63) as usize]);
            self.blocks.set_jump(rip, key, entry);
            self.fill_link(rip, entry);
        }
        self.link = std::ptr::null_mut();
        entry
    }

    /// Fills the link slot that led to `rip`, if one did.
    fn fill_link(&mut self, rip: u64, target: *const Op) {
        let link = std::mem::replace(&mut self.link, std::ptr::null_mut());
        if !link.is_null() {
            // Key 0 holds under any translation.
            let key = if self.link_same_page {
                0
            } else {
                block::jump_key(rip, self.jump_tags[(rip >> 63) as usize])
            };
            // SAFETY: set by the block that ran last, and cleared whenever blocks are freed.
            unsafe { *link = Op::link(block::Link { target, key }) };
        }
    }

    /// Runs ops from `entry` until one leads out.
    #[inline]
    fn go(&mut self, entry: *const Op) {
        let tlb = self.tlb.tables[usize::from(self.user)].as_ptr();
        // SAFETY: an entry op of a live block; handlers return an op of the running block.
        unsafe { crate::jit::run_ops(self, entry, tlb) };
    }

    /// Adds what ran since the budget was set to the counts.
    fn settle(&mut self, user: bool, chunk: u64) {
        let ran = chunk - ((self.count & 0xffff_ffff) - BUDGET_BIAS);
        self.counts.instructions += ran;
        if user {
            self.counts.user_instructions += ran;
            self.counts.user_branches += self.count >> 32;
        } else if self.user {
            // Blocks end where the privilege changes.
            self.counts.user_entered = self.counts.user_instructions;
        }
    }

    fn handle_abort(&mut self) -> Option<Exit> {
        match self.abort.take()? {
            Abort::Exception { vector, code } => {
                if self.exit_on_exception {
                    let cr2 = (vector == fault::PF).then_some(self.fault_address);
                    return Some(Exit::Exception { vector, error_code: code, cr2 });
                }
                self.deliver(vector, code, Source::Fault)
            }
            Abort::Alone => {
                self.steps = self.steps.max(1);
                None
            }
            Abort::Stop => self.pending.take(),
        }
    }

    /// Runs one instruction with everything that goes with it: breakpoints, traps, hooks.
    fn step(&mut self) -> Option<Exit> {
        let rip = self.rip;
        self.steps = self.steps.saturating_sub(1);
        if self.resume_at.take() != Some(rip) && self.hooks.is_breakpoint(rip) {
            self.resume_at = Some(rip);
            return Some(Exit::Breakpoint(rip));
        }
        let (trap, shadow) = (self.rflags & flags::TF != 0, self.sys.interrupt_shadow);
        if self.rflags & flags::RF == 0 {
            let hit = self.hooks.debug_breakpoint(rip);
            if hit != 0 && !self.stack_loaded {
                self.sys.dr6 |= hit;
                self.abort = Some(fault::plain(fault::DB));
                return self.handle_abort();
            }
        }
        let user = self.user;
        let (hits, accesses) = (self.hooks.hits.len(), self.hooks.accesses.len());
        let block = match self.block_at(rip, true) {
            Ok(block) => block,
            Err(abort) => {
                self.abort = Some(abort);
                return self.handle_abort();
            }
        };
        let held_back = std::mem::take(&mut self.stack_loaded);
        self.debug_cause = 0;
        self.partial = false;
        self.system_call = false;
        self.returned = false;
        self.software_interrupt = false;
        self.doubt = false;
        self.attention = false;
        self.sys.interrupt_shadow = false;
        self.count = BUDGET_BIAS + 1;
        self.gpr[BASE as usize] = rip;
        self.alone = true;
        self.hooks.begin();
        // SAFETY: `block_at` returns a live block.
        self.go(unsafe { &*block }.entry());
        self.alone = false;
        if self.partial {
            self.count = BUDGET_BIAS + 1;
            if self.abort.is_none() {
                // Not done: go on at the same instruction.
                self.rip = rip;
            }
        }
        self.settle(user, 1);
        let done = self.abort.is_none();
        self.finish_stream(accesses, done);
        if !done {
            self.hooks.drop_hits(hits);
            self.sys.interrupt_shadow |= shadow;
            self.stack_loaded |= held_back;
            return self.handle_abort();
        }
        if !self.returned {
            self.rflags &= !flags::RF;
        }
        self.after_instruction(rip, user, trap)
    }

    /// Execute watches and debug traps after a completed instruction.
    fn after_instruction(&mut self, rip: u64, user: bool, trap: bool) -> Option<Exit> {
        if let Some(physical) = self.hooks.execute_watched(rip, || self.translate(rip)) {
            let (address, size, kind) = (rip, 1, Kind::Execute);
            // It is retired by now.
            let since_user = self.counts.since_user().saturating_sub(u64::from(user));
            self.hooks.hits.push(WatchHit { rip, address, physical, size, kind, user, since_user });
        }
        // TF as SYSCALL and SYSRET leave it: what they load counts at once (Linux, entry_64.S, on SYSRET and TF).
        let trap = if self.system_call { self.rflags & flags::TF != 0 } else { trap };
        if trap && !self.software_interrupt && !self.stack_loaded {
            self.debug_cause |= 1 << 14;
        }
        if self.debug_cause != 0 && !self.stack_loaded {
            self.sys.dr6 |= std::mem::take(&mut self.debug_cause);
            if self.exit_on_exception {
                return Some(Exit::Exception { vector: fault::DB, error_code: None, cr2: None });
            }
            return self.deliver(fault::DB, None, Source::Trap);
        }
        None
    }

    /// Delivers an external interrupt now, before the next instruction. The caller has seen that IF is set and no
    /// interrupt shadow is in force.
    pub fn inject(&mut self, vector: u8) -> Option<Exit> {
        self.deliver(vector, None, Source::External)
    }

    /// Bytes at a linear address, as far as they can be read; for reports.
    pub(crate) fn code_bytes(&self, rip: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for at in (0..crate::decode::LONGEST as u64).map(|n| rip.wrapping_add(n)) {
            let Some(page) = self.translate(at).and_then(|gpa| self.memory.page(gpa)) else { break };
            // SAFETY: inside the page.
            bytes.push(unsafe { page.host.add((at & 0xfff) as usize).read_volatile() });
        }
        bytes
    }
}

/// A check at compile time that link slots and ops have one size.
const _: () = assert!(size_of::<block::Link>() == size_of::<Op>() && size_of::<Op>() == 16);
