# Rewind. `make demo` and `make test` are the two commands to know; each sets up and builds what it needs.
SHELL := /bin/bash
.DELETE_ON_ERROR:

all: build

## setup: installs the packages the project needs (Debian 12); quiet when done
setup:
	@scripts/setup.sh && echo "setup: everything is installed"

## build: guest kernel, guest init, and the command at target/release/rewind
build:
	@scripts/build.sh

## lint: format, style, lints, documentation (the first part of test)
lint: setup
	@scripts/lint.sh

## test: sets up, builds, and runs every test, the test bench included
test:
	@scripts/test.sh

## test-kvm: the kvm engine's tests on a real KVM inside QEMU's emulator
test-kvm: setup build
	@tests/bench/kvm.sh

## diff-full: the software CPU against this host's CPU, ten million generated cases (some ten minutes)
diff-full:
	cargo run --release -q -p soft-cpu-diff -- --cases 10000000 --seed 1 --jobs 2 \
		--covered build/diff-covered.txt --report build/diff-mismatches.md

## bench-engine: the software CPU's speed beside QEMU's emulator, same kernel and workloads (some minutes)
bench-engine: setup
	@scripts/build-guest.sh
	@cargo run --release -q -p bench-engine

## test-faults: the command killed, and its disk full, at every call that changes files; 200 seeks; more hostile files
test-faults: setup build
	REWIND_FAULTS=all REWIND_SEEKS=34 cargo test --profile checked -q --workspace --test faults --test travel -- --nocapture --test-threads=1
	REWIND_FUZZ=20000 cargo test --profile checked -q --workspace mutated -- --nocapture

## test-gdb: the debugger's 34 scripts under the installed gdb, alone (make test runs them too)
test-gdb: setup build
	cargo test --profile checked -q --workspace --test gdb -- --nocapture

## install: the command, the guest, manual pages and completions under PREFIX (default /usr/local)
PREFIX ?= /usr/local
install: build
	install -D -m 755 target/release/rewind $(DESTDIR)$(PREFIX)/bin/rewind
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/rewind build/guest/vmlinux build/guest/initramfs.cpio build/guest/kernel.json
	target/release/rewind man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	target/release/rewind completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/rewind
	target/release/rewind completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_rewind

## fuzz: arbitrary code, tables and states on the software CPU, five million cases (some twenty minutes)
fuzz:
	cargo run --release -q -p soft-cpu-diff -- --fuzz 5000000 --seed 2

## demo: sets up, builds, and shows the main job: check finds a lost update, narrows it and says why
demo:
	@scripts/demo.sh

## clean: removes what was built here (not the kernel kept in the user's cache)
clean:
	rm -rf target build

help:
	@sed -n 's/^## /  /p' Makefile

.PHONY: all setup build lint test test-kvm diff-full fuzz bench-engine test-faults test-gdb install demo clean help
