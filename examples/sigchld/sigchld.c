/* A SIGCHLD handler that reaps one child per signal.
 *
 * Signals do not queue: two children that end together raise one signal, and the second is never reaped.
 * SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 2

static volatile sig_atomic_t reaped;

static void on_child(int number) {
    int saved = errno;
    (void)number;
#ifdef FIXED
    while (waitpid(-1, NULL, WNOHANG) > 0)
        reaped++;
#else
    if (waitpid(-1, NULL, WNOHANG) > 0)
        reaped++;
#endif
    errno = saved;
}

int main(void) {
    sigset_t block, before;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_child;
    sigaction(SIGCHLD, &action, NULL);
    sigemptyset(&block);
    sigaddset(&block, SIGCHLD);
    sigprocmask(SIG_BLOCK, &block, &before);

    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child < 0)
            return 3;
        if (child == 0) {
            usleep(1000 * (i + 1)); /* "they will not end at once" */
            _exit(0);
        }
    }
    while (reaped < CHILDREN)
        sigsuspend(&before);
    puts("all children reaped");
    return 0;
}
