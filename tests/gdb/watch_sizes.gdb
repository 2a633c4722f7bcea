# Watchpoints of all sizes at once; reads; a write that changes nothing is none.
break main
continue
watch one
watch two
watch four
watch eight
watch wide
watch big
continue
#= Hardware watchpoint 2: one
#= New value = 1
continue
#= Hardware watchpoint 3: two
continue
#= Hardware watchpoint 4: four
continue
#= Hardware watchpoint 5: eight
continue
#= Hardware watchpoint 6: wide
#= New value = {a = 0, b = 24, c = 0}
continue
#= Hardware watchpoint 7: big
rwatch eight
continue
#= Hardware read watchpoint 8: eight
#= Value = 8
awatch sum
reverse-continue
#= Hardware read watchpoint 8: eight
continue
#= Hardware read watchpoint 8: eight
continue
#= Hardware access (read/write) watchpoint 9: sum
delete 7 8 9
continue
#= Hardware watchpoint 4: four
#= Old value = 4
#= New value = 5
reverse-continue
#= Hardware watchpoint 4: four
#= Old value = 5
#= New value = 4
reverse-continue
#= Hardware watchpoint 6: wide
#= New value = {a = 0, b = 0, c = 0}
