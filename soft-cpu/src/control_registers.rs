//! Bits of the control registers and of EFER (SDM vol. 3A 2.5 and 2.2.1).

pub(crate) const CR0_PE: u64 = 1;
pub(crate) const CR0_MP: u64 = 1 << 1;
pub(crate) const CR0_EM: u64 = 1 << 2;
pub(crate) const CR0_TS: u64 = 1 << 3;
pub(crate) const CR0_ET: u64 = 1 << 4;
pub(crate) const CR0_WP: u64 = 1 << 16;
pub(crate) const CR0_NW: u64 = 1 << 29;
pub(crate) const CR0_CD: u64 = 1 << 30;
pub(crate) const CR0_PG: u64 = 1 << 31;

pub(crate) const CR4_PAE: u64 = 1 << 5;
pub(crate) const CR4_PGE: u64 = 1 << 7;
pub(crate) const CR4_OSFXSR: u64 = 1 << 9;
pub(crate) const CR4_OSXMMEXCPT: u64 = 1 << 10;

pub(crate) const EFER_SCE: u64 = 1;
pub(crate) const EFER_LME: u64 = 1 << 8;
pub(crate) const EFER_LMA: u64 = 1 << 10;
pub(crate) const EFER_NXE: u64 = 1 << 11;
