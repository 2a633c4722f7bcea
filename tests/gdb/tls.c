/* Thread-local variables of the program and of glibc. SPDX-License-Identifier: MIT */
#include <errno.h>
#include <pthread.h>

static __thread int own = 5;
static __thread long other;

static void stop(void) {}

static void *worker(void *argument) {
    own = 42;
    other = 7;
    errno = 11;
    stop();
    return argument;
}

int main(void) {
    pthread_t thread;
    errno = 3;
    own = 6;
    pthread_create(&thread, 0, worker, 0);
    pthread_join(thread, 0);
    return own;
}
