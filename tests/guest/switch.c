/* Threads that make system calls and never wait: wherever one is preempted, the others can run. They start together. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>

static int calls;
static pthread_barrier_t start;

static void *work(void *argument)
{
	pthread_barrier_wait(&start);
	for (int i = 0; i < calls; i++)
		syscall(SYS_getppid);
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t threads[16];
	int count = argc > 1 ? atoi(argv[1]) : 4;

	calls = argc > 2 ? atoi(argv[2]) : 1000;
	if (count < 1 || count > 16)
		return 2;
	pthread_barrier_init(&start, NULL, count);
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("%d threads made %d calls each\n", count, calls);
	return 0;
}
