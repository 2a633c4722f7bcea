//! The platform's ports, used rightly and wrongly. Whatever a guest says ends its run, never the monitor.

use std::io;

use bytemuck::Zeroable;
use rewind_platform::{
    PLATFORM_VERSION,
    control::CTL_RING_HEAD,
    device::{BLOCK_ABSENT, BLOCK_EIO, BLOCK_OK, BLOCK_READ, BlockRequest, BlockSegment},
    layout::{CONTROL_BASE, RING_CAPACITY, RING_OFFSET},
    port,
    record::RecordHeader,
    state::{ST_MAGIC, ST_VERSION, STATE_MAGIC_VALUE},
};
use soft_cpu::state::gpr;
use vmm::{
    BlockImage, EndReason, EngineKind, GuestFault, Machine, MachineError, RecordSink, Stop, Until,
    address::Gpa,
    guest_code,
    memory::GuestMemory,
    micro::{KERNEL_CODE, kernel_state},
};

use crate::{common::machine, on_engines};

on_engines!(
    a_foreign_state_page_is_refused,
    ports_need_a_state_page_first,
    wrong_sizes_and_ports_are_faults,
    end_reasons,
    an_ended_machine_does_not_run,
    a_job_is_needed_when_asked_for,
    block_requests_are_checked,
    an_unreadable_image_is_a_host_error,
    ring_records_are_checked,
    ring_records_wrap,
    cpu_faults_end_the_run,
);

const STATE_PAGE: u64 = 0x5_0000;
const REQUEST: u64 = 0x6_0000;

guest_code!(out_code = "out dx, eax", "hlt");
guest_code!(out_byte_code = "out dx, al", "hlt");
guest_code!(in_code = "in eax, dx", "hlt");

pub(crate) fn write_state_page(memory: &GuestMemory) {
    memory.write_u64(Gpa(STATE_PAGE + ST_MAGIC), STATE_MAGIC_VALUE).unwrap();
    memory.write_u32(Gpa(STATE_PAGE + ST_VERSION), PLATFORM_VERSION).unwrap();
}

/// Runs `code` in kernel mode with DX and EAX set.
fn run(
    m: &mut Machine,
    code: &[u8],
    port: u16,
    value: u32,
    sink: &mut dyn RecordSink,
) -> Result<Stop, MachineError> {
    m.memory().write(Gpa(KERNEL_CODE), code).unwrap();
    m.engine().memory_changed(None);
    let mut state = kernel_state();
    state.gpr[gpr::RDX] = port.into();
    state.gpr[gpr::RAX] = value.into();
    m.set_cpu(&state)?;
    m.run(&Until::END, sink)
}

fn out(m: &mut Machine, port: u16, value: u32) -> Stop {
    run(m, out_code(), port, value, &mut ()).unwrap()
}

/// A machine whose guest has published its state page. A port that only goes on runs into the HLT behind it, which
/// ends a machine, so every access has its own.
fn published(kind: EngineKind) -> Machine {
    let mut m = machine(kind);
    write_state_page(m.memory());
    let state = {
        let mut first = machine(kind);
        write_state_page(first.memory());
        assert_eq!(out(&mut first, port::PLATFORM, (STATE_PAGE >> 12) as u32), Stop::Fault(GuestFault::Halt));
        first.capture().unwrap().state_page
    };
    assert_eq!(state, Some(Gpa(STATE_PAGE)));
    let publish = guest_publish();
    m.memory().write(Gpa(KERNEL_CODE), publish).unwrap();
    m.set_cpu(&kernel_state()).unwrap();
    assert_eq!(m.run(&Until::END, &mut ()).unwrap(), Stop::Job);
    m.set_job(&job(), &vmm::RunParameters::default()).unwrap();
    m
}

// Publishes the state page, then asks for the job: a stop after which the machine can go on.
guest_code!(
    guest_publish = "mov eax, 0x50",
    "mov edx, 0xb00",
    "out dx, eax",
    "mov edx, 0xb10",
    "out dx, eax",
    "hlt"
);

