//! Guest-physical addresses. Every fixed address of the machine is here, with its reason.

/// RAM begins at guest-physical 0.
pub const RAM_BASE: u64 = 0;
/// RAM below the hole ends here at most; what does not fit continues at [`HIGH_RAM_BASE`].
pub const LOW_RAM_LIMIT: u64 = 0xC000_0000;
/// RAM above the 4 GiB boundary, if the machine has more than [`LOW_RAM_LIMIT`].
pub const HIGH_RAM_BASE: u64 = 0x1_0000_0000;
/// The control slot: control page, decision table, job area and trace ring. In the hole, so it is never
/// RAM: outside keyframes, dirty sets and state hashes.
pub const CONTROL_BASE: u64 = 0xD000_0000;
/// Bytes of the control slot.
pub const CONTROL_SIZE: u64 = 0x40_0000;
/// Offset of the decision table in the control slot.
pub const DECISIONS_OFFSET: u64 = 0x1_0000;
/// Entries of the decision table (a power of two; see [`crate::control::decision_slot`]).
pub const DECISIONS_CAPACITY: u64 = 4096;
/// Offset of the input area: the monitor puts the bytes of one delivery here ([`crate::port::DEVICE`]).
pub const INPUT_OFFSET: u64 = 0x4_0000;
/// Most bytes of one delivery.
pub const INPUT_MAX: u64 = 0x1000;
/// Offset of the job area: the monitor writes the encoded [`crate::job::Job`] here.
pub const JOB_OFFSET: u64 = 0x10_0000;
/// Bytes of the job area.
pub const JOB_CAPACITY: u64 = 0x10_0000;
/// Offset of the trace ring in the control slot.
pub const RING_OFFSET: u64 = 0x20_0000;
/// Bytes of the trace ring (a power of two).
pub const RING_CAPACITY: u64 = 0x20_0000;
/// The guest asks for a drain ([`crate::port::RING`]) once more than this many bytes wait.
pub const RING_HIGH_WATER: u64 = RING_CAPACITY / 2;

/// The kernel's command line; the monitor passes exactly this. No vDSO, so that every clock read is a step; a fixed
/// delay loop, since there is no clock to measure one with; the boot seed (`SETUP_RNG_SEED`) is trusted; messages
/// from warnings up reach the console.
pub const COMMAND_LINE: &str = "console=ttyRW0 vdso=0 lpj=10000 random.trust_bootloader=on loglevel=5";
