# at: @crash
# An abort begins in the call that raised it.
bt
#= abort
#= checked (n=3) at *abort.c:5
#= main () at *abort.c:12
frame function main
print sum
#= $1 = 3
