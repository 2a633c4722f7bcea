/* Two threads that take two locks in opposite order, and a main that waits for them: the machine stands still.
   SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER, right = PTHREAD_MUTEX_INITIALIZER;
static sem_t have_left, have_right;

static void *first(void *argument) {
    pthread_mutex_lock(&left);
    sem_post(&have_left);
    sem_wait(&have_right);
    pthread_mutex_lock(&right);
    return argument;
}

static void *second(void *argument) {
    pthread_mutex_lock(&right);
    sem_post(&have_right);
    sem_wait(&have_left);
    pthread_mutex_lock(&left);
    return argument;
}

int main(void) {
    pthread_t a, b;
    pthread_create(&a, 0, first, 0);
    pthread_create(&b, 0, second, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
    return 0;
}
