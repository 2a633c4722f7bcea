/* A deadlock: the thread that waits last writes in its last step, which no other follows. SPDX-License-Identifier: MIT */
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long reached;

static void *second(void *argument) {
    reached = 1; /* REACHED */
    pthread_mutex_lock(&lock); /* HELD */
    return argument;
}

int main(void) {
    pthread_t thread;
    pthread_mutex_lock(&lock);
    pthread_create(&thread, NULL, second, NULL);
    pthread_join(thread, NULL); /* JOIN */
    return 0;
}
