//! A process at a position: threads, modules and frames, and expressions evaluated in them.

use std::{collections::BTreeMap, sync::Arc};

use debug::{
    cfi::{self, CallFrame},
    dwarf::{Dwarf, Machine},
    expr::{EvalError, Expr, FrameScope, Place, evaluate},
    files,
    kernel::{Kernel, Read, read_virtual},
    look,
    module::Module,
    modules::Files,
    process::{self, Thread, UserRegisters},
    unwind::{AddressSpace, Loaded},
};
use rewind_platform::state::Fact;
use vmm::{
    address::{Gpa, Gva},
    engine::CpuState,
};

use crate::names;

/// Most frames an expression is looked up in.
const MOST_FRAMES: usize = 64;

/// Executables, libraries and their debug information, each read once.
pub struct Symbols {
    /// Files of the guest.
    pub files: Files,
    /// By module: two files of one path may be loaded in one run.
    dwarf: Vec<(Arc<Module>, Option<Arc<Dwarf>>)>,
    source: ReadSource,
    lines: BTreeMap<String, Option<String>>,
}

/// Gives the content of a source file by the path the compiler recorded.
type ReadSource = Box<dyn FnMut(&str) -> Option<Vec<u8>> + Send>;

/// A module with its debug information, if it has some.
pub type WithDwarf = (Loaded, Option<Arc<Dwarf>>);

impl Symbols {
    /// Over the guest's files.
    pub fn new(files: Files) -> Symbols {
        Symbols { files, dwarf: Vec::new(), source: Box::new(|_| None), lines: BTreeMap::new() }
    }

    /// Source files that are not among the guest's files are asked for here, by the path the compiler recorded.
    pub fn with_source(mut self, source: impl FnMut(&str) -> Option<Vec<u8>> + Send + 'static) -> Symbols {
        self.source = Box::new(source);
        self
    }

    /// A line of a source file, from 1.
    pub fn source_line(&mut self, file: &str, line: u32) -> Option<String> {
        if !self.lines.contains_key(file) {
            let content = self.files.content(file.as_bytes()).or_else(|| (self.source)(file));
            let text = content.map(|content| String::from_utf8_lossy(&content).into_owned());
            self.lines.insert(file.to_owned(), text);
        }
        let text = self.lines.get(file)?.as_ref()?;
        text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?).map(str::to_owned)
    }

    fn with_dwarf(&mut self, loaded: &Loaded) -> WithDwarf {
        let module = &loaded.module;
        if let Some((_, dwarf)) = self.dwarf.iter().find(|(known, _)| Arc::ptr_eq(known, module)) {
            return (loaded.clone(), dwarf.clone());
        }
        let dwarf = module.dwarf().map(Arc::new);
        self.dwarf.push((Arc::clone(module), dwarf.clone()));
        (loaded.clone(), dwarf)
    }
}

/// One thread at a position, with everything expressions need.
pub struct Scene {
    /// The thread.
    pub thread: Thread,
    /// Its registers.
    pub registers: UserRegisters,
    /// Its modules.
    pub space: AddressSpace,
    /// The modules again, with debug information.
    pub modules: Vec<WithDwarf>,
    /// Its frames, innermost first.
    pub frames: Vec<CallFrame>,
    /// Load bias of the executable.
    executable: Option<u64>,
}

