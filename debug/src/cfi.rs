//! Registers of the callers on a stack, by call frame information (DWARF 5 section 6.4; System V ABI x86-64, 4.2.4):
//! what locals of a caller are evaluated with. [`crate::unwind`] is for showing stacks; this keeps every register.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, EvaluationResult, LittleEndian, Location, RegisterRule,
    UnwindContext, UnwindExpression, UnwindSection, Value,
};

use crate::{module::Module, process::UserRegisters, unwind::AddressSpace};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Reads a u64 of the thread's memory.
pub type ReadWord<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// RSP and the return address as DWARF numbers them.
const RSP: usize = 7;
const RETURN: usize = 16;
/// RBX, RBP, R12 to R15: what a function without a rule for them has left alone.
const PRESERVED: [usize; 6] = [3, 6, 12, 13, 14, 15];

/// Registers of one frame, by DWARF number: RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8 to R15, RIP. `None`: not
/// recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRegisters {
    values: [Option<u64>; 17],
}

impl FrameRegisters {
    /// Those of the innermost frame: all of them.
    pub fn innermost(registers: &UserRegisters) -> Self {
        /// Place in [`UserRegisters::gpr`] of each DWARF number.
        const PLACES: [usize; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
        let mut values = [None; 17];
        for (value, place) in values.iter_mut().zip(PLACES) {
            *value = Some(registers.gpr[place]);
        }
        values[RETURN] = Some(registers.rip);
        FrameRegisters { values }
    }

    /// By DWARF number.
    pub fn get(&self, number: u16) -> Option<u64> {
        self.values.get(usize::from(number)).copied().flatten()
    }

    /// The instruction, or for a caller the return address.
    pub fn rip(&self) -> Option<u64> {
        self.values[RETURN]
    }
}

/// A frame with what its locals are evaluated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFrame {
    /// Registers.
    pub registers: FrameRegisters,
    /// Address to look up: the instruction, or the last byte of the call.
    pub lookup: u64,
    /// Canonical frame address, if call frame information gives it.
    pub cfa: Option<u64>,
}

/// The frames of a stack, innermost first, at most `most`. Ends where call frame information does.
pub fn frames(
    space: &AddressSpace,
    registers: &UserRegisters,
    read: ReadWord<'_>,
    most: usize,
) -> Vec<CallFrame> {
    let mut frames = Vec::new();
    let mut here = FrameRegisters::innermost(registers);
    let mut lookup = registers.rip;
    while frames.len() < most {
        let caller =
            space.module_at(lookup).and_then(|loaded| step(&loaded.module, loaded.bias, lookup, &here, read));
        frames.push(CallFrame { registers: here, lookup, cfa: caller.map(|(cfa, _)| cfa) });
        let Some((_, next)) = caller else { break };
        // A stack that does not go up would go on forever.
        let (Some(rip), true) = (next.rip(), next.values[RSP] > here.values[RSP]) else { break };
        if rip == 0 {
            break;
        }
        (here, lookup) = (next, rip.wrapping_sub(1));
    }
    frames
}

/// The canonical frame address of the frame with `registers`, and its caller's registers.
fn step(
    module: &Module,
    bias: u64,
    lookup: u64,
    registers: &FrameRegisters,
    read: ReadWord<'_>,
) -> Option<(u64, FrameRegisters)> {
    let (range, data) = module.section(".eh_frame")?;
    let mut bases = BaseAddresses::default().set_eh_frame(range.start);
    if let Some((range, _)) = module.section(".text") {
        bases = bases.set_text(range.start);
    }
    if let Some((range, _)) = module.section(".got") {
        bases = bases.set_got(range.start);
    }
    let section = EhFrame::from(EndianSlice::new(data, LittleEndian));
    let mut context = UnwindContext::new();
    let address = lookup.wrapping_sub(bias);
    let fde = section.fde_for_address(&bases, address, EhFrame::cie_from_offset).ok()?;
    let encoding = fde.cie().encoding();
    let row = fde.unwind_info_for_address(&section, &bases, &mut context, address).ok()?;
    let evaluate = |expression: &UnwindExpression<usize>, cfa: Option<u64>| {
        evaluate(expression, &section, encoding, cfa, registers, bias, read)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            registers.get(register.0)?.wrapping_add_signed(*offset)
        }
        CfaRule::Expression(expression) => evaluate(expression, None)?,
    };
    let mut caller = FrameRegisters::default();
    for number in 0..=RETURN {
        caller.values[number] = match row.register(gimli::Register(number as u16)) {
            None | Some(RegisterRule::Undefined) => match number {
                // The System V ABI's callee-saved registers hold where no rule says otherwise.
                RSP => Some(cfa),
                _ if PRESERVED.contains(&number) => registers.values[number],
                _ => None,
            },
            Some(RegisterRule::SameValue) => registers.values[number],
            Some(RegisterRule::Offset(offset)) => read(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Register(other)) => registers.get(other.0),
            Some(RegisterRule::Expression(expression)) => evaluate(&expression, Some(cfa)).and_then(read),
            Some(RegisterRule::ValExpression(expression)) => evaluate(&expression, Some(cfa)),
            Some(RegisterRule::Constant(value)) => Some(value),
            Some(_) => None,
        };
    }
    Some((cfa, caller))
}

fn evaluate(
    expression: &UnwindExpression<usize>,
    section: &EhFrame<Slice<'_>>,
    encoding: gimli::Encoding,
    cfa: Option<u64>,
    registers: &FrameRegisters,
    bias: u64,
    read: ReadWord<'_>,
) -> Option<u64> {
    let mut evaluation = expression.get(section).ok()?.evaluation(encoding);
    evaluation.set_max_iterations(10_000);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let mut state = evaluation.evaluate().ok()?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = read(address)?;
                let bits = 8 * u32::from(size.clamp(1, 8));
                evaluation.resume_with_memory(Value::Generic(word & u64::MAX >> (64 - bits))).ok()?
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(registers.get(register.0)?)).ok()?
            }
            EvaluationResult::RequiresRelocatedAddress(linked) => {
                evaluation.resume_with_relocated_address(linked.wrapping_add(bias)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.result().first()?.location {
        Location::Address { address } => Some(address),
        Location::Value { value } => value.to_u64(u64::MAX).ok(),
        _ => None,
    }
}
