/* Two workers count themselves done without a lock; the main thread spins until both are: lost, it spins for ever. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

static volatile int done;

static void *work(void *unused) {
    (void)unused;
    int before = done;
    done = before + 1;
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t workers[2];
    (void)argv;
    for (int i = 0; i < 2; i++) pthread_create(&workers[i], NULL, work, NULL);
    /* With an argument for one more than there are. */
    while (done < 2 + (argc > 1)) sched_yield();
    puts("done");
    return 0;
}
