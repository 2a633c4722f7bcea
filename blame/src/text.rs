//! The report for people.

use crate::report::{Report, Told};

/// "1 write", "2 writes".
fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Non-empty parts with two spaces between.
fn join(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("  ")
}

/// The whole report; `took` is the time it took, in words.
pub fn report(report: &Report, took: &str) -> String {
    let mut out = head(report);
    if report.accesses.is_empty() {
        out.push_str(&last(report));
    } else {
        out.push_str(&table(&report.accesses));
        for part in &report.unwritten {
            out.push_str(&format!("before that: {}{}\n", range(report, part.offset, part.len), part.from));
        }
    }
    if let Some(freed) = &report.freed {
        let when = if freed.since {
            "this memory was given back after that"
        } else {
            "this memory had been given back before that"
        };
        let thread = format!(
            "{when}: {}({:#x}) at step {} by thread {}",
            freed.call, freed.block, freed.at, freed.tid
        );
        let place = &freed.place;
        out.push_str(&format!("{}\n", join(&[&thread, &place.line, &place.function, &place.text])));
    }
    for (number, hop) in report.follow.iter().enumerate() {
        if number == 0 {
            out.push_str("\nwhere the value came from:\n");
        }
        if let Some(told) = hop.write.as_ref().filter(|_| number > 0) {
            let thread = format!("written at step {} by thread {} ({})", told.at, told.tid, told.program);
            let parts = [&thread, &doing(told), &where_text(told), &told.place.text];
            out.push_str(&format!("  {}\n", join(&parts.map(String::as_str))));
        }
        out.push_str(&format!("    {}\n", hop.from));
    }
    let mut counts = vec![count(report.windows, "keyframe window")];
    if report.skipped > 0 {
        counts.push(format!("{} passed over", report.skipped));
    }
    counts.push(count(report.writes, "write"));
    if !report.accesses.is_empty() {
        counts.push(count(report.reads, "read"));
    }
    if report.left_out > 0 {
        counts.push(format!("{} older left out", report.left_out));
    }
    out.push_str(&format!("\nsearched back to step {}, {}, {took}\n", report.searched_to, counts.join(", ")));
    out
}

fn head(report: &Report) -> String {
    let size = count(report.size, "byte");
    let place = match report.address {
        Some(address) => format!("{size} at {address:#x}, thread {}", report.tid),
        None => size,
    };
    let line = [place.as_str(), report.place.line.as_str()];
    let line = line.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(", ");
    format!("{} = {}   {line}\n\n", report.expr, report.value)
}

fn range(report: &Report, offset: u64, len: u64) -> String {
    if len == report.size { String::new() } else { format!("bytes {offset} to {}: ", offset + len - 1) }
}

fn last(report: &Report) -> String {
    let mut out = String::new();
    match &report.last {
        Some(told) => {
            let thread =
                format!("last written at step {} by thread {} ({})", told.at, told.tid, told.program);
            let part = range(report, told.offset, told.len);
            let was = format!("{}was {}", part, told.old);
            out.push_str(&join(&[&thread, &doing(told), &where_text(told), &told.place.text, &was]));
            out.push('\n');
            if !report.others.is_empty() {
                out.push_str("other threads then:\n");
            }
            for other in &report.others {
                let thread = if other.pid == told.pid {
                    format!("thread {}", other.tid)
                } else {
                    format!("thread {} ({})", other.tid, other.program)
                };
                let place = &other.place;
                out.push_str(&format!(
                    "  {}\n",
                    join(&[&thread, &place.line, &place.function, &place.inside])
                ));
            }
        }
        None => out.push_str("never written before that\n"),
    }
    let before = if report.last.is_some() { "before that: " } else { "" };
    for part in &report.unwritten {
        out.push_str(&format!("{before}{}{}\n", range(report, part.offset, part.len), part.from));
    }
    out
}

/// "in read(3, buf, 4096) of /data/in".
fn doing(told: &Told) -> String {
    match (&told.by, &told.of) {
        (Some(by), Some(of)) => format!("in {by} of {of}"),
        (Some(by), None) => format!("in {by}"),
        _ => String::new(),
    }
}

fn where_text(told: &Told) -> String {
    let place = &told.place;
    if place.line.is_empty() {
        let module = if place.module.is_empty() { String::new() } else { format!("in {}", place.module) };
        return join(&[&module, &place.function, &place.inside]);
    }
    join(&[&place.line, &place.function, &place.inside])
}

fn table(accesses: &[Told]) -> String {
    let rows: Vec<[String; 5]> = accesses
        .iter()
        .map(|told| {
            [
                told.at.clone(),
                format!("{} {}", told.tid, told.program),
                told.access.clone(),
                told.new.clone(),
                join(&[&told.place.line, &told.place.function, &doing(told), &told.place.text]),
            ]
        })
        .collect();
    let head = ["step", "thread", "access", "value", "where"].map(String::from);
    let mut widths = [0; 5];
    for row in std::iter::once(&head).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(40));
        }
    }
    let mut out = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let mut line = String::from(" ");
        for (i, (cell, width)) in row.iter().zip(widths).enumerate() {
            line.push(' ');
            line.push_str(cell);
            if i < 4 {
                let pad = width.saturating_sub(cell.chars().count()) + 1;
                line.extend(std::iter::repeat_n(' ', pad));
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
