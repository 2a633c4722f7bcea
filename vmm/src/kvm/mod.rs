//! The `kvm` engine: one vCPU of the host's KVM, without an in-kernel interrupt controller.

mod convert;
mod debug;
mod kick;
mod step;

use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MEM_LOG_DIRTY_PAGES, kvm_cpuid_entry2, kvm_enable_cap,
    kvm_guest_debug, kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};

use crate::{
    address::{Gpa, Gva, Instructions},
    cpu_model::CpuModel,
    engine::{
        Access, Budget, Capabilities, Counters, CpuState, Engine, EngineError, EngineKind, Exit, Watch,
        WatchHit,
    },
    memory::{GuestMemory, PageSet},
};

/// Where KVM may put its three pages for Intel CPUs without unrestricted guest mode: in the hole, behind the
/// control slot.
const TSS_ADDRESS: usize = 0xd800_0000;

/// `KVM_CAP_EXIT_ON_EMULATION_FAILURE`, `KVM_CAP_ENFORCE_PV_FEATURE_CPUID` (uapi/linux/kvm.h).
const EXIT_ON_EMULATION_FAILURE: u32 = 204;
const ENFORCE_PV_FEATURE_CPUID: u32 = 190;

/// DR6: which of the four registers was hit.
const DR6_HITS: u64 = 0xf;

/// See the module.
pub(crate) struct KvmEngine {
    vcpu: VcpuFd,
    vm: VmFd,
    memory: Arc<GuestMemory>,
    kick: Arc<kick::Kick>,
    /// An `in` was answered, or an `out` left, and KVM has not yet completed the instruction.
    unfinished: bool,
    /// KVM_SET_GUEST_DEBUG's last control word.
    debug_control: u32,
    /// Watches and breakpoints.
    pieces: debug::Pieces,
    /// Bits of DR6 of watches hit by a single step.
    stepped_on: u64,
    counters: Counters,
}

/// A KVM return, copied out of the shared page.
enum Return {
    Out { port: u16, size: u8, data: Vec<u8> },
    In { port: u16, size: u8, count: u32 },
    Debug { rip: u64, dr6: u64, exception: u32 },
    Mmio { address: u64, write: bool, size: u8 },
    Halt,
    Shutdown,
    EmulationFailure,
    Interrupted,
    Other(String),
}

fn host(what: impl Into<String>) -> impl FnOnce(kvm_ioctls::Error) -> EngineError {
    let what = what.into();
    move |error| EngineError::Host { what, source: std::io::Error::from_raw_os_error(error.errno()) }
}

