//! `rewind blame` end to end, over the small programs of `tests/blame`: each ends with abort(), and is asked about at
//! `@crash`. A comment like `/* SENT */` in a program marks the line an answer must name.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A root with every program, and a home.
struct Bench {
    root: PathBuf,
    home: PathBuf,
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Copies the libraries a program needs into the root.
fn libraries(root: &Path, program: &Path) {
    let output = Command::new("ldd").arg(program).output().unwrap();
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace().filter(|w| w.starts_with('/')) {
        let to = root.join(&word[1..]);
        if !to.exists() {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(word, to).unwrap();
        }
    }
}

impl Bench {
    fn new() -> Bench {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("blame");
        let _ = fs::remove_dir_all(&base);
        let (root, home) = (base.join("root"), base.join("home"));
        for dir in ["bin", "tmp", "data"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(root.join("data/words.txt"), "alpha beta gamma\n").unwrap();
        let sources = top().join("tests/blame").canonicalize().unwrap();
        let c = |names: &[&str], out: &str, flags: &[&str], compiler: &str| {
            let program = root.join("bin").join(out);
            let files = names.iter().map(|name| sources.join(name));
            must(Command::new(compiler).args(flags).args(files).arg("-pthread").arg("-o").arg(&program));
            libraries(&root, &program);
        };
        for name in [
            "widths",
            "signal",
            "recursion",
            "tls",
            "shared",
            "cow",
            "input",
            "pipe",
            "heap",
            "writers",
            "kinds",
            "stuck",
            "fault",
        ] {
            c(&[&format!("{name}.c")], name, &["-g", "-O0"], "gcc");
        }
        c(&["optimised.c"], "optimised", &["-g", "-O2"], "gcc");
        c(&["signal.c"], "bare", &["-O0", "-s"], "gcc");
        c(&["twins_a.c", "twins_b.c"], "twins", &["-g", "-O0"], "gcc");
        c(&["pointers.cpp"], "pointers-cpp", &["-g", "-O0"], "g++");
        c(&["containers.cpp"], "containers", &["-g", "-O0"], "g++");
        c(&["bases.cpp"], "bases", &["-g", "-O0"], "g++");
        fs::create_dir_all(root.join("lib")).unwrap();
        let library = root.join("lib/libmoved.so");
        must(
            Command::new("gcc")
                .args(["-g", "-O1", "-fPIC", "-shared", "-o"])
                .arg(&library)
                .arg(sources.join("moved_library.c")),
        );
        // Without -fPIE its code uses the library's variable as its own: a copy relocation.
        let program = root.join("bin/moved");
        must(
            Command::new("gcc")
                .args(["-g", "-O1", "-fno-pie", "-no-pie", "-Wl,-rpath,/lib", "-L"])
                .arg(root.join("lib"))
                .arg(sources.join("moved.c"))
                .args(["-lmoved", "-o"])
                .arg(&program),
        );
        libraries(&root, &program);
        for (source, name) in
            [("pointers.rs", "pointers-rust"), ("values.rs", "values"), ("indexed.rs", "indexed")]
        {
            let rust = root.join("bin").join(name);
            let flags = ["-g", "--edition=2021", "-o"];
            must(Command::new("rustc").args(flags).arg(&rust).arg(sources.join(source)));
            libraries(&root, &rust);
        }
        Bench { root, home }
    }

    fn rewind(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_rewind"))
            .args(arguments)
            .env("REWIND_HOME", &self.home)
            .env("REWIND_GUEST", top().join("build/guest"))
            .output()
            .unwrap()
    }

    /// Records a program; the run's id.
    fn record(&self, program: &str) -> String {
        let root = self.root.to_str().unwrap();
        let output =
            self.rewind(&["run", "--root", root, "--memory", "256M", "--", &format!("/bin/{program}")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let id = text.lines().find_map(|line| line.strip_prefix("run ")?.split_whitespace().next());
        id.unwrap_or_else(|| panic!("{program}: no run: {text}")).to_owned()
    }

    fn ask(&self, run: &str, question: &[&str]) -> Value {
        let arguments = [&["blame", run, "--json"][..], question].concat();
        let output = self.rewind(&arguments);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{question:?}: {err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{question:?}: {error}: {out}"))
    }

    /// What is said instead of an answer.
    fn refused(&self, run: &str, question: &[&str]) -> String {
        let output = self.rewind(&[&["blame", run][..], question].concat());
        assert!(!output.status.success(), "{question:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// "file:line" of a mark in a program's source.
fn mark(file: &str, mark: &str) -> String {
    let text = fs::read_to_string(top().join("tests/blame").join(file)).unwrap();
    let has = |line: &str| line.contains(&format!("/* {mark} */")) || line.ends_with(&format!("// {mark}"));
    let at = text.lines().position(has).unwrap_or_else(|| panic!("{file} has no mark {mark}"));
    format!("{file}:{}", at + 1)
}

const CRASH: [&str; 2] = ["--at", "@crash"];

fn at_crash<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&CRASH[..], rest].concat()
}

/// One test: the programs are built and the machine is booted once.
#[test]
fn answers() {
    let bench = Bench::new();
    who_wrote_it(&bench);
    processes_and_the_kernel(&bench);
    languages_and_what_compilers_leave(&bench);
    what_a_language_writes(&bench);
    base_classes(&bench);
    indexed(&bench);
    what_the_linker_moved(&bench);
    kinds(&bench);
    where_it_came_from(&bench);
    the_same_again(&bench);
}

/// Asks at the crash and checks the line of the last write; gives the answer.
#[track_caller]
fn last(bench: &Bench, run: &str, rest: &[&str], line: &str) -> Value {
    let answer = bench.ask(run, &at_crash(rest));
    assert_eq!(answer["last"]["line"], line, "{rest:?}: {answer:#}");
    answer
}

fn who_wrote_it(bench: &Bench) {
    let run = bench.record("widths");
    let answer = last(bench, &run, &["vector"], &mark("widths.c", "SSE"));
    assert_eq!(answer["size"], 32);
    last(bench, &run, &["vector[3]"], &mark("widths.c", "SSE"));
    let answer = last(bench, &run, &["repeated[299]"], &mark("widths.c", "REP"));
    assert_eq!(answer["last"]["new"], "9");
    last(bench, &run, &["packed.number"], &mark("widths.c", "UNALIGNED"));
    let answer = last(bench, &run, &["*crossing"], &mark("widths.c", "CROSSING"));
    assert_eq!(answer["last"]["old"], (0x0101_0101_0101_0101u64).to_string());
    // Both pages of it alone.
    last(bench, &run, &["pages[4095]"], &mark("widths.c", "CROSSING"));
    last(bench, &run, &["pages[4096]"], &mark("widths.c", "CROSSING"));

    let run = bench.record("signal");
    let answer = last(bench, &run, &["state"], &mark("signal.c", "HANDLER"));
    assert_eq!((&answer["last"]["old"], &answer["last"]["new"]), (&"1".into(), &"10".into()));

    let run = bench.record("fault");
    let answer = last(bench, &run, &["before"], &mark("fault.c", "BEFORE"));
    assert_eq!((&answer["last"]["old"], &answer["value"]), (&"3".into(), &"5".into()));
    assert_eq!(bench.ask(&run, &at_crash(&["local"]))["value"], "40");

    let run = bench.record("recursion");
    let answer = last(bench, &run, &["mine"], &mark("recursion.c", "LOCAL"));
    assert_eq!(answer["value"], "0", "the innermost one");

    let run = bench.record("tls");
    let answer = last(bench, &run, &["mine"], &mark("tls.c", "OWN"));
    assert_eq!(answer["value"], "111");

    let run = bench.record("twins");
    let said = bench.refused(&run, &at_crash(&["twin"]));
    assert!(said.contains("ambiguous") && said.contains("twins_a.c") && said.contains("twins_b.c"), "{said}");
}

fn processes_and_the_kernel(bench: &Bench) {
    let run = bench.record("shared");
    let answer = last(bench, &run, &["*shared"], &mark("shared.c", "CHILD"));
    assert_ne!(answer["last"]["pid"], answer["pid"], "another process wrote it");

    let run = bench.record("cow");
    let answer = last(bench, &run, &["value"], &mark("cow.c", "BEFORE"));
    assert_eq!((&answer["value"], &answer["last"]["pid"]), (&"1".into(), &answer["pid"]));
    let answer = bench.ask(&run, &at_crash(&["untouched"]));
    let from = answer["unwritten"][0]["from"].as_str().unwrap_or_default();
    assert!(answer["last"].is_null() && from.contains("/bin/cow"), "{answer:#}");

    let run = bench.record("input");
    let answer = last(bench, &run, &["buffer"], &mark("input.c", "READ"));
    assert_eq!(answer["last"]["by"], "read(3, buf, 64)", "{answer:#}");
    assert_eq!(answer["last"]["of"], "/data/words.txt", "{answer:#}");
    let answer = bench.ask(&run, &at_crash(&["*(char *)mapped@16"]));
    let from = answer["unwritten"][0]["from"].as_str().unwrap_or_default();
    assert!(answer["last"].is_null() && from.contains("/data/words.txt"), "{answer:#}");

    let run = bench.record("writers");
    for (line, who) in [("L1", true), ("L2", false), ("L3", true)] {
        let answer = bench.ask(&run, &at_crash(&["--file", &format!("/tmp/log:{line}")]));
        assert_eq!(answer["last"]["line"], mark("writers.c", "WRITE"), "{answer:#}");
        let parent = bench.ask(&run, &at_crash(&["--file", "/tmp/log:0"]));
        assert_eq!(answer["last"]["pid"] == parent["last"]["pid"], who, "{line}: {answer:#}");
    }
    let said = bench.refused(&run, &at_crash(&["--file", "/tmp/log:4000"]));
    assert!(said.contains("past its end"), "{said}");
    let said = bench.refused(&run, &at_crash(&["--file", "/tmp/nothing"]));
    assert!(said.contains("nobody opened it"), "{said}");
}

fn languages_and_what_compilers_leave(bench: &Bench) {
    let run = bench.record("pointers-cpp");
    let answer = last(bench, &run, &["shop::order->item->price->cents"], &mark("pointers.cpp", "REDUCED"));
    assert_eq!((&answer["last"]["old"], &answer["value"]), (&"300".into(), &"250".into()));
    let run = bench.record("pointers-rust");
    let answer = last(bench, &run, &["TOTAL"], &mark("pointers.rs", "TOTAL"));
    assert_eq!(answer["value"], "250");
    let answer = last(bench, &run, &["order.item.price.cents"], &mark("pointers.rs", "REDUCED"));
    assert_eq!((&answer["last"]["old"], &answer["value"]), (&"300".into(), &"250".into()));

    let run = bench.record("optimised");
    let answer = last(bench, &run, &["kept"], &mark("optimised.c", "KEPT"));
    assert_eq!(answer["value"], "3");
    last(bench, &run, &["total.sum"], &mark("optimised.c", "SUM"));
    let said = bench.refused(&run, &at_crash(&["kep"]));
    assert!(said.contains("did you mean kept"), "{said}");
    let said = bench.refused(&run, &at_crash(&["gone"]));
    assert!(said.contains("a local of work"), "{said}");
    let said = bench.refused(&run, &at_crash(&["@0x10,4"]));
    assert!(said.contains("not mapped"), "{said}");
    let said = bench.refused(&run, &at_crash(&["--pid", "7777", "kept"]));
    assert!(said.contains("process 7777 is not alive") && said.contains("(optimised)"), "{said}");
    let said = bench.refused(&run, &at_crash(&["kept +"]));
    assert!(said.contains("character"), "{said}");
    let said = bench.refused(&run, &["--at", "@end", "kept"]);
    assert!(said.contains("the job is not alive") && said.contains("such as @crash"), "{said}");

    // Where all wait, the end is that waiting: past what the last step did.
    let run = bench.record("stuck");
    let answer = bench.ask(&run, &["--at", "@end", "reached"]);
    assert_eq!(
        (&answer["value"], &answer["last"]["line"]),
        (&"1".into(), &mark("stuck.c", "REACHED").into())
    );
    let output = bench.rewind(&["where", &run, "@end", "--json"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let threads: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = ["JOIN", "HELD"].map(|name| mark("stuck.c", name));
    let own: Vec<String> =
        threads.iter().map(|thread| format!("stuck.c:{}", thread["own"]["line"])).collect();
    assert_eq!(own, lines, "{shown}");
    assert!(
        threads.iter().all(|thread| thread["state"] == "sleeping" && thread["on_cpu"] == false),
        "{shown}"
    );

    // Without debug information: addresses.
    let run = bench.record("bare");
    let said = bench.refused(&run, &at_crash(&["state"]));
    assert!(said.contains("no debug information") && said.contains("@ADDRESS"), "{said}");
}

/// Containers, smart pointers, references, members by name alone; Rust's enums, cells and thread-locals.
fn what_a_language_writes(bench: &Bench) {
    let run = bench.record("containers");
    for (what, value, line) in [
        ("the_bank.accounts[1].balance", "67", "SOURCE"),
        ("source.balance", "67", "SOURCE"),
        ("target", "233", "TARGET"),
        ("total", "67", "TOTAL"),
        ("the_bank.best->balance", "901", "BEST"),
        ("(*the_bank.ledger).codes[2]", "42", "CODE"),
    ] {
        let answer = last(bench, &run, &[what], &mark("containers.cpp", line));
        assert_eq!(answer["value"], value, "{what}: {answer:#}");
    }
    let run = bench.record("values");
    for (what, value, line) in [
        ("order.parts[1].count", "7", "PART"),
        ("order.item.count", "8", "ITEM"),
        ("order.kind", "Bulk {__0 = 9}", "KIND"),
        ("order.pair.0", "-4", "PAIR"),
        ("order.next.__0.count", "77", "NEXT"),
        ("counted.count", "11", "COUNTED"),
        ("LOCKED.data.value", "6", "LOCKED"),
    ] {
        let answer = last(bench, &run, &[what], &mark("values.rs", line));
        assert_eq!(answer["value"], value, "{what}: {answer:#}");
    }
    // How the library wraps a thread-local is its own affair.
    let answer = last(bench, &run, &["LOCAL"], &mark("values.rs", "LOCAL"));
    assert!(answer["bytes"].as_str().unwrap().starts_with("04000000"), "{answer:#}");
    let said = bench.refused(&run, &at_crash(&["order.next.count"]));
    assert!(said.contains("which is Some now"), "{said}");
}

/// Values and the lines of the last writes.
fn values(bench: &Bench, run: &str, file: &str, wanted: &[(&str, &str, &str)]) {
    for (what, value, line) in wanted {
        let answer = last(bench, run, &[what], &mark(file, line));
        assert_eq!(answer["value"], *value, "{what}: {answer:#}");
    }
}

fn base_classes(bench: &Bench) {
    let run = bench.record("bases");
    values(
        bench,
        &run,
        "bases.cpp",
        &[
            ("d.id", "99", "ID"),
            ("half->id", "99", "ID"),
            ("root->id", "99", "ID"),
            ("((Base*)half)->id", "99", "ID"),
            ("((Base*)&d)->id", "99", "ID"),
            ("r.y", "2", "Y"),
            ("((Q*)&r)->y", "2", "Y"),
            ("((Q*)&same)->y", "2", "Y"),
            ("((R*)q)->z", "3", "Z"),
            ("row[1]", "8", "ROW"),
            ("((M*)&twice)->x", "6", "MX"),
            ("mixed.id", "70", "OWN"),
        ],
    );
    let answer = bench.ask(&run, &at_crash(&["((D*)half)->d"]));
    assert_eq!(answer["value"], "4", "{answer:#}");
    // Where a virtual base class is, is not in the object's own bytes.
    let answer = bench.ask(&run, &at_crash(&["d"]));
    let value = answer["value"].as_str().unwrap();
    assert!(
        value.contains("<virtual Base>") && value.contains("d = 4") && !value.contains("id ="),
        "{value}"
    );
    for (what, why) in [
        ("((D*)root)->d", "virtual base class"),
        ("((P*)&twice)->x", "ambiguous"),
        ("twice.x", "it is in L::P and in M::P"),
        ("((R*)none)->z", "not mapped"),
        ("shared[1]", "[] needs"),
        ("maybe[1]", "[] needs"),
    ] {
        let said = bench.refused(&run, &at_crash(&[what]));
        assert!(said.contains(why), "{what}: {said}");
    }
}

fn indexed(bench: &Bench) {
    let run = bench.record("indexed");
    values(
        bench,
        &run,
        "indexed.rs",
        &[
            ("boxed[1]", "22", "BOXED"),
            ("raw[1]", "22", "BOXED"),
            ("counted[1]", "55", "COUNTED"),
            ("CONST", "{value = {value = 8}}", "CONST"),
        ],
    );
    // How the library wraps a thread-local is its own affair.
    let answer = last(bench, &run, &["LAZY"], &mark("indexed.rs", "LAZY"));
    assert!(answer["bytes"].as_str().unwrap().starts_with("09000000"), "{answer:#}");
    last(bench, &run, &["TWICE"], &mark("indexed.rs", "TWICE"));
    let said = bench.refused(&run, &at_crash(&["single[1]"]));
    assert!(said.contains("[] needs"), "{said}");
}

/// A copy relocation, a static without a place, text behind a NUL, a bit-field written with its own value.
fn what_the_linker_moved(bench: &Bench) {
    let run = bench.record("moved");
    let added = mark("moved_library.c", "ADDED");
    let answer = last(bench, &run, &["shared_count"], &added);
    assert_eq!((&answer["last"]["old"], &answer["value"]), (&"7".into(), &"17".into()), "{answer:#}");
    let library = "moved_library.c";
    values(bench, &run, library, &[("own_count", "8", "OWN"), ("hidden_count", "6", "HIDDEN")]);
    let said = bench.refused(&run, &at_crash(&["table"]));
    assert!(said.contains("optimised out"), "{said}");

    let answer = last(bench, &run, &["name"], &mark("moved.c", "NAME"));
    assert_eq!(answer["value"], r#""\x00\x00abc""#, "{answer:#}");
    assert_eq!(bench.ask(&run, &at_crash(&["plain"]))["value"], "\"plain\"");

    for page in [0, 1000] {
        let (low, high) = (format!("bits[{}].low", page * 1024), format!("bits[{}].high", page * 1024));
        last(bench, &run, &[&high], &mark("moved.c", "HIGH"));
        let answer = bench.ask(&run, &at_crash(&[&low]));
        let from = answer["unwritten"][0]["from"].as_str().unwrap_or_default();
        assert!(
            answer["last"].is_null() && from.starts_with("zero since the page was first used"),
            "{answer:#}"
        );
    }
}

fn kinds(bench: &Bench) {
    let run = bench.record("kinds");
    for (what, value, line) in [
        ("flags.low", "5", "LOW"),
        ("flags.sign", "-3", "SIGN"),
        ("copied.high", "17", "COPIED"),
        ("grown[2]", "222", "MOVED"),
        ("shared[5000]", "83 'S'", "MAPPED"),
        ("moved[100]", "77 'M'", "BEFORE"),
        ("extended", "1.5", "EXTENDED"),
        ("quad", "00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff 3f", "QUAD"),
        ("vla", "{1, 1, 1, 1, 1, 1}", "VLA"),
        ("in_main", "9", "TARGET"),
    ] {
        let answer = last(bench, &run, &[what], &mark("kinds.c", line));
        assert_eq!(answer["value"], value, "{what}: {answer:#}");
    }
    // Copied in several pieces; one write.
    let answer = last(bench, &run, &["received"], &mark("kinds.c", "RECEIVED"));
    assert_eq!((&answer["last"]["offset"], &answer["last"]["len"]), (&0.into(), &25.into()), "{answer:#}");
    assert_eq!(answer["last"]["by"], "recvfrom(3, buf, 64, 0, NULL, NULL)");
    let answer = last(bench, &run, &["part_b"], &mark("kinds.c", "PARTS"));
    assert_eq!((&answer["value"], &answer["last"]["len"]), (&"\"efghij\"".into(), &6.into()), "{answer:#}");
    let answer = last(bench, &run, &["shared[5001]"], &mark("kinds.c", "WRITTEN"));
    assert_eq!(answer["last"]["of"], "/tmp/shared", "{answer:#}");
    // A register is the thread's own, though the variables are a caller's.
    let said = bench.refused(&run, &at_crash(&["$rdi"]));
    assert!(said.contains("is a value"), "{said}");
}

fn where_it_came_from(bench: &Bench) {
    let run = bench.record("pipe");
    let answer = last(bench, &run, &["copy", "--follow"], &mark("pipe.c", "COPIED"));
    let hops = answer["follow"].as_array().unwrap();
    let lines: Vec<&str> = hops.iter().filter_map(|hop| hop["write"]["line"].as_str()).collect();
    for wanted in ["COPIED", "UNPACKED", "RECEIVED", "SENT", "STORED"] {
        assert!(
            lines.contains(&mark("pipe.c", wanted).as_str()),
            "{wanted} is not among {lines:?}: {hops:#?}"
        );
    }
    let processes: std::collections::BTreeSet<_> =
        hops.iter().filter_map(|hop| hop["write"]["pid"].as_u64()).collect();
    assert_eq!(processes.len(), 2, "{hops:#?}");
    let end = hops.last().unwrap()["from"].as_str().unwrap();
    assert!(end.contains("/bin/pipe"), "it ends at the initial value of seed: {end}");
}

/// Every access in order, the picture, the freed block; and a question asked again has the same answer.
fn the_same_again(bench: &Bench) {
    let run = bench.record("signal");
    let picture = bench.home.join("state.svg");
    let question = ["state", "--reads", "--plot", picture.to_str().unwrap()];
    let first = bench.ask(&run, &at_crash(&question));
    let accesses: Vec<_> = first["accesses"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|access| access["line"] != "")
        .map(|access| (access["access"].as_str().unwrap(), access["new"].as_str().unwrap()))
        .collect();
    assert_eq!(accesses, [("write", "1"), ("write", "10")], "{first:#}");
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.contains("prefers-color-scheme: dark") && svg.matches("<circle").count() >= 4, "{svg}");
    assert_eq!(bench.ask(&run, &at_crash(&question)), first);
    let limited = bench.ask(&run, &at_crash(&["state", "--reads", "--limit", "1"]));
    assert_eq!(limited["accesses"][0]["new"], "10");

    let run = bench.record("heap");
    let answer = last(bench, &run, &["stale[3]"], &mark("heap.c", "OVERWRITTEN"));
    assert_eq!(answer["freed"]["line"], mark("heap.c", "FREED"), "{answer:#}");
    assert_eq!(answer["freed"]["since"], false);
}
