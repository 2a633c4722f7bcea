/* The library. SPDX-License-Identifier: MIT */
int factor = 1;
static __thread int calls;

int scale(int n) {
    calls++;
    return n * factor;
}
