/* A thread-local variable of two threads. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdlib.h>

static __thread long mine;

static void *other(void *unused) {
    (void)unused;
    mine = 222; /* OTHER */
    return NULL;
}

int main(void) {
    pthread_t thread;
    mine = 111; /* OWN */
    pthread_create(&thread, NULL, other, NULL);
    pthread_join(thread, NULL);
    abort();
}
