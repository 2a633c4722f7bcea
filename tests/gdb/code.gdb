# Code that the program makes: breakpoints in it, and back to before it was there.
break 12
continue
#= Breakpoint 1, main ()
break *(char *)made
continue
#= Breakpoint 2, 0x
x/2i $pc
#= lea *0x1(%rdi),%eax
print $edi
#= $1 = 41
watch -l *(int *)made
reverse-continue
#= Breakpoint 1, main ()
reverse-continue
#= Hardware watchpoint 3
#= New value = 0
