# compile: gcc -g -O2 -o optimised optimised.c
# Optimised code: frames of inlined functions, out of them backward.
watch sink
continue
#= Hardware watchpoint 1: sink
continue
#= Hardware watchpoint 1: sink
#= Old value = 1
#= New value = 2
reverse-stepi
bt
#= work (n=
#= main () at *optimised.c
stepi
reverse-continue
#= Old value = 2
#= New value = 1
reverse-continue
#= New value = 0
