# compile: gcc -g -O0 -static-pie -o static_pie static.c
# A static program at an address chosen at its start.
break step
continue
#= Breakpoint 1, step (n=33)
finish
#= Value returned is $1 = 42
reverse-step
reverse-step
#= step (n=33)
