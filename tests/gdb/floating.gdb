# Floating-point registers, of both units.
break scale
continue
#= Breakpoint 1, scale (by=5)
print $xmm0.v2_double[0]
#= $1 = 5
finish
#= Value returned is $2 = 2.5
break wide
continue
#= Breakpoint 2, wide (by=6)
finish
#= Value returned is $3 = 2
print $st0 > 1.9 && $st0 < 2.1
#= $4 = 1
reverse-stepi
print $mxcsr
#= $5 = [ *IM DM ZM OM UM PM
