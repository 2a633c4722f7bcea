# compile: gcc -O1 -s -o stripped loop.c
# A program without symbols: where it is, by instructions.
stepi
info registers rip
#= rip
x/i $pc
#= => 0x
reverse-stepi
monitor position
#= run * at *
info proc mappings
#= stripped
continue
#= No more reverse-execution history.