impl KvmEngine {
    pub(crate) fn new(memory: &Arc<GuestMemory>, model: &CpuModel) -> Result<Self, EngineError> {
        let kvm = Kvm::new().map_err(host("cannot open /dev/kvm"))?;
        let version = kvm.get_api_version();
        if version != 12 {
            return Err(EngineError::Unusable {
                reason: format!("/dev/kvm has API version {version}, not 12"),
            });
        }
        let vm = kvm.create_vm().map_err(host("cannot create a KVM machine"))?;
        vm.set_tss_address(TSS_ADDRESS).map_err(host("KVM_SET_TSS_ADDR"))?;
        let exit_on_failure =
            kvm_enable_cap { cap: EXIT_ON_EMULATION_FAILURE, args: [1, 0, 0, 0], ..Default::default() };
        vm.enable_cap(&exit_on_failure)
            .map_err(host("KVM_CAP_EXIT_ON_EMULATION_FAILURE (Linux 5.14 or later)"))?;
        for (slot, region) in memory.regions().iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                flags: if region.first_page.is_some() { KVM_MEM_LOG_DIRTY_PAGES } else { 0 },
                guest_phys_addr: region.base.0,
                memory_size: region.len,
                userspace_addr: region.host.as_ptr() as u64,
            };
            // SAFETY: the mapping lives as long as `memory`, which the engine keeps (and drops after the VM).
            unsafe { vm.set_user_memory_region(region) }.map_err(host("cannot give KVM the guest memory"))?;
        }
        let vcpu = vm.create_vcpu(0).map_err(host("cannot create a vCPU"))?;
        set_model(&vm, &vcpu, model)?;
        let mut engine = KvmEngine {
            vcpu,
            vm,
            memory: Arc::clone(memory),
            kick: kick::Kick::new().map_err(|source| EngineError::Host {
                what: "cannot install the handler of the interrupting signal".into(),
                source,
            })?,
            unfinished: false,
            debug_control: 0,
            pieces: debug::Pieces::default(),
            stepped_on: 0,
            counters: Counters::default(),
        };
        engine.set_cpu(&CpuState::default())?;
        Ok(engine)
    }

    /// One KVM_RUN.
    fn enter(&mut self) -> Result<Return, EngineError> {
        self.counters.exits += 1;
        let result = match self.vcpu.run() {
            Ok(VcpuExit::IoOut(port, data)) => Return::Out { port, size: 0, data: data.to_vec() },
            Ok(VcpuExit::IoIn(port, _)) => Return::In { port, size: 0, count: 0 },
            Ok(VcpuExit::MmioRead(address, data)) => {
                Return::Mmio { address, write: false, size: data.len() as u8 }
            }
            Ok(VcpuExit::MmioWrite(address, data)) => {
                Return::Mmio { address, write: true, size: data.len() as u8 }
            }
            Ok(VcpuExit::Debug(debug)) => {
                Return::Debug { rip: debug.pc, dr6: debug.dr6, exception: debug.exception }
            }
            Ok(VcpuExit::Hlt) => Return::Halt,
            Ok(VcpuExit::Shutdown | VcpuExit::SystemEvent(..)) => Return::Shutdown,
            Ok(VcpuExit::InternalError) => Return::EmulationFailure,
            Ok(VcpuExit::FailEntry(reason, cpu)) => {
                Return::Other(format!("entry failed on host CPU {cpu}, hardware reason {reason:#x}"))
            }
            Ok(other) => Return::Other(format!("{other:?}")),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => Return::Interrupted,
            Err(error) => return Err(host("KVM_RUN")(error)),
        };
        let run = self.vcpu.get_kvm_run();
        Ok(match result {
            Return::Out { port, data, .. } => {
                // SAFETY: the exit reason was KVM_EXIT_IO, so KVM filled this member.
                let size = unsafe { run.__bindgen_anon_1.io }.size;
                Return::Out { port, size, data }
            }
            Return::In { port, .. } => {
                // SAFETY: as above.
                let io = unsafe { run.__bindgen_anon_1.io };
                Return::In { port, size: io.size, count: io.count }
            }
            other => other,
        })
    }

    /// Lets KVM complete the port instruction it left half done, without running the guest.
    fn finish(&mut self) -> Result<Option<Return>, EngineError> {
        if !self.unfinished {
            return Ok(None);
        }
        self.vcpu.set_kvm_immediate_exit(1);
        let result = self.enter();
        self.vcpu.set_kvm_immediate_exit(0);
        self.counters.exits -= 1;
        match result? {
            Return::Interrupted => {
                self.unfinished = false;
                Ok(None)
            }
            // Completed, and a single step is due.
            step @ Return::Debug { .. } => {
                self.unfinished = false;
                Ok(Some(step))
            }
            _ => Err(EngineError::Unusable { reason: "KVM did not complete a port instruction".into() }),
        }
    }

    /// Turns a KVM return into an exit; `None`: go on.
    fn translate(&mut self, result: Return) -> Result<Option<Exit>, EngineError> {
        Ok(Some(match result {
            Return::Out { port, size, data } => {
                // KVM has done one element of a REP OUTS and left RIP at it, or owes a plain OUT its RIP.
                self.unfinished = true;
                self.finish()?;
                Exit::PortOut { port, size, data }
            }
            Return::In { port, size, count: 1 } => Exit::PortIn { port, size },
            Return::In { .. } => return self.unsupported("a REP INS").map(Some),
            Return::Mmio { address, write, size } => Exit::Mmio { address: Gpa(address), write, size },
            Return::Halt => Exit::Halt,
            Return::Shutdown => Exit::TripleFault,
            Return::EmulationFailure => return self.unsupported("KVM cannot emulate it").map(Some),
            Return::Debug { rip, exception: 3, .. } => Exit::Breakpoint(Gva(rip)),
            Return::Debug { rip, dr6, .. } if dr6 & DR6_HITS != 0 => {
                let hits = self.hits(dr6)?;
                if hits.is_empty() { Exit::Breakpoint(Gva(rip)) } else { Exit::Watch(hits) }
            }
            Return::Debug { rip, dr6, .. } => {
                return Err(EngineError::Unusable {
                    reason: format!(
                        "KVM reported a debug event nobody asked for (rip {rip:#x}, dr6 {dr6:#x})"
                    ),
                });
            }
            Return::Interrupted => return Ok(None),
            Return::Other(reason) => return Err(EngineError::Unusable { reason }),
        }))
    }

    /// What a debug event's DR6 says of the watches.
    fn hits(&self, dr6: u64) -> Result<Vec<WatchHit>, EngineError> {
        let written = self.pieces.written(dr6);
        if written.is_empty() {
            return Ok(Vec::new());
        }
        let rip = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?.rip;
        let user = self.vcpu.get_sregs().map_err(host("KVM_GET_SREGS"))?.ss.dpl == 3;
        let hit = |(at, len): (u64, u8)| {
            let translation = self.vcpu.translate_gva(at).ok().filter(|t| t.valid != 0);
            WatchHit {
                rip: Gva(rip),
                address: Gva(at),
                physical: Gpa(translation.map_or(u64::MAX, |t| t.physical_address)),
                size: len.into(),
                access: Access::Write,
                user,
                // Not counted here: the place of a hit is found by stepping.
                since_user: Instructions(0),
                device: false,
            }
        };
        Ok(written.into_iter().map(hit).collect())
    }

    /// A guest that stands at a breakpoint goes on: RF holds it back for one instruction (Intel SDM vol. 3B, 18.3.1.1).
    fn pass_breakpoint(&mut self) -> Result<(), EngineError> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        let mut regs = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?;
        if self.pieces.breaks_at(regs.rip) {
            regs.rflags |= 1 << 16;
            self.vcpu.set_regs(&regs).map_err(host("KVM_SET_REGS"))?;
        }
        Ok(())
    }

    fn unsupported(&mut self, what: &str) -> Result<Exit, EngineError> {
        let rip = self.vcpu.get_regs().map_err(host("KVM_GET_REGS"))?.rip;
        let mut bytes = Vec::new();
        if let Ok(translation) = self.vcpu.translate_gva(rip)
            && translation.valid != 0
        {
            let len = (0x1000 - (rip & 0xfff)).min(15);
            bytes.resize(len as usize, 0);
            if self.memory.read(Gpa(translation.physical_address), &mut bytes).is_err() {
                bytes.clear();
            }
        }
        Ok(Exit::Unsupported { rip: Gva(rip), bytes, what: what.to_owned() })
    }
}

