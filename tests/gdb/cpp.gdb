# C++: pretty printers, virtual calls, exceptions, demangled names.
break Square::area
continue
#= Breakpoint 1, Square::area (this=
up
print numbers
#= $1 = std::vector of length 3, capacity 3 = {1, 2, 3}
print words
#= $2 = std::map with 2 elements = {["one"] = 1, ["two"] = 2}
print name
#= $3 = "rewind"
catch throw
continue
#= Catchpoint 2 (exception thrown)
bt
#= check (n=3)
#= main ()
delete 2
tbreak 42
continue
#= 42
print name
#= $4 = "too many"
delete
break count_words
reverse-continue
#= Breakpoint 4, count_words (words=std::map with 2 elements
