/* A loop to stop in. SPDX-License-Identifier: MIT */
#include <stdio.h>

static long total;

static void add(int n) {
    total += n;
}

int main(void) {
    for (int i = 1; i <= 20; i++)
        add(i);
    printf("%ld\n", total);
    return 0;
}
