//! Encoding of the host instructions the templates use (SDM vol. 2, chapter 2).

/// A host register by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host(pub(super) u8);

pub(super) const RAX: Host = Host(0);
pub(super) const RCX: Host = Host(1);
/// The TLB table.
pub(super) const RDX: Host = Host(2);
pub(super) const RBX: Host = Host(3);
pub(super) const RBP: Host = Host(5);
pub(super) const RSI: Host = Host(6);
/// The CPU.
pub(super) const RDI: Host = Host(7);

/// Operations of the group ADD, OR, ADC, SBB, AND, SUB, XOR, CMP by their number in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alu {
    Add = 0,
    Or = 1,
    Adc = 2,
    Sbb = 3,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// A place to be filled in with a distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole(usize);

/// Code being written. It does not depend on where it will lie.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) bytes: Vec<u8>,
}

impl Code {
    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn word(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Prefixes of an instruction of `size` bytes with these registers in ModRM.reg, SIB.index and ModRM.rm.
    fn prefixes(&mut self, size: u8, reg: u8, index: u8, rm: u8) {
        if size == 2 {
            self.byte(0x66);
        }
        let rex = 0x40 | u8::from(size == 8) << 3 | (reg >> 3 & 1) << 2 | (index >> 3 & 1) << 1 | rm >> 3 & 1;
        // Byte registers 4 to 7 are the low ones only with the prefix.
        if rex != 0x40 || size == 1 {
            self.byte(rex);
        }
    }

    fn registers(&mut self, reg: u8, rm: u8) {
        self.byte(0xc0 | (reg & 7) << 3 | rm & 7);
    }

    /// ModRM, SIB and displacement for `[base + disp]`.
    fn memory(&mut self, reg: u8, base: Host, disp: i32) {
        let short = i8::try_from(disp);
        let mode = if short.is_ok() { 0x40 } else { 0x80 };
        self.byte(mode | (reg & 7) << 3 | base.0 & 7);
        if base.0 & 7 == 4 {
            self.byte(0x24);
        }
        match short {
            Ok(disp) => self.byte(disp as u8),
            Err(_) => self.word(disp),
        }
    }

    /// `op rm, reg` or `op reg, rm` of two registers; `opcode` is the form for more than one byte.
    fn two(&mut self, size: u8, opcode: u8, reg: Host, rm: Host) {
        self.prefixes(size, reg.0, 0, rm.0);
        self.byte(if size == 1 { opcode & !1 } else { opcode });
        self.registers(reg.0, rm.0);
    }

    /// The same with a memory operand.
    fn with_memory(&mut self, size: u8, opcode: u8, reg: Host, base: Host, disp: i32) {
        self.prefixes(size, reg.0, 0, base.0);
        self.byte(if size == 1 { opcode & !1 } else { opcode });
        self.memory(reg.0, base, disp);
    }

    pub(super) fn mov(&mut self, size: u8, to: Host, from: Host) {
        self.two(size, 0x89, from, to);
    }

    pub(super) fn load(&mut self, size: u8, to: Host, base: Host, disp: i32) {
        self.with_memory(size, 0x8b, to, base, disp);
    }

    pub(super) fn store(&mut self, size: u8, base: Host, disp: i32, from: Host) {
        self.with_memory(size, 0x89, from, base, disp);
    }

    /// `mov [base + disp], imm`, sign-extended.
    pub(super) fn store_immediate(&mut self, size: u8, base: Host, disp: i32, imm: i32) {
        self.prefixes(size, 0, 0, base.0);
        self.byte(if size == 1 { 0xc6 } else { 0xc7 });
        self.memory(0, base, disp);
        self.immediate(size, imm);
    }

    fn immediate(&mut self, size: u8, imm: i32) {
        match size {
            1 => self.byte(imm as u8),
            2 => self.bytes.extend_from_slice(&(imm as i16).to_le_bytes()),
            _ => self.word(imm),
        }
    }

    /// `mov reg, imm` of all 64 bits.
    pub(super) fn constant(&mut self, to: Host, value: u64) {
        if let Ok(value) = u32::try_from(value) {
            self.prefixes(4, 0, 0, to.0);
            self.byte(0xb8 | to.0 & 7);
            self.word(value as i32);
        } else if let Ok(value) = i32::try_from(value as i64) {
            self.prefixes(8, 0, 0, to.0);
            self.byte(0xc7);
            self.registers(0, to.0);
            self.word(value);
        } else {
            self.prefixes(8, 0, 0, to.0);
            self.byte(0xb8 | to.0 & 7);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// `mov reg, imm` of one or two bytes, the rest stays.
    pub(super) fn partial_constant(&mut self, size: u8, to: Host, imm: i32) {
        self.prefixes(size, 0, 0, to.0);
        self.byte(if size == 1 { 0xc6 } else { 0xc7 });
        self.registers(0, to.0);
        self.immediate(size, imm);
    }

    pub(super) fn alu(&mut self, size: u8, op: Alu, to: Host, from: Host) {
        self.two(size, (op as u8) << 3 | 1, from, to);
    }

    pub(super) fn alu_load(&mut self, size: u8, op: Alu, to: Host, base: Host, disp: i32) {
        self.with_memory(size, (op as u8) << 3 | 3, to, base, disp);
    }

    pub(super) fn alu_immediate(&mut self, size: u8, op: Alu, to: Host, imm: i32) {
        self.prefixes(size, 0, 0, to.0);
        if size == 1 {
            self.byte(0x80);
        } else if let Ok(short) = i8::try_from(imm) {
            self.byte(0x83);
            self.registers(op as u8, to.0);
            self.byte(short as u8);
            return;
        } else {
            self.byte(0x81);
        }
        self.registers(op as u8, to.0);
        self.immediate(size, imm);
    }

    /// `op qword [base + disp], imm` of eight bits.
    pub(super) fn alu_memory_immediate(&mut self, op: Alu, base: Host, disp: i32, imm: i32) {
        self.prefixes(8, 0, 0, base.0);
        self.byte(0x81);
        self.memory(op as u8, base, disp);
        self.word(imm);
    }

    pub(super) fn test(&mut self, size: u8, a: Host, b: Host) {
        self.two(size, 0x85, b, a);
    }

    pub(super) fn test_immediate(&mut self, size: u8, a: Host, imm: i32) {
        self.prefixes(size, 0, 0, a.0);
        self.byte(if size == 1 { 0xf6 } else { 0xf7 });
        self.registers(0, a.0);
        self.immediate(size, imm);
    }

    /// Group 3: `2` NOT, `3` NEG.
    pub(super) fn unary(&mut self, size: u8, op: u8, to: Host) {
        self.prefixes(size, 0, 0, to.0);
        self.byte(if size == 1 { 0xf6 } else { 0xf7 });
        self.registers(op, to.0);
    }

    /// Shifts and rotates by an immediate: `0` ROL, `1` ROR, `4` SHL, `5` SHR, `7` SAR.
    pub(super) fn shift(&mut self, size: u8, op: u8, to: Host, count: u8) {
        self.prefixes(size, 0, 0, to.0);
        self.byte(if size == 1 { 0xc0 } else { 0xc1 });
        self.registers(op, to.0);
        self.byte(count);
    }

    /// INC (`0`) and DEC (`1`).
    pub(super) fn step(&mut self, size: u8, op: u8, to: Host) {
        self.prefixes(size, 0, 0, to.0);
        self.byte(if size == 1 { 0xfe } else { 0xff });
        self.registers(op, to.0);
    }

    /// A two-byte opcode with registers.
    pub(super) fn extended(&mut self, size: u8, opcode: u8, reg: Host, rm: Host) {
        self.prefixes(size, reg.0, 0, rm.0);
        self.byte(0x0f);
        self.byte(opcode);
        self.registers(reg.0, rm.0);
    }

    /// MOVZX or MOVSX of a register of one or two bytes to all of another.
    pub(super) fn extend(&mut self, signed: bool, from_size: u8, to_size: u8, to: Host, from: Host) {
        if from_size == 4 {
            if signed {
                self.prefixes(8, to.0, 0, from.0);
                self.byte(0x63);
                self.registers(to.0, from.0);
                if to_size == 4 {
                    self.mov(4, to, to);
                }
            } else {
                self.mov(4, to, from);
            }
            return;
        }
        let opcode = 0xb6 | u8::from(from_size == 2) | if signed { 8 } else { 0 };
        // A byte register needs the prefix, which an operand size of 4 would not give.
        let rex = 0x40 | u8::from(to_size == 8) << 3 | (to.0 >> 3 & 1) << 2 | from.0 >> 3 & 1;
        self.byte(rex);
        self.byte(0x0f);
        self.byte(opcode);
        self.registers(to.0, from.0);
    }

    /// As `extend` from `[base]`.
    pub(super) fn extend_load(&mut self, signed: bool, from_size: u8, to_size: u8, to: Host, base: Host) {
        match (from_size, signed) {
            (8, _) => return self.load(8, to, base, 0),
            (4, false) => return self.load(4, to, base, 0),
            (4, true) => {
                self.prefixes(8, to.0, 0, base.0);
                self.byte(0x63);
                self.memory(to.0, base, 0);
                if to_size == 4 {
                    self.mov(4, to, to);
                }
                return;
            }
            _ => {}
        }
        self.prefixes(if to_size == 8 { 8 } else { 4 }, to.0, 0, base.0);
        self.byte(0x0f);
        self.byte(0xb6 | u8::from(from_size == 2) | if signed { 8 } else { 0 });
        self.memory(to.0, base, 0);
    }

    pub(super) fn imul(&mut self, size: u8, to: Host, from: Host) {
        self.extended(size, 0xaf, to, from);
    }

    pub(super) fn imul_immediate(&mut self, size: u8, to: Host, from: Host, imm: i32) {
        self.prefixes(size, to.0, 0, from.0);
        self.byte(0x69);
        self.registers(to.0, from.0);
        self.word(imm);
    }

    pub(super) fn bswap(&mut self, size: u8, to: Host) {
        self.prefixes(size, 0, 0, to.0);
        self.byte(0x0f);
        self.byte(0xc8 | to.0 & 7);
    }

    pub(super) fn setcc(&mut self, condition: u8, to: Host) {
        self.prefixes(1, 0, 0, to.0);
        self.byte(0x0f);
        self.byte(0x90 | condition);
        self.registers(0, to.0);
    }

    /// `lea to, [base + index << scale + disp]`.
    pub(super) fn lea(
        &mut self,
        size: u8,
        to: Host,
        base: Option<Host>,
        index: Option<(Host, u8)>,
        disp: i32,
    ) {
        let (b, i) = (base.map_or(5, |b| b.0), index.map_or(4, |i| i.0.0));
        self.prefixes(size, to.0, if index.is_some() { i } else { 0 }, if base.is_some() { b } else { 0 });
        self.byte(0x8d);
        if index.is_none()
            && let Some(base) = base
        {
            return self.memory(to.0, base, disp);
        }
        // Without a base: mode 0 and SIB base 5 mean a displacement of 32 bits alone.
        self.byte(if base.is_some() { 0x80 } else { 0 } | (to.0 & 7) << 3 | 4);
        self.byte(index.map_or(0, |i| i.1) << 6 | (i & 7) << 3 | b & 7);
        self.word(disp);
    }

    /// `jcc` to a place not known yet.
    pub(super) fn jump_if(&mut self, condition: u8) -> Hole {
        self.byte(0x0f);
        self.byte(0x80 | condition);
        self.word(0);
        Hole(self.bytes.len())
    }

    /// `jmp` to a place not known yet.
    pub(super) fn jump(&mut self) -> Hole {
        self.byte(0xe9);
        self.word(0);
        Hole(self.bytes.len())
    }

    /// `cmovs to, [base + disp]`.
    pub(super) fn load_if_sign(&mut self, size: u8, to: Host, base: Host, disp: i32) {
        self.prefixes(size, to.0, 0, base.0);
        self.byte(0x0f);
        self.byte(0x48);
        self.memory(to.0, base, disp);
    }

    /// Fills a jump in: it leads here.
    pub(super) fn here(&mut self, hole: Hole) {
        let distance = (self.bytes.len() - hole.0) as i32;
        self.bytes[hole.0 - 4..hole.0].copy_from_slice(&distance.to_le_bytes());
    }

    /// `jmp [base]`.
    pub(super) fn jump_memory(&mut self, base: Host) {
        self.prefixes(4, 0, 0, base.0);
        self.byte(0xff);
        self.memory(4, base, 0);
    }

    /// `jmp rax` to an absolute address.
    pub(super) fn jump_absolute(&mut self, to: u64) {
        self.constant(RAX, to);
        self.byte(0xff);
        self.byte(0xe0);
    }

    /// Bytes as they are.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// `cmp byte [base + disp], imm`.
    pub(super) fn compare_byte(&mut self, base: Host, disp: i32, imm: u8) {
        self.prefixes(4, 0, 0, base.0);
        self.byte(0x80);
        self.memory(7, base, disp);
        self.byte(imm);
    }

    /// Loads (0x10) and stores (0x11) of an XMM register: mandatory prefix (0: none), opcode, `[base + disp]`.
    pub(super) fn vector_memory(&mut self, prefix: u8, opcode: u8, register: u8, base: Host, disp: i32) {
        if prefix != 0 {
            self.byte(prefix);
        }
        self.prefixes(4, register, 0, base.0);
        self.byte(0x0f);
        self.byte(opcode);
        self.memory(register, base, disp);
    }
}
