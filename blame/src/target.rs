//! What is asked about: the expression's bytes, type and value in a process at a position.

use std::sync::Arc;

use debug::{
    dwarf::{Dwarf, LocateError, Type},
    expr::{self, EvalError, Expr, Where},
    kernel::{Kernel, read_virtual},
    look,
    process::{self, Thread},
    unwind::AddressSpace,
};
use run::seek::Timeline;
use vmm::{
    address::{Gpa, Gva, Position},
    engine::CpuState,
};

use crate::{
    access::{Place, Who},
    current,
    error::BlameError,
    names,
    piece::{self, Origin, Piece},
    scope::{Scene, Symbols},
};

/// Which process and thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Process id.
    pub pid: Option<u32>,
    /// Thread id.
    pub tid: Option<u32>,
}

/// The bytes asked about.
pub struct Target {
    /// As the user wrote it.
    pub text: String,
    /// Where the value is looked at.
    pub at: Position,
    /// First address, if it is a process's memory.
    pub address: Option<u64>,
    /// How many bytes.
    pub len: u64,
    /// Page-table root of the process.
    pub root: Option<Gpa>,
    /// Where they are.
    pub pieces: Vec<Piece>,
    /// What is known of pieces before anything is searched: files mapped and never written.
    pub origins: Vec<Option<Origin>>,
    /// Their value at the position.
    pub bytes: Vec<u8>,
    /// Type, with the debug information it is of.
    pub of: Option<(Type, Option<Arc<Dwarf>>)>,
    /// The thread in which the expression was understood.
    pub who: Who,
    /// Where that thread is.
    pub place: Place,
    /// Of a bit-field: the first bit and how many. Writes that leave them as they are do not count.
    pub bits: Option<(u64, u64)>,
    /// In anonymous memory that is no stack: an allocator may have given it out.
    pub on_heap: bool,
    /// Its modules, for the lines of its accesses.
    pub sources: Option<AddressSpace>,
}

impl Target {
    /// Type as its language writes it; empty if unknown.
    pub fn type_name(&self) -> String {
        match &self.of {
            Some((of, Some(dwarf))) => dwarf.type_name(of),
            _ => String::new(),
        }
    }

    /// The value `bytes` would be.
    pub fn show(&self, bytes: &[u8]) -> String {
        if self.address.is_none() {
            return names::quoted(bytes);
        }
        let symbol = |address: u64| {
            let loaded = self.sources.as_ref()?.module_at(address)?;
            let (symbol, into) = loaded.module.symbol(address.wrapping_sub(loaded.bias))?;
            let name = debug::module::demangle(&symbol.name);
            Some(if into == 0 { name } else { format!("{name}+{into}") })
        };
        show(self.of.as_ref(), bytes, &symbol)
    }
}

