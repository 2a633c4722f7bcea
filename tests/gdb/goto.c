/* A few steps to go between. SPDX-License-Identifier: MIT */
#include <unistd.h>

static int phase;

int main(void) {
    for (phase = 0; phase < 6; phase++)
        getppid();
    return 0;
}
