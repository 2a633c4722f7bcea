/* A bit of everything whose order or timing could differ: threads, pipes, signals, sleep, randomness, the TSC. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counter;
static volatile sig_atomic_t signals;

static void on_signal(int number) { signals += number; }

static void *work(void *argument)
{
	for (int i = 0; i < 50; i++) {
		pthread_mutex_lock(&lock);
		counter += (long)argument;
		pthread_mutex_unlock(&lock);
		if (i % 10 == 0)
			printf("thread %ld at %d sees %ld\n", (long)argument, i, counter);
		if (i % 25 == 0)
			usleep(1000 * (long)argument);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[4];
	unsigned char bytes[16];
	struct timespec before, after;
	int ends[2], status;
	unsigned int aux;
	char text[32] = "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGUSR1, on_signal);
	for (long i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, work, (void *)(i + 1));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	kill(getpid(), SIGUSR1);
	printf("signals %d\n", (int)signals);

	if (pipe(ends))
		return 1;
	if (fork() == 0) {
		dprintf(ends[1], "child %d", getpid());
		_exit(5);
	}
	if (read(ends[0], text, sizeof(text) - 1) <= 0)
		return 2;
	wait(&status);
	printf("%s ended with %d\n", text, WEXITSTATUS(status));

	FILE *random = fopen("/dev/urandom", "r");
	if (!random || fread(bytes, 1, 8, random) != 8 || getrandom(bytes + 8, 8, 0) != 8)
		return 3;
	for (int i = 0; i < 16; i++)
		printf("%02x", bytes[i]);
	printf(" random, stack at %p, heap at %p\n", (void *)bytes, malloc(1 << 20));

	clock_gettime(CLOCK_MONOTONIC, &before);
	unsigned long long first = __rdtsc();
	sleep(2);
	unsigned long long second = __rdtscp(&aux);
	clock_gettime(CLOCK_MONOTONIC, &after);
	printf("slept %ld s, TSC %llu then %llu more, aux %u, time %ld\n", (long)(after.tv_sec - before.tv_sec), first,
	       second - first, aux, (long)time(NULL));
	return 0;
}
