# Threads keep their numbers; a watchpoint stops in whichever writes, both ways.
break worker
continue
#= Thread 2 "threads" hit Breakpoint 1, worker
continue
#= hit Breakpoint 1, worker
continue
#= hit Breakpoint 1, worker
print by
break 24
delete 1
continue
#= main () at *threads.c:24
print counter
#= = 50505
watch counter
reverse-continue
#= Hardware watchpoint 3: counter
#= Old value = 50505
print by
reverse-continue
#= Hardware watchpoint 3: counter
delete
break worker
reverse-continue
#= hit Breakpoint 4, worker
info threads
#=   1 * Thread *
#= * * Thread *
thread 1
#= [Switching to thread 1
bt
#= main () at *threads.c
