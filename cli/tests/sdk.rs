//! SDKs from a program of their language (C, C++, Rust, Go, Python, shell), inside the guest: a `sometimes` that never holds is reported, an
//! `unreachable` that is reached fails the check.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

const C: &str = r#"
#include "rewind.h"
int main(int argc, char **argv) {
    (void)argv;
    REWIND_ALWAYS(1, "a");
    REWIND_SOMETIMES(0, "s");
    REWIND_REACHABLE("r");
    if (argc > 1)
        REWIND_UNREACHABLE("u");
    return 0;
}
"#;

const RUST: &str = r#"
fn main() {
    rewind_sdk::always!(true, "a");
    rewind_sdk::sometimes!(false, "s");
    rewind_sdk::reachable!("r");
    if std::env::args().len() > 1 {
        rewind_sdk::unreachable_here!("u");
    }
}
"#;

const GO: &str = r#"
package main

import (
	"os"
	"sdk/rewind"
)

func main() {
	rewind.Always(true, "a", nil)
	rewind.Sometimes(false, "s", nil)
	rewind.Reachable("r", nil)
	if len(os.Args) > 1 {
		rewind.Unreachable("u", nil)
	}
}
"#;

const PYTHON: &str = r#"
import sys
import rewind_sdk as rewind

rewind.always(True, "a")
rewind.sometimes(False, "s", tried=1)
rewind.reachable("r")
if len(sys.argv) > 1:
    rewind.unreachable("u")
"#;

/// Modules that the SDK and the interpreter's start load, by file.
const PYTHON_FILES: &str = r#"
import json, os, sys
print(*[m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)], sep="\n")
"#;

const SHELL: &str = r#"#!/bin/bash
rewind-assert always a true
rewind-assert sometimes s false
rewind-assert reachable r
[ $# -eq 0 ] || rewind-assert unreachable u
exit 0
"#;

fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// An empty folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sdk-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("root/bin")).unwrap();
    std::fs::create_dir_all(dir.join("root/tmp")).unwrap();
    dir
}

fn built(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Checks `command` as it is and with one more argument.
fn reports(dir: &Path, options: &[&str], command: &[&str]) {
    for bad in [false, true] {
        let mut rewind = Command::new(env!("CARGO_BIN_EXE_rewind"));
        rewind.env("REWIND_HOME", dir.join("home")).current_dir(dir);
        rewind.args(["check", "--engine", "soft", "--schedules", "1"]).args(options).arg("--").args(command);
        if bad {
            rewind.arg("bad");
        }
        let output = rewind.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let all = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(i32::from(bad)), "{all}");
        assert!(text.contains("never satisfied in any schedule tried: sometimes \"s\"\n"), "{all}");
        assert!(!text.contains("reachable \"r\""), "{all}");
        assert_eq!(text.contains("unreachable \"u\" failed"), bad, "{all}");
    }
}

fn over_root(dir: &Path, command: &[&str]) {
    let root = dir.join("root");
    reports(dir, &["--root", root.to_str().unwrap()], command);
}

#[test]
fn c() {
    let dir = folder("c");
    std::fs::write(dir.join("main.c"), C).unwrap();
    let include = top().join("sdk/c");
    built(
        Command::new("cc")
            .current_dir(&dir)
            .args(["-static", "-o", "root/bin/main", "main.c", "-I"])
            .arg(include),
    );
    over_root(&dir, &["/bin/main"]);
}

/// The header is C++ too.
#[test]
fn cpp() {
    let dir = folder("cpp");
    std::fs::write(dir.join("main.cpp"), C).unwrap();
    let mut cpp = Command::new("c++");
    cpp.current_dir(&dir).args(["-std=c++11", "-static", "-o", "root/bin/main", "main.cpp", "-I"]);
    built(cpp.arg(top().join("sdk/c")));
    over_root(&dir, &["/bin/main"]);
}

#[test]
fn rust() {
    let dir = folder("rust");
    std::fs::write(dir.join("main.rs"), RUST).unwrap();
    let library = top().join("sdk/rust/src/lib.rs");
    let rustc = || {
        let mut rustc = Command::new("rustc");
        rustc.current_dir(&dir).args(["--edition", "2024", "-C", "target-feature=+crt-static"]);
        rustc
    };
    built(rustc().args(["--crate-type", "rlib", "--crate-name", "rewind_sdk"]).arg(library));
    built(rustc().args(["--extern", "rewind_sdk=librewind_sdk.rlib", "-o", "root/bin/main", "main.rs"]));
    over_root(&dir, &["/bin/main"]);
}

#[test]
fn go() {
    let dir = folder("go");
    std::fs::create_dir_all(dir.join("rewind")).unwrap();
    std::fs::copy(top().join("sdk/go/rewind.go"), dir.join("rewind/rewind.go")).unwrap();
    std::fs::write(dir.join("go.mod"), "module sdk\n\ngo 1.19\n").unwrap();
    std::fs::write(dir.join("main.go"), GO).unwrap();
    let mut go = Command::new("go");
    go.current_dir(&dir).args(["build", "-o", "root/bin/main", "."]);
    built(go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").env("GOCACHE", dir.join("cache")));
    over_root(&dir, &["/bin/main"]);
}

/// A file of this machine at its own path in the test's root.
fn put(dir: &Path, from: &Path, to: &str) {
    let to = dir.join("root").join(to.trim_start_matches('/'));
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap();
}

/// A program of this machine in the test's root, with its libraries.
fn put_program(dir: &Path, program: &Path, to: &str) {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout);
    for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        put(dir, Path::new(library), library);
    }
    put(dir, program, to);
}

#[test]
fn python() {
    let dir = folder("python");
    let program =
        Path::new("/usr/bin/python3").canonicalize().expect("python3, as scripts/setup.sh installs it");
    put_program(&dir, &program, program.to_str().unwrap());
    let listed = Command::new(&program).args(["-I", "-c", PYTHON_FILES]).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    for file in String::from_utf8_lossy(&listed.stdout).lines() {
        put(&dir, Path::new(file), file);
    }
    put(&dir, &top().join("sdk/python/rewind_sdk.py"), "/rewind_sdk.py");
    std::fs::write(dir.join("root/main.py"), PYTHON).unwrap();
    over_root(&dir, &[program.to_str().unwrap(), "/main.py"]);
}

#[test]
fn shell() {
    let dir = folder("shell");
    for tool in ["bash", "sed", "tr"] {
        let found =
            ["/usr/bin", "/bin"].map(|bin| Path::new(bin).join(tool)).into_iter().find(|p| p.exists());
        let found = found.unwrap_or_else(|| panic!("no {tool} on this machine"));
        put_program(&dir, &found, &format!("/bin/{tool}"));
    }
    put(&dir, Path::new("/bin/bash"), "/bin/sh");
    put(&dir, &top().join("sdk/shell/rewind-assert"), "/bin/rewind-assert");
    std::fs::write(dir.join("root/main.sh"), SHELL).unwrap();
    over_root(&dir, &["/bin/bash", "/main.sh"]);
}
