/* Memory two processes share: the child writes what the parent reads. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int *shared;

int main(void) {
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *shared = 1; /* PARENT */
    if (fork() == 0) {
        *shared = 2; /* CHILD */
        _exit(0);
    }
    wait(NULL);
    abort();
}
