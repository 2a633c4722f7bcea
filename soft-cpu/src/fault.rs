//! Why an instruction did not complete.

/// Divide error.
pub(crate) const DE: u8 = 0;
/// Debug.
pub(crate) const DB: u8 = 1;
/// Breakpoint (INT3).
pub(crate) const BP: u8 = 3;
/// Invalid opcode.
pub(crate) const UD: u8 = 6;
/// Device not available.
pub(crate) const NM: u8 = 7;
/// Double fault.
pub(crate) const DF: u8 = 8;
/// Invalid TSS.
pub(crate) const TS: u8 = 10;
/// Segment not present.
pub(crate) const NP: u8 = 11;
/// Stack fault.
pub(crate) const SS: u8 = 12;
/// General protection.
pub(crate) const GP: u8 = 13;
/// Page fault.
pub(crate) const PF: u8 = 14;
/// x87 error.
pub(crate) const MF: u8 = 16;
/// Alignment check.
pub(crate) const AC: u8 = 17;
/// SIMD exception.
pub(crate) const XM: u8 = 19;

/// Why an instruction did not complete. The architectural state is as before it (REP: as between two
/// iterations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// An exception. The address of a page fault is in `Cpu::fault_address`.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code, if the vector has one.
        code: Option<u32>,
    },
    /// Run it again as a block of its own: it touches a watched page or its own block's code.
    Alone,
    /// `Cpu::pending` says why; the instruction has not run.
    Stop,
}

/// #GP(code).
pub(crate) const fn gp(code: u32) -> Abort {
    Abort::Exception { vector: GP, code: Some(code) }
}

/// #UD.
pub(crate) const fn ud() -> Abort {
    Abort::Exception { vector: UD, code: None }
}

/// An exception without an error code.
pub(crate) const fn plain(vector: u8) -> Abort {
    Abort::Exception { vector, code: None }
}

/// An exception with an error code.
pub(crate) const fn coded(vector: u8, code: u32) -> Abort {
    Abort::Exception { vector, code: Some(code) }
}
