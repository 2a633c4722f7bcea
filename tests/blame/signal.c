/* A value written by a signal handler, and one by nobody but it. SPDX-License-Identifier: MIT */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile int state;

static void handler(int number) {
    state = number; /* HANDLER */
}

int main(void) {
    signal(SIGUSR1, handler);
    state = 1;
    kill(getpid(), SIGUSR1);
    abort();
}
