//! The state page: guest memory like any other (in keyframes and hashes), whose address the guest
//! publishes at [`crate::port::PLATFORM`]. Offsets in bytes, little-endian, u64 unless said otherwise.

/// [`STATE_MAGIC_VALUE`].
pub const ST_MAGIC: u64 = 0x00;
/// u32: the kernel's [`crate::PLATFORM_VERSION`].
pub const ST_VERSION: u64 = 0x08;
/// Commits to user mode since boot.
pub const ST_STEP: u64 = 0x10;
/// Virtual time at `ST_BASE_STEP`, nanoseconds since boot.
/// `now = base + (step - base_step) * quantum`.
pub const ST_BASE: u64 = 0x18;
/// The step `ST_BASE` belongs to.
pub const ST_BASE_STEP: u64 = 0x20;
/// Nanoseconds a step is worth. Set by the kernel to 2,000; by the monitor at [`crate::port::JOB`].
pub const ST_QUANTUM: u64 = 0x28;
/// Next timer deadline, nanoseconds since boot; `u64::MAX` none.
pub const ST_DEADLINE: u64 = 0x30;
/// Poll points passed since boot (for the position of outside input).
pub const ST_POLLS: u64 = 0x38;
/// A next deadline further away than this counts as stalled, nanoseconds. Monitor at JOB.
pub const ST_HORIZON: u64 = 0x40;
/// Virtual nanoseconds of nothing but periodic timers after which the run ends as idling; 0 never.
pub const ST_IDLING: u64 = 0x48;
/// Name of the thread that committed the current step (0 outside the job).
pub const ST_THREAD: u64 = 0x50;
/// That thread's own system call number.
pub const ST_SYSCALL: u64 = 0x58;
/// u32: its commits between that system call and this step, from 0: the third part of the step's place, the same
/// number a decision applied just before this commit has in [`crate::control::DecisionEntry::returns`].
pub const ST_RETURNS: u64 = 0x60;
/// u32: tid of the thread that committed the current step.
pub const ST_TID: u64 = 0x64;
/// Virtual nanoseconds each kernel poll point adds.
pub const ST_POLL_COST: u64 = 0x68;
/// Virtual nanoseconds charged for 4 KiB of bulk kernel work.
pub const ST_PAGE_COST: u64 = 0x70;
/// Non-zero while outside input may still come (an input channel is open): then nothing armed is waiting, not stalled.
pub const ST_INPUT_OPEN: u64 = 0x78;
/// Delay for the next timer expiry asked for by a late-timer decision.
pub const ST_LATE: u64 = 0x80;
/// Cores reported (one runs), from 1 to [`crate::device::CORES_MAX`].
pub const ST_CORES: u64 = 0x88;
/// Part of a nanosecond of bulk work charged but not yet in `ST_BASE`, in 1/4096.
pub const ST_CHARGE_REST: u64 = 0x90;
/// When something new last happened (for the idling verdict), nanoseconds since boot.
pub const ST_PROGRESS: u64 = 0x98;
/// Non-zero once a rank decision was applied: the scheduler looks at ranks.
pub const ST_RANKS: u64 = 0xa0;
/// Table of published kernel facts: up to [`ST_FACTS_MAX`] u64 values indexed by `Fact`; `u64::MAX` = absent.
pub const ST_FACTS: u64 = 0x200;
/// Capacity of the table.
pub const ST_FACTS_MAX: u64 = 128;

/// "RWSTATE1" little-endian.
pub const STATE_MAGIC_VALUE: u64 = 0x3145_5441_5453_5752;

