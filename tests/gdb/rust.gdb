# compile: rustc -g -o rust rust.rs
# Rust: pretty printers, names, and back out of a call.
break rust::look
continue
#= Breakpoint 1, rust::look (numbers=*, name="rewind")
up
print numbers
#= $1 = Vec(size=3) = {10, 20, 30}
print name
#= $2 = "rewind"
print maybe
#= Some(5)
down
delete
reverse-finish
#= rust::main () at *rust.rs:17
next
#= 18
print found
#= Some(20)
