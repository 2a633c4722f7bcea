//! Where a variable is: its location evaluated in a stopped thread.

use gimli::{AttributeValue, EvaluationResult, Location, Value};

use super::{Dwarf, Entry, Scope, Shape, Type, Variable};

/// What locations are evaluated against.
pub trait Machine {
    /// DWARF register number (System V ABI x86-64, figure 3.36: 0 RAX, 1 RDX, ...) of the frame; `None` if it was
    /// not recovered for this frame.
    fn register(&self, number: u16) -> Option<u64>;
    /// Reads memory of the thread.
    fn read(&self, address: u64, out: &mut [u8]) -> bool;
    /// Canonical frame address of the frame.
    fn frame_address(&self) -> Option<u64>;
    /// Address of offset `offset` in the thread-local block of the module that runs at `bias`.
    fn thread_local(&self, bias: u64, offset: u64) -> Option<u64>;
}

/// One piece of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// In memory (where it runs, not as linked).
    Memory(u64),
    /// In a DWARF register.
    Register(u16),
    /// Nowhere: the value itself is known.
    Value(u64),
    /// The compiler threw it away.
    Gone,
}

/// Where a variable is, in order of its bytes; a size of `None` is all the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// Pieces with their sizes in bytes.
    pub pieces: Vec<(Piece, Option<u64>)>,
}

/// Why a variable has no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocateError {
    /// The compiler gives no location at this instruction.
    #[error("optimised out at this instruction")]
    OptimisedOut,
    /// The compiler or the linker left a global out.
    #[error("optimised out: the program was built without it, so it has no place in memory anywhere")]
    Removed,
    /// A register that unwinding does not recover is needed.
    #[error("needs register {0}, which is not known in this frame")]
    Register(u16),
    /// Memory that is not there.
    #[error("needs memory at {0:#x}, which is not mapped")]
    Memory(u64),
    /// Thread-local storage that is not allocated yet, or of a module it cannot be found for.
    #[error("its thread-local storage cannot be found")]
    ThreadLocal,
    /// Something in DWARF this program does not do.
    #[error("its location cannot be evaluated: {0}")]
    Dwarf(String),
}

impl Dwarf {
    /// Where `variable` is at `address` (as linked), for a module running at `bias`.
    pub fn locate(
        &self,
        variable: &Variable,
        address: u64,
        bias: u64,
        machine: &dyn Machine,
    ) -> Result<Evaluated, LocateError> {
        if let Some((_, value)) = self.attribute(variable.entry, gimli::DW_AT_const_value) {
            let known = value.udata_value().or(match value {
                AttributeValue::Sdata(n) => Some(n as u64),
                _ => None,
            });
            if let Some(value) = known {
                return Ok(Evaluated { pieces: vec![(Piece::Value(value), None)] });
            }
        }
        let (unit, value) =
            self.attribute(variable.entry, gimli::DW_AT_location).ok_or(LocateError::OptimisedOut)?;
        let expression = self.expression(unit, value, address)?;
        let function = match variable.scope {
            Scope::Local { function } => Some(function),
            Scope::Global => None,
        };
        self.evaluate(unit, expression, (address, bias), function, None, machine)
    }

    /// Where the virtual base class `base` of the object at `object` is: its virtual table says.
    pub fn virtual_base(
        &self,
        base: Entry,
        object: u64,
        bias: u64,
        machine: &dyn Machine,
    ) -> Result<u64, LocateError> {
        let (unit, value) =
            self.attribute(base, gimli::DW_AT_data_member_location).ok_or(LocateError::OptimisedOut)?;
        let expression = self.expression(unit, value, 0)?;
        let found = self.evaluate(unit, expression, (0, bias), None, Some(object), machine)?;
        match found.pieces.as_slice() {
            [(Piece::Memory(at) | Piece::Value(at), _)] => Ok(*at),
            _ => Err(LocateError::Dwarf("the place of a virtual base class is no address".into())),
        }
    }

    /// The type of an array whose length is known only while the program runs (C's `int a[n]`), with the length it has
    /// now; `None` for any other type.
    pub fn bounded(
        &self,
        variable: &Variable,
        address: u64,
        bias: u64,
        machine: &dyn Machine,
    ) -> Option<Type> {
        let (Type::Declared(entry), None) = (&variable.of, self.size(&variable.of)) else { return None };
        let Shape::Array(element, 0) = self.shape(&variable.of) else { return None };
        let entry = self.stripped(*entry)?;
        let (range, _) =
            self.children(entry).into_iter().find(|(_, die)| die.tag() == gimli::DW_TAG_subrange_type)?;
        let (name, more) = match self.attribute(range, gimli::DW_AT_count) {
            Some(_) => (gimli::DW_AT_count, 0),
            None => (gimli::DW_AT_upper_bound, 1),
        };
        let (unit, value) = self.attribute(range, name)?;
        let function = match variable.scope {
            Scope::Local { function } => Some(function),
            Scope::Global => None,
        };
        // An expression, or a variable that the compiler made for it.
        let found = match self.reference(unit, value.clone()) {
            Some(entry) => {
                let bound = Variable { entry, of: self.type_of(entry), ..variable.clone() };
                let size = usize::try_from(self.size(&bound.of)?).ok().filter(|size| *size <= 8)?;
                match self.locate(&bound, address, bias, machine).ok()?.pieces.first()? {
                    (Piece::Memory(at), _) => {
                        let mut bytes = [0; 8];
                        machine.read(*at, &mut bytes[..size]).then(|| u64::from_le_bytes(bytes))?
                    }
                    (Piece::Register(number), _) => machine.register(*number)?,
                    (Piece::Value(value), _) => *value,
                    _ => return None,
                }
            }
            None => {
                let expression = self.expression(unit, value, address).ok()?;
                match self
                    .evaluate(unit, expression, (address, bias), function, None, machine)
                    .ok()?
                    .pieces
                    .first()?
                {
                    (Piece::Memory(value) | Piece::Value(value), _) => *value,
                    _ => return None,
                }
            }
        };
        Some(Type::Array(Box::new(element), found.checked_add(more)?))
    }

