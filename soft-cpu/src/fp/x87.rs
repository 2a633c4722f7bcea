//! x87: every instruction that computes, moves or compares is executed by the host's x87 on the guest's state.
//!
//! FXRSTOR of the guest's registers, control and status word, the instruction itself, FXSAVE: so results, rounding,
//! stack faults, C1, tags and the reactions to unmasked exceptions are the hardware's. The host is never trapped: only
//! the next waiting instruction reports an unmasked exception, and the host's next one is FNINIT, which does not wait.
//! The core raises #MF before an instruction with one pending, so it is never there at the start.

use core::arch::asm;

use iced_x86::{Code, Instruction};

use super::{FpClass, FpFault, FpInsn, FpOperands, FpRun, FpState};

type Done = Result<(), FpFault>;

/// The FXSAVE area the host takes and leaves the state in.
#[repr(C, align(16))]
struct Image {
    fcw: u16,
    fsw: u16,
    tags: u8,
    reserved: u8,
    fop: u16,
    fip: u64,
    fdp: u64,
    mxcsr: u32,
    mxcsr_mask: u32,
    st: [[u8; 16]; 8],
    xmm: [[u8; 16]; 16],
    unused: [u8; 96],
}

impl Image {
    /// The guest's x87 state. Registers are in the order of the stack.
    #[inline(never)]
    fn of(s: &FpState) -> Self {
        let top = s.top();
        Image {
            fcw: s.fcw,
            fsw: s.fsw,
            tags: s.tags,
            reserved: 0,
            fop: 0,
            fip: 0,
            fdp: 0,
            mxcsr: super::sse_float::HOST_MXCSR,
            mxcsr_mask: 0,
            st: core::array::from_fn(|i| s.x87[(top + i) % 8]),
            xmm: [[0; 16]; 16],
            unused: [0; 96],
        }
    }

    /// Puts the x87 state back.
    #[inline(never)]
    fn put(&self, s: &mut FpState) {
        s.fcw = self.fcw;
        s.fsw = self.fsw;
        s.tags = self.tags;
        let top = s.top();
        for (i, register) in self.st.iter().enumerate() {
            s.x87[(top + i) % 8] = *register;
        }
    }
}

/// A memory operand for the host: any instruction accesses at most ten bytes.
#[repr(C, align(16))]
struct Buffer([u8; 16]);

/// Executes `$code` on the guest's x87 state.
macro_rules! on_host {
    ($s:ident; $($code:expr),+; $($operands:tt)*) => {{
        let mut image = Image::of($s);
        // SAFETY: the two instructions access `image`, the code between at most the 16 bytes of a `Buffer`. XMM and x87
        // registers are given up; MXCSR gets the value that the host's code runs under, FNINIT leaves the x87 empty
        // and in the mode that the ABI asks for. No exception is reported, see above.
        unsafe {
            asm!(
                "fxrstor [{image}]",
                $($code,)+
                "fxsave [{image}]",
                "fninit",
                image = in(reg) &raw mut image,
                $($operands)*
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            );
        }
        image.put($s);
    }};
}

/// An instruction of two bytes that has no memory operand.
fn plain<const OPCODE: u8, const MODRM: u8>(s: &mut FpState, _: &mut FpOperands<'_>) -> Done {
    on_host!(s; ".byte {opcode}, {modrm}"; opcode = const OPCODE, modrm = const MODRM,);
    Ok(())
}

/// An instruction that reads or sets status flags (FCMOVcc, FCOMI and its kin).
fn with_flags<const OPCODE: u8, const MODRM: u8>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mut flags = u64::from(o.flags & STATUS_FLAGS | 2);
    on_host!(s; "push {flags}", "popfq", ".byte {opcode}, {modrm}", "pushfq", "pop {flags}";
        opcode = const OPCODE, modrm = const MODRM, flags = inout(reg) flags,);
    o.flags = flags as u32 & STATUS_FLAGS;
    Ok(())
}

/// CF, PF, AF, ZF, SF, OF.
const STATUS_FLAGS: u32 = 0x8d5;

