# Signals of a timer: a watchpoint in the handler, signals passed silently.
handle SIGALRM nostop noprint pass
watch ticks
continue
#= Hardware watchpoint 1: ticks
#= New value = 1
bt
#= tick (number=14)
#= <signal handler called>
#= main () at *timer.c:17
continue
#= New value = 2
continue
#= New value = 3
reverse-continue
#= Old value = 3
#= New value = 2
delete
handle SIGALRM stop print
reverse-continue
#= received signal SIGALRM
print ticks
#= = 2
