//! Signal numbers: gdb has its own, the same for all systems (include/gdb/signals.def of gdb's manual, "Signals").

/// gdb's number of each of Linux's signals 0 to 31.
const GDB: [u8; 32] = [
    0, 1, 2, 3, 4, 5, 6, 10, 8, 9, 30, 11, 31, 13, 14, 15, 143, 20, 19, 17, 18, 21, 22, 16, 24, 25, 26, 27,
    28, 23, 32, 12,
];

/// gdb's number of a Linux signal.
pub(super) fn to_gdb(linux: u32) -> u8 {
    match linux {
        0..=31 => GDB[linux as usize],
        32 => 77,
        33..=63 => (linux - 33 + 45) as u8,
        64 => 78,
        _ => 143,
    }
}

/// The Linux signal of gdb's number, if there is one.
pub(super) fn from_gdb(gdb: u32) -> Option<u32> {
    (1..=64).find(|linux| u32::from(to_gdb(*linux)) == gdb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        for (linux, gdb) in [(11, 11), (10, 30), (12, 31), (7, 10), (17, 20), (34, 46), (64, 78)] {
            assert_eq!(u32::from(to_gdb(linux)), gdb, "{linux}");
            assert_eq!(from_gdb(gdb), Some(linux));
        }
        assert_eq!(from_gdb(150), None);
    }
}