impl Target {
    /// The value `bytes` would be as a number, if it is one.
    pub fn number(&self, bytes: &[u8]) -> Option<f64> {
        use debug::dwarf::Shape;
        let (of, dwarf) = self.of.as_ref()?;
        let shape = match (dwarf, of) {
            (Some(dwarf), of) => dwarf.shape(of),
            (None, _) => return None,
        };
        if let (Type::Bits(..), Some(dwarf)) = (of, dwarf) {
            return expr::print(dwarf, of, bytes, &|_| None).parse().ok();
        }
        let unsigned = || {
            let mut wide = [0; 8];
            let size = bytes.len().min(8);
            wide[..size].copy_from_slice(&bytes[..size]);
            u64::from_le_bytes(wide) as f64
        };
        match shape {
            Shape::Float(4) => Some(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            Shape::Float(8) => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
            Shape::Integer { size: 1..=8, signed: true, .. } => Some(names::signed(bytes) as f64),
            Shape::Integer { size: 1..=8, .. } | Shape::Pointer(_) => Some(unsigned()),
            Shape::Enum(1..=8, _) => Some(names::signed(bytes) as f64),
            _ => None,
        }
        .filter(|number| number.is_finite())
    }
}

/// A value by its type; plain bytes as one number if there are at most 8.
fn show(
    of: Option<&(Type, Option<Arc<Dwarf>>)>,
    bytes: &[u8],
    symbol: &dyn Fn(u64) -> Option<String>,
) -> String {
    match of {
        Some((of, Some(dwarf))) if !plain(of) => expr::print(dwarf, of, bytes, symbol),
        Some((Type::Integer(_, true), _)) if bytes.len() <= 8 => names::signed(bytes).to_string(),
        _ => names::bytes(bytes),
    }
}

/// Made by `@address,size`: bytes without a type.
fn plain(of: &Type) -> bool {
    matches!(of, Type::Array(element, _) if **element == Type::Integer(1, false))
}

/// The threads of the job alive at a stop, and the one to ask.
fn choose(
    kernel: &Kernel<'_>,
    cpu: &CpuState,
    choice: Choice,
    at: Position,
) -> Result<(Thread, Vec<Thread>), BlameError> {
    let on_cpu = process::current(kernel, cpu)?;
    let threads: Vec<Thread> = process::threads(kernel)?
        .into_iter()
        .filter(|thread| thread.pid != 1 && thread.mm.is_some())
        .collect();
    let mut alive: Vec<String> = Vec::new();
    for thread in &threads {
        let text = match choice.tid {
            Some(_) => format!("{} ({})", thread.tid, thread.comm),
            None => format!("{} ({})", thread.pid, thread.comm),
        };
        if thread.tid == thread.pid || choice.tid.is_some() {
            alive.push(text);
        }
    }
    alive.truncate(16);
    let missing = |what: String| BlameError::NotAlive { what, at, alive: alive.clone() };
    let found = match (choice.tid, choice.pid) {
        (Some(tid), pid) => threads
            .iter()
            .find(|thread| thread.tid == tid && pid.is_none_or(|pid| pid == thread.pid))
            .ok_or_else(|| missing(format!("thread {tid}")))?,
        (None, Some(pid)) => {
            let mut own = threads.iter().filter(|thread| thread.pid == pid);
            let running = own.clone().find(|thread| thread.task == on_cpu);
            running.or_else(|| own.next()).ok_or_else(|| missing(format!("process {pid}")))?
        }
        (None, None) => threads
            .iter()
            .find(|thread| thread.task == on_cpu)
            // Between processes, or in init: the job's oldest.
            .or_else(|| threads.first())
            .ok_or_else(|| missing("the job".into()))?,
    };
    Ok((found.clone(), threads))
}

/// Puts the machine at `at` and resolves `text` there.
pub fn resolve(
    timeline: &mut Timeline<'_>,
    symbols: &mut Symbols,
    at: Position,
    text: &str,
    choice: Choice,
) -> Result<Target, BlameError> {
    let parsed = expr::parse(text)?;
    timeline.seek(at)?;
    let machine = timeline.looking();
    let cpu = machine.cpu()?;
    let Some(kernel) = look::kernel(machine) else {
        return Err(BlameError::NotAlive { what: "the job".into(), at, alive: Vec::new() });
    };
    let (thread, threads) = choose(&kernel, &cpu, choice, at)?;
    let scene = Scene::new(&kernel, &cpu, thread, symbols)?;
    let place = match scene.evaluate(&kernel, &parsed) {
        Ok(place) => place,
        Err(error) => return Err(explain(&kernel, &cpu, error, &scene, &threads, symbols, at, text)),
    };
    let frame = scene.own_frame();
    let of = Some((place.of.clone(), place.dwarf.clone()));
    let address = match &place.at {
        Where::Memory(address) => *address,
        Where::Elsewhere(bytes) => {
            return Err(BlameError::NotMemory {
                what: text.into(),
                place: scene.place_text(frame),
                value: show(of.as_ref(), bytes, &|_| None),
            });
        }
        Where::Value(value) => {
            return Err(BlameError::NoPlace { what: text.into(), value: format!("{value:#x}") });
        }
    };
    let unmapped = |address| BlameError::Unmapped { what: text.into(), address, pid: scene.thread.pid, at };
    let (root, mm) = scene.thread.root.zip(scene.thread.mm).ok_or_else(|| unmapped(address))?;
    let pieces = match piece::split(&kernel, root, address, place.size, at) {
        Ok(pieces) => pieces,
        Err(missing) => {
            return Err(match piece::mapping_at(&kernel, mm, missing)? {
                None => unmapped(missing),
                Some(mapping) => BlameError::NeverUsed {
                    what: text.into(),
                    address: missing,
                    pid: scene.thread.pid,
                    at,
                    reads: match mapping.path {
                        Some(path) => format!("the content of {}", String::from_utf8_lossy(&path)),
                        None => "zero".into(),
                    },
                },
            });
        }
    };
    let mut origins = Vec::new();
    for piece in &pieces {
        let address = piece.address.unwrap_or(0);
        let mapping = piece::mapping_at(&kernel, mm, address)?.filter(piece::is_private);
        let file = mapping.and_then(|m| piece::file_page(&kernel, &m, address, piece.gpa));
        origins.push(file.map(|(path, offset)| Origin::File { path, offset, position: None }));
    }
    let mut bytes = vec![0; place.size as usize];
    read_virtual(kernel.memory(), root, Gva(address), &mut bytes).map_err(|_| unmapped(address))?;
    let on_heap = piece::mapping_at(&kernel, mm, address)?.is_some_and(|mapping| {
        let inside = |at: u64| (mapping.start..mapping.end).contains(&at);
        let stack = |thread: &Thread| {
            thread.mm == Some(mm) && thread.registers(&kernel, &cpu).is_ok_and(|own| inside(own.gpr[4]))
        };
        mapping.file.is_none() && !threads.iter().any(stack) && !scene.in_module(address)
    });
    let who = current::who(&kernel, scene.thread.task)?;
    let where_now = names::place(&kernel, &scene, frame, symbols);
    Ok(Target {
        text: text.into(),
        at,
        address: Some(address),
        len: place.size,
        root: Some(root),
        pieces,
        origins,
        bytes,
        of,
        who,
        place: where_now,
        bits: match &place.of {
            Type::Bits(_, at, bits) => Some((*at, *bits)),
            _ => None,
        },
        on_heap,
        sources: Some(scene.space.clone()),
    })
}

/// Longest name, and most names, looked at for one much alike.
const MOST_NAME: usize = 256;
const MOST_NAMES: usize = 100_000;

/// Says more of an error where more is known.
#[expect(clippy::too_many_arguments, reason = "everything an explanation may need")]
fn explain(
    kernel: &Kernel<'_>,
    cpu: &CpuState,
    error: EvalError,
    scene: &Scene,
    threads: &[Thread],
    symbols: &mut Symbols,
    at: Position,
    text: &str,
) -> BlameError {
    match error {
        EvalError::Unmapped(address) => {
            BlameError::Unmapped { what: text.into(), address, pid: scene.thread.pid, at }
        }
        EvalError::Unknown { name, place } => {
            let mut functions: Vec<String> = Vec::new();
            let mut foreign: Vec<String> = Vec::new();
            let mut known: Vec<String> = Vec::new();
            let (mut nowhere, mut nowhere_own) = (false, false);
            for (loaded, dwarf) in &scene.modules {
                let Some(dwarf) = dwarf else { continue };
                dwarf.each_variable(&mut |own| {
                    if own.name == name {
                        let users = look::is_users(own.file, &loaded.module.path);
                        let list = if users { &mut functions } else { &mut foreign };
                        match own.function {
                            Some(function) if !list.iter().any(|f| f == function) => {
                                list.push(function.into());
                            }
                            Some(_) => {}
                            None => {
                                nowhere |= !own.fixed;
                                nowhere_own |= !own.fixed && own.defined && users;
                            }
                        }
                    }
                    if own.fixed && own.name.len() <= MOST_NAME && known.len() < MOST_NAMES {
                        known.push(own.name.into());
                    }
                });
                // Locals of the frames, which are spelt wrong as easily.
                for frame in &scene.frames {
                    if (loaded.start..loaded.end).contains(&frame.lookup) {
                        let locals = dwarf.locals(frame.lookup.wrapping_sub(loaded.bias));
                        known.extend(locals.into_iter().map(|local| local.name));
                    }
                }
            }
            // Of the user's own code first: another library's variables are seldom meant.
            functions.extend(foreign);
            if nowhere_own || functions.is_empty() && nowhere {
                // The program has it, and the compiler gave it no place.
                let source = LocateError::Removed;
                return BlameError::Eval(EvalError::Nowhere { name, source });
            }
            if functions.is_empty() {
                return BlameError::Unknown { near: names::near(&name, known), name, place };
            }
            functions.truncate(4);
            let expr = Expr::Name(name.clone());
            let others = threads.iter().filter(|thread| thread.tid != scene.thread.tid).take(64);
            let has = others.filter_map(|thread| {
                let other = Scene::new(kernel, cpu, thread.clone(), symbols).ok()?;
                let found = other.evaluate(kernel, &expr);
                (!matches!(found, Err(EvalError::Unknown { .. }))).then(|| thread.tid.to_string())
            });
            BlameError::OutOfScope {
                name,
                functions,
                tid: scene.thread.tid,
                at,
                threads: has.take(4).collect(),
            }
        }
        other => BlameError::Eval(other),
    }
}
