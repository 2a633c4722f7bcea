//! Fast forms of common instructions.

use crate::{block::Block, insn::Insn, lower::Ops};

/// Adds the fast form of the first instruction (or a fused pair) of `insns`; how many instructions it took, 0 if there
/// is none.
pub(crate) fn lower(_insns: &[Insn], _at: usize, _block: &Block, _out: &mut Ops) -> usize {
    0
}
