//! Outside input: given when the guest asks, and from a log exactly where it was given.

use rewind_platform::layout::INPUT_MAX;
use testkit::{Gatherer, Kit, Outcome, job};
use vmm::{EndReason, RunParameters, Stop, Until, machine::Input};

const OPEN: RunParameters = RunParameters { input_open: true, ..RunParameters::DEFAULT };

/// Runs `command`, answering each question with the next of `typed`, and with the end of input after the last.
fn typing(kit: &mut Kit, command: &[&str], tty: bool, typed: &[&str]) -> (Outcome, Vec<Input>) {
    let mut job = job(command);
    job.tty = tty;
    let machine = kit.start_with(&job, &OPEN);
    let (mut gatherer, mut log, mut typed) = (Gatherer::default(), Vec::new(), typed.iter());
    loop {
        match machine.run(&Until::END, &mut gatherer).unwrap() {
            Stop::Input => log.push(machine.give_input(typed.next().unwrap_or(&"").as_bytes()).unwrap()),
            stop => return (gatherer.finish(machine, &stop), log),
        }
    }
}

/// As recorded: nothing is asked.
fn replayed(kit: &mut Kit, command: &[&str], tty: bool, log: &[Input]) -> Outcome {
    let mut job = job(command);
    job.tty = tty;
    let machine = kit.start_with(&job, &OPEN);
    machine.set_input_log(log.iter().cloned());
    testkit::finish(machine)
}

fn ended_well(outcome: &Outcome) {
    assert_eq!(outcome.stop, Stop::End(EndReason::PowerOff), "{}", outcome.console);
    assert_eq!((&outcome.failed, outcome.status), (&None, Some(0)), "{}", outcome.output);
}

#[test]
fn input_is_asked_for_given_and_replayed() {
    let mut kit = Kit::boot();
    let command = ["sh", "-c", "read a; echo \"got $a\"; sleep 1; cat; echo end"];
    let (outcome, log) = typing(&mut kit, &command, false, &["hello\nmo", "re\n", "last"]);
    ended_well(&outcome);
    assert_eq!(outcome.output, "got hello\nmore\nlastend\n");
    println!(
        "steps and polls of the deliveries: {:?}",
        log.iter().map(|i| (i.step.0, i.poll)).collect::<Vec<_>>()
    );
    // The last one closes the channel.
    assert_eq!(log.len(), 4);
    assert!(log[3].bytes.is_empty() && log.windows(2).all(|pair| pair[0].poll < pair[1].poll));
    let again = replayed(&mut kit, &command, false, &log);
    assert_eq!((&again.hash, again.steps, again.now), (&outcome.hash, outcome.steps, outcome.now));
    // A log that says something else is another run.
    let mut other = log.clone();
    other[0].bytes = b"HELLO\n".to_vec();
    assert_ne!(replayed(&mut kit, &command, false, &other).hash, outcome.hash);
}

#[test]
fn typing_reaches_the_terminal() {
    let mut kit = Kit::boot();
    let command = ["sh", "-c", "tty; stty -echo; read a; echo \"<$a>\"; stty echo; cat; echo end"];
    let (outcome, log) = typing(&mut kit, &command, true, &["abX\x7fc\n", "seen\n"]);
    ended_well(&outcome);
    // The first line is edited and not shown, the second is shown and repeated; the end of input is typed too.
    assert_eq!(outcome.output, "/dev/pts/0\r\n<abc>\r\nseen\r\nseen\r\nend\r\n");
    let again = replayed(&mut kit, &command, true, &log);
    assert_eq!((&again.hash, again.steps), (&outcome.hash, outcome.steps));
}

#[test]
fn input_interrupts_what_runs_where_it_comes() {
    let mut kit = Kit::boot();
    let command = ["sh", "-c", "i=0; while ! read -t 0.001 a; do i=$((i+1)); done; echo $a; test $i -gt 3"];
    let job = job(&command);
    let machine = kit.start_with(&job, &OPEN);
    let (mut gatherer, mut log) = (Gatherer::default(), Vec::new());
    // Somewhere in the loop; any place will do, and is kept.
    let somewhere = vmm::address::Step(machine.step().0 + 700);
    assert_eq!(machine.run(&Until::step(somewhere), &mut gatherer).unwrap(), Stop::Step);
    machine.interrupter().ask_for_input();
    assert_eq!(machine.run(&Until::END, &mut gatherer).unwrap(), Stop::Input);
    log.push(machine.give_input(b"now\n").unwrap());
    assert!(machine.give_input(b"again\n").is_err(), "one answer to one question");
    let stop = machine.run(&Until::END, &mut gatherer).unwrap();
    let outcome = gatherer.finish(machine, &stop);
    ended_well(&outcome);
    assert_eq!(outcome.output, "now\n");
    let again = replayed(&mut kit, &command, false, &log);
    assert_eq!((&again.hash, again.steps), (&outcome.hash, outcome.steps));
}

#[test]
fn a_job_that_reads_nothing_stalls_once_input_piles_up() {
    let mut kit = Kit::boot();
    let machine = kit.start_with(&job(&["sleep", "infinity"]), &OPEN);
    let mut given = 0;
    let stop = loop {
        match machine.run(&Until::END, &mut ()).unwrap() {
            Stop::Input => {
                assert!(machine.give_input(&vec![b'x'; INPUT_MAX as usize + 1]).is_err());
                machine.give_input(&vec![b'x'; INPUT_MAX as usize]).unwrap();
                given += 1;
            }
            stop => break stop,
        }
    };
    assert_eq!((stop, given), (Stop::End(EndReason::Stalled), 16));
}

#[test]
fn without_input_there_is_none() {
    let mut kit = Kit::boot();
    let outcome = kit.run(&job(&["sh", "-c", "cat; cat /dev/rewind-in"]));
    assert_eq!(outcome.status, Some(1 << 8));
    assert!(outcome.output.contains("No such device or address"), "{}", outcome.output);
}
