//! What only the software CPU can do: stop anywhere, at no cost to the trace; and let computing take time.

use std::collections::BTreeSet;

use testkit::{Gatherer, Kit, Outcome, config, finish, job};
use vmm::{Clock, EndReason, EngineKind, GuestFault, MachineConfig, Stop, Until, address::Instructions};

fn soft(clock: Clock) -> MachineConfig {
    MachineConfig { engine: EngineKind::Soft, clock, ..config() }
}

fn whole(outcome: &Outcome) -> (&str, u64, u64, &str) {
    (&outcome.hash, outcome.steps, outcome.now, &outcome.output)
}

/// Budgets of instructions in user mode and in the kernel, over the whole job.
#[test]
fn any_instruction_budget_gives_the_same_trace() {
    let mut kit = Kit::boot_with(&soft(Clock::Steps));
    println!("program              budget     pieces  trace");
    // One instruction at a time only for a small program.
    let cases: [(&[&str], &[u64]); 2] =
        [(&["true"], &[1, 10, 1_000, 1_000_000]), (&["battery"], &[10, 1_000, 1_000_000])];
    for (program, budgets) in cases {
        let free = kit.run(&job(program));
        assert_eq!((&free.failed, free.status), (&None, Some(0)), "{}", free.console);
        println!("{:20} {:>8} {:>9}  {}", program.join(" "), "none", free.exits, free.hash);
        for &budget in budgets {
            let before = kit.machine().engine().counters();
            let machine = kit.start(&job(program));
            machine.set_piece(Some(Instructions(budget)));
            let outcome = finish(machine);
            machine.set_piece(None);
            let after = kit.machine().engine().counters();
            let (exits, instructions) =
                (after.exits - before.exits, after.instructions.0 - before.instructions.0);
            println!("{:20} {budget:>8} {exits:>9}  {}", program.join(" "), outcome.hash);
            assert!(
                exits >= instructions / budget,
                "{exits} pieces of {budget} for {instructions} instructions"
            );
            assert_eq!(whole(&outcome), whole(&free), "budget {budget}");
        }
    }
}

/// Under `steps` nothing moves the clock while a thread computes; under `work` it is preempted, at one place.
#[test]
fn a_spinning_thread_ends_under_the_work_clock_only() {
    let mut kit = Kit::boot_with(&soft(Clock::Steps));
    let machine = kit.start(&job(&["spin"]));
    machine.set_no_progress_limit(Some(Instructions(20_000_000)));
    let stop = machine.run(&Until::END, &mut ()).unwrap();
    assert!(
        matches!(stop, Stop::Fault(GuestFault::NoProgress { user: true, .. })),
        "a spin under `steps` is to be found out: {stop:?}"
    );
    for slice in [1 << 16, 1 << 22] {
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            let mut kit = Kit::boot_with(&soft(Clock::Work { slice }));
            for _ in 0..2 {
                let outcome = kit.run(&job(&["spin"]));
                assert_eq!(outcome.stop, Stop::End(EndReason::PowerOff), "{}", outcome.console);
                assert_eq!((outcome.status, outcome.failed), (Some(0), None), "{}", outcome.output);
                seen.insert((outcome.hash, outcome.steps, outcome.now, outcome.output));
            }
        }
        println!("slice {slice}: {seen:?}");
        assert_eq!(seen.len(), 1, "four runs end at one place");
    }
}

/// An instruction the CPU model lacks is named, counted, and has an address.
#[test]
fn what_is_outside_the_model_is_named_and_counted() {
    let mut kit = Kit::boot_with(&soft(Clock::Steps));
    let machine = kit.start(&job(&["avx"]));
    let mut gatherer = Gatherer::default();
    let stop = machine.run(&Until::END, &mut gatherer).unwrap();
    let outcome = gatherer.finish(machine, &stop);
    let seen = machine.engine().outside_model();
    println!("{seen:?}\n{}", outcome.output);
    // The program catches two, says where the first was, and dies of the third.
    let user: Vec<_> = seen.iter().filter(|o| o.user).collect();
    let [rdrand, vaddps] = &user[..] else { panic!("{seen:?}") };
    assert_eq!((vaddps.name.as_str(), vaddps.count), ("VADDPS", 3));
    assert_eq!((rdrand.name.as_str(), rdrand.count), ("RDRAND", 1));
    assert_eq!(outcome.output.trim(), format!("first at {:#x}", vaddps.first.0));
    assert_eq!(outcome.status, Some(4), "killed by SIGILL");
}
