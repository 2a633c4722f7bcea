/* Functions for the debugger to call. SPDX-License-Identifier: MIT */
#include <string.h>

static int calls;

static int square(int n) {
    calls++;
    return n * n;
}

int main(void) {
    int n = square(2);
    return n == 4 && strlen("abc") == 3 ? 0 : 1;
}
