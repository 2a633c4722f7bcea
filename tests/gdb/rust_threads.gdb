# compile: rustc -g -o rust_threads rust_threads.rs
# Rust threads: who made the last change, backward from the end.
break rust_threads.rs:20
continue
#= rust_threads.rs:20
watch rust_threads::HITS
reverse-continue
#= Hardware watchpoint 2: rust_threads::HITS
bt
#= rust_threads::add (n=
reverse-continue
#= Hardware watchpoint 2: rust_threads::HITS
reverse-continue
#= Hardware watchpoint 2: rust_threads::HITS
reverse-continue
#= No more reverse-execution history.