pub(crate) fn job() -> rewind_platform::job::Job {
    rewind_platform::job::Job {
        argv: vec![b"true".to_vec()],
        env: Vec::new(),
        cwd: b"/".to_vec(),
        user: String::new(),
        hostname: "m".into(),
        cores: 1,
        seed: [0; 32],
        epoch: 0,
        images: 0,
        tty: false,
        outputs: Vec::new(),
        overlay_bytes: 0,
    }
}

fn port_fault(stop: &Stop) -> bool {
    matches!(stop, Stop::Fault(GuestFault::Port { .. }))
}

fn a_foreign_state_page_is_refused(kind: EngineKind) {
    // Not memory; no magic number.
    for page in [u32::MAX, 0xd_0000, 0x50] {
        assert!(port_fault(&out(&mut machine(kind), port::PLATFORM, page)), "page {page:#x}");
    }
    let mut m = machine(kind);
    write_state_page(m.memory());
    m.memory().write_u32(Gpa(STATE_PAGE + ST_VERSION), PLATFORM_VERSION + 1).unwrap();
    let stop = out(&mut m, port::PLATFORM, (STATE_PAGE >> 12) as u32);
    let fault = GuestFault::PlatformVersion { kernel: PLATFORM_VERSION + 1, monitor: PLATFORM_VERSION };
    assert_eq!(stop, Stop::Fault(fault));
}

fn ports_need_a_state_page_first(kind: EngineKind) {
    for port in [port::STOP, port::RING, port::BLOCK, port::JOB, port::DEVICE] {
        assert!(port_fault(&out(&mut machine(kind), port, 0)), "port {port:#x}");
    }
}

fn wrong_sizes_and_ports_are_faults(kind: EngineKind) {
    for (code, port) in [
        (out_byte_code(), port::STOP),
        (out_byte_code(), port::BLOCK),
        (out_code(), port::CONSOLE),
        (out_code(), port::STOP + 1),
        (in_code(), port::JOB),
    ] {
        let stop = run(&mut published(kind), code, port, 0, &mut ()).unwrap();
        assert!(port_fault(&stop), "port {port:#x}: {stop:?}");
    }
    // A PC's own ports read as ones and swallow writes.
    let mut m = published(kind);
    assert_eq!(run(&mut m, in_code(), 0x64, 0, &mut ()).unwrap(), Stop::Fault(GuestFault::Halt));
    assert_eq!(m.cpu().unwrap().gpr[gpr::RAX], 0xffff_ffff);
}

fn end_reasons(kind: EngineKind) {
    for (value, reason) in [
        (port::END_POWER_OFF, EndReason::PowerOff),
        (port::END_RESTART, EndReason::Restart),
        (port::END_PANIC, EndReason::Panic { text: String::new() }),
        (port::END_STALLED, EndReason::Stalled),
        (port::END_IDLING, EndReason::Idling),
    ] {
        assert_eq!(out(&mut published(kind), port::END, value), Stop::End(reason));
    }
    assert!(port_fault(&out(&mut published(kind), port::END, 77)));
}

fn an_ended_machine_does_not_run(kind: EngineKind) {
    let mut m = published(kind);
    out(&mut m, port::END, port::END_POWER_OFF);
    assert!(m.ended());
    assert!(matches!(m.run(&Until::END, &mut ()), Err(MachineError::Ended)));
}

fn a_job_is_needed_when_asked_for(kind: EngineKind) {
    let mut m = machine(kind);
    write_state_page(m.memory());
    m.memory().write(Gpa(KERNEL_CODE), guest_publish()).unwrap();
    m.set_cpu(&kernel_state()).unwrap();
    assert_eq!(m.run(&Until::END, &mut ()).unwrap(), Stop::Job);
    assert!(matches!(m.run(&Until::END, &mut ()), Err(MachineError::NoJob)));
    m.set_job(&job(), &vmm::RunParameters::default()).unwrap();
    assert_eq!(m.run(&Until::END, &mut ()).unwrap(), Stop::Fault(GuestFault::Halt));
}

