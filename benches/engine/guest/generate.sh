#!/bin/bash
# Writes a C program of 2,000 lines: sixteen functions and many tables of loops, switches, strings and floating point, the same every time.
set -euo pipefail

awk 'BEGIN {
    print "// Generated: work for a compiler."
    print "typedef unsigned long u64;"
    print "typedef struct { u64 key; double weight; char name[24]; } item;"
    print "static item items[256];"
    lines = 4
    seed = 12345
    for (f = 0; f < 16; f++) {
        n = 0
        body[n++] = sprintf("__attribute__((noinline)) u64 work_%d(u64 a, u64 b, const char *s)", f)
        body[n++] = "{"
        body[n++] = "    u64 sum = a, i;"
        body[n++] = "    double x = 0.5;"
        while (n < 37) {
            seed = (seed * 1103515245 + 12345) % 2147483648
            k = int(seed / 65536) % 6
            c = int(seed / 1024) % 61 + 3
            if (k == 0 && n < 33) {
                body[n++] = sprintf("    for (i = 0; i < %d; i++)", c)
                body[n++] = sprintf("        sum = (sum ^ items[(i * %d) & 255].key) * %dUL;", c, 2 * c + 1)
            } else if (k == 1 && n < 30) {
                body[n++] = sprintf("    switch (sum %% %d) {", c % 7 + 3)
                body[n++] = sprintf("    case 0: sum += b << %d; break;", c % 13)
                body[n++] = sprintf("    case 1: sum -= a >> %d; break;", c % 11)
                body[n++] = sprintf("    case 2: sum ^= %dUL; break;", c * 977)
                body[n++] = "    default: sum = ~sum;"
                body[n++] = "    }"
            } else if (k == 2 && n < 33) {
                body[n++] = sprintf("    for (i = 0; s[i] && i < %d; i++)", c)
                body[n++] = sprintf("        items[sum & 255].name[i %% 24] = (char)(s[i] + %d);", c % 5)
            } else if (k == 3) {
                body[n++] = sprintf("    x = x * %d.25 + (double)(sum & %d) / (1.0 + x * x);", c % 9 + 1, c * 16 + 15)
            } else if (k == 4) {
                body[n++] = sprintf("    if (a > b + %d) sum += items[b & 255].key; else sum -= (u64)x;", c)
            } else {
                body[n++] = sprintf("    items[(sum >> %d) & 255].weight += x * %d.0;", c % 30, c)
            }
        }
        body[n++] = f ? sprintf("    return sum + work_%d(b, sum & 15, s + (sum & 1));", f - 1) : "    return sum;"
        body[n++] = "}"
        for (i = 0; i < n; i++) { print body[i]; lines++ }
    }
    while (lines < 1993) { printf("u64 value_%d = %dUL;\n", lines, lines * 7919); lines++ }
    print "int main(void)"
    print "{"
    print "    u64 r = 0;"
    print "    for (int i = 0; i < 100; i++)"
    print "        r += work_15(i, r, \"some text\");"
    print "    return (int)(r & 63);"
    print "}"
}'