    fn expression(
        &self,
        unit: usize,
        value: AttributeValue<super::Reader>,
        address: u64,
    ) -> Result<gimli::Expression<super::Reader>, LocateError> {
        if let AttributeValue::Exprloc(expression) = value {
            return Ok(expression);
        }
        let damaged = |error: gimli::Error| LocateError::Dwarf(error.to_string());
        let mut locations =
            self.unit(unit).attr_locations(value).map_err(damaged)?.ok_or(LocateError::OptimisedOut)?;
        while let Some(entry) = locations.next().map_err(damaged)? {
            if entry.range.begin <= address && address < entry.range.end {
                return Ok(entry.data);
            }
        }
        Err(LocateError::OptimisedOut)
    }

    fn evaluate(
        &self,
        unit: usize,
        expression: gimli::Expression<super::Reader>,
        (address, bias): (u64, u64),
        function: Option<Entry>,
        initial: Option<u64>,
        machine: &dyn Machine,
    ) -> Result<Evaluated, LocateError> {
        let damaged = |error: gimli::Error| LocateError::Dwarf(error.to_string());
        let mut evaluation = expression.evaluation(self.units[unit].encoding());
        evaluation.set_max_iterations(10_000);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut step = evaluation.evaluate().map_err(damaged)?;
        loop {
            step = match step {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let mut bytes = [0; 8];
                    let size = usize::from(size).min(8);
                    if !machine.read(address, &mut bytes[..size]) {
                        return Err(LocateError::Memory(address));
                    }
                    evaluation
                        .resume_with_memory(Value::Generic(u64::from_le_bytes(bytes)))
                        .map_err(damaged)?
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = machine.register(register.0).ok_or(LocateError::Register(register.0))?;
                    evaluation.resume_with_register(Value::Generic(value)).map_err(damaged)?
                }
                EvaluationResult::RequiresFrameBase => {
                    let base = self.frame_base(function, address, bias, machine)?;
                    evaluation.resume_with_frame_base(base).map_err(damaged)?
                }
                EvaluationResult::RequiresTls(offset) => {
                    let at = machine.thread_local(bias, offset).ok_or(LocateError::ThreadLocal)?;
                    evaluation.resume_with_tls(at).map_err(damaged)?
                }
                EvaluationResult::RequiresCallFrameCfa => {
                    let cfa = machine.frame_address().ok_or(LocateError::OptimisedOut)?;
                    evaluation.resume_with_call_frame_cfa(cfa).map_err(damaged)?
                }
                EvaluationResult::RequiresRelocatedAddress(linked) => {
                    evaluation.resume_with_relocated_address(linked.wrapping_add(bias)).map_err(damaged)?
                }
                EvaluationResult::RequiresIndexedAddress { index, .. } => {
                    let linked = self.unit(unit).address(index).map_err(damaged)?;
                    evaluation.resume_with_indexed_address(linked.wrapping_add(bias)).map_err(damaged)?
                }
                EvaluationResult::RequiresEntryValue(_) => return Err(LocateError::OptimisedOut),
                other => return Err(LocateError::Dwarf(format!("needs {other:?}"))),
            };
        }
        let pieces = evaluation.result();
        let pieces = pieces
            .into_iter()
            .map(|piece| {
                let place = match piece.location {
                    Location::Empty => Piece::Gone,
                    Location::Register { register } => Piece::Register(register.0),
                    Location::Address { address } => Piece::Memory(address),
                    Location::Value { value } => Piece::Value(value.to_u64(u64::MAX).unwrap_or(0)),
                    _ => Piece::Gone,
                };
                (place, piece.size_in_bits.map(|bits| bits / 8))
            })
            .collect::<Vec<_>>();
        if pieces.iter().all(|(piece, _)| *piece == Piece::Gone) {
            return Err(LocateError::OptimisedOut);
        }
        Ok(Evaluated { pieces })
    }

    fn frame_base(
        &self,
        function: Option<Entry>,
        address: u64,
        bias: u64,
        machine: &dyn Machine,
    ) -> Result<u64, LocateError> {
        let missing = || LocateError::Dwarf("no frame base".into());
        let function = function.ok_or_else(missing)?;
        let (unit, value) = self.attribute(function, gimli::DW_AT_frame_base).ok_or_else(missing)?;
        let expression = self.expression(unit, value, address)?;
        match self.evaluate(unit, expression, (address, bias), None, None, machine)?.pieces.first() {
            Some((Piece::Memory(base) | Piece::Value(base), _)) => Ok(*base),
            Some((Piece::Register(number), _)) => {
                machine.register(*number).ok_or(LocateError::Register(*number))
            }
            _ => Err(missing()),
        }
    }
}