/// Runs a micro-guest's state on a vCPU of its own with KVM's debug control: the RIP after the instruction at which
/// it stops (INT3: after its one byte), `None` if anything else happens first.
pub(crate) fn debug_stop(
    micro: &mut crate::micro::Micro,
    control: u32,
    registers: Option<[u64; 8]>,
) -> Result<Option<u64>, EngineError> {
    let state = micro.engine.cpu()?;
    let mut engine = KvmEngine::new(&micro.memory, &crate::cpu_model::REWIND_V2)?;
    engine.set_cpu(&state)?;
    let mut debug = kvm_guest_debug { control, ..Default::default() };
    debug.arch.debugreg = registers.unwrap_or_default();
    engine.vcpu.set_guest_debug(&debug).map_err(host("KVM_SET_GUEST_DEBUG"))?;
    Ok(match engine.enter()? {
        Return::Debug { rip, .. } => Some(rip),
        _ => None,
    })
}

/// CPUID as the model has it, and nothing paravirtual.
fn set_model(vm: &VmFd, vcpu: &VcpuFd, model: &CpuModel) -> Result<(), EngineError> {
    let entries: Vec<kvm_cpuid_entry2> = model
        .leaves
        .iter()
        .map(|leaf| kvm_cpuid_entry2 {
            function: leaf.function,
            index: leaf.index.unwrap_or(0),
            flags: if leaf.index.is_some() { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 },
            eax: leaf.eax,
            ebx: leaf.ebx,
            ecx: leaf.ecx,
            edx: leaf.edx,
            padding: [0; 3],
        })
        .collect();
    let entries = CpuId::from_entries(&entries)
        .map_err(|_| EngineError::Unusable { reason: "the CPU model has too many leaves".into() })?;
    vcpu.set_cpuid2(&entries).map_err(host(format!("KVM refuses the CPU model {}", model.name)))?;
    if vm.check_extension_raw(ENFORCE_PV_FEATURE_CPUID.into()) > 0 {
        let cap = kvm_enable_cap { cap: ENFORCE_PV_FEATURE_CPUID, args: [1, 0, 0, 0], ..Default::default() };
        vcpu.enable_cap(&cap).map_err(host("KVM_CAP_ENFORCE_PV_FEATURE_CPUID"))?;
    }
    if !vm.check_extension(Cap::ImmediateExit) {
        return Err(EngineError::Unusable {
            reason: "KVM has no immediate exit (Linux 4.13 or later)".into(),
        });
    }
    Ok(())
}

