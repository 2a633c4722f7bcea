# compile: gcc -g -O0 -static -no-pie -o static static.c
# A static program at fixed addresses.
break step
continue
#= Breakpoint 1, step (n=33)
print own
#= $1 = 9
watch state
continue
#= Hardware watchpoint 2: state
#= New value = 33
reverse-finish
#= Hardware watchpoint 2: state
#= New value = 0
