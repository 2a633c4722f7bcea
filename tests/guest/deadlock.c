/* Ends in a deadlock of two threads. Arguments, in any order: "tcp" talks over loopback TCP before, "timer" keeps an
 * interval timer running beside. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;

static void *other(void *unused)
{
	pthread_mutex_lock(&second);
	pthread_barrier_wait(&both);
	pthread_mutex_lock(&first);
	return unused;
}

static void *serve(void *argument)
{
	int client = accept(*(int *)argument, NULL, NULL);
	char buffer[64];
	ssize_t n;

	while ((n = read(client, buffer, sizeof(buffer))) > 0)
		if (write(client, buffer, n) != n)
			break;
	close(client);
	return NULL;
}

static int talk(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	char buffer[64];
	pthread_t server;

	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		return 1;
	pthread_create(&server, NULL, serve, &listener);
	if (connect(client, (struct sockaddr *)&address, length))
		return 1;
	for (int i = 0; i < 5; i++) {
		if (write(client, "a", 1) != 1 || write(client, "bc", 2) != 2)
			return 1;
		for (int n = 0; n < 3; n += read(client, buffer, sizeof(buffer)))
			;
	}
	close(client);
	pthread_join(server, NULL);
	close(listener);
	puts("talked");
	return 0;
}

static void on_alarm(int number) { (void)number; }

int main(int argc, char **argv)
{
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "tcp") && talk())
			return 1;
		if (!strcmp(argv[i], "timer")) {
			struct itimerval every = { { 0, 100000 }, { 0, 100000 } };

			signal(SIGALRM, on_alarm);
			setitimer(ITIMER_REAL, &every, NULL);
		}
	}
	pthread_barrier_init(&both, NULL, 2);
	pthread_mutex_lock(&first);
	pthread_create(&thread, NULL, other, NULL);
	pthread_barrier_wait(&both);
	puts("now");
	pthread_mutex_lock(&second);
	puts("never");
	return 0;
}
