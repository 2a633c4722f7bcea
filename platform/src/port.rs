//! I/O ports. All accesses are 32-bit unless said otherwise; any other size or direction is a guest fault
//! which ends the run as `guest-fault`, never a monitor error.

/// `out`: guest-physical page number (`gpa >> 12`) of the state page; written once, early at boot.
/// `in`: the monitor's [`crate::PLATFORM_VERSION`]; the kernel panics with a clear text if it differs. Where no device
/// answers (all ones), [`crate::control::CTL_VERSION`] counts.
pub const PLATFORM: u16 = 0x0b00;
/// `out` (value ignored): the guest has committed a step at which it must stop. Written from inside the
/// commit hook; nothing but the return to user mode follows.
pub const STOP: u16 = 0x0b04;
/// `out` (value ignored): the ring is past its high-water mark; the monitor drains it before returning.
pub const RING: u16 = 0x0b08;
/// `out`: guest-physical address of a [`crate::device::BlockRequest`] (below 4 GiB, 16-byte aligned); the
/// monitor completes it before returning.
pub const BLOCK: u16 = 0x0b0c;
/// `out` (value ignored): init wants its job. The boot keyframe is taken here. The monitor then fills the
/// job area and [`crate::control::CTL_JOB_LEN`], and the run's parameters in the state page.
pub const JOB: u16 = 0x0b10;
/// `out`: one of the `END_*` reasons; the machine never runs again.
pub const END: u16 = 0x0b14;
/// `rep outsb` (8-bit): console text before the ring is up, and panics.
pub const CONSOLE: u16 = 0x0b18;
/// `out` (value ignored), only while input is open ([`crate::state::ST_INPUT_OPEN`]): the guest has reached the poll number
/// [`crate::control::CTL_INPUT_POLL`], or it is idle with nothing armed. The monitor puts bytes in the input area or closes
/// the channel ([`crate::control::CTL_INPUT_LEN`]) and says when the next are due. Where it has none: an idle guest asks
/// again at once, another one only when the new number is reached.
pub const DEVICE: u16 = 0x0b1c;

/// [`END`]: ordinary power off (init reported the job's status in a record before).
pub const END_POWER_OFF: u32 = 0;
/// [`END`]: the guest asked for a restart.
pub const END_RESTART: u32 = 1;
/// [`END`]: kernel panic (its text is on the console).
pub const END_PANIC: u32 = 2;
/// [`END`]: nothing runnable, nothing armed, no outside input possible.
pub const END_STALLED: u32 = 3;
/// [`END`]: for the spec's idling limit only the same timers fired.
pub const END_IDLING: u32 = 4;

/// The one interrupt vector the monitor may inject, only at user mode at an exact instruction.
pub const INJECT_VECTOR: u8 = 0xf3;
