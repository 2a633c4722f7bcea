/* A thread spins on a flag that only the main thread sets: it ends only where computing takes time. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

static volatile int started, go;
static volatile long rounds;

static void *spinner(void *argument)
{
	started = 1;
	while (!go)
		rounds++;
	return argument;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, spinner, NULL);
	while (!started)
		sched_yield();
	go = 1;
	pthread_join(thread, NULL);
	printf("%ld rounds\n", rounds);
	return 0;
}
