//! Runs cases on both sides, compares, counts, and makes mismatches small.

use std::{collections::BTreeMap, fmt::Write as _, io};

use crate::{
    case::{Case, End, Fx, Outcome},
    compare::{differences, gpr_name},
    generate::Generated,
    native::{BATCH, Native},
};

/// Whatever runs cases and is compared with the host.
pub trait Subject {
    /// Runs one case.
    fn run(&mut self, case: &Case) -> Outcome;
}

/// How often a form of an encoding was run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Cases natively run to their end.
    pub completed: u64,
    /// Cases that ended in an exception.
    pub faulted: u64,
}

/// Cases of one encoding that came out differently.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// How many.
    pub count: u64,
    /// The first one, as small as it could be made.
    pub first: String,
    /// One line of what differs in it.
    pub line: String,
}

/// The result so far.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases compared.
    pub cases: u64,
    /// Of these, natively run to their end.
    completed: u64,
    /// Sequences that mismatched so far: only the first are made small.
    sequences: u64,
    /// By encoding, with `/mem` or `/reg` where there is a choice.
    pub coverage: BTreeMap<String, Coverage>,
    /// By encoding.
    pub mismatches: BTreeMap<String, Mismatch>,
}

impl Summary {
    /// Takes in what another generator's cases came to.
    pub fn merge(&mut self, other: Summary) {
        self.cases += other.cases;
        self.completed += other.completed;
        self.sequences += other.sequences;
        for (form, coverage) in other.coverage {
            let entry = self.coverage.entry(form).or_default();
            entry.completed += coverage.completed;
            entry.faulted += coverage.faulted;
        }
        for (name, mismatch) in other.mismatches {
            match self.mismatches.entry(name) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(mismatch);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().count += mismatch.count
                }
            }
        }
    }

    /// All mismatching cases.
    pub fn mismatching(&self) -> u64 {
        self.mismatches.values().map(|m| m.count).sum()
    }

    /// Cases that natively ran to their end.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Encodings seen, and forms of encodings seen.
    pub fn encodings(&self) -> (usize, usize) {
        let names: std::collections::BTreeSet<&str> =
            self.coverage.keys().map(|form| form.split('/').next().unwrap_or(form)).collect();
        (names.len(), self.coverage.len())
    }

    /// Forms that never ran to their end natively: those that always fault, or a hole in the generator.
    pub fn never_completed(&self) -> Vec<&str> {
        self.coverage.iter().filter(|(_, c)| c.completed == 0).map(|(form, _)| form.as_str()).collect()
    }

    /// A line for each form: name, cases completed, cases that ended in an exception.
    pub fn covered(&self) -> String {
        let line = |(form, c): (&String, &Coverage)| format!("{form} {} {}\n", c.completed, c.faulted);
        self.coverage.iter().map(line).collect()
    }

    /// The mismatches, most frequent first: a line each, then a reproduction each.
    pub fn report(&self) -> String {
        let mut sorted: Vec<_> = self.mismatches.iter().collect();
        sorted.sort_by_key(|(name, m)| (std::cmp::Reverse(m.count), name.as_str()));
        let mut text = format!(
            "{} cases, {} encodings with mismatches, {} mismatching cases\n\n",
            self.cases,
            sorted.len(),
            self.mismatching()
        );
        for (name, m) in &sorted {
            let _ = writeln!(text, "{:>7}  {name}: {}", m.count, m.line);
        }
        for (name, m) in &sorted {
            let _ = write!(text, "\n## {name}\n\n{}", m.first);
        }
        text
    }
}

/// Name under which an instruction is counted.
pub fn form(insn: &iced_x86::Instruction) -> String {
    let op = insn.code().op_code();
    let choice = op.op_kinds().iter().any(|k| format!("{k:?}").ends_with("_or_mem"));
    let name = format!("{:?}", insn.code());
    match choice {
        false => name,
        true if (0..insn.op_count()).any(|i| insn.op_kind(i) == iced_x86::OpKind::Memory) => name + "/mem",
        true => name + "/reg",
    }
}

