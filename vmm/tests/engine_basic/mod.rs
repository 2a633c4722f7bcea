//! Ports, system calls, exceptions, CPUID, state capture.

use soft_cpu::state::{CpuState, gpr};
use vmm::{
    EngineKind,
    address::Gpa,
    cpu_model::REWIND_V2,
    engine::Exit,
    guest_code,
    memory::PageSet,
    micro::{DATA, KERNEL_STACK, SYSCALL_PORT, USER_CODE},
};

use crate::{common::micro, on_engines};

on_engines!(
    out_is_complete_when_it_exits,
    rep_outs_writes_every_element,
    in_is_answered,
    syscall_enters_the_kernel,
    rdtsc_faults_in_user_mode,
    cpuid_is_the_model,
    page_fault_is_exact,
    state_survives_a_round_trip,
    registers_reach_the_guest,
    dirty_pages_are_exact,
    interrupter_stops_a_spinning_guest,
    triple_fault_is_reported,
);

guest_code!(out_code = "mov eax, 0x12345678", "mov edx, 0x1234", "out dx, eax", "inc ebx", "out 0x99, al");

fn out_is_complete_when_it_exits(kind: EngineKind) {
    let mut m = micro(kind);
    m.kernel(out_code()).unwrap();
    let exit = m.run().unwrap();
    assert_eq!(exit, Exit::PortOut { port: 0x1234, size: 4, data: 0x1234_5678u32.to_le_bytes().to_vec() });
    let state = m.engine.cpu().unwrap();
    assert_eq!(state.rip, vmm::micro::KERNEL_CODE + 11);
    // Going on from the captured state in another machine does not repeat the OUT.
    let mut other = micro(kind);
    other.kernel(out_code()).unwrap();
    other.engine.set_cpu(&state).unwrap();
    assert_eq!(other.run().unwrap(), Exit::PortOut { port: 0x99, size: 1, data: vec![0x78] });
    assert_eq!(other.engine.cpu().unwrap().gpr[gpr::RBX], 1);
    assert_eq!(m.run().unwrap(), Exit::PortOut { port: 0x99, size: 1, data: vec![0x78] });
}

guest_code!(
    rep_outs_code = "mov esi, 0x30000",
    "mov ecx, 5000",
    "mov edx, 0xb18",
    "cld",
    "rep outsb",
    "out 0x99, al"
);

fn rep_outs_writes_every_element(kind: EngineKind) {
    let mut m = micro(kind);
    let text: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
    m.memory.write(Gpa(DATA), &text).unwrap();
    m.kernel(rep_outs_code()).unwrap();
    let mut written = Vec::new();
    loop {
        match m.run().unwrap() {
            Exit::PortOut { port: 0xb18, size: 1, data } => written.extend(data),
            Exit::PortOut { port: 0x99, .. } => break,
            other => panic!("{other:?}"),
        }
        let state = m.engine.cpu().unwrap();
        let done = written.len() as u64;
        assert_eq!((state.gpr[gpr::RCX], state.gpr[gpr::RSI]), (5000 - done, DATA + done));
    }
    assert!(written == text, "every byte once, in order");
}

guest_code!(in_code = "mov edx, 0xb00", "in eax, dx", "mov ebx, eax", "out 0x99, al");

fn in_is_answered(kind: EngineKind) {
    let mut m = micro(kind);
    m.kernel(in_code()).unwrap();
    assert_eq!(m.run().unwrap(), Exit::PortIn { port: 0xb00, size: 4 });
    m.engine.complete_in(0xdead_beef);
    let state = m.engine.cpu().unwrap();
    assert_eq!(state.gpr[gpr::RAX], 0xdead_beef);
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 0x99, .. }));
    assert_eq!(m.engine.cpu().unwrap().gpr[gpr::RBX], 0xdead_beef);
}

guest_code!(syscall_code = "mov eax, 39", "syscall", "inc ebx", "syscall");

fn syscall_enters_the_kernel(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(syscall_code()).unwrap();
    for round in 0..2 {
        assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }));
        let state = m.engine.cpu().unwrap();
        assert_eq!(state.cs.selector & 3, 0, "SYSCALL enters CPL 0");
        assert_eq!(state.gpr[gpr::R11] & !0x8d5, 0x202);
        assert_eq!(state.gpr[gpr::RBX], round);
        assert_eq!(state.gpr[gpr::RCX], USER_CODE + 7 + 4 * round);
    }
}

