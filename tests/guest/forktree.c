/* A binary tree of processes, each of which maps, writes and shares some memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int grow(int depth, int *shared)
{
	char *own = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(own, depth, 1 << 16);
	__atomic_add_fetch(shared, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; depth && i < 2; i++)
		if (fork() == 0)
			_exit(grow(depth - 1, shared));
	while (wait(NULL) > 0)
		;
	if (own[4096] != depth)
		return 1;
	munmap(own, 1 << 16);
	return 0;
}

int main(int argc, char **argv)
{
	int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int result = grow(argc > 1 ? atoi(argv[1]) : 4, shared);

	printf("%d processes\n", *shared);
	return result;
}