/// 8 KiB, each sector filled with its number; or one that cannot be read.
struct Image {
    broken: bool,
}

impl BlockImage for Image {
    fn len(&self) -> u64 {
        8192
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("the disk is gone"));
        }
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = ((offset + i as u64) / 512) as u8;
        }
        Ok(())
    }
}

/// What is wrong with a request.
type Change = fn(&mut BlockRequest);

fn request(m: &Machine, change: impl FnOnce(&mut BlockRequest)) {
    let mut request =
        BlockRequest { op: BLOCK_READ, sector: 2, segments: 2, status: 99, ..BlockRequest::zeroed() };
    request.segment[0] = BlockSegment { gpa: 0x7_0000, len: 512 };
    request.segment[1] = BlockSegment { gpa: 0x7_2000, len: 1024 };
    change(&mut request);
    m.memory().write(Gpa(REQUEST), bytemuck::bytes_of(&request)).unwrap();
}

fn block_requests_are_checked(kind: EngineKind) {
    let with_image = || {
        let mut m = published(kind);
        m.set_images(vec![Box::new(Image { broken: false })]);
        m
    };
    let status = |m: &Machine| m.memory().read_u32(Gpa(REQUEST + 20)).unwrap();
    let halted = Stop::Fault(GuestFault::Halt);

    let mut m = with_image();
    request(&m, |_| {});
    assert_eq!(out(&mut m, port::BLOCK, REQUEST as u32), halted);
    assert_eq!(status(&m), BLOCK_OK);
    assert_eq!(m.memory().read_u64(Gpa(0x7_0000)).unwrap(), 0x0202_0202_0202_0202);
    assert_eq!(m.memory().read_u64(Gpa(0x7_23f8)).unwrap(), 0x0404_0404_0404_0404);

    // Told to the guest: no such image, beyond its end (also by overflow).
    let told: [(Change, u32); 4] = [
        (|r| r.image = 1, BLOCK_ABSENT),
        (|r| r.sector = 15, BLOCK_EIO),
        (|r| r.sector = u64::MAX, BLOCK_EIO),
        (|r| r.segment[1].len = !511, BLOCK_EIO),
    ];
    for (change, expected) in told {
        let mut m = with_image();
        request(&m, change);
        assert_eq!(out(&mut m, port::BLOCK, REQUEST as u32), halted);
        assert_eq!(status(&m), expected);
    }
    // The end of the run: what no driver of this platform asks for.
    let faults: [Change; 5] = [
        |r| r.segments = 257,
        |r| r.op = 9,
        |r| r.segment[0].len = 100,
        |r| r.segment[1].gpa = 0xd000_0000,
        |r| r.segment[1].gpa = u64::MAX - 100,
    ];
    for (i, change) in faults.into_iter().enumerate() {
        let mut m = with_image();
        request(&m, change);
        let stop = out(&mut m, port::BLOCK, REQUEST as u32);
        assert!(matches!(stop, Stop::Fault(GuestFault::BlockRequest { .. })), "case {i}: {stop:?}");
    }
    for address in [REQUEST as u32 + 4, 0xffff_fff0, 0xd000_0000, (64 << 20) - 16] {
        let stop = out(&mut with_image(), port::BLOCK, address);
        assert!(matches!(stop, Stop::Fault(GuestFault::BlockRequest { .. })), "{address:#x}: {stop:?}");
    }
}

fn an_unreadable_image_is_a_host_error(kind: EngineKind) {
    let mut m = published(kind);
    m.set_images(vec![Box::new(Image { broken: true })]);
    request(&m, |_| {});
    let error = run(&mut m, out_code(), port::BLOCK, REQUEST as u32, &mut ()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read image 0: the disk is gone");
}

#[derive(Default)]
struct Records(Vec<(u16, Vec<u8>)>);

impl RecordSink for Records {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        self.0.push((header.kind, payload.to_vec()));
    }
}

