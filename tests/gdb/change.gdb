# Changing something leaves the recording, and says so; going back returns to it.
break main
break left
break right
continue
#= Breakpoint 1, main ()
set var way = 2
#= no longer the recording
continue
#= Breakpoint 3, right ()
monitor position
#= so this is not the recording
reverse-continue
#= back on the recording
print way
#= $1 = 1
continue
continue
#= Breakpoint 2, left ()
monitor position
print taken