/// An instruction that reads `N` bytes of memory.
fn load<const OPCODE: u8, const MODRM: u8, const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mut buffer = Buffer([0; 16]);
    buffer.0[..N].copy_from_slice(&super::lanes::bytes::<N>(o.mem));
    on_host!(s; ".byte {opcode}, {modrm}";
        opcode = const OPCODE, modrm = const MODRM, in("rdi") &raw mut buffer,);
    Ok(())
}

/// An instruction that writes `N` bytes of memory. An unmasked invalid operation, overflow or underflow leaves the
/// memory as it is (SDM vol. 1, 8.5); no exception was pending before, so an unmasked flag is of this instruction.
fn store<const OPCODE: u8, const MODRM: u8, const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mut buffer = Buffer([0; 16]);
    on_host!(s; ".byte {opcode}, {modrm}";
        opcode = const OPCODE, modrm = const MODRM, in("rdi") &raw mut buffer,);
    if s.fsw & !s.fcw & (INVALID | OVERFLOW | UNDERFLOW) != 0 {
        o.skip_store = true;
    } else {
        super::lanes::store::<N>(o.mem, super::lanes::from_bytes(buffer.0));
    }
    Ok(())
}

/// IE of the status word.
const INVALID: u16 = 0x01;
/// OE of the status word.
const OVERFLOW: u16 = 0x08;
/// UE of the status word.
const UNDERFLOW: u16 = 0x10;

/// `Code opcode modrm bytes Load|Store;` The ModRM byte addresses [RDI].
macro_rules! memory_table {
    ($($code:ident $opcode:literal $modrm:literal $len:literal $kind:ident;)*) => {
        fn memory(code: Code) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => memory_table!(@$kind $opcode $modrm $len),)*
                _ => return None,
            })
        }
    };
    (@Load $opcode:literal $modrm:literal $len:literal) => {
        FpInsn::new(FpClass::X87, load::<$opcode, $modrm, $len>).reads($len)
    };
    (@Store $opcode:literal $modrm:literal $len:literal) => {
        FpInsn::new(FpClass::X87, store::<$opcode, $modrm, $len>).writes($len)
    };
}

/// `Code opcode modrm Plain|Flags;` with ST(i) in the low bits of the ModRM byte.
macro_rules! register_table {
    ($($code:ident $opcode:literal $modrm:literal $kind:ident;)*) => {
        fn register(code: Code, sti: usize) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => {
                    const RUN: [FpRun; 8] = register_table!(@$kind $opcode $modrm; 0 1 2 3 4 5 6 7);
                    register_table!(#$kind FpInsn::new(FpClass::X87, RUN[sti % 8]))
                })*
                _ => return None,
            })
        }
    };
    (@Plain $opcode:literal $modrm:literal; $($i:literal)*) => { [$(plain::<$opcode, { $modrm + $i }>),*] };
    (@Flags $opcode:literal $modrm:literal; $($i:literal)*) => { [$(with_flags::<$opcode, { $modrm + $i }>),*] };
    (#Plain $insn:expr) => { $insn };
    (#Flags $insn:expr) => { FpInsn { reads_flags: true, ..$insn.flags() } };
}

/// `Code opcode modrm;`
macro_rules! implicit_table {
    ($($code:ident $opcode:literal $modrm:literal;)*) => {
        fn implicit(code: Code) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => FpInsn::new(FpClass::X87, plain::<$opcode, $modrm>),)*
                _ => return None,
            })
        }
    };
}

