//! The `soft` engine: the software CPU behind the [`Engine`] trait.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use soft_cpu::{Compile, Cpu, CpuidLeaf, Limits, Region, WatchRange as SoftRange};

use crate::{
    address::{Branches, Gpa, Gva, Instructions},
    cpu_model::CpuModel,
    engine::{
        Access, Budget, Capabilities, Counters, CpuState, Engine, EngineError, EngineKind, Exit,
        OutsideModel, StreamAccess, Watch, WatchHit, WatchRange,
    },
    memory::{GuestMemory, PageSet, Written},
};

/// See the module.
#[derive(Debug)]
pub struct SoftEngine {
    cpu: Cpu,
    exits: u64,
    /// What an injected interrupt ran into; returned by the next `run`.
    refused: Option<soft_cpu::Exit>,
    /// The CPU's regions point into it.
    _memory: Arc<GuestMemory>,
}

impl SoftEngine {
    /// A CPU of `model` over `memory`, as after reset.
    pub fn new(memory: &Arc<GuestMemory>, model: &CpuModel) -> Self {
        let regions: Vec<Region> = memory
            .regions()
            .iter()
            .map(|r| Region { gpa: r.base.0, len: r.len, host: r.host, first_page: r.first_page })
            .collect();
        let leaves: Vec<CpuidLeaf> = model
            .leaves
            .iter()
            .map(|l| CpuidLeaf {
                leaf: l.function,
                subleaf: l.index,
                registers: [l.eax, l.ebx, l.ecx, l.edx],
            })
            .collect();
        // SAFETY: the regions are mapped as long as `memory`, which the engine keeps; they are whole pages, and
        // 64 GiB have 2^24 of them.
        let mut cpu = unsafe { Cpu::new(&regions, &leaves) };
        // For comparing the tiers: the guest's run is the same whatever it says.
        match std::env::var("REWIND_SOFT_COMPILE").as_deref() {
            Ok("never") => cpu.set_compile(Compile::Never),
            Ok("always") => cpu.set_compile(Compile::Always),
            _ => {}
        }
        SoftEngine { cpu, exits: 0, refused: None, _memory: Arc::clone(memory) }
    }
}

fn hit(h: &soft_cpu::WatchHit) -> WatchHit {
    WatchHit {
        rip: Gva(h.rip),
        address: Gva(h.address),
        physical: Gpa(h.physical),
        size: h.size,
        access: match h.kind {
            soft_cpu::Kind::Read => Access::Read,
            soft_cpu::Kind::Write => Access::Write,
            soft_cpu::Kind::Execute => Access::Execute,
        },
        user: h.user,
        since_user: Instructions(h.since_user),
        device: false,
    }
}

fn exit(exit: soft_cpu::Exit, cpu: &Cpu) -> Exit {
    match exit {
        soft_cpu::Exit::PortOut { port, size, data } => Exit::PortOut { port, size, data },
        soft_cpu::Exit::PortIn { port, size } => Exit::PortIn { port, size },
        soft_cpu::Exit::Budget => Exit::Budget,
        soft_cpu::Exit::Watch(hits) => Exit::Watch(hits.iter().map(hit).collect()),
        soft_cpu::Exit::Breakpoint(at) => Exit::Breakpoint(Gva(at)),
        soft_cpu::Exit::Interrupted => Exit::Interrupted,
        soft_cpu::Exit::TripleFault => Exit::TripleFault,
        soft_cpu::Exit::Halt => Exit::Halt,
        soft_cpu::Exit::Mmio { address, write, size } => Exit::Mmio { address: Gpa(address), write, size },
        soft_cpu::Exit::Unsupported { rip, bytes, what } => Exit::Unsupported { rip: Gva(rip), bytes, what },
        // Only asked for by tests of the CPU alone.
        soft_cpu::Exit::Exception { vector, .. } => Exit::Unsupported {
            rip: Gva(cpu.state().rip),
            bytes: Vec::new(),
            what: format!("exception {vector} left to the monitor"),
        },
    }
}