guest_code!(rdtsc_code = "rdtsc", "rdtscp");

fn rdtsc_faults_in_user_mode(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(rdtsc_code()).unwrap();
    for at in [USER_CODE, USER_CODE + 2] {
        let exit = m.run().unwrap();
        assert!(matches!(exit, Exit::PortOut { port: 13, .. }), "TSD makes it #GP: {exit:?}");
        let frame = m.engine.cpu().unwrap().gpr[gpr::RSP];
        assert_eq!(frame, KERNEL_STACK - 48);
        assert_eq!(m.memory.read_u64(Gpa(frame)).unwrap(), 0, "error code");
        assert_eq!(m.memory.read_u64(Gpa(frame + 8)).unwrap(), at);
        m.memory.write_u64(Gpa(frame + 8), USER_CODE + 2).unwrap();
    }
}

guest_code!(cpuid_code = "cpuid", "out 0x99, al");

fn cpuid_is_the_model(kind: EngineKind) {
    let mut m = micro(kind);
    m.kernel(cpuid_code()).unwrap();
    let mut queries: Vec<(u32, u32)> =
        REWIND_V2.leaves.iter().map(|leaf| (leaf.function, leaf.index.unwrap_or(0))).collect();
    queries.extend([(3, 0), (4, 4), (5, 0), (7, 1), (0xd, 0), (0xd, 1), (0x15, 0), (0x1f, 0)]);
    queries.extend([
        (0x4000_0001, 0),
        (0x4000_0100, 0),
        (0x8000_0005, 0),
        (0x8000_001e, 0),
        (0xc000_0000, 0),
    ]);
    for (function, index) in queries {
        let mut state = vmm::micro::kernel_state();
        state.gpr[gpr::RAX] = function.into();
        state.gpr[gpr::RCX] = index.into();
        m.engine.set_cpu(&state).unwrap();
        assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 0x99, .. }));
        let state = m.engine.cpu().unwrap();
        let got = [gpr::RAX, gpr::RBX, gpr::RCX, gpr::RDX].map(|r| state.gpr[r] as u32);
        assert_eq!(got, REWIND_V2.cpuid(function, index), "leaf {function:#x}.{index}");
    }
}

guest_code!(rmw_code = "mov esi, 0x40ff8", "add dword ptr [rsi + 0x10], 1", "out 0x99, al");

fn page_fault_is_exact(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(rmw_code()).unwrap();
    // The page read and written is not present: one fault, a write, with the address.
    m.set_page_flags(0x41000, 0).unwrap();
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 14, .. }));
    let state = m.engine.cpu().unwrap();
    assert_eq!(state.cr2, 0x41008);
    let frame = state.gpr[gpr::RSP];
    // QEMU's emulator, under the test bench's KVM, reads before it writes: see the self-test.
    let expected: &[u64] = if kind == EngineKind::Kvm { &[4, 6] } else { &[6] };
    let code = m.memory.read_u64(Gpa(frame)).unwrap();
    assert!(expected.contains(&code), "user, write, not present: {code}");
    assert_eq!(m.memory.read_u64(Gpa(frame + 8)).unwrap(), USER_CODE + 5);
    m.set_page_flags(0x41000, 7).unwrap();
    // Going on, it succeeds with no further fault; user mode may not use ports: #GP.
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 13, .. }));
    assert_eq!(m.memory.read_u32(Gpa(0x41008)).unwrap(), 1);
}

