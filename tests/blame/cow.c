/* After a fork each process has its own value: the child's write is not the parent's. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int value = 5;
static int untouched = 77;

int main(void) {
    value = 1; /* BEFORE */
    int status;
    if (fork() == 0) {
        value = 2; /* CHILD */
        _exit(0);
    }
    wait(&status);
    if (fork() == 0)
        abort(); /* a child that never wrote: its value is the parent's */
    wait(&status);
    (void)untouched;
    abort();
}
