//! Which engines to test, and what on.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::sync::Arc;

use vmm::{
    EngineKind, KernelFiles, Machine, MachineConfig,
    cpu_model::REWIND_V2,
    memory::GuestMemory,
    micro::{MEMORY, Micro, environment},
};

/// Makes one `#[test]` per engine of each function named.
#[macro_export]
macro_rules! on_engines {
    ($($name:ident),+ $(,)?) => {
        mod kvm {
            $(#[test]
            #[ignore = "needs a real KVM; run in the test bench with --ignored"]
            fn $name() {
                super::$name(vmm::EngineKind::Kvm);
            })+
        }
        mod soft {
            $(#[test]
            fn $name() {
                super::$name(vmm::EngineKind::Soft);
            })+
        }
    };
}

/// A micro-guest on `kind`.
pub(crate) fn micro(kind: EngineKind) -> Micro {
    Micro::new(kind, &REWIND_V2).unwrap()
}

/// A machine over a micro-guest's memory; it boots no kernel.
pub(crate) fn machine(kind: EngineKind) -> Machine {
    let files =
        KernelFiles { vmlinux: Arc::default(), initramfs: Arc::default(), command_line: String::new() };
    let memory = Arc::new(GuestMemory::new(MEMORY).unwrap());
    environment(&memory).unwrap();
    Machine::over(&MachineConfig::new(MEMORY, kind, files), memory).unwrap()
}