impl Scene {
    /// Looks at `thread`.
    pub fn new(kernel: &Kernel<'_>, cpu: &CpuState, thread: Thread, symbols: &mut Symbols) -> Read<Scene> {
        let registers = thread.registers(kernel, cpu)?;
        let space = look::address_space(kernel, &thread, &mut symbols.files)?;
        let modules: Vec<_> = space.modules().iter().map(|loaded| symbols.with_dwarf(loaded)).collect();
        let read = |address| {
            let mut bytes = [0; 8];
            thread.read(kernel, Gva(address), &mut bytes).ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let frames = cfi::frames(&space, &registers, &read, MOST_FRAMES);
        let path = thread.mm.and_then(|mm| {
            let file = kernel.field(mm, Fact::MmExeFile).ok().filter(|file| *file != 0)?;
            files::file_path(kernel, Gva(file)).ok()
        });
        let executable = modules
            .iter()
            .find(|(loaded, _)| Some(&loaded.module.path) == path.as_ref())
            .map(|(l, _)| l.bias);
        Ok(Scene { thread, registers, space, modules, frames, executable })
    }

    /// The innermost frame in the user's own source, else the innermost one with a line, else the innermost one.
    pub fn own_frame(&self) -> usize {
        let has_line = |own: bool| {
            self.frames.iter().position(|frame| {
                let module = self.space.module_at(frame.lookup).map(|loaded| loaded.module.path.as_slice());
                self.space.source(frame.lookup).iter().any(|source| names::counts(source, module, own))
            })
        };
        has_line(true).or_else(|| has_line(false)).unwrap_or(0)
    }

    /// Does the address lie in a program or library (its .bss is anonymous memory)?
    pub fn in_module(&self, address: u64) -> bool {
        self.space.module_at(address).is_some()
    }

    /// "at bank.c:41 (teller)" of a frame.
    pub fn place_text(&self, frame: usize) -> String {
        let Some(frame) = self.frames.get(frame) else { return "here".into() };
        let source = self.space.source(frame.lookup);
        let module = self.space.module_at(frame.lookup).map(|loaded| loaded.module.path.as_slice());
        let first = names::own(&source, module).map(|(source, _)| source);
        let function = first.and_then(|s| s.function.clone());
        let line = first.and_then(|s| {
            let file = s.file.as_deref()?.rsplit('/').next()?.to_owned();
            Some(format!("{file}:{}", s.line?))
        });
        match (line, function) {
            (Some(line), Some(function)) => format!("at {line} ({function})"),
            (Some(line), None) => format!("at {line}"),
            (None, Some(function)) => format!("in {function}"),
            (None, None) => format!("at {:#x}", frame.lookup),
        }
    }

    /// Evaluates `expr` in the own frame and, where it uses locals of callers, in those.
    pub fn evaluate(&self, kernel: &Kernel<'_>, expr: &Expr) -> Result<Place, EvalError> {
        let first = self.own_frame();
        let mut error = None;
        for number in first..self.frames.len().max(first + 1) {
            match self.evaluate_in(kernel, expr, number) {
                Err(unknown @ EvalError::Unknown { .. }) => {
                    error.get_or_insert(unknown);
                }
                other => return other,
            }
        }
        Err(error.unwrap_or_else(|| EvalError::Operator("the thread has no frame".into())))
    }

    /// Evaluates `expr` in one frame.
    pub fn evaluate_in(&self, kernel: &Kernel<'_>, expr: &Expr, number: usize) -> Result<Place, EvalError> {
        let innermost = CallFrame {
            registers: cfi::FrameRegisters::innermost(&self.registers),
            lookup: self.registers.rip,
            cfa: None,
        };
        let frame = self.frames.get(number).unwrap_or(&innermost);
        let mut modules = self.modules.clone();
        // The frame's own module comes first.
        if let Some(own) = self.space.module_at(frame.lookup)
            && let Some(at) = modules.iter().position(|(loaded, _)| loaded.start == own.start)
        {
            modules[..=at].rotate_right(1);
        } else {
            modules.retain(|(_, dwarf)| dwarf.is_some());
            modules.insert(0, (placeholder(&self.modules).ok_or_else(no_modules)?, None));
        }
        let machine = FrameMachine { kernel, scene: self, frame };
        let scope = FrameScope {
            machine: &machine,
            register: &|name| self.register(name),
            modules: &modules,
            address: frame.lookup,
            place: self.place_text(number),
        };
        evaluate(expr, &scope)
    }

    /// A register as the thread has it, not a caller's: few of a caller's are known.
    fn register(&self, name: &str) -> Option<u64> {
        const NAMES: [&str; 17] = [
            "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15", "rip",
        ];
        match NAMES.iter().position(|own| *own == name) {
            Some(number) => cfi::FrameRegisters::innermost(&self.registers).get(number as u16),
            None if name == "eflags" => Some(self.registers.rflags),
            None if name == "fs_base" => Some(self.registers.fs_base),
            None => None,
        }
    }
}

fn no_modules() -> EvalError {
    EvalError::Operator("the process has mapped no program".into())
}

/// An entry for the place of the own module, where the instruction lies in none.
fn placeholder(modules: &[WithDwarf]) -> Option<Loaded> {
    modules.first().map(|(loaded, _)| loaded.clone())
}

struct FrameMachine<'a> {
    kernel: &'a Kernel<'a>,
    scene: &'a Scene,
    frame: &'a CallFrame,
}

impl Machine for FrameMachine<'_> {
    fn register(&self, number: u16) -> Option<u64> {
        self.frame.registers.get(number)
    }

    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        let root: Option<Gpa> = self.scene.thread.root;
        root.is_some_and(|root| read_virtual(self.kernel.memory(), root, Gva(address), out).is_ok())
    }

    fn frame_address(&self) -> Option<u64> {
        self.frame.cfa
    }

    fn thread_local(&self, bias: u64, offset: u64) -> Option<u64> {
        if self.scene.executable != Some(bias) {
            return None;
        }
        let (loaded, _) = self.scene.modules.iter().find(|(loaded, _)| loaded.bias == bias)?;
        let below = loaded.module.tls_below()?;
        Some(self.scene.registers.fs_base.wrapping_sub(below).wrapping_add(offset))
    }
}

/// The thread on the CPU.
pub fn on_cpu(kernel: &Kernel<'_>, cpu: &CpuState) -> Read<Gva> {
    process::current(kernel, cpu)
}
