/* A handler in the middle of something. SPDX-License-Identifier: MIT */
#include <signal.h>

static volatile int seen;
static volatile int before, after;

static void handler(int number) {
    seen = number;
}

int main(void) {
    signal(SIGUSR2, handler);
    before = 1;
    raise(SIGUSR2);
    after = 1;
    return seen == SIGUSR2 ? 0 : 1;
}