memory_table! {
    Fadd_m32fp 0xd8 0x07 4 Load;
    Fmul_m32fp 0xd8 0x0f 4 Load;
    Fcom_m32fp 0xd8 0x17 4 Load;
    Fcomp_m32fp 0xd8 0x1f 4 Load;
    Fsub_m32fp 0xd8 0x27 4 Load;
    Fsubr_m32fp 0xd8 0x2f 4 Load;
    Fdiv_m32fp 0xd8 0x37 4 Load;
    Fdivr_m32fp 0xd8 0x3f 4 Load;
    Fld_m32fp 0xd9 0x07 4 Load;
    Fst_m32fp 0xd9 0x17 4 Store;
    Fstp_m32fp 0xd9 0x1f 4 Store;
    Fiadd_m32int 0xda 0x07 4 Load;
    Fimul_m32int 0xda 0x0f 4 Load;
    Ficom_m32int 0xda 0x17 4 Load;
    Ficomp_m32int 0xda 0x1f 4 Load;
    Fisub_m32int 0xda 0x27 4 Load;
    Fisubr_m32int 0xda 0x2f 4 Load;
    Fidiv_m32int 0xda 0x37 4 Load;
    Fidivr_m32int 0xda 0x3f 4 Load;
    Fild_m32int 0xdb 0x07 4 Load;
    Fisttp_m32int 0xdb 0x0f 4 Store;
    Fist_m32int 0xdb 0x17 4 Store;
    Fistp_m32int 0xdb 0x1f 4 Store;
    Fld_m80fp 0xdb 0x2f 10 Load;
    Fstp_m80fp 0xdb 0x3f 10 Store;
    Fadd_m64fp 0xdc 0x07 8 Load;
    Fmul_m64fp 0xdc 0x0f 8 Load;
    Fcom_m64fp 0xdc 0x17 8 Load;
    Fcomp_m64fp 0xdc 0x1f 8 Load;
    Fsub_m64fp 0xdc 0x27 8 Load;
    Fsubr_m64fp 0xdc 0x2f 8 Load;
    Fdiv_m64fp 0xdc 0x37 8 Load;
    Fdivr_m64fp 0xdc 0x3f 8 Load;
    Fld_m64fp 0xdd 0x07 8 Load;
    Fisttp_m64int 0xdd 0x0f 8 Store;
    Fst_m64fp 0xdd 0x17 8 Store;
    Fstp_m64fp 0xdd 0x1f 8 Store;
    Fiadd_m16int 0xde 0x07 2 Load;
    Fimul_m16int 0xde 0x0f 2 Load;
    Ficom_m16int 0xde 0x17 2 Load;
    Ficomp_m16int 0xde 0x1f 2 Load;
    Fisub_m16int 0xde 0x27 2 Load;
    Fisubr_m16int 0xde 0x2f 2 Load;
    Fidiv_m16int 0xde 0x37 2 Load;
    Fidivr_m16int 0xde 0x3f 2 Load;
    Fild_m16int 0xdf 0x07 2 Load;
    Fisttp_m16int 0xdf 0x0f 2 Store;
    Fist_m16int 0xdf 0x17 2 Store;
    Fistp_m16int 0xdf 0x1f 2 Store;
    Fbld_m80bcd 0xdf 0x27 10 Load;
    Fild_m64int 0xdf 0x2f 8 Load;
    Fbstp_m80bcd 0xdf 0x37 10 Store;
    Fistp_m64int 0xdf 0x3f 8 Store;
}

