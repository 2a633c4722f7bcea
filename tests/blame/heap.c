/* A block used after it was freed, and given out again. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

static long *stale;

static void release(long *block) {
    free(block); /* FREED */
}

int main(void) {
    stale = malloc(64);
    stale[3] = 33; /* WRITTEN */
    release(stale);
    long *other = malloc(64); /* AGAIN */
    other[3] = 44; /* OVERWRITTEN */
    abort();
}
