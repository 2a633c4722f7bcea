# compile: gcc -g -O0 -fPIC -shared -o libdlopen.so library_part.c
# compile: gcc -g -O0 -o dlopen dlopen.c
# A pending breakpoint in a library that is loaded later, and thread-local storage allocated late.
break scale
#= pending
continue
#= Breakpoint 1, scale (n=5)
next
print calls
#= $1 = 1
bt
#= main () at *dlopen.c:7
reverse-next
#= scale (n=5) at *library_part.c:6
