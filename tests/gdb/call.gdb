# Calling a function of the program from gdb.
break square
continue
#= Breakpoint 1, square (n=2)
finish
#= Value returned is $1 = 4
delete
print square(7)
#= $2 = 49
print calls
#= $3 = 2
reverse-stepi
print calls
#= $4 = 1
