//! Status flags, computed only when somebody looks.
//!
//! The last instruction that set flags leaves its kind, its result and one operand; [`status`] turns them
//! into CF, PF, AF, ZF, SF and OF. Undefined flags are as Intel processors leave them.

/// Carry.
pub(crate) const CF: u64 = 1;
/// Parity of the low byte.
pub(crate) const PF: u64 = 1 << 2;
/// Carry out of bit 3.
pub(crate) const AF: u64 = 1 << 4;
/// Zero.
pub(crate) const ZF: u64 = 1 << 6;
/// Sign.
pub(crate) const SF: u64 = 1 << 7;
/// Trap.
pub(crate) const TF: u64 = 1 << 8;
/// Interrupt enable.
pub(crate) const IF: u64 = 1 << 9;
/// Direction.
pub(crate) const DF: u64 = 1 << 10;
/// Overflow.
pub(crate) const OF: u64 = 1 << 11;
/// I/O privilege level.
pub(crate) const IOPL: u64 = 3 << 12;
/// Nested task.
pub(crate) const NT: u64 = 1 << 14;
/// Resume.
pub(crate) const RF: u64 = 1 << 16;
/// Virtual 8086.
pub(crate) const VM: u64 = 1 << 17;
/// Alignment check.
pub(crate) const AC: u64 = 1 << 18;
/// Virtual interrupt flag and pending: VME only, always zero here.
pub(crate) const VIF_VIP: u64 = 3 << 19;
/// CPUID can be used.
pub(crate) const ID: u64 = 1 << 21;
/// The lazily kept ones.
pub(crate) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// Kinds of flag source; a kind and the logarithm of the operand's bytes make [`Lazy::cc`].
pub(crate) mod kind {
    /// `src` holds the flags themselves.
    pub(crate) const EXPLICIT: u32 = 0;
    /// AND, OR, XOR, TEST: from the result only.
    pub(crate) const LOGIC: u32 = 1;
    /// `dst` = sum, `src` = second operand.
    pub(crate) const ADD: u32 = 2;
    /// As ADD, with a carry in.
    pub(crate) const ADC: u32 = 3;
    /// `dst` = difference, `src` = second operand.
    pub(crate) const SUB: u32 = 4;
    /// As SUB, with a borrow in.
    pub(crate) const SBB: u32 = 5;
    /// `dst` = result, `src` = the carry kept (0 or 1).
    pub(crate) const INC: u32 = 6;
    /// As INC.
    pub(crate) const DEC: u32 = 7;
    /// ZF, SF, PF from `dst`; CF, OF, AF are the bits of `src`.
    pub(crate) const RESULT: u32 = 8;
}

/// The flag source.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Lazy {
    /// Result, zero-extended from the operand size.
    pub(crate) dst: u64,
    /// See [`kind`]; zero-extended from the operand size.
    pub(crate) src: u64,
    /// `kind << 2 | log2(bytes)`.
    pub(crate) cc: u32,
}

/// `kind << 2 | log2(bytes)` for an operand of `size` bytes.
#[inline(always)]
pub(crate) const fn cc(kind: u32, size: u8) -> u32 {
    kind << 2 | size.trailing_zeros()
}

#[inline(always)]
fn parity(value: u64) -> u64 {
    u64::from((value as u8).count_ones() & 1 == 0) << 2
}

/// ZF, SF and PF of a result of `size` bytes.
#[inline(always)]
pub(crate) fn zsp(result: u64, size: u8) -> u64 {
    let top = result << (64 - 8 * u32::from(size));
    parity(result) | u64::from(top == 0) << 6 | (top >> 63) << 7
}

impl Lazy {
    /// All six status flags.
    pub(crate) fn status(&self) -> u64 {
        let kind = self.cc >> 2;
        if kind == kind::EXPLICIT {
            return self.src;
        }
        let size = self.cc & 3;
        let shift = 64 - (8 << size);
        let (dst, src) = (self.dst, self.src);
        let (r, b) = (dst << shift, src << shift);
        let flags = parity(dst) | u64::from(r == 0) << 6 | (r >> 63) << 7;
        let add = |a: u64, cf: bool| {
            flags | u64::from(cf) | ((a ^ src ^ dst) & AF) | (((a ^ dst) & (src ^ dst)) << shift >> 63) << 11
        };
        let sub = |a: u64, cf: bool| {
            flags | u64::from(cf) | ((a ^ src ^ dst) & AF) | (((a ^ dst) & (a ^ src)) << shift >> 63) << 11
        };
        match kind {
            kind::LOGIC => flags,
            kind::ADD => add(dst.wrapping_sub(src), r < b),
            kind::ADC => add(dst.wrapping_sub(src).wrapping_sub(1), r <= b),
            kind::SUB => {
                let a = dst.wrapping_add(src);
                sub(a, a << shift < b)
            }
            kind::SBB => {
                let a = dst.wrapping_add(src).wrapping_add(1);
                sub(a, a << shift <= b)
            }
            kind::INC => flags | src | u64::from(dst & 0xf == 0) << 4 | u64::from(r == 1 << 63) << 11,
            kind::DEC => {
                let most = (!0u64 >> 1) >> shift << shift; // 0x7f.. at the top
                flags | src | u64::from(dst & 0xf == 0xf) << 4 | u64::from(r == most) << 11
            }
            _ => flags | src,
        }
    }

    /// CF alone.
    #[inline(always)]
    pub(crate) fn carry(&self) -> bool {
        let shift = 64 - (8 << (self.cc & 3));
        let (r, b) = (self.dst << shift, self.src << shift);
        match self.cc >> 2 {
            kind::LOGIC => false,
            kind::ADD => r < b,
            kind::ADC => r <= b,
            kind::SUB => self.dst.wrapping_add(self.src) << shift < b,
            kind::SBB => self.dst.wrapping_add(self.src).wrapping_add(1) << shift <= b,
            _ => self.src & 1 != 0,
        }
    }

