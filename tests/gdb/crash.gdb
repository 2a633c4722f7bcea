# at: @crash
# A crash: the debugger begins at the instruction that faults, with its signal.
bt
#= last (node=0x0) at *crash.c:6
#= go () at *crash.c:11
#= main () at *crash.c:16
print $_siginfo.si_signo
#= $1 = 11
print $_siginfo._sifields._sigfault.si_addr
#= $2 = (void *) 0x0
print head->value
#= $3 = 2
watch head
reverse-continue
#= Hardware watchpoint 1: head
#= New value = (struct node *) 0x0
continue
#= Hardware watchpoint 1: head
delete
continue
#= Program received signal SIGSEGV
continue
#= No more reverse-execution history.
