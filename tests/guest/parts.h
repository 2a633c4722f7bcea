/*
 * A program of named parts: each does one kind of thing, checks it, and prints all it saw, so that a difference between
 * two runs or two engines shows. Without arguments all parts run, each in a process of its own.
 */
#ifndef PARTS_H
#define PARTS_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                                                        \
	do {                                                                                            \
		if (!(x)) {                                                                             \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #x, strerror(errno));             \
			exit(9);                                                                        \
		}                                                                                       \
	} while (0)

struct part {
	const char *name;
	void (*run)(void);
};

static int run_parts(const struct part *parts, int argc, char **argv)
{
	int failed = 0, found = 0, status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (; parts->name; parts++) {
		if (argc > 1 && strcmp(argv[1], parts->name))
			continue;
		found = 1;
		printf("-- %s\n", parts->name);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			parts->run();
			exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		if (status) {
			printf("-- %s failed: status %x\n", parts->name, status);
			failed = 1;
		}
	}
	return failed || !found;
}

/* Prints a whole file, for those made by the kernel. */
static void __attribute__((unused)) show(const char *path)
{
	char text[4096];
	int fd = open(path, O_RDONLY), n;

	CHECK(fd >= 0);
	printf("%s:\n", path);
	fflush(stdout);
	while ((n = read(fd, text, sizeof(text))) > 0)
		CHECK(write(1, text, n) == n);
	CHECK(n == 0);
	close(fd);
}
#endif
