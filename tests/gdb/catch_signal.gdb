# program: signal
# catch signal, and a signal that is passed without a word.
handle SIGUSR2 nostop noprint pass
tbreak 15
continue
#= main () at *signal.c:15
print seen
#= $1 = 12
catch signal SIGUSR2
reverse-continue
#= Catchpoint 2 (signal SIGUSR2)
print seen
#= $2 = 0
print $_siginfo.si_signo
#= $3 = 12
