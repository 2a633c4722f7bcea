//! Where the value an instruction stored came from: the instructions before it, one by one, backward.

use debug::{kernel::read_virtual, look, process};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use run::{processes::Stretch, seek::Timeline, stage::Stage};
use vmm::{
    Stop, Until,
    address::{Gpa, Gva, Instructions, Position, Step},
    engine::CpuState,
};

use crate::error::BlameError;

/// Instructions of one step looked at.
const MOST_STEPPED: u64 = 4_000;
/// Steps of the thread gone back through.
const MOST_STEPS: usize = 8;

/// Where a value was found to come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Loaded from memory by the instruction at this position.
    Memory {
        /// Where.
        at: Position,
        /// Address.
        address: u64,
        /// Bytes.
        len: u64,
        /// Page-table root.
        root: Gpa,
        /// Other values that went into it, in words.
        with: Vec<String>,
        /// The instruction's address.
        rip: u64,
    },
    /// A number in the program.
    Constant {
        /// Where.
        at: Position,
        /// The instruction's address.
        rip: u64,
    },
    /// The result of a system call or of a fault's handler: it came out of the kernel in this step.
    Kernel {
        /// The step that began with it.
        at: Position,
    },
    /// Not found within the instructions looked at.
    Lost {
        /// Looked back to.
        at: Position,
        /// Why it ends there.
        why: String,
    },
}

/// One instruction before it ran.
struct Entry {
    at: Position,
    cpu: Box<CpuState>,
    insn: Instruction,
}

/// Whose instructions, and who ran when.
#[derive(Clone, Copy)]
pub struct Lanes<'a> {
    /// The thread.
    pub tid: u32,
    /// All stretches of the run, in order.
    pub lanes: &'a [Stretch],
}

/// What is wanted while going backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    register: Register,
    /// First byte of it.
    skip: u64,
    len: u64,
}