/// Runs `count` cases from `make` and compares the subject with the host.
///
/// # Errors
/// The native executor lost its child and could not start another.
pub fn compare_many(
    native: &mut Native,
    subject: &mut dyn Subject,
    count: u64,
    mut make: impl FnMut() -> Generated,
    mut progress: impl FnMut(&Summary),
) -> io::Result<Summary> {
    let mut summary = Summary::default();
    let mut batch = |left: u64| -> Vec<Generated> { (0..left.min(BATCH as u64)).map(|_| make()).collect() };
    let mut made = batch(count);
    let mut left = count - made.len() as u64;
    while !made.is_empty() {
        let cases: Vec<Case> = made.iter().map(|m| m.case.clone()).collect();
        native.start(&cases)?;
        // Meanwhile, the next ones and the other side of these.
        let next = batch(left);
        left -= next.len() as u64;
        let softs: Vec<Outcome> = cases.iter().map(|case| subject.run(case)).collect();
        let natives = native.finish()?;
        for ((generated, native_result), soft) in made.iter().zip(&natives).zip(&softs) {
            summary.cases += 1;
            count_coverage(&mut summary, generated, native_result.as_ref().ok());
            let found = match native_result {
                Ok(outcome) => differences(outcome, soft, &generated.ignore),
                Err(crash) => vec![format!("the native process died, status {:#x}", crash.status)],
            };
            if !found.is_empty() {
                mismatch(&mut summary, native, subject, generated, &found)?;
            }
        }
        progress(&summary);
        made = next;
    }
    Ok(summary)
}

fn count_coverage(summary: &mut Summary, generated: &Generated, outcome: Option<&Outcome>) {
    let completed = matches!(outcome, Some(Outcome { end: End::Exit(_), .. }));
    summary.completed += u64::from(completed);
    for insn in &generated.instructions {
        let entry = summary.coverage.entry(form(insn)).or_default();
        if completed {
            entry.completed += 1;
        } else {
            entry.faulted += 1;
        }
    }
}

fn mismatch(
    summary: &mut Summary,
    native: &mut Native,
    subject: &mut dyn Subject,
    generated: &Generated,
    found: &[String],
) -> io::Result<()> {
    // Making it small costs some hundred runs: only for the first of each encoding.
    let name = |g: &Generated| match &g.instructions[..] {
        [one] => form(one),
        _ => "sequence".to_owned(),
    };
    if generated.instructions.len() == 1
        && let Some(known) = summary.mismatches.get_mut(&name(generated))
    {
        known.count += 1;
        return Ok(());
    }
    let mut small = generated.clone();
    if generated.instructions.len() > 1 {
        summary.sequences += 1;
        if summary.sequences > 60 {
            if let Some(known) = summary.mismatches.get_mut("sequence") {
                known.count += 1;
                return Ok(());
            }
            let (line, first) = describe(&small, native, subject, found)?;
            summary.mismatches.insert("sequence".to_owned(), Mismatch { count: 1, first, line });
            return Ok(());
        }
    }
    shrink(&mut small, native, subject)?;
    let (line, first) = describe(&small, native, subject, found)?;
    let key = name(&small);
    let entry = summary.mismatches.entry(key).or_insert_with(|| Mismatch { count: 0, first, line });
    entry.count += 1;
    Ok(())
}

/// How the case ends natively, if the two sides differ.
fn differ(g: &Generated, native: &mut Native, subject: &mut dyn Subject) -> io::Result<Option<End>> {
    let outcome = native.run(std::slice::from_ref(&g.case))?.remove(0);
    let Ok(outcome) = outcome else { return Ok(Some(End::Other("crash"))) };
    let found = differences(&outcome, &subject.run(&g.case), &g.ignore);
    Ok((!found.is_empty()).then_some(outcome.end))
}

