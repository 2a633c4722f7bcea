//! gdb over recordings: each `tests/gdb/STEM.gdb` is a script with the lines it must print, for the program of the
//! same name. Its first lines may say otherwise:
//!
//! ```text
//! # program: OTHER        the program is OTHER's
//! # compile: COMMAND      instead of the usual compiler call; several are run in order
//! # at: P                 where to begin (@job); `child`: in the youngest process
//! # memory: M             memory of the machine
//! #= TEXT                 the output has this, after what came before; `*` stands for anything within a line
//! ```
//!
//! `REWIND_TEST_GDB=STEM` runs one and prints what gdb said. `tests/bench/debugger.sh` has the programs recorded on kvm:
//! two tests that are ignored otherwise build them before that, and run the scripts after it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex, OnceLock},
};

/// Seconds one command may take.
const LONGEST: &str = "150";
/// Scripts run at once.
const JOBS: usize = 2;

fn sources() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/gdb"))
}

struct Script {
    stem: String,
    program: String,
    compile: Vec<String>,
    at: String,
    memory: Option<String>,
    expected: Vec<String>,
}

impl Script {
    fn read(path: &Path) -> Script {
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(path).unwrap();
        let mut script = Script {
            program: stem.clone(),
            stem,
            compile: Vec::new(),
            at: "@job".into(),
            memory: None,
            expected: Vec::new(),
        };
        for line in text.lines() {
            if let Some(pattern) = line.strip_prefix("#= ") {
                script.expected.push(pattern.to_owned());
            } else if let Some((key, value)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(": "))
            {
                match key {
                    "program" => script.program = value.into(),
                    "compile" => script.compile.push(value.into()),
                    "at" => script.at = value.into(),
                    "memory" => script.memory = Some(value.into()),
                    _ => {}
                }
            }
        }
        assert!(!script.expected.is_empty(), "{} expects nothing", path.display());
        if script.compile.is_empty() {
            let program = &script.program;
            script.compile.push(match sources().join(format!("{program}.cc")).exists() {
                true => format!("g++ -g -O0 -o {program} {program}.cc"),
                false => format!("gcc -g -O0 -pthread -o {program} {program}.c"),
            });
        }
        script
    }
}

/// Does `text` hold `pattern`, whose `*` stand for anything within a line? Where it ends, if so.
fn find(text: &str, pattern: &str) -> Option<usize> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let mut at = 0;
        let found = pattern.split('*').all(|piece| match line[at..].find(piece) {
            Some(place) => {
                at += place + piece.len();
                true
            }
            None => false,
        });
        if found {
            return Some(offset + at);
        }
        offset += line.len();
    }
    None
}

#[test]
fn patterns() {
    assert_eq!(find("a\nxbyc\n", "b*c"), Some(6));
    assert_eq!(find("ab\nc", "b*c"), None);
}

/// A run, once somebody has recorded it, or why not.
type Recorded = OnceLock<Result<String, String>>;

struct Bench {
    top: PathBuf,
    /// Runs by program and memory, recorded once each.
    runs: Mutex<BTreeMap<String, Arc<Recorded>>>,
    /// They are there already: `runs/STEM` of `top` names them.
    given: bool,
}

impl Bench {
    fn rewind(&self) -> Command {
        // A script that never ends is a fault like another.
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LONGEST, env!("CARGO_BIN_EXE_rewind")]);
        command.env("REWIND_HOME", self.top.join("home"));
        if std::env::var_os("REWIND_GUEST").is_none() {
            command.env("REWIND_GUEST", concat!(env!("CARGO_MANIFEST_DIR"), "/../build/guest"));
        }
        command
    }

    /// Compiles a program, for a root that holds it and its libraries alone; the root.
    fn compile(&self, script: &Script) -> Result<PathBuf, String> {
        let root = self.top.join(&script.stem);
        let directory = root.join("work");
        copy_sources(&directory).map_err(|error| format!("{}: {error}", script.stem))?;
        fs::create_dir(root.join("tmp")).map_err(|error| format!("{}: {error}", script.stem))?;
        for line in &script.compile {
            let done = Command::new("sh").args(["-c", line]).current_dir(&directory).output();
            told(done.map_err(|error| error.to_string())?, line)?;
        }
        libraries(&root, &directory.join(&script.program))
            .map_err(|error| format!("libraries of {}: {error}", script.program))?;
        Ok(root)
    }

    /// Compiles and records a program; its run.
    fn record(&self, script: &Script) -> Result<String, String> {
        if self.given {
            let run = fs::read_to_string(self.top.join("runs").join(&script.stem));
            return run.map(|run| run.trim().to_owned()).map_err(|error| format!("{}: {error}", script.stem));
        }
        let root = self.compile(script)?;
        let mut command = self.rewind();
        command.arg("run").args(["--engine", "soft", "--cwd", "/work", "--root"]).arg(&root);
        if let Some(memory) = &script.memory {
            command.args(["--memory", memory]);
        }
        let output = command.args(["--", &format!("./{}", script.program)]).output();
        let output = output.map_err(|error| error.to_string())?;
        // "run ID  exited:0 ...": a program that fails makes the command fail too.
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let run = text.lines().rev().find_map(|line| line.strip_prefix("run "));
        let run = run.and_then(|rest| rest.split_whitespace().next()).map(str::to_owned);
        run.ok_or_else(|| format!("{} was not recorded:\n{text}", script.program))
    }

    /// Program, position and process to begin with.
    fn place(&self, script: &Script, run: &str) -> Result<Vec<String>, String> {
        if script.at != "child" {
            return Ok(vec![script.at.clone()]);
        }
        let output =
            self.rewind().args(["ps", "--all", "--json", run]).output().map_err(|e| e.to_string())?;
        let text = told(output, "rewind ps")?;
        let processes = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let (pid, began) = processes
            .map(|process| (process["pid"].as_u64().unwrap(), process["began"].as_u64().unwrap()))
            .max()
            .ok_or("no process")?;
        Ok(vec![(began + 1).to_string(), "--pid".into(), pid.to_string()])
    }

    fn run(&self, script: &Script) -> Result<(), String> {
        let key = format!("{} {:?} {}", script.program, script.memory, script.compile.join(";"));
        let run = Arc::clone(self.runs.lock().unwrap().entry(key).or_default());
        let run = run.get_or_init(|| self.record(script)).clone()?;
        let output = self
            .rewind()
            .args(["gdb", &run])
            .args(self.place(script, &run)?)
            .args(["--", "-nx", "-batch", "-ex", "set pagination off", "-ex", "set width 0", "-x"])
            .arg(sources().join(format!("{}.gdb", script.stem)))
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        // Notices of rewind itself come on standard error.
        let both = format!("{text}\n{errors}");
        if std::env::var_os("REWIND_TEST_GDB").is_some() {
            println!("{both}");
        }
        let (mut rest, mut notices) = (text.as_str(), errors.as_str());
        for pattern in &script.expected {
            if let Some(end) = find(rest, pattern) {
                rest = &rest[end..];
            } else if let Some(end) = find(notices, pattern) {
                notices = &notices[end..];
            } else {
                return Err(format!("{}: no \"{pattern}\" (in order) in:\n{both}", script.stem));
            }
        }
        Ok(())
    }
}

