/* Three threads that add under a lock. SPDX-License-Identifier: MIT */
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int counter;

static void *worker(void *argument) {
    int by = *(int *)argument;
    for (int i = 0; i < 5; i++) {
        pthread_mutex_lock(&lock);
        counter += by;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

int main(void) {
    pthread_t threads[3];
    int by[3] = { 1, 100, 10000 };
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, worker, &by[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    return counter == 50505 ? 0 : 1;
}
