# A signal is told before its handler runs; going back through the handler comes out where it was raised.
continue
#= received signal SIGUSR2
bt
#= main () at *signal.c:14
print before
#= $1 = 1
break handler
continue
#= Breakpoint 1, handler (number=12)
bt
#= <signal handler called>
#= main () at *signal.c:14
watch after
continue
#= Hardware watchpoint 2: after
delete
watch seen
reverse-continue
#= Hardware watchpoint 3: seen
#= Old value = 12
#= New value = 0
delete
reverse-continue
#= received signal SIGUSR2
watch before
reverse-continue
#= Hardware watchpoint 4: before
#= main () at *signal.c:13