/// Index into the table of published kernel facts. Addresses are guest-virtual; offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
#[allow(missing_docs, reason = "each name is the kernel's own field name")]
pub enum Fact {
    /// Address of `init_task`.
    InitTask = 0,
    /// Address of the per-CPU current task pointer.
    CurrentTask = 1,
    /// Start of the direct map of physical memory.
    PageOffset = 2,
    /// `phys_base`: kernel image virtual-to-physical delta.
    PhysBase = 3,
    /// THREAD_SIZE: pt_regs of a user thread are at `stack + THREAD_SIZE - sizeof(pt_regs)`.
    ThreadSize = 4,
    PtRegsSize = 5,
    /// Address of the kernel's page table (`swapper_pg_dir`).
    SwapperPgDir = 6,
    /// Address of `vmemmap` (struct page array) and size of struct page.
    Vmemmap = 7,
    PageSize = 8,
    /// Start of the kernel image's mapping: virtual - this + `phys_base` = physical.
    KernelMap = 9,
    /// Bytes of a task_struct, its FPU state included.
    SizeofTask = 10,
    TaskTasks = 16,
    TaskThreadNode = 17,
    TaskSignal = 18,
    SignalThreadHead = 19,
    TaskPid = 20,
    TaskTgid = 21,
    TaskComm = 22,
    TaskMm = 23,
    TaskStack = 24,
    TaskState = 25,
    TaskRealParent = 26,
    TaskFiles = 27,
    TaskFs = 28,
    TaskThread = 29,
    ThreadSp = 30,
    ThreadFsBase = 31,
    ThreadGsBase = 32,
    TaskFpu = 33,
    TaskRewindName = 34,
    TaskRewindSyscall = 35,
    TaskRewindReturns = 36,
    TaskRewindRank = 37,
    TaskExitState = 38,
    TaskCred = 39,
    TaskActiveMm = 40,
    TaskGroupLeader = 41,
    TaskExitCode = 43,
    TaskRewindClones = 44,
    TaskChildren = 45,
    TaskSibling = 46,
    MmPgd = 48,
    MmMt = 49,
    MmArgStart = 50,
    MmArgEnd = 51,
    MmEnvStart = 52,
    MmEnvEnd = 53,
    MmExeFile = 54,
    MmStartBrk = 55,
    MmBrk = 56,
    MmStartStack = 57,
    VmaStart = 64,
    VmaEnd = 65,
    VmaFlags = 66,
    VmaFile = 67,
    VmaPgoff = 68,
    FilePath = 72,
    FileInode = 73,
    FilePos = 74,
    FileFlags = 75,
    PathDentry = 76,
    PathMnt = 77,
    DentryParent = 78,
    DentryName = 79,
    DentryInode = 80,
    InodeIno = 81,
    InodeSize = 82,
    InodeMapping = 83,
    InodeMode = 84,
    InodeSb = 85,
    MappingPages = 86,
    MountParent = 87,
    MountMountpoint = 88,
    MountMnt = 89,
    MntRoot = 90,
    SbDev = 91,
    SbType = 92,
    FsTypeName = 93,
    FilesFdt = 94,
    FdtMaxFds = 95,
    FdtFd = 96,
    FsPwd = 97,
    FsRoot = 98,
    DentryShortName = 99,
    FileOp = 100,
    InodeRdev = 101,
    /// `maple_tree.ma_root`.
    MtRoot = 102,
    /// `xarray.xa_head`.
    XaHead = 103,
    /// `xa_node.slots`.
    XaNodeSlots = 104,
    /// XA_CHUNK_SHIFT (4 with CONFIG_BASE_SMALL, else 6).
    XaChunkShift = 105,
    /// `address_space` embedded in an inode is reached by `InodeMapping` (a pointer); `MappingPages` is the xarray in it.
    SignalFlags = 106,
    TaskFlags = 107,
    /// `sizeof(struct fxregs_state)` starts at this offset in `struct fpu`'s state.
    FpuFxsave = 108,
    FileDentry = 109,
    /// In `struct fpu` (at [`Fact::TaskFpu`]): pointer to the fpstate in use; in it, the FXSAVE image.
    FpuFpstate = 110,
    FpstateRegs = 111,
    CredUid = 112,
    CredGid = 113,
    /// In `struct page`, for page cache: the mapping and the page number in the file.
    FolioMapping = 114,
    FolioIndex = 115,
    XaNodeShift = 116,
}
