# Finish and step out of a recursion, forward and back.
break factorial if n == 2
continue
#= Breakpoint 1, factorial (n=2)
bt
#= #3 * factorial (n=5)
#= #4 * main ()
finish
#= Value returned is $1 = 2
reverse-step
reverse-step
#= factorial (n=2)
delete
reverse-finish
#= factorial (n=2) at *recursion.c:5
reverse-finish
#= factorial (n=3) at *recursion.c:5
reverse-finish
#= factorial (n=4) at *recursion.c:5
reverse-finish
#= factorial (n=5) at *recursion.c:5
reverse-finish
#= main () at *recursion.c:10
next
#= 11
print result
#= $2 = 120
reverse-next
#= 10
