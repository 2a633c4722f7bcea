/* One thread adds variables to the environment while another looks one up.
 *
 * setenv moves the array of variables when it grows and frees the old one; getenv may still be walking it. Only
 * a preemption inside getenv, between two plain instructions, shows it. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES 24

#ifdef FIXED
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCK() pthread_mutex_lock(&lock)
#define UNLOCK() pthread_mutex_unlock(&lock)
#else
#define LOCK() ((void)0)
#define UNLOCK() ((void)0)
#endif

static char *kept[NAMES];

static void *writer(void *unused) {
    (void)unused;
    for (int i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof name, "NAME%d", i);
        LOCK();
        if (setenv(name, "a value that is long enough to need memory of its own", 1) != 0)
            exit(3);
        UNLOCK();
        /* What the program does besides: memory that was freed is soon used for something else. */
        kept[i] = malloc(64 * (size_t)(i % 6 + 1));
        if (kept[i] == NULL)
            exit(3);
        memset(kept[i], 'x', 64 * (size_t)(i % 6 + 1));
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    int found = 0;
    if (pthread_create(&thread, NULL, writer, NULL) != 0)
        return 3;
    for (int i = 0; i < NAMES; i++) {
        LOCK();
        found += getenv("NOT_THERE") != NULL;
        UNLOCK();
    }
    pthread_join(thread, NULL);
    printf("found %d\n", found);
    return found;
}