/// Copies the libraries a program needs into its root.
fn libraries(root: &Path, program: &Path) -> std::io::Result<()> {
    let output = Command::new("ldd").arg(program).current_dir(root.join("work")).output()?;
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace().filter(|w| w.starts_with('/')) {
        let to = root.join(&word[1..]);
        if !word.starts_with(&*root.to_string_lossy()) && !to.exists() {
            fs::create_dir_all(to.parent().unwrap_or(root))?;
            fs::copy(word, to)?;
        }
    }
    Ok(())
}

fn copy_sources(to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(sources())? {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != "gdb") {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Standard output of something that must have worked.
fn told(output: Output, what: &str) -> Result<String, String> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// All scripts, or the one that is wanted.
fn all() -> Vec<Script> {
    let wanted = std::env::var("REWIND_TEST_GDB").ok();
    let mut scripts: Vec<PathBuf> =
        fs::read_dir(sources()).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|kind| kind == "gdb"));
    scripts.sort();
    let mut scripts: Vec<Script> = scripts.iter().map(|path| Script::read(path)).collect();
    assert!(scripts.len() >= 25, "only {} scripts", scripts.len());
    scripts.retain(|script| wanted.as_ref().is_none_or(|wanted| *wanted == script.stem));
    assert!(!scripts.is_empty(), "no script");
    scripts
}

/// Does `work` with each script, [`JOBS`] at once; all that fail are told.
fn each(scripts: Vec<Script>, work: impl Fn(&Script) -> Result<(), String> + Sync) {
    let count = scripts.len();
    let (queue, failed) = (Mutex::new(scripts), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                loop {
                    let Some(script) = queue.lock().unwrap().pop() else { break };
                    if let Err(error) = work(&script) {
                        failed.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {count} scripts failed\n{}", failed.len(), failed.join("\n----\n"));
}

#[test]
fn scripts() {
    let top = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bench = Bench { top: top.path().to_owned(), runs: Mutex::default(), given: false };
    fs::create_dir(bench.top.join("home")).unwrap();
    let scripts = all();
    let count = scripts.len();
    each(scripts, |script| bench.run(script));
    println!("{count} gdb scripts, all as expected");
}

/// Where the bench keeps what it does.
fn bench_folder() -> PathBuf {
    std::env::var_os("REWIND_TEST_GDB_TOP").expect("the bench says where, see tests/bench/debugger.sh").into()
}

/// Builds every program, and says in `list` what to record: script, root, program, memory.
#[test]
#[ignore = "a part of tests/bench/debugger.sh"]
fn programs_for_kvm() {
    let bench = Bench { top: bench_folder(), runs: Mutex::default(), given: false };
    let list = Mutex::new(String::new());
    each(all(), |script| {
        let root = bench.compile(script)?;
        // Less than the usual 1 GB: the bench's machine has three for everything.
        let memory = script.memory.as_deref().unwrap_or("512M");
        let line = format!("{} {} {} {memory}\n", script.stem, root.display(), script.program);
        list.lock().unwrap().push_str(&line);
        Ok(())
    });
    fs::write(bench.top.join("list"), list.into_inner().unwrap()).unwrap();
}

/// The scripts on runs that were recorded on kvm.
#[test]
#[ignore = "a part of tests/bench/debugger.sh"]
fn scripts_on_runs_of_kvm() {
    let bench = Bench { top: bench_folder(), runs: Mutex::default(), given: true };
    each(all(), |script| {
        let result = bench.run(script);
        println!(
            "{}  gdb script {} on a run recorded on kvm",
            ["FAILED", "ok    "][usize::from(result.is_ok())],
            script.stem
        );
        result
    });
}
