# After a fork the parent is the one debugged: what the child does at the same addresses is not told.
break change
watch value
continue
#= Breakpoint 1, change (to=10)
continue
#= Hardware watchpoint 2: value
#= Old value = 0
#= New value = 10
reverse-continue
#= Hardware watchpoint 2: value
reverse-continue
#= Breakpoint 1, change (to=10)
reverse-continue
#= No more reverse-execution history.
