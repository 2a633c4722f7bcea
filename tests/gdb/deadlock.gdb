# at: @end
# A deadlock: nothing is on the CPU, every thread waits in the kernel.
info threads
#= sleeping in futex
thread apply all bt
#= Thread 3 (
#= second (argument=0x0) at *deadlock.c:22
#= Thread 2 (
#= first (argument=0x0) at *deadlock.c:14
#= Thread 1 (
#= main () at *deadlock.c:30
print left.__data.__owner != 0 && right.__data.__owner != 0
#= $1 = 1
continue
#= No more reverse-execution history.
break second
reverse-continue
#= hit Breakpoint 1, second
print right.__data.__owner
#= $2 = 0
next
next
print right.__data.__owner != 0
#= $3 = 1
continue
#= No more reverse-execution history.
