# Many breakpoints and watchpoints at once.
rbreak ^f[0-9][0-9]*$
python
for cell in range(20):
    gdb.execute('watch cells[%d]' % cell, to_string=True)
hit = False
def stopped(event):
    global hit
    hit = isinstance(event, gdb.BreakpointEvent)
gdb.events.stop.connect(stopped)
def count(way):
    stops = 0
    while stops < 1000:
        gdb.execute(way, to_string=True)
        if not hit:
            return stops
        stops += 1
stops, back = count('continue'), count('reverse-continue')
print('%d stops forward, %d back' % (stops, back))
end
#= 39 stops forward, 39 back
