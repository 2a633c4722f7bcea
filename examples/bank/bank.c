/* Two tellers deposit into one account. Nobody takes a lock.
 *
 * Each deposit reads the balance, prints it, then stores the sum: a teller preempted between the read and
 * the store overwrites what the other one deposited meanwhile. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../sdk/c/rewind.h"

#define DEPOSITS 20
#define AMOUNT 10

#ifdef FIXED
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCK() pthread_mutex_lock(&lock)
#define UNLOCK() pthread_mutex_unlock(&lock)
#else
#define LOCK() ((void)0)
#define UNLOCK() ((void)0)
#endif

static long balance;

static void print(long seen) {
    char line[64];
    int length = snprintf(line, sizeof line, "balance %ld\n", seen);
    if (write(1, line, (size_t)length) != length)
        _exit(3);
}

static void deposit(int teller, long amount) {
    (void)teller; /* for the debugger */
    LOCK();
    long seen = balance;

    print(seen);

    balance = seen + amount;
    UNLOCK();
}

static void *teller(void *argument) {
    int number = *(int *)argument;
    for (int i = 0; i < DEPOSITS; i++)
        deposit(number, AMOUNT);
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    int numbers[2] = {1, 2};
    const long expected = 2 * DEPOSITS * AMOUNT;

    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, teller, &numbers[i]) != 0)
            return 3;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);

    REWIND_ALWAYS_DETAILS(balance == expected, "balance-adds-up", "balance %ld, expected %ld", balance, expected);
    printf("%s\n", balance == expected ? "the balance adds up" : "money is missing");
    return balance == expected ? 0 : 2;
}