impl Engine for KvmEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Kvm
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            cheap_instruction_budget: false,
            branch_budget: false,
            hardware_watches: Some(if debug::fire() { debug::PIECES as u8 } else { 0 }),
            watches: debug::fire(),
            user_stream: false,
        }
    }

    fn run(&mut self, budget: &Budget) -> Result<Exit, EngineError> {
        if budget.user_branches.is_some() || budget.instructions.is_some() {
            return Err(EngineError::Unsupported { engine: EngineKind::Kvm, what: "stop after a count" });
        }
        let kick = Arc::clone(&self.kick);
        let _running = kick.running(self.vcpu.get_kvm_run());
        self.pass_breakpoint()?;
        if let Some(limit) = budget.user_instructions {
            return self.run_user(limit.0);
        }
        loop {
            if kick.take() {
                return Ok(Exit::Interrupted);
            }
            self.unfinished = false;
            let result = self.enter()?;
            if matches!(result, Return::Interrupted) {
                self.vcpu.set_kvm_immediate_exit(0);
            }
            if let Some(exit) = self.translate(result)? {
                return Ok(exit);
            }
        }
    }

    fn complete_in(&mut self, value: u32) {
        let run = self.vcpu.get_kvm_run();
        // SAFETY: only called after Exit::PortIn, so the last exit was KVM_EXIT_IO.
        let io = unsafe { run.__bindgen_anon_1.io };
        let len = usize::from(io.size).min(4);
        let base: *mut u8 = std::ptr::from_mut(run).cast();
        // SAFETY: KVM put the data area of `size * count` bytes at this offset of the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(
                value.to_le_bytes().as_ptr(),
                base.add(io.data_offset as usize),
                len,
            );
        }
        self.unfinished = true;
    }

    fn cpu(&mut self) -> Result<CpuState, EngineError> {
        self.finish()?;
        convert::get(&self.vcpu)
    }

    fn set_cpu(&mut self, state: &CpuState) -> Result<(), EngineError> {
        self.finish()?;
        convert::set(&mut self.vcpu, state)
    }

    fn inject(&mut self, vector: u8) -> Result<(), EngineError> {
        self.finish()?;
        kick::interrupt(&self.vcpu, vector)
            .map_err(|source| EngineError::Host { what: "KVM_INTERRUPT".into(), source })
    }

    fn take_dirty(&mut self, pages: &mut PageSet) -> Result<(), EngineError> {
        for (slot, region) in self.memory.regions().iter().enumerate() {
            let Some(first) = region.first_page else { continue };
            let log =
                self.vm.get_dirty_log(slot as u32, region.len as usize).map_err(host("KVM_GET_DIRTY_LOG"))?;
            // A region other than the first begins at a multiple of 64 pages (the hole's start is one).
            for (i, bits) in log.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                pages.insert_word((first / 64) as usize + i, *bits);
            }
        }
        Ok(())
    }

    fn memory_changed(&mut self, _pages: Option<&PageSet>) {
        // KVM follows the host's page tables and the guest's own TLB flushes; `set_cpu` flushes the rest.
    }

    fn watch(&mut self, watches: &[Watch]) -> Result<(), EngineError> {
        self.pieces.watch(watches)?;
        self.debug(0)
    }

    fn breakpoints(&mut self, at: &[Gva]) -> Result<(), EngineError> {
        self.pieces.breakpoints(at)?;
        self.debug(0)
    }

    fn interrupter(&self) -> Box<dyn Fn() + Send + Sync> {
        let kick = Arc::clone(&self.kick);
        Box::new(move || kick.kick())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
