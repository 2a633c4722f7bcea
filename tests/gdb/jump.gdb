# longjmp, forward and back.
break leave
continue
#= Breakpoint 1, leave ()
tbreak 14 if got == 1
continue
#= Temporary breakpoint 2, main () at *jump.c:14
print tries
#= $1 = 1
reverse-continue
#= Breakpoint 1, leave ()
print tries
#= $2 = 0
