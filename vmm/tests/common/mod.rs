//! Which engines to test.

use vmm::{EngineKind, cpu_model::REWIND_V2, micro::Micro};

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
