# An exec is followed: breakpoints are set again in the new program, and going back ends at its beginning.
catch exec
tbreak main
continue
#= Temporary breakpoint 2, main (argc=1
continue
#= is executing new program: *exec
#= Catchpoint 1 (exec'd *exec)
break second
continue
#= Breakpoint 3, second ()
print generation
#= $1 = 0
bt
#= main (argc=2
delete
reverse-continue
#= No more reverse-execution history.
