//! Watches and breakpoints by the CPU's debug registers, which the host sets around the guest's own
//! (KVM_GUESTDBG_USE_HW_BP). Four aligned pieces of 1, 2, 4 or 8 bytes (Intel SDM vol. 3B, 18.2).
//!
//! Not every KVM stops at them: where the self-test's two checks do not hold, asking is refused.

use std::sync::OnceLock;

use crate::{
    address::Gva,
    engine::{EngineError, EngineKind, Watch, WatchRange},
    selftest,
};

/// Debug registers there are.
pub(super) const PIECES: usize = 4;
/// DR7: exact breakpoints (ignored by current CPUs) and its bit that is always 1.
const DR7_BASE: u64 = 0x700;

/// What a debug register stops at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The instruction at this address, before it runs.
    Execute(u64),
    /// A write to these bytes, after it.
    Write { at: u64, len: u8 },
}

/// What is set.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    watches: Vec<Piece>,
    breakpoints: Vec<Piece>,
}

/// Does this host's KVM stop at debug registers, in both ways? Tested once per process.
pub(super) fn fire() -> bool {
    static FIRE: OnceLock<bool> = OnceLock::new();
    *FIRE.get_or_init(selftest::debug_registers_fire)
}

fn unsupported(what: &'static str) -> EngineError {
    EngineError::Unsupported { engine: EngineKind::Kvm, what }
}

const SILENT: &str = "watch memory or stop at breakpoints on this host (see `rewind doctor`: debug registers); use --engine soft";
const TOO_MANY: &str =
    "watch more than four aligned pieces of memory and breakpoints together; use --engine soft";

impl Pieces {
    /// Replaces the watches.
    pub(super) fn watch(&mut self, watches: &[Watch]) -> Result<(), EngineError> {
        let mut pieces = Vec::new();
        for watch in watches {
            let WatchRange::Virtual(at) = watch.range else {
                return Err(unsupported("watch physical memory; use --engine soft"));
            };
            if watch.read {
                // The registers cannot tell a read from a write.
                return Err(unsupported("watch reads of memory; use --engine soft"));
            }
            if watch.write {
                split(at, watch.len, &mut pieces)?;
            }
        }
        Self::check(pieces.len(), self.breakpoints.len())?;
        self.watches = pieces;
        Ok(())
    }

    /// Replaces the breakpoints.
    pub(super) fn breakpoints(&mut self, at: &[Gva]) -> Result<(), EngineError> {
        Self::check(at.len(), self.watches.len())?;
        self.breakpoints = at.iter().map(|at| Piece::Execute(at.0)).collect();
        Ok(())
    }

    fn check(new: usize, others: usize) -> Result<(), EngineError> {
        match new {
            0 => Ok(()),
            _ if !fire() => Err(unsupported(SILENT)),
            _ if new + others > PIECES => Err(unsupported(TOO_MANY)),
            _ => Ok(()),
        }
    }

    /// In the order of the registers.
    fn all(&self) -> impl Iterator<Item = &Piece> {
        self.watches.iter().chain(&self.breakpoints)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Is there a breakpoint at this address?
    pub(super) fn breaks_at(&self, rip: u64) -> bool {
        self.breakpoints.contains(&Piece::Execute(rip))
    }

    /// The registers as `kvm_guest_debug` has them: DR0 to DR3, and DR7 at the end.
    pub(super) fn registers(&self) -> [u64; 8] {
        let mut registers = [0; 8];
        let mut control = DR7_BASE;
        for (number, piece) in self.all().enumerate() {
            // R/W and LEN: 00 execution; 01 write, with 0, 1, 3, 2 for one, two, four, eight bytes.
            let (at, bits) = match *piece {
                Piece::Execute(at) => (at, 0),
                Piece::Write { at, len } => (at, 1 | [0, 0, 1, 0, 3, 0, 0, 0, 2][usize::from(len)] << 2),
            };
            registers[number] = at;
            control |= 1 << (2 * number) | bits << (16 + 4 * number);
        }
        registers[7] = control;
        registers
    }

    /// The watched pieces that DR6 says were written: address and length.
    pub(super) fn written(&self, dr6: u64) -> Vec<(u64, u8)> {
        let hit = self.all().enumerate().filter(|(number, _)| dr6 >> number & 1 != 0);
        hit.filter_map(|(_, piece)| match *piece {
            Piece::Write { at, len } => Some((at, len)),
            Piece::Execute(_) => None,
        })
        .collect()
    }
}

/// Cuts a range into as few aligned pieces as there are.
fn split(at: Gva, len: u64, pieces: &mut Vec<Piece>) -> Result<(), EngineError> {
    let (mut at, mut left) = (at.0, len);
    while left > 0 {
        if pieces.len() == PIECES {
            return Err(unsupported(TOO_MANY));
        }
        let size =
            [8u8, 4, 2, 1].into_iter().find(|s| at.is_multiple_of((*s).into()) && u64::from(*s) <= left);
        let size = size.unwrap_or(1);
        pieces.push(Piece::Write { at, len: size });
        at = at.wrapping_add(size.into());
        left -= u64::from(size);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(at: u64, len: u64) -> Result<Vec<(u64, u8)>, EngineError> {
        let mut pieces = Vec::new();
        split(Gva(at), len, &mut pieces)?;
        Ok(Pieces { watches: pieces, breakpoints: Vec::new() }.written(0xf))
    }

    #[test]
    fn ranges_are_cut_into_aligned_pieces() {
        assert_eq!(pieces(0x1000, 8).unwrap(), [(0x1000, 8)]);
        assert_eq!(pieces(0x1004, 8).unwrap(), [(0x1004, 4), (0x1008, 4)]);
        assert_eq!(pieces(0x1001, 7).unwrap(), [(0x1001, 1), (0x1002, 2), (0x1004, 4)]);
        assert_eq!(pieces(0x1003, 15).unwrap(), [(0x1003, 1), (0x1004, 4), (0x1008, 8), (0x1010, 2)]);
        assert_eq!(pieces(u64::MAX, 1).unwrap(), [(u64::MAX, 1)]);
        assert!(pieces(0x1001, 16).unwrap_err().to_string().contains("more than four"));
        assert!(pieces(0, u64::MAX).is_err());
    }

    #[test]
    fn dr7_is_as_the_manual_has_it() {
        let set = Pieces {
            watches: vec![Piece::Write { at: 0x3004, len: 4 }, Piece::Write { at: 0x4000, len: 8 }],
            breakpoints: vec![Piece::Execute(0x5000)],
        };
        let registers = set.registers();
        assert_eq!(registers[..4], [0x3004, 0x4000, 0x5000, 0]);
        // L0, L1, L2; 1101 for four bytes written, 1001 for eight, 0000 for execution.
        assert_eq!(registers[7], 0x700 | 0b01_0101 | 0b1101 << 16 | 0b1001 << 20);
        assert_eq!(set.written(0b0110), [(0x4000, 8)]);
        assert!(set.breaks_at(0x5000) && !set.breaks_at(0x3004));
        assert_eq!(Pieces::default().registers()[7], 0x700);
    }
}
