//! Makes cases.

mod address;
mod build;
pub mod encodings;
mod registers;
pub mod selfmod;
pub mod sequence;
pub mod single;
pub mod undefined;
mod vendor;

use iced_x86::{Instruction, NasmFormatter};

use crate::{case::Case, compare::Ignore};

/// A case and what is known of it.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The case.
    pub case: Case,
    /// The instructions, with their addresses.
    pub instructions: Vec<Instruction>,
    /// What need not be equal at the end.
    pub ignore: Ignore,
}

impl Generated {
    /// The instructions in words, one a line.
    pub fn disassembly(&self) -> String {
        use iced_x86::Formatter;
        let mut formatter = NasmFormatter::new();
        let mut text = String::new();
        for insn in &self.instructions {
            text.push_str(&format!("{:#x}  ", insn.ip()));
            formatter.format(insn, &mut text);
            text.push('\n');
        }
        text
    }
}