register_table! {
    Fadd_st0_sti 0xd8 0xc0 Plain;
    Fmul_st0_sti 0xd8 0xc8 Plain;
    Fcom_st0_sti 0xd8 0xd0 Plain;
    Fcomp_st0_sti 0xd8 0xd8 Plain;
    Fsub_st0_sti 0xd8 0xe0 Plain;
    Fsubr_st0_sti 0xd8 0xe8 Plain;
    Fdiv_st0_sti 0xd8 0xf0 Plain;
    Fdivr_st0_sti 0xd8 0xf8 Plain;
    Fld_sti 0xd9 0xc0 Plain;
    Fxch_st0_sti 0xd9 0xc8 Plain;
    Fstpnce_sti 0xd9 0xd8 Plain;
    Fcmovb_st0_sti 0xda 0xc0 Flags;
    Fcmove_st0_sti 0xda 0xc8 Flags;
    Fcmovbe_st0_sti 0xda 0xd0 Flags;
    Fcmovu_st0_sti 0xda 0xd8 Flags;
    Fcmovnb_st0_sti 0xdb 0xc0 Flags;
    Fcmovne_st0_sti 0xdb 0xc8 Flags;
    Fcmovnbe_st0_sti 0xdb 0xd0 Flags;
    Fcmovnu_st0_sti 0xdb 0xd8 Flags;
    Fucomi_st0_sti 0xdb 0xe8 Flags;
    Fcomi_st0_sti 0xdb 0xf0 Flags;
    Fadd_sti_st0 0xdc 0xc0 Plain;
    Fmul_sti_st0 0xdc 0xc8 Plain;
    Fcom_st0_sti_DCD0 0xdc 0xd0 Plain;
    Fcomp_st0_sti_DCD8 0xdc 0xd8 Plain;
    Fsubr_sti_st0 0xdc 0xe0 Plain;
    Fsub_sti_st0 0xdc 0xe8 Plain;
    Fdivr_sti_st0 0xdc 0xf0 Plain;
    Fdiv_sti_st0 0xdc 0xf8 Plain;
    Ffree_sti 0xdd 0xc0 Plain;
    Fxch_st0_sti_DDC8 0xdd 0xc8 Plain;
    Fst_sti 0xdd 0xd0 Plain;
    Fstp_sti 0xdd 0xd8 Plain;
    Fucom_st0_sti 0xdd 0xe0 Plain;
    Fucomp_st0_sti 0xdd 0xe8 Plain;
    Faddp_sti_st0 0xde 0xc0 Plain;
    Fmulp_sti_st0 0xde 0xc8 Plain;
    Fcomp_st0_sti_DED0 0xde 0xd0 Plain;
    Fsubrp_sti_st0 0xde 0xe0 Plain;
    Fsubp_sti_st0 0xde 0xe8 Plain;
    Fdivrp_sti_st0 0xde 0xf0 Plain;
    Fdivp_sti_st0 0xde 0xf8 Plain;
    Ffreep_sti 0xdf 0xc0 Plain;
    Fxch_st0_sti_DFC8 0xdf 0xc8 Plain;
    Fstp_sti_DFD0 0xdf 0xd0 Plain;
    Fstp_sti_DFD8 0xdf 0xd8 Plain;
    Fucomip_st0_sti 0xdf 0xe8 Flags;
    Fcomip_st0_sti 0xdf 0xf0 Flags;
}

implicit_table! {
    Fnop 0xd9 0xd0;
    Fchs 0xd9 0xe0;
    Fabs 0xd9 0xe1;
    Ftst 0xd9 0xe4;
    Fxam 0xd9 0xe5;
    Fld1 0xd9 0xe8;
    Fldl2t 0xd9 0xe9;
    Fldl2e 0xd9 0xea;
    Fldpi 0xd9 0xeb;
    Fldlg2 0xd9 0xec;
    Fldln2 0xd9 0xed;
    Fldz 0xd9 0xee;
    F2xm1 0xd9 0xf0;
    Fyl2x 0xd9 0xf1;
    Fptan 0xd9 0xf2;
    Fpatan 0xd9 0xf3;
    Fxtract 0xd9 0xf4;
    Fprem1 0xd9 0xf5;
    Fdecstp 0xd9 0xf6;
    Fincstp 0xd9 0xf7;
    Fprem 0xd9 0xf8;
    Fyl2xp1 0xd9 0xf9;
    Fsqrt 0xd9 0xfa;
    Fsincos 0xd9 0xfb;
    Frndint 0xd9 0xfc;
    Fscale 0xd9 0xfd;
    Fsin 0xd9 0xfe;
    Fcos 0xd9 0xff;
    Fucompp 0xda 0xe9;
    Fcompp 0xde 0xd9;
}

/// The x87 instructions but those that save, restore or set control and status.
pub(super) fn lookup(insn: &Instruction) -> Option<FpInsn> {
    let code = insn.code();
    // The other operand, if there is one, is ST(0).
    let sti = (0..insn.op_count())
        .map(|operand| insn.op_register(operand))
        .filter(|register| register.is_st())
        .map(|register| register.number())
        .max();
    memory(code).or_else(|| register(code, sti.unwrap_or(0))).or_else(|| implicit(code))
}