fn header(len: u32, payload_len: u32) -> RecordHeader {
    RecordHeader { len, payload_len, kind: 2, ..RecordHeader::zeroed() }
}

/// Writes into the ring at a byte position, around its end.
fn ring_write(m: &Machine, at: u64, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        let offset = (at + i as u64) % RING_CAPACITY;
        m.memory().write(Gpa(CONTROL_BASE + RING_OFFSET + offset), &[*byte]).unwrap();
    }
}

fn set_head(m: &Machine, head: u64) {
    m.memory().write_u64(Gpa(CONTROL_BASE + CTL_RING_HEAD), head).unwrap();
}

fn ring_records_are_checked(kind: EngineKind) {
    for (head, record) in [
        (RING_CAPACITY + 8, header(56, 8)),
        (u64::MAX, header(56, 8)),
        (40, header(48, 0)),
        (64, header(0, 0)),
        (64, header(47, 0)),
        (64, header(60, 0)),
        (64, header(u32::MAX, 0)),
        (0x8000, header(0x4008, 0)),
        (48, header(56, 8)),
        (56, header(56, 9)),
        (56, header(56, u32::MAX)),
    ] {
        let mut m = published(kind);
        ring_write(&m, 0, bytemuck::bytes_of(&record));
        set_head(&m, head);
        let mut records = Records::default();
        let stop = run(&mut m, out_code(), port::RING, 0, &mut records).unwrap();
        assert!(matches!(stop, Stop::Fault(GuestFault::Ring { .. })), "{head} {record:?}: {stop:?}");
        assert!(records.0.is_empty());
    }
}

// Asks for a drain twice, so that the ring can be filled further in between: the host writes at the JOB stop.
guest_code!(
    drain_code = "mov edx, 0xb08",
    "out dx, eax",
    "mov edx, 0xb10",
    "out dx, eax",
    "mov edx, 0xb08",
    "out dx, eax",
    "hlt"
);

fn ring_records_wrap(kind: EngineKind) {
    let mut m = published(kind);
    // Records of 16 KiB up to 24 bytes before the end, then one around it.
    let (mut at, mut written) = (0, 0);
    while at + 0x4000 < RING_CAPACITY {
        ring_write(&m, at, bytemuck::bytes_of(&header(0x4000, 8)));
        at += 0x4000;
        written += 1;
    }
    let rest = (RING_CAPACITY - 24 - at) as u32;
    ring_write(&m, at, bytemuck::bytes_of(&header(rest, 0)));
    at += u64::from(rest);
    set_head(&m, at);
    let mut records = Records::default();
    let first = run(&mut m, drain_code(), 0, 0, &mut records).unwrap();
    assert_eq!((first, records.0.len()), (Stop::Job, written + 1));
    records.0.clear();
    ring_write(&m, at, bytemuck::bytes_of(&header(56, 5)));
    ring_write(&m, at + 48, b"hello\0\0\0");
    set_head(&m, at + 56);
    assert_eq!(m.run(&Until::END, &mut records).unwrap(), Stop::Fault(GuestFault::Halt));
    assert_eq!(records.0, [(2, b"hello".to_vec())]);
}

guest_code!(triple_code = "mov rsp, 0x8000000000000000", "push rax");
guest_code!(mmio_code = "mov eax, 0xe0000000", "mov ecx, [rax]", "hlt");

fn cpu_faults_end_the_run(kind: EngineKind) {
    let stop = run(&mut published(kind), triple_code(), 0, 0, &mut ()).unwrap();
    assert_eq!(stop, Stop::Fault(GuestFault::TripleFault));
    let stop = run(&mut published(kind), mmio_code(), 0, 0, &mut ()).unwrap();
    assert_eq!(stop, Stop::Fault(GuestFault::Mmio { address: 0xe000_0000, write: false }));
}
