//! `monitor` commands: where, position, goto, bookmarks, events.

use std::fmt::Write as _;

use vmm::address::{Instructions, Position, Step};

use super::session::Session;
use crate::{look, travel::history::What};

const HELP: &str = "\
monitor position         where this is: step, or step+instructions
monitor where            every thread's own line, of all processes
monitor goto P           go there: a step (3291), step+instructions (3291+120), @crash, start, end, or a bookmark
monitor bookmark [NAME]  remember this position; without a name, list those remembered
monitor events [N]       signals, programs executed and the end of this process, the N nearest (20)
monitor hash             BLAKE3 of the whole machine: all memory and the CPU
monitor recording        throw changes away and go back to where they were made
";

/// A position as a user types it.
fn position(text: &str) -> Option<Position> {
    let (step, offset) = text.split_once('+').unwrap_or((text, "0"));
    Some(Position { step: Step(step.parse().ok()?), offset: Instructions(offset.parse().ok()?) })
}

impl Session<'_> {
    /// Does a monitor command; its text.
    pub(super) fn monitor(&mut self, command: &str) -> String {
        let mut words = command.split_whitespace();
        let (name, argument) = (words.next().unwrap_or("help"), words.next());
        match (name, argument) {
            ("position", _) => self.position_text(),
            ("where", _) => self.where_text(),
            ("goto", Some(at)) => self.goto(at),
            ("bookmark", Some(name)) => {
                self.bookmarks.insert(name.to_owned(), self.travel.position());
                format!("{name} is {}\n", self.travel.position())
            }
            ("bookmark", None) if self.bookmarks.is_empty() => "no bookmarks\n".into(),
            ("bookmark", None) => self.bookmarks.iter().fold(String::new(), |mut text, (name, at)| {
                let _ = writeln!(text, "{name}  {at}");
                text
            }),
            ("events", count) => self.events_text(count.and_then(|count| count.parse().ok()).unwrap_or(20)),
            ("hash", _) => self.hash_text(),
            ("recording", _) => match self.travel.left() {
                None => "nothing was changed: this is the recording\n".into(),
                Some(at) => self.goto(&at.to_string()),
            },
            _ => HELP.into(),
        }
    }

    fn position_text(&self) -> String {
        let mut text = format!("run {} at ", self.travel.timeline().run().id());
        if self.travel.at_end() {
            let _ = write!(text, "{}, its end", self.travel.position().step);
        } else {
            let _ = write!(text, "{}", self.travel.position());
        }
        if let Some(at) = self.travel.left() {
            let _ = write!(text, "; changed at {at}, so this is not the recording");
        }
        text.push('\n');
        text
    }

    fn hash_text(&mut self) -> String {
        let machine = self.travel.machine();
        let mut hash = blake3::Hasher::new();
        match machine.cpu() {
            Ok(cpu) => hash.update(format!("{cpu:?}").as_bytes()),
            Err(error) => return format!("{error}\n"),
        };
        let memory = machine.memory().clone();
        let mut page = [0; 4096];
        for index in 0..memory.pages() {
            if let Err(error) = memory.read(memory.address_of(index), &mut page) {
                return format!("{error}\n");
            }
            if page != [0; 4096] {
                hash.update(&index.to_le_bytes()).update(&page);
            }
        }
        format!("machine {}\n", hash.finalize().to_hex())
    }

    fn goto(&mut self, at: &str) -> String {
        let known = self.bookmarks.get(at).copied();
        let moved = match at {
            "end" | "@end" => self.travel.jump_to_end(),
            "start" | "@job" => self.travel.jump_to_start(),
            "@crash" => match self.travel.jump_to_crash() {
                Ok(true) => Ok(()),
                Ok(false) => return format!("process {} did not crash\n", self.travel.pid()),
                Err(error) => Err(error),
            },
            _ => match known.or_else(|| position(at)) {
                Some(at) => self.travel.jump(at),
                None => return format!("{at} is no position and no bookmark\n"),
            },
        };
        let mut text = match moved {
            Ok(()) => String::new(),
            Err(error) => format!("{error}\n"),
        };
        if let Err(error) = self.refresh() {
            let _ = writeln!(text, "cannot look at the process: {error}");
        }
        self.selected = self.stop_thread();
        if self.threads.is_empty() {
            let _ = writeln!(text, "process {} is not there", self.travel.pid());
        }
        text + &self.position_text()
    }

    fn where_text(&mut self) -> String {
        let views = match look::threads(self.travel.machine(), &mut self.files) {
            Ok(views) => views,
            Err(error) => return format!("{error}\n"),
        };
        let mut text = self.position_text();
        for view in views {
            let own = view.own_line();
            let function = own.and_then(|own| own.function.as_deref()).unwrap_or("?");
            let file = own.and_then(|own| own.file.as_deref()).unwrap_or("?");
            let file = file.rsplit('/').next().unwrap_or(file);
            let line = own.and_then(|own| own.line).map_or(String::new(), |line| format!(":{line}"));
            let mark = if view.on_cpu { '*' } else { ' ' };
            let _ = writeln!(
                text,
                "{mark} thread {} ({})  {file}{line}  {function}",
                view.thread.tid, view.thread.comm
            );
        }
        text
    }

    fn events_text(&self, count: usize) -> String {
        let here = self.travel.position().step.0;
        let events = self.travel.events();
        let middle = events.partition_point(|event| event.step < here);
        let from = middle.saturating_sub(count / 2);
        let mut text = String::new();
        for event in events.iter().skip(from).take(count.max(1)) {
            let what = match &event.what {
                What::Signal { number, handled: true, .. } => format!("signal {number}, handled"),
                What::Signal { number, .. } => format!("signal {number}"),
                What::Exec { path } => format!("executes {path}"),
                What::Exit { status } => format!("ends with status {status:#x}"),
            };
            let _ = writeln!(text, "{:>10}  thread {}  {what}", event.step, event.tid);
        }
        if text.is_empty() { "no events\n".into() } else { text }
    }
}
