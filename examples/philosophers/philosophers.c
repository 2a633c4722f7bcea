/* Dining philosophers: each takes the fork on the left, then the one on the right.
 *
 * If all have their left fork, all wait for ever. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define PHILOSOPHERS 3
#define MEALS 4

static pthread_mutex_t forks[PHILOSOPHERS];

static void *dine(void *argument) {
    int me = *(int *)argument;
    pthread_mutex_t *first = &forks[me];
    pthread_mutex_t *second = &forks[(me + 1) % PHILOSOPHERS];
#ifdef FIXED
    if (first > second) { /* one order for all */
        pthread_mutex_t *swap = first;
        first = second;
        second = swap;
    }
#endif
    for (int meal = 0; meal < MEALS; meal++) {
        pthread_mutex_lock(first);
        (void)!write(1, ".", 1); /* looks up from the plate: one system call */
        pthread_mutex_lock(second);
        pthread_mutex_unlock(second);
        pthread_mutex_unlock(first);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[PHILOSOPHERS];
    int names[PHILOSOPHERS];
    for (int i = 0; i < PHILOSOPHERS; i++)
        pthread_mutex_init(&forks[i], NULL);
    for (int i = 0; i < PHILOSOPHERS; i++) {
        names[i] = i;
        if (pthread_create(&threads[i], NULL, dine, &names[i]) != 0)
            return 3;
    }
    for (int i = 0; i < PHILOSOPHERS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