impl Engine for SoftEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Soft
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            cheap_instruction_budget: true,
            branch_budget: true,
            hardware_watches: None,
            watches: true,
            user_stream: true,
        }
    }

    fn run(&mut self, budget: &Budget) -> Result<Exit, EngineError> {
        self.exits += 1;
        if let Some(refused) = self.refused.take() {
            return Ok(exit(refused, &self.cpu));
        }
        let limits = Limits {
            instructions: budget.instructions.map(|n| n.0),
            user_instructions: budget.user_instructions.map(|n| n.0),
            user_branches: budget.user_branches.map(|n| n.0),
        };
        let why = self.cpu.run(&limits);
        Ok(exit(why, &self.cpu))
    }

    fn complete_in(&mut self, value: u32) {
        self.cpu.complete_in(value);
    }

    fn cpu(&mut self) -> Result<CpuState, EngineError> {
        Ok(self.cpu.state())
    }

    fn set_cpu(&mut self, state: &CpuState) -> Result<(), EngineError> {
        self.refused = None;
        self.cpu.set_state(state);
        Ok(())
    }

    fn inject(&mut self, vector: u8) -> Result<(), EngineError> {
        self.refused = self.cpu.inject(vector);
        Ok(())
    }

    fn take_dirty(&mut self, pages: &mut PageSet) -> Result<(), EngineError> {
        self.cpu.take_dirty(|word, bits| pages.insert_word(word, bits));
        Ok(())
    }

    fn follow_writes(&mut self, pages: &[u64]) {
        self.cpu.follow_writes(pages);
    }

    fn written(&self) -> Vec<Written> {
        let mut written = Vec::new();
        self.cpu.written(|page, ranges| written.push(Written { page, ranges }));
        written
    }

    fn follow_no_more(&mut self, page: u64) {
        self.cpu.follow_no_more(page);
    }

    fn memory_changed(&mut self, pages: Option<&PageSet>) {
        match pages {
            None => self.cpu.invalidate(None),
            Some(pages) => self.cpu.invalidate(Some(&mut pages.iter())),
        }
    }

    fn memory_written(&mut self, pages: &[Range<u64>]) {
        self.cpu.written_from_outside(pages.iter().cloned().flatten());
    }

    fn watch(&mut self, watches: &[Watch]) -> Result<(), EngineError> {
        let watches: Vec<soft_cpu::Watch> = watches
            .iter()
            .map(|w| soft_cpu::Watch {
                range: match w.range {
                    WatchRange::Virtual(at) => SoftRange::Virtual(at.0),
                    WatchRange::Physical(at) => SoftRange::Physical(at.0),
                },
                len: w.len,
                read: w.read,
                write: w.write,
                execute: false,
            })
            .collect();
        self.cpu.set_watches(&watches);
        Ok(())
    }

    fn set_user_stream(&mut self, on: bool) -> Result<(), EngineError> {
        self.cpu.set_access_stream(if on { soft_cpu::Stream::User } else { soft_cpu::Stream::Off });
        self.cpu.take_accesses();
        Ok(())
    }

    fn take_user_stream(&mut self) -> Vec<StreamAccess> {
        let access = |a: soft_cpu::Accessed| StreamAccess {
            before: Instructions(a.user_instructions),
            rip: Gva(a.rip),
            address: Gva(a.address),
            physical: Gpa(a.physical),
            size: a.size,
            write: a.write,
        };
        self.cpu.take_accesses().into_iter().map(access).collect()
    }

    fn breakpoints(&mut self, at: &[Gva]) -> Result<(), EngineError> {
        let at: Vec<u64> = at.iter().map(|a| a.0).collect();
        self.cpu.set_breakpoints(&at);
        Ok(())
    }

    fn interrupter(&self) -> Box<dyn Fn() + Send + Sync> {
        let flag = self.cpu.interrupter();
        Box::new(move || flag.store(true, Ordering::Release))
    }

    fn counters(&self) -> Counters {
        let counts = self.cpu.counts();
        Counters {
            exits: self.exits,
            instructions: Instructions(counts.instructions),
            user_instructions: Instructions(counts.user_instructions),
            user_branches: Branches(counts.user_branches),
            since_user: Some(Instructions(counts.since_user())),
        }
    }

    fn outside_model(&self) -> Vec<OutsideModel> {
        let each = |(name, seen): (&String, &soft_cpu::OutsideModel)| OutsideModel {
            name: name.clone(),
            count: seen.count,
            first: Gva(seen.first_rip),
            user: seen.user,
        };
        self.cpu.outside_model().iter().map(each).collect()
    }
}
