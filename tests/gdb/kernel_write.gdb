# A watched buffer that read(2) fills: stops where the call returns, and backward before it.
watch buffer
continue
#= Hardware watchpoint 1: buffer
#= New value = "hello*
bt
#= main () at *kernel_write.c:11
reverse-continue
#= Hardware watchpoint 1: buffer
#= New value = '\000' <repeats 15 times>
bt
#= main () at *kernel_write.c:11
