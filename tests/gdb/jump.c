/* Jumps out of a call. SPDX-License-Identifier: MIT */
#include <setjmp.h>

static jmp_buf place;
static int tries;

static void leave(void) {
    tries++;
    longjmp(place, tries);
}

int main(void) {
    int got = setjmp(place);
    if (got < 3)
        leave();
    return got == 3 ? 0 : 1;
}
