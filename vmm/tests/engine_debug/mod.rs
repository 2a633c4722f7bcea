//! Watches and breakpoints. On a KVM whose debug registers do not stop, asking is refused in words.

use vmm::{
    EngineKind,
    address::Gva,
    engine::{Access, EngineError, Exit, Watch, WatchRange},
    guest_code,
    micro::{DATA, Micro, SYSCALL_PORT, USER_CODE},
};

use crate::{common::micro, on_engines};

on_engines!(
    a_watch_stops_behind_the_write,
    a_breakpoint_stops_before_the_instruction,
    too_many_watches_are_refused_where_there_is_a_limit,
);

// At 0: a write elsewhere; at 11: a write to DATA + 0x40; at 22: a read of it.
guest_code!(
    watch_code = "mov dword ptr [0x30044], 1",
    "mov dword ptr [0x30040], 1",
    "mov eax, [0x30040]",
    "syscall"
);

fn word(at: u64, len: u64) -> Watch {
    Watch { range: WatchRange::Virtual(Gva(at)), len, read: false, write: true }
}

/// Where debug registers work (or the engine is software) `true`; else the refusal is as it must be.
fn possible(m: &Micro, asked: Result<(), EngineError>) -> bool {
    if m.engine.capabilities().watches {
        asked.unwrap();
        return true;
    }
    let refusal = asked.unwrap_err().to_string();
    println!("refused: {refusal}");
    assert!(refusal.contains("rewind doctor") && refusal.contains("--engine soft"), "{refusal}");
    assert_eq!(m.engine.capabilities().hardware_watches, Some(0));
    false
}

fn a_watch_stops_behind_the_write(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(watch_code()).unwrap();
    let asked = m.engine.watch(&[word(DATA + 0x40, 4)]);
    if !possible(&m, asked) {
        // None is always possible, and nothing is watched.
        m.engine.watch(&[]).unwrap();
        assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }));
        return;
    }
    let Exit::Watch(hits) = m.run().unwrap() else { panic!("it does not stop at the write") };
    assert_eq!(m.engine.cpu().unwrap().rip, USER_CODE + 22);
    assert_eq!((hits.len(), hits[0].access, hits[0].user), (1, Access::Write, true));
    assert_eq!((hits[0].address, hits[0].physical.0, hits[0].size), (Gva(DATA + 0x40), DATA + 0x40, 4));
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }));
}

fn a_breakpoint_stops_before_the_instruction(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(watch_code()).unwrap();
    let asked = m.engine.breakpoints(&[Gva(USER_CODE + 11)]);
    if !possible(&m, asked) {
        m.engine.breakpoints(&[]).unwrap();
        assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }));
        return;
    }
    assert_eq!(m.run().unwrap(), Exit::Breakpoint(Gva(USER_CODE + 11)));
    assert_eq!(m.memory.read_u32(vmm::address::Gpa(DATA + 0x40)).unwrap(), 0);
    // Going on does not stop there again.
    assert!(matches!(m.run().unwrap(), Exit::PortOut { port: SYSCALL_PORT, .. }));
    assert_eq!(m.memory.read_u32(vmm::address::Gpa(DATA + 0x40)).unwrap(), 1);
}

fn too_many_watches_are_refused_where_there_is_a_limit(kind: EngineKind) {
    let mut m = micro(kind);
    m.user(watch_code()).unwrap();
    let asked = m.engine.watch(&[word(DATA + 1, 64)]);
    match m.engine.capabilities().hardware_watches {
        None => asked.unwrap(),
        Some(_) => {
            let refusal = asked.unwrap_err().to_string();
            assert!(refusal.contains("--engine soft"), "{refusal}");
        }
    }
}
