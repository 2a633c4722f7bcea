# Thread-local variables, each thread its own; glibc's too.
break stop
continue
#= hit Breakpoint 1, stop ()
print own
#= $1 = 42
print other
#= $2 = 7
up
#= worker
thread 1
print own
#= = 6
print other
#= = 0
print errno
#= = 3
