# compile: gcc -g -O0 -fPIC -shared -o liblibrary.so library_part.c
# compile: gcc -g -O0 -o library library.c -L. -llibrary -Wl,-rpath,.
# A shared library: breakpoints, its variables, its thread-local ones, and out of it backward.
break scale
continue
#= Breakpoint 1, scale (n=14) at *library_part.c:6
info sharedlibrary
#= liblibrary.so
print calls
#= $1 = 0
print factor
#= $2 = 3
reverse-finish
#= main () at *library.c:7
watch factor
reverse-continue
#= Hardware watchpoint 2: factor
#= New value = 1
