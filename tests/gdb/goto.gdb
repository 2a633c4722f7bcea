# monitor: positions, bookmarks, going anywhere, events.
break getppid if phase == 4
continue
#= Breakpoint 1
monitor bookmark four
monitor goto start
#= at *
info line *$pc
print phase
#= = 0
monitor goto four
print phase
#= = 4
monitor where
#= thread * (goto)
monitor events
#= executes *
monitor goto end
bt
#= _exit
monitor nonsense
#= monitor position
monitor goto nowhere
#= nowhere is no position and no bookmark
