# memory: 128M
# Going back N instructions and forward N: every register and all memory are the same at every place.
break 15
continue
#= Breakpoint 1, main ()
delete
stepi
python
import gdb
def state():
    return (gdb.execute('monitor position', to_string=True), gdb.execute('monitor hash', to_string=True),
            gdb.execute('info all-registers', to_string=True))
def walk(way, times):
    states = []
    for _ in range(times):
        gdb.execute(way, to_string=True)
        states.append(state())
    return states
count = 8
bad = 0
compared = 0
for place in ('17', '19'):
    gdb.execute('tbreak ' + place, to_string=True)
    gdb.execute('continue', to_string=True)
    gdb.execute('stepi 7', to_string=True)
    start = [state()]
    first = start + walk('stepi', count)
    back = walk('reverse-stepi', count)
    again = walk('stepi', count)
    expected = first[:-1][::-1]
    bad += sum(a != b for a, b in zip(expected, back)) + sum(a != b for a, b in zip(first[1:], again))
    compared += 2 * count
print('%d states compared, %d differ' % (compared, bad))
end
#= 32 states compared, 0 differ