fn state_survives_a_round_trip(kind: EngineKind) {
    let mut m = micro(kind);
    let mut state = vmm::micro::user_state();
    for (i, register) in state.gpr.iter_mut().enumerate() {
        *register = (0x1111_1111_1111_1111 * i as u64).wrapping_add(5);
    }
    for (i, xmm) in state.xmm.iter_mut().enumerate() {
        *xmm = [i as u64 + 1, !(i as u64)];
    }
    state.x87[5][7..10].copy_from_slice(&[0x80, 0xff, 0x3f]);
    state.fsw = 5 << 11;
    state.ftw = 0xf3ff;
    state.fcw = 0x27f;
    state.mxcsr = 0x1fa0;
    state.rflags = 0xad7;
    state.fs.base = 0x7fff_1234_5678;
    state.gs.base = 0x7fff_0000_1000;
    state.kernel_gs_base = 0xffff_8000_0000_1000;
    state.cr2 = 0x1234;
    state.dr = [0x1000, 0x2000, 0x3000, 0x4000];
    state.star = 0x0023_0010_0000_0000;
    state.sysenter_eip = 0xffff_ffff_8000_0000;
    state.pat = 0x0407_0506_0001_0406;
    m.engine.set_cpu(&state).unwrap();
    let back = m.engine.cpu().unwrap();
    // Line by line, so that a failure names the field.
    let lines = |state: &CpuState| format!("{state:#?}").lines().map(str::to_owned).collect::<Vec<_>>();
    let differing: Vec<_> = lines(&back).into_iter().zip(lines(&state)).filter(|(a, b)| a != b).collect();
    assert_eq!(differing, [], "(read back, set)");
    assert_eq!(back, state);
}

guest_code!(
    registers_code = "paddq xmm3, xmm4",
    "fld1",
    "faddp",
    "fstp qword ptr [rsi]",
    "movq [rsi + 8], xmm3",
    "mov [rsi + 16], r9",
    "mov rax, fs:[0]",
    "mov [rsi + 24], rax",
    "out 0x99, al",
);

fn registers_reach_the_guest(kind: EngineKind) {
    let mut m = micro(kind);
    m.kernel(registers_code()).unwrap();
    m.memory.write_u64(Gpa(DATA + 0x800), 77).unwrap();
    let mut state = vmm::micro::kernel_state();
    state.gpr[gpr::RSI] = DATA;
    state.gpr[gpr::R9] = 9;
    state.xmm[3] = [40, 0];
    state.xmm[4] = [2, 0];
    // ST0 = 1.0 in R7.
    state.fsw = 7 << 11;
    state.ftw = 0x3fff;
    state.x87[7][7..10].copy_from_slice(&[0x80, 0xff, 0x3f]);
    state.fs.base = DATA + 0x800;
    m.engine.set_cpu(&state).unwrap();
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 0x99, .. }));
    let data: Vec<u64> = (0..4).map(|i| m.memory.read_u64(Gpa(DATA + 8 * i)).unwrap()).collect();
    assert_eq!(data, [2f64.to_bits(), 42, 9, 77]);
}

guest_code!(
    dirty_code = "mov al, [0x50000]",
    "mov al, [0x54000]",
    "out 0x98, al",
    "mov byte ptr [0x50000], 1",
    "mov byte ptr [0x52fff], 1",
    "mov al, [0x54000]",
    "out 0x99, al"
);

/// KVM counts a page as written when it is first mapped, even by a read; after that the set is exact.
fn dirty_pages_are_exact(kind: EngineKind) {
    let mut m = micro(kind);
    m.kernel(dirty_code()).unwrap();
    let mut pages = PageSet::new(m.memory.pages());
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 0x98, .. }));
    m.engine.take_dirty(&mut pages).unwrap();
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: 0x99, .. }));
    pages.clear();
    m.engine.take_dirty(&mut pages).unwrap();
    // Below DATA are the page tables, with their accessed and dirty bits.
    let data: Vec<u64> = pages.iter().filter(|page| page * 4096 >= DATA).collect();
    assert_eq!(data, [0x50, 0x52]);
    pages.clear();
    m.engine.take_dirty(&mut pages).unwrap();
    assert!(pages.is_empty(), "asking forgets");
}

guest_code!(spin_code = "2: jmp 2b");

fn interrupter_stops_a_spinning_guest(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(spin_code()).unwrap();
    let interrupt = m.engine.interrupter();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        interrupt();
    });
    assert_eq!(m.run().unwrap(), Exit::Interrupted);
    thread.join().unwrap();
    assert_eq!(m.engine.cpu().unwrap().rip, USER_CODE);
}

guest_code!(triple_code = "mov rsp, 0x8000000000000000", "push rax");

fn triple_fault_is_reported(kind: EngineKind) {
    let mut m = micro(kind);
    m.kernel(triple_code()).unwrap();
    assert_eq!(m.run().unwrap(), Exit::TripleFault);
}
