# program: fork
# at: child
# The child of a fork, debugged by its process id.
break change
continue
#= Breakpoint 1, change (to=1)
continue
#= Breakpoint 1, change (to=2)
print value
#= $1 = 1
delete
continue
#= No more reverse-execution history.
