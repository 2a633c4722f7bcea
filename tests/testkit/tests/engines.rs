//! The same programs on both engines. Prints a line `hash PROGRAM HASH STEPS NOW` each; `tests/bench/kvm.sh` runs this
//! with `REWIND_TEST_ENGINE=kvm` in the test bench and with `soft` outside, and compares the lines.
//!
//! The bench's CPU faults twice where a read-modify-write touches an absent page, first as a read (self-test:
//! write-fault), which no processor does and which is a step too many. So the kernel is told to handle both kinds of
//! fault as one (`rewind_write_faults`), on either engine: no instruction faults twice any more, which is asserted.

use std::collections::BTreeMap;

use rewind_platform::{
    control::{TRACE_FAULT, TRACE_FUTEX, TRACE_MMAP, TRACE_SYSCALL},
    record::{REC_FAULT, RecordHeader},
};
use testkit::{Gatherer, Kit, config, job};
use vmm::{EngineKind, MachineConfig, RecordSink, Stop, Until};

/// What is compared: name and command.
const PROGRAMS: [(&str, &[&str]); 22] = [
    ("battery", &["battery"]),
    ("jobs", &["sh", "/bin/jobs.sh"]),
    ("files-and-locks", &["wio"]),
    ("memory", &["wmem"]),
    ("processes", &["wproc"]),
    ("network", &["wnet"]),
    ("system", &["wsys"]),
    ("strace", &["/usr/bin/strace", "-f", "sh", "-c", "echo traced | cat"]),
    ("tee", &["sh", "-c", "yes 0123456789abcdef | head -n 30000 | tee /dev/fd/2 | wc -c"]),
    (
        "cores",
        &[
            "sh",
            "-c",
            "nproc; for i in 1 2 3 4; do (for j in 1 2 3; do echo $i.$j; sleep 0.00$i; done) & done; wait",
        ],
    ),
    ("forktree", &["forktree", "4"]),
    ("switch", &["switch", "4", "500"]),
    ("random", &["random"]),
    ("deadlock", &["deadlock"]),
    ("deadlock-tcp", &["deadlock", "tcp"]),
    ("pipewait", &["pipewait"]),
    ("sleep", &["/usr/bin/sleep", "3"]),
    ("sort", &["sh", "-c", "seq 1 2000 | sort -r | uniq | md5sum"]),
    (
        "awk",
        &["sh", "-c", "seq 1 300 | awk '{ s += $1 * $1; t[$1 % 7] += s } END { print s, t[3], length(t) }'"],
    ),
    ("gzip", &["sh", "-c", "gzip -c /usr/bin/sleep | gunzip -c | cksum"]),
    (
        "files",
        &[
            "sh",
            "-c",
            "cd /tmp; for i in 1 2 3; do mkdir d$i; echo $i > d$i/f; ln -s f d$i/l; done; cat */l; du -a | sort; rm -r d*; ls",
        ],
    ),
    (
        "signals",
        &[
            "sh",
            "-c",
            "trap 'echo caught' USR1; kill -USR1 $$; (sleep 5 & kill $!; wait $!; echo $?); timeout 1 sleep 9; echo $?",
        ],
    ),
];

/// Counts instructions that faulted as a read, then again as a write.
#[derive(Default)]
struct Doubled {
    gatherer: Gatherer,
    /// Each thread's last fault: address, instruction, error code.
    last: BTreeMap<u64, (u64, u64, u32)>,
    count: u64,
}

impl RecordSink for Doubled {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        const WRITE: u32 = 2;
        if header.kind == REC_FAULT {
            let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
            let fault = (word(0), word(8), header.aux);
            if self.last.insert(header.thread, fault) == Some((fault.0, fault.1, fault.2 & !(WRITE | 1)))
                && fault.2 & WRITE != 0
            {
                self.count += 1;
            }
        }
        self.gatherer.record(header, payload);
    }

    fn console(&mut self, text: &[u8]) {
        self.gatherer.console(text);
    }
}

#[test]
fn every_program_has_one_hash_on_either_engine() {
    let mut files = testkit::kernel();
    files.command_line.push_str(" rewind_write_faults");
    let mut kit = Kit::boot_with(&MachineConfig { kernel: files, ..config() });
    for (name, command) in PROGRAMS {
        let mut wanted = job(command);
        wanted.cores = if name == "cores" { 4 } else { 1 };
        let machine = kit.start(&wanted);
        machine.set_trace_level(TRACE_SYSCALL | TRACE_FUTEX | TRACE_FAULT | TRACE_MMAP);
        let mut sink = Doubled::default();
        let stop = machine.run(&Until::END, &mut sink).unwrap();
        let first = sink.gatherer.finish(machine, &stop);
        machine.set_trace_level(0);
        assert_eq!(first.failed, None, "{name}");
        assert!(matches!(first.stop, Stop::End(_)), "{name}: {:?}", first.stop);
        assert_eq!(sink.count, 0, "{name}: instructions that faulted twice");
        println!("hash {name} {} {} {}", first.hash_without_console(), first.steps, first.now);
        // The bench has six minutes for everything.
        if testkit::engine() == EngineKind::Soft {
            let second = kit.run(&wanted);
            assert_eq!(
                (&first.hash, first.steps, &first.output),
                (&second.hash, second.steps, &second.output),
                "{name}"
            );
        }
    }
}
