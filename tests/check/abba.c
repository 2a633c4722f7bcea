/* Two threads take two locks in opposite orders. No system call stands between them as long as nobody waits. */
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t accounts = PTHREAD_MUTEX_INITIALIZER, journal = PTHREAD_MUTEX_INITIALIZER;
static int money = 100, entries;

static void *mover(void *unused) {
    for (int i = 0; i < 5; i++) {
        pthread_mutex_lock(&accounts);
        money--;
        pthread_mutex_lock(&journal);
        entries++;
        pthread_mutex_unlock(&journal);
        pthread_mutex_unlock(&accounts);
    }
    return unused;
}

static void *auditor(void *unused) {
    for (int i = 0; i < 5; i++) {
        pthread_mutex_lock(&journal);
        int n = entries;
        pthread_mutex_lock(&accounts);
        if (n + money != 100)
            puts("wrong");
        pthread_mutex_unlock(&accounts);
        pthread_mutex_unlock(&journal);
    }
    return unused;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, mover, NULL);
    pthread_create(&threads[1], NULL, auditor, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
