//! `rewind where`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use debug::{
    look::{self, View},
    module::SourceFrame,
    sources::Sources,
    unwind::{Frame, MOST_FRAMES},
    wait::{self, Wait},
};
use serde_json::{Value, json};

use crate::{context, look::RunFiles, output, position};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// A step (3291), a step and instructions (3291+120), @job, @crash or @end
    #[arg(value_name = "P")]
    at: String,
    /// Only this thread
    #[arg(long, value_name = "N")]
    tid: Option<u32>,
    /// Only threads of this process
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Engine to go there with
    #[arg(long, value_enum, default_value = "auto")]
    engine: context::Engine,
    /// One JSON object a thread
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let mut timeline = context::timeline(&home, &args.run, context::engine(args.engine))?;
    let at = position::go(&args.at, &mut timeline)?;
    let run_files = RunFiles::of(&timeline)?;
    let (mut files, mut sources) = (run_files.files(), run_files.sources());
    let symbols = crate::look::kernel_symbols(&timeline);
    let id = timeline.run().id();
    let machine = timeline.stage().machine();
    let now = machine.now();
    let views =
        look::threads(machine, &mut files).with_context(|| format!("cannot look into the guest at {at}"))?;
    let kernel = look::kernel(machine).context("the guest has not come up yet")?;
    let wanted = |view: &&View| {
        args.tid.is_none_or(|tid| tid == view.thread.tid) && args.pid.is_none_or(|pid| pid == view.thread.pid)
    };
    let shown: Vec<(&View, Wait)> =
        views.iter().filter(wanted).map(|view| (view, wait::wait(&kernel, view, symbols.as_ref()))).collect();
    if shown.is_empty() && (args.tid.is_some() || args.pid.is_some()) {
        let tids: Vec<String> = views.iter().map(|view| view.thread.tid.to_string()).collect();
        bail!("no such thread at {at} of run {id}; there are {}", tids.join(", "));
    }
    for (path, complaint) in files.complaints() {
        context::notice(&format!("{} {complaint}", output::printable(&String::from_utf8_lossy(path))));
    }
    if !args.json {
        output::line(format_args!("run {id} at {at}, {}", output::seconds(now.0)))?;
    }
    for (view, wait) in &shown {
        if args.json {
            output::json(&to_json(view, wait, &mut sources))?;
        } else {
            print(view, wait, &mut sources)?;
        }
    }
    if shown.is_empty() && !args.json {
        output::line("no threads of the job")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// "bank.c:41"; the file as the compiler recorded it has its whole path in the JSON.
fn short(line: &SourceFrame) -> Option<String> {
    let file = line.file.as_deref()?.rsplit('/').next()?;
    Some(match line.line {
        Some(number) => format!("{file}:{number}"),
        None => file.to_owned(),
    })
}

fn text_of(line: &SourceFrame, sources: &mut Sources<'_>) -> Option<String> {
    sources.line(line.file.as_deref()?, line.line?)
}

fn print(view: &View, wait: &Wait, sources: &mut Sources<'_>) -> Result<()> {
    let thread = &view.thread;
    let state = if view.on_cpu { "on the CPU" } else { wait.state };
    let mut head = format!("\nthread {} ({}), process {}: {state}", thread.tid, thread.comm, thread.pid);
    if let Some(call) = &wait.syscall {
        head.push_str(&format!(", in {call}"));
    }
    if !wait.kernel.is_empty() {
        let inner: Vec<&str> = wait.kernel.iter().take(3).map(String::as_str).collect();
        head.push_str(&format!(" [{}]", inner.join(" < ")));
    }
    output::line(output::printable(&head))?;
    let own = view.own_line();
    if let Some(own) = own.filter(|own| own.line.is_some()) {
        let text = text_of(own, sources).unwrap_or_default();
        let function = own.function.as_deref().unwrap_or("?");
        let line = format!("  {}  {function}  {text}", short(own).unwrap_or_default());
        output::line(output::printable(line.trim_end()))?;
    }
    for (number, frame) in view.stack.iter().enumerate() {
        print_frame(number, frame, own, sources)?;
    }
    if view.stack.len() >= MOST_FRAMES {
        output::line(format_args!("    ... deeper than {MOST_FRAMES} frames"))?;
    }
    Ok(())
}

/// The frame's lines, functions inlined into it first; `>` marks the thread's own line.
fn print_frame(
    number: usize,
    frame: &Frame,
    own: Option<&SourceFrame>,
    sources: &mut Sources<'_>,
) -> Result<()> {
    let module = frame.module.as_deref().map(String::from_utf8_lossy);
    let module = module.as_deref().map_or("?", |path| path.rsplit('/').next().unwrap_or(path));
    if frame.source.is_empty() {
        return output::line(output::printable(&format!(
            "    #{number:<2} {:#x}  ?  {module}",
            frame.address
        )));
    }
    for (inner, line) in frame.source.iter().enumerate() {
        let mark = if own.is_some_and(|own| std::ptr::eq(own, line)) { '>' } else { ' ' };
        let function = line.function.as_deref().unwrap_or("?");
        let place = short(line).unwrap_or_else(|| module.to_owned());
        let inlined = if inner + 1 < frame.source.len() { " (inlined)" } else { "" };
        let text = text_of(line, sources).map(|text| format!("  {text}")).unwrap_or_default();
        let label = if inner == 0 { format!("#{number}") } else { String::new() };
        output::line(output::printable(&format!("  {mark} {label:<3} {function}{inlined}  {place}{text}")))?;
    }
    Ok(())
}

fn line_json(line: &SourceFrame, inlined: bool, sources: &mut Sources<'_>) -> Value {
    json!({
        "function": line.function, "file": line.file, "line": line.line, "source": text_of(line, sources),
        "inlined": inlined,
    })
}

fn to_json(view: &View, wait: &Wait, sources: &mut Sources<'_>) -> Value {
    let thread = &view.thread;
    let own = view.own_line();
    let frames: Vec<Value> = view
        .stack
        .iter()
        .map(|frame| {
            let last = frame.source.len().saturating_sub(1);
            let lines: Vec<Value> = frame
                .source
                .iter()
                .enumerate()
                .map(|(inner, line)| line_json(line, inner < last, sources))
                .collect();
            json!({
                "address": format!("{:#x}", frame.address),
                "module": frame.module.as_deref().map(String::from_utf8_lossy), "lines": lines,
            })
        })
        .collect();
    json!({
        "tid": thread.tid, "pid": thread.pid, "parent": thread.parent, "comm": thread.comm,
        "thread": format!("{:016x}", thread.name), "on_cpu": view.on_cpu, "state": wait.state,
        "syscall": wait.syscall, "kernel": wait.kernel,
        "own": own.map(|own| line_json(own, false, sources)), "frames": frames,
    })
}