/// The last instructions of the machine's step before `until`, the oldest first; fewer if the step has fewer.
fn trace(timeline: &mut Timeline<'_>, until: Position) -> Result<Vec<Entry>, BlameError> {
    let from = until.offset.0.saturating_sub(MOST_STEPPED);
    let mut at = Position { step: until.step, offset: Instructions(from) };
    timeline.seek(at)?;
    let stage = timeline.stage();
    if from == 0 && !enter_user(stage)? {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    while at < until {
        let cpu = stage.machine().cpu()?;
        if cpu.cs.selector & 3 != 3 {
            break;
        }
        let Some(insn) = decode(stage.machine(), &cpu) else { break };
        entries.push(Entry { at, cpu: Box::new(cpu), insn });
        at.offset.0 += 1;
        if !matches!(stage.run(&Until::position(at), &mut ())?, Stop::Position) {
            break;
        }
    }
    Ok(entries)
}

/// From the commit of a step, which is in the kernel, to its first instruction.
fn enter_user(stage: &mut Stage) -> Result<bool, BlameError> {
    let machine = stage.machine();
    let cpu = machine.cpu()?;
    if cpu.cs.selector & 3 == 3 {
        return Ok(true);
    }
    let Some(kernel) = look::kernel(machine) else { return Ok(false) };
    let current = process::current(&kernel, &cpu)?;
    let Some(thread) = process::threads(&kernel)?.into_iter().find(|thread| thread.task == current) else {
        return Ok(false);
    };
    let first = thread.registers(&kernel, &cpu)?.rip;
    machine.engine().breakpoints(&[Gva(first)]).map_err(vmm::MachineError::from)?;
    let stop = stage.run(&Until::END, &mut ());
    stage.machine().engine().breakpoints(&[]).map_err(vmm::MachineError::from)?;
    Ok(matches!(stop?, Stop::Breakpoint(_)))
}

/// User instructions of a whole step.
pub(crate) fn length(timeline: &mut Timeline<'_>, step: Step) -> Result<u64, BlameError> {
    timeline.seek(Position { step, offset: Instructions(0) })?;
    let stage = timeline.stage();
    let before = stage.machine().engine().counters().user_instructions.0;
    stage.run(&Until::step(Step(step.0 + 1)), &mut ())?;
    Ok(stage.machine().engine().counters().user_instructions.0 - before)
}

fn decode(machine: &vmm::Machine, cpu: &CpuState) -> Option<Instruction> {
    let kernel = look::kernel(machine)?;
    let root = Gpa(cpu.cr3 & 0x000f_ffff_ffff_f000);
    let mut code = [0; 15];
    // Near the end of what is mapped there are fewer.
    let len = (1..=15)
        .rev()
        .find(|&len| read_virtual(kernel.memory(), root, Gva(cpu.rip), &mut code[..len]).is_ok())?;
    Some(Decoder::with_ip(64, &code[..len], cpu.rip, DecoderOptions::NONE).decode())
}

/// Value of a register in a state.
fn value(cpu: &CpuState, register: Register) -> Option<u64> {
    match register {
        Register::None => Some(0),
        Register::RIP => Some(cpu.rip),
        Register::FS => Some(cpu.fs.base),
        Register::GS => Some(cpu.gs.base),
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        _ => {
            let full = register.full_register();
            full.is_gpr64().then(|| cpu.gpr[full.number()])
        }
    }
}

/// The address of memory operand `operand` of an instruction that is about to run.
fn address(entry: &Entry, operand: u32) -> Option<u64> {
    entry.insn.virtual_address(operand, 0, |register, _, _| value(&entry.cpu, register))
}

fn root(cpu: &CpuState) -> Gpa {
    Gpa(cpu.cr3 & 0x000f_ffff_ffff_f000)
}

/// A plain move: the bytes of the source are the bytes of the destination, as far as they go.
fn moves(insn: &Instruction) -> bool {
    matches!(
        insn.mnemonic(),
        Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Movups
            | Mnemonic::Movaps
            | Mnemonic::Movdqu
            | Mnemonic::Movdqa
            | Mnemonic::Movupd
            | Mnemonic::Movapd
            | Mnemonic::Movq
            | Mnemonic::Movd
            | Mnemonic::Movss
            | Mnemonic::Movsd
            | Mnemonic::Movnti
            | Mnemonic::Lddqu
            | Mnemonic::Pop
            | Mnemonic::Push
            | Mnemonic::Xchg
            | Mnemonic::Movsb
            | Mnemonic::Movsw
            | Mnemonic::Movsq
    )
}

fn string_move(insn: &Instruction) -> bool {
    insn.op_count() == 2
        && matches!(insn.op0_kind(), OpKind::MemoryESRDI | OpKind::MemoryESEDI)
        && matches!(insn.op1_kind(), OpKind::MemorySegRSI | OpKind::MemorySegESI)
}

/// Which operand of an instruction gives its result, where it is a plain move; and what else goes in.
struct Inputs {
    memory: Option<(u64, u64)>,
    registers: Vec<Register>,
    constant: bool,
}

/// What an instruction computes its result from.
fn inputs(entry: &Entry, factory: &mut InstructionInfoFactory) -> Inputs {
    let insn = &entry.insn;
    let mut found = Inputs { memory: None, registers: Vec::new(), constant: false };
    let zeroing = matches!(insn.mnemonic(), Mnemonic::Xor | Mnemonic::Pxor | Mnemonic::Sub | Mnemonic::Xorps)
        && insn.op_count() == 2
        && insn.op0_kind() == OpKind::Register
        && insn.op1_kind() == OpKind::Register
        && insn.op0_register() == insn.op1_register();
    if zeroing {
        found.constant = true;
        return found;
    }
    if insn.mnemonic() == Mnemonic::Pop {
        found.memory = Some((entry.cpu.gpr[4], 8));
        return found;
    }
    let lea = insn.mnemonic() == Mnemonic::Lea;
    let accesses: Vec<OpAccess> = {
        let info = factory.info(insn);
        (0..insn.op_count()).map(|operand| info.op_access(operand)).collect()
    };
    for (operand, access) in (0..insn.op_count()).zip(accesses) {
        let reads = matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        match insn.op_kind(operand) {
            OpKind::Register if reads => found.registers.push(insn.op_register(operand)),
            OpKind::Memory if lea => {
                let parts = [insn.memory_base(), insn.memory_index()];
                let general = parts.into_iter().filter(|part| part.is_gpr());
                found.registers.extend(general);
                found.constant |= insn.memory_base() == Register::RIP || insn.memory_displacement64() != 0;
            }
            OpKind::Memory if reads => {
                let size = insn.memory_size().size() as u64;
                found.memory = address(entry, operand).map(|address| (address, size));
            }
            OpKind::Register | OpKind::Memory => {}
            _ => found.constant = true,
        }
    }
    found
}

/// Does the instruction write the register?
fn writes(insn: &Instruction, factory: &mut InstructionInfoFactory, register: Register) -> bool {
    let written = [OpAccess::Write, OpAccess::CondWrite, OpAccess::ReadWrite, OpAccess::ReadCondWrite];
    factory
        .info(insn)
        .used_registers()
        .iter()
        .any(|used| written.contains(&used.access()) && used.register().full_register() == register)
}

/// Where the `len` bytes at `skip` of what the program's instruction at `at` stored at `store` come from.
pub fn of_store(
    timeline: &mut Timeline<'_>,
    at: Position,
    store: u64,
    len: u64,
    thread: Lanes<'_>,
) -> Result<Source, BlameError> {
    let after = Position { step: at.step, offset: Instructions(at.offset.0 + 1) };
    let mut entries = trace(timeline, after)?;
    let Some(entry) = entries.pop() else {
        return Ok(Source::Lost { at, why: "the instruction could not be read".into() });
    };
    let mut factory = InstructionInfoFactory::new();
    if string_move(&entry.insn) {
        // Elements go the same way on both sides.
        let from = entry.cpu.gpr[6].wrapping_add(store.wrapping_sub(entry.cpu.gpr[7]));
        return Ok(Source::Memory {
            at,
            address: from,
            len,
            root: root(&entry.cpu),
            with: Vec::new(),
            rip: entry.cpu.rip,
        });
    }
    let inputs = inputs(&entry, &mut factory);
    // A push or a call stores where no operand says.
    let named = entry.insn.op_count() > 0 && entry.insn.op0_kind() == OpKind::Memory;
    let place = if named { address(&entry, 0).unwrap_or(store) } else { store };
    let skip = if moves(&entry.insn) { store.wrapping_sub(place) } else { 0 };
    back(timeline, entries, inputs, &entry, skip, len, thread, &mut factory)
}

/// Goes back from an instruction's inputs.
#[expect(clippy::too_many_arguments, reason = "the state of one walk")]
fn back(
    timeline: &mut Timeline<'_>,
    mut entries: Vec<Entry>,
    inputs: Inputs,
    entry: &Entry,
    skip: u64,
    len: u64,
    thread: Lanes<'_>,
    factory: &mut InstructionInfoFactory,
) -> Result<Source, BlameError> {
    let mut with = Vec::new();
    let mut wanted = match next(entry, inputs, skip, len, &mut with) {
        Ok(source) => return Ok(source),
        Err(wanted) => wanted,
    };
    let mut at = entry.at;
    for _ in 0..MOST_STEPS {
        while let Some(entry) = entries.pop() {
            at = entry.at;
            if entry.insn.mnemonic() == Mnemonic::Syscall && matches!(wanted.register, Register::RAX) {
                return Ok(Source::Kernel { at });
            }
            if !writes(&entry.insn, factory, wanted.register) {
                continue;
            }
            let inputs = self::inputs(&entry, factory);
            let skip = if moves(&entry.insn) { wanted.skip } else { 0 };
            match next(&entry, inputs, skip, wanted.len, &mut with) {
                Ok(source) => return Ok(source),
                Err(next) => wanted = next,
            }
        }
        if at.offset.0 > 0 {
            let why = format!("more than {MOST_STEPPED} instructions back in its step");
            return Ok(Source::Lost { at, why });
        }
        // At the beginning of the step. What a system call returns is not of the program.
        let Some(step) = step_before(thread.lanes, at.step, thread.tid) else {
            return Ok(Source::Lost { at, why: "the thread began with it".into() });
        };
        let length = length(timeline, step)?;
        entries = trace(timeline, Position { step, offset: Instructions(length) })?;
        at = Position { step, offset: Instructions(length) };
        let by_call = entries.last().is_some_and(|entry| entry.insn.mnemonic() == Mnemonic::Syscall);
        if by_call && wanted.register == Register::RAX {
            return Ok(Source::Kernel {
                at: Position { step, offset: Instructions(length.saturating_sub(1)) },
            });
        }
    }
    Ok(Source::Lost { at, why: format!("more than {MOST_STEPS} of the thread's steps back") })
}

/// From an instruction's inputs to what comes next: a source, or a register to look for.
fn next(
    entry: &Entry,
    inputs: Inputs,
    skip: u64,
    len: u64,
    with: &mut Vec<String>,
) -> Result<Source, Wanted> {
    let note = |register: &Register| {
        let text = format!("{register:?}").to_lowercase();
        match value(&entry.cpu, *register) {
            Some(value) => format!("${text} ({value:#x})"),
            None => format!("${text}"),
        }
    };
    // `add [m], r`: what came to what was there.
    let adds = entry.insn.op0_kind() == OpKind::Memory && !inputs.registers.is_empty();
    if let Some((address, size)) = inputs.memory.filter(|_| !adds) {
        with.extend(inputs.registers.iter().map(note));
        let part = len.min(size.saturating_sub(skip)).max(1);
        return Ok(Source::Memory {
            at: entry.at,
            address: address.wrapping_add(skip),
            len: part,
            root: root(&entry.cpu),
            with: std::mem::take(with),
            rip: entry.cpu.rip,
        });
    }
    // Of several registers the last one is followed: in `add a, b` what came to what was there.
    match inputs.registers.split_first() {
        None => Ok(Source::Constant { at: entry.at, rip: entry.cpu.rip }),
        Some((first, rest)) => {
            with.extend(rest.iter().map(note));
            let size = first.size() as u64;
            let len = len.min(size.saturating_sub(skip)).max(1);
            Err(Wanted { register: first.full_register(), skip, len })
        }
    }
}

/// The last step before `step` that the thread committed.
fn step_before(lanes: &[Stretch], step: Step, tid: u32) -> Option<Step> {
    // A thread that was switched to at `from` commits the steps from + 1 to `to`.
    let stretch = lanes.iter().rev().find(|lane| lane.tid == tid && lane.from + 1 < step.0)?;
    Some(Step(stretch.to.min(step.0 - 1)))
}