    /// Makes `flags` (status bits only) the flags.
    #[inline(always)]
    pub(crate) fn set(&mut self, flags: u64) {
        self.src = flags & STATUS;
        self.cc = kind::EXPLICIT << 2;
    }

    /// Evaluates the even condition `2 * C`, the common sources without computing all flags.
    #[inline(always)]
    pub(crate) fn holds<const C: u8>(&self) -> bool {
        let shift = 64 - (8 << (self.cc & 3));
        let r = (self.dst << shift) as i64;
        match self.cc >> 2 {
            kind::SUB if !matches!(C, 0 | 5) => {
                let (a, b) = (self.dst.wrapping_add(self.src) << shift, self.src << shift);
                match C {
                    1 => a < b,
                    2 => r == 0,
                    3 => a <= b,
                    4 => r < 0,
                    6 => (a as i64) < b as i64,
                    _ => (a as i64) <= b as i64,
                }
            }
            kind::LOGIC if C != 5 => match C {
                0 | 1 => false,
                2 | 3 => r == 0,
                4 | 6 => r < 0,
                _ => r <= 0,
            },
            kind if kind != kind::EXPLICIT && C == 2 => r == 0,
            kind if kind != kind::EXPLICIT && C == 4 => r < 0,
            kind::EXPLICIT if C == 2 => self.src & ZF != 0,
            _ if C == 1 => self.carry(),
            _ => self.condition(2 * C),
        }
    }

    /// Evaluates condition `cond` as x86 encodes it (0 O, 1 NO, 2 B, ... 15 G).
    #[inline]
    pub(crate) fn condition(&self, cond: u8) -> bool {
        let f = self.status();
        let value = match cond >> 1 {
            0 => f & OF != 0,
            1 => f & CF != 0,
            2 => f & ZF != 0,
            3 => f & (CF | ZF) != 0,
            4 => f & SF != 0,
            5 => f & PF != 0,
            6 => (f & SF != 0) != (f & OF != 0),
            _ => f & ZF != 0 || (f & SF != 0) != (f & OF != 0),
        };
        value != (cond & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds_as_condition(lazy: &Lazy) {
        let each = [
            lazy.holds::<0>(),
            lazy.holds::<1>(),
            lazy.holds::<2>(),
            lazy.holds::<3>(),
            lazy.holds::<4>(),
            lazy.holds::<5>(),
            lazy.holds::<6>(),
            lazy.holds::<7>(),
        ];
        for (c, holds) in each.into_iter().enumerate() {
            assert_eq!(holds, lazy.condition(2 * c as u8), "condition {c} of {lazy:?}");
        }
    }

    /// Every 8-bit pair against the definition by wider arithmetic.
    #[test]
    fn eight_bit_arithmetic_is_exhaustively_right() {
        for a in 0..=255u64 {
            for b in 0..=255u64 {
                for carry in 0..=1u64 {
                    let sum = (a + b + carry) & 255;
                    let kind = if carry == 1 { kind::ADC } else { kind::ADD };
                    let lazy = Lazy { dst: sum, src: b, cc: cc(kind, 1) };
                    let signed = i32::from(a as i8) + i32::from(b as i8) + carry as i32;
                    let want = zsp(sum, 1)
                        | u64::from(a + b + carry > 255)
                        | u64::from((a & 15) + (b & 15) + carry > 15) << 4
                        | u64::from(!(-128..=127).contains(&signed)) << 11;
                    assert_eq!(lazy.status(), want, "{a} + {b} + {carry}");
                    assert_eq!(lazy.carry(), want & CF != 0);
                    holds_as_condition(&lazy);
                    let diff = a.wrapping_sub(b).wrapping_sub(carry) & 255;
                    let kind = if carry == 1 { kind::SBB } else { kind::SUB };
                    let lazy = Lazy { dst: diff, src: b, cc: cc(kind, 1) };
                    let signed = i32::from(a as i8) - i32::from(b as i8) - carry as i32;
                    let want = zsp(diff, 1)
                        | u64::from(a < b + carry)
                        | u64::from(a & 15 < (b & 15) + carry) << 4
                        | u64::from(!(-128..=127).contains(&signed)) << 11;
                    assert_eq!(lazy.status(), want, "{a} - {b} - {carry}");
                    assert_eq!(lazy.carry(), want & CF != 0);
                    holds_as_condition(&lazy);
                    holds_as_condition(&Lazy { dst: diff, src: 0, cc: cc(kind::LOGIC, 1) });
                    holds_as_condition(&Lazy { dst: 0, src: b << 4 & STATUS, cc: kind::EXPLICIT << 2 });
                    holds_as_condition(&Lazy { dst: diff, src: carry | OF, cc: cc(kind::RESULT, 1) });
                    holds_as_condition(&Lazy { dst: diff, src: carry, cc: cc(kind::DEC, 1) });
                }
            }
        }
    }

    #[test]
    fn increments_keep_carry() {
        for a in 0..=255u64 {
            let up = Lazy { dst: (a + 1) & 255, src: 1, cc: cc(kind::INC, 1) };
            let of = |f: u64| f & OF != 0;
            assert_eq!(of(up.status()), a == 127);
            assert!(up.carry() && up.status() & CF != 0);
            let down = Lazy { dst: a.wrapping_sub(1) & 255, src: 0, cc: cc(kind::DEC, 1) };
            assert_eq!(of(down.status()), a == 128);
            assert_eq!(down.status() & AF != 0, a & 15 == 0);
            assert!(!down.carry());
        }
    }
}