/// Takes away what is not needed for the two sides to differ.
fn shrink(g: &mut Generated, native: &mut Native, subject: &mut dyn Subject) -> io::Result<()> {
    let Some(end) = differ(g, native, subject)? else {
        // It depends on what ran before: a fault of the test or of invalidation. Keep it as it is.
        return Ok(());
    };
    // Another way to end would be another mismatch.
    let mut still = |trial: &Generated| -> io::Result<bool> {
        Ok(match (differ(trial, native, subject)?, end) {
            (Some(End::Fault { vector: now, .. }), End::Fault { vector, .. }) => now == vector,
            (now, _) => now == Some(end),
        })
    };
    let plain = crate::case::Registers::default();
    type Change = Box<dyn Fn(&mut Case)>;
    let mut changes: Vec<Change> = vec![
        Box::new(|c| c.registers.fx = Fx::default()),
        Box::new(|c| {
            let old = c.registers.fx;
            c.registers.fx = Fx::default();
            for i in 0..16 {
                c.registers.fx.set_xmm(i, old.xmm(i));
            }
        }),
        Box::new(|c| c.registers.fx.set_mxcsr(0x1f80)),
        Box::new(|c| c.registers.fx.set_fcw(0x37f)),
        Box::new(|c| c.registers.fx.set_fsw(c.registers.fx.fsw() & 0x3800)),
        Box::new(|c| c.registers.fx.set_tags(0xff)),
        Box::new(|c| c.registers.rflags = 0x202),
        Box::new(|c| c.registers.fs_base = 0),
        Box::new(|c| c.registers.gs_base = 0),
    ];
    for i in 0..16 {
        changes.push(Box::new(move |c| c.registers.gpr[i] = plain.gpr[i]));
        changes.push(Box::new(move |c| c.registers.fx.set_xmm(i, [0; 2])));
        if i < 8 {
            changes.push(Box::new(move |c| c.registers.fx.set_st(i, [0; 10])));
        }
    }
    // Instructions become NOPs of the same length.
    if g.instructions.len() > 1 {
        for i in (0..g.instructions.len()).rev() {
            let mut trial = g.clone();
            let insn = trial.instructions.remove(i);
            let nops = vec![0x90; insn.len()];
            trial.case.patches.push(crate::case::Patch { address: insn.ip(), bytes: nops });
            if trial.case.patches.len() < 30 && still(&trial)? {
                *g = trial;
            }
        }
    }
    for change in changes {
        let mut trial = g.clone();
        change(&mut trial.case);
        if trial.case != g.case && still(&trial)? {
            *g = trial;
        }
    }
    for i in (0..g.case.patches.len()).rev() {
        let mut trial = g.clone();
        trial.case.patches.remove(i);
        if still(&trial)? {
            *g = trial;
        }
    }
    Ok(())
}

/// The case in words: a line, and everything needed to see it again.
/// `at_first` is what differed before it was made small.
fn describe(
    g: &Generated,
    native: &mut Native,
    subject: &mut dyn Subject,
    at_first: &[String],
) -> io::Result<(String, String)> {
    let mut text = g.disassembly();
    for insn in &g.instructions {
        if let Some(patch) = g.case.patches.iter().rev().find(|p| p.address == insn.ip()) {
            let _ = writeln!(text, "bytes {}", hex(&patch.bytes));
        }
    }
    let r = &g.case.registers;
    let set: Vec<String> = (0..16)
        .filter(|&i| r.gpr[i] != 0)
        .map(|i| format!("{}={:#x}", gpr_name(i), r.gpr[i]))
        .chain([format!("rip={:#x} rflags={:#x}", r.rip, r.rflags)])
        .chain((r.fs_base != 0).then(|| format!("fs_base={:#x}", r.fs_base)))
        .chain((r.gs_base != 0).then(|| format!("gs_base={:#x}", r.gs_base)))
        .collect();
    let _ = writeln!(text, "in: {}", set.join(" "));
    let _ = writeln!(text, "    {:?}", r.fx);
    for i in 0..8 {
        if r.fx.st(i) != [0; 10] {
            let _ = writeln!(text, "    st{i}={}", reversed_hex(&r.fx.st(i)));
        }
    }
    for i in 0..16 {
        let [low, high] = r.fx.xmm(i);
        if (low, high) != (0, 0) {
            let _ = writeln!(text, "    xmm{i}={high:016x}_{low:016x}");
        }
    }
    for patch in &g.case.patches {
        let _ = writeln!(text, "    [{:#x}] = {}", patch.address, hex(&patch.bytes));
    }
    let outcome = native.run(std::slice::from_ref(&g.case))?.remove(0);
    let soft = subject.run(&g.case);
    let found = match &outcome {
        Ok(outcome) => {
            let _ = writeln!(text, "ends: native {:x?}, soft {:x?}", outcome.end, soft.end);
            differences(outcome, &soft, &g.ignore)
        }
        Err(crash) => vec![format!("the native process died, status {:#x}", crash.status)],
    };
    if found.is_empty() {
        let _ = writeln!(
            text,
            "does not happen when run again alone; in the batch:\n  {}",
            at_first.join("\n  ")
        );
    }
    for line in &found {
        let _ = writeln!(text, "  {line}");
    }
    let line = found.first().cloned().unwrap_or_else(|| "only after other cases".to_owned());
    let line = format!("{} | {line}", g.disassembly().trim().replace('\n', "; "));
    Ok((line, text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

fn reversed_hex(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|b| format!("{b:02x}")).collect()
}
