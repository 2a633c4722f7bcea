# program: crash
# at: @crash
# Stepping over a death stops at it, and the way back is open.
next
#= No more reverse-execution history
monitor position
stepi
#= No more reverse-execution history
reverse-stepi
bt
#= #0 *last (
continue
#= Program received signal SIGSEGV
reverse-continue
#= No more reverse-execution history
