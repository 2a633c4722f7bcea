# A thread that waits in the kernel shows where the program is; next steps over what blocks.
break produce
continue
#= Breakpoint 1, produce ()
thread apply all bt
#= consumer (argument=0x0) at *condition.c:12
#= produce ()
next
next
print items
#= $1 = 1
watch items
continue
#= Hardware watchpoint 2: items
#= Old value = 1
#= New value = 0
bt
#= consumer
reverse-continue
#= Hardware watchpoint 2: items
reverse-continue
#= Hardware watchpoint 2: items
#= New value = 0
bt
#= produce ()
