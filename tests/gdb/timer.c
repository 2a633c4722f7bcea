/* A timer's signals while it waits. SPDX-License-Identifier: MIT */
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t ticks;

static void tick(int number) {
    ticks += number == SIGALRM;
}

int main(void) {
    struct itimerval every = { { 0, 20000 }, { 0, 20000 } };
    signal(SIGALRM, tick);
    setitimer(ITIMER_REAL, &every, 0);
    while (ticks < 3)
        pause();
    return 0;
}
