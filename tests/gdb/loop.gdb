# Breakpoints in a loop: ignored a number of times, with a condition, and all of it backward.
break add
ignore 1 9
continue
#= Breakpoint 1, add (n=10) at *loop.c:7
print total
#= $1 = 45
delete
break add if n == 15
continue
#= Breakpoint 2, add (n=15)
reverse-continue
#= No more reverse-execution history.
continue
#= Breakpoint 2, add (n=15)
delete
break add if n == 3
reverse-continue
#= Breakpoint 3, add (n=3)
print total
#= $2 = 3
delete
tbreak 13
continue
#= Temporary breakpoint 4, main () at *loop.c:13
