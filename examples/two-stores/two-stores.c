/* A worker publishes "done" before the result. No system call stands between the two stores, so only a preemption
 * between two plain instructions shows it. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static volatile int done;
static volatile int result;

static void *worker(void *unused) {
    int answer = 6;
    (void)unused;
    answer *= 7;
#ifdef FIXED
    result = answer;
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
#else
    done = 1;
    result = answer;
#endif
    return NULL;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, NULL) != 0)
        return 3;
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE))
        sched_yield();
    int seen = result;
    if (seen != 42) {
        fprintf(stderr, "done, but the result is %d\n", seen);
        abort();
    }
    pthread_join(thread, NULL);
    return 0;
}
