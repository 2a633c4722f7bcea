/* A condition variable waited for without a predicate.
 *
 * If the producer signals before the consumer waits, nobody wakes the consumer. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static int message;

static void *consumer(void *unused) {
    (void)unused;
    dprintf(1, "consumer starts\n");
    pthread_mutex_lock(&lock);
#ifdef FIXED
    while (message == 0)
#endif
        pthread_cond_wait(&ready, &lock);
    dprintf(1, "consumer got %d\n", message);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, consumer, NULL) != 0)
        return 3;
    usleep(1000); /* "it will be waiting by then" */
    pthread_mutex_lock(&lock);
    message = 42;
    pthread_cond_signal(&ready);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    return 0;
}
