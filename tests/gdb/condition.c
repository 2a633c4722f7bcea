/* One waits for what another never says in time. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static int items;

static void *consumer(void *argument) {
    pthread_mutex_lock(&lock);
    while (items == 0)
        pthread_cond_wait(&ready, &lock);
    items--;
    pthread_mutex_unlock(&lock);
    return argument;
}

static void produce(void) {
    pthread_mutex_lock(&lock);
    items++;
    pthread_cond_signal(&ready);
    pthread_mutex_unlock(&lock);
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, consumer, 0);
    usleep(1000);
    produce();
    pthread_join(thread, 0);
    return items;
}
