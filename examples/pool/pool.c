/* A thread pool whose owner frees the job queue before it has joined the workers.
 *
 * A worker that wakes late still looks into the queue. SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORKERS 3
#define JOBS 6

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int *slots; /* jobs waiting; freed with the queue */
    int count;
    int closed;
};

struct pool {
    struct queue *queue;
    pthread_t workers[WORKERS];
};

static long total;

static void *worker(void *argument) {
    struct queue *queue = argument;
    for (;;) {
        int job;
        pthread_mutex_lock(&queue->lock);
        while (queue->count == 0 && !queue->closed)
            pthread_cond_wait(&queue->changed, &queue->lock);
        if (queue->count == 0) {
            pthread_mutex_unlock(&queue->lock);
            return NULL;
        }
        job = queue->slots[--queue->count];
        pthread_mutex_unlock(&queue->lock);
        if (job < 1 || job > JOBS) { /* not a job anybody queued */
            fprintf(stderr, "worker got job %d\n", job);
            abort();
        }
        __atomic_add_fetch(&total, job, __ATOMIC_SEQ_CST);
        if (write(1, ".", 1) != 1)
            abort();
    }
}

static struct queue *queue_new(void) {
    struct queue *queue = calloc(1, sizeof *queue);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    queue->slots = calloc(JOBS, sizeof *queue->slots);
    return queue;
}

static void queue_push(struct queue *queue, int job) {
    pthread_mutex_lock(&queue->lock);
    queue->slots[queue->count++] = job;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

static void queue_close(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = 1;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

static void queue_free(struct queue *queue) {
    memset(queue->slots, 0xdd, JOBS * sizeof *queue->slots);
    free(queue->slots);
    memset(queue, 0xdd, sizeof *queue);
    free(queue);
}

static void pool_join(struct pool *pool) {
    for (int i = 0; i < WORKERS; i++)
        pthread_join(pool->workers[i], NULL);
}

static void wait_until_empty(struct queue *queue) {
    for (;;) {
        int left;
        pthread_mutex_lock(&queue->lock);
        left = queue->count;
        pthread_mutex_unlock(&queue->lock);
        if (left == 0)
            return;
        usleep(1000);
    }
}

int main(void) {
    struct pool pool = {.queue = queue_new()};
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&pool.workers[i], NULL, worker, pool.queue) != 0)
            return 3;
    for (int job = 1; job <= JOBS; job++)
        queue_push(pool.queue, job);
    wait_until_empty(pool.queue);
    queue_close(pool.queue);
#ifdef FIXED
    pool_join(&pool);
    queue_free(pool.queue);
#else
    usleep(10000); /* "they will be gone by then" */
    queue_free(pool.queue);
    pool_join(&pool);
#endif
    dprintf(1, "total %ld\n", total);
    return total == JOBS * (JOBS + 1) / 2 ? 0 : 2;
}
