// What a kernel does for a busy program: system calls, pipes between two processes, forks, page faults.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 300000, ROUNDS = 2000, FORKS = 1000, MAPS = 300, PAGES = 200 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static long calls(void)
{
    long sum = 0;
    for (int i = 0; i < CALLS; i++)
        sum += syscall(SYS_getppid) >= 0;
    return sum;
}

// A number goes to a child and back, one larger each way.
static long rounds(void)
{
    int there[2], back[2];
    long n = 0;
    if (pipe(there) || pipe(back))
        fail("pipe");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        close(there[1]);
        while (read(there[0], &n, sizeof n) == sizeof n) {
            n++;
            if (write(back[1], &n, sizeof n) != sizeof n)
                _exit(1);
        }
        _exit(0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        n++;
        if (write(there[1], &n, sizeof n) != sizeof n || read(back[0], &n, sizeof n) != sizeof n)
            fail("round");
    }
    close(there[1]);
    waitpid(child, NULL, 0);
    return n;
}

static long forks(void)
{
    long sum = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0)
            _exit(i & 127);
        int status;
        if (waitpid(child, &status, 0) != child)
            fail("waitpid");
        sum += WEXITSTATUS(status);
    }
    return sum;
}

static long faults(void)
{
    long sum = 0;
    for (int i = 0; i < MAPS; i++) {
        unsigned char *at = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            fail("mmap");
        for (int page = 0; page < PAGES; page++)
            at[page * 4096] = (unsigned char)(page + i);
        for (int page = 0; page < PAGES; page++)
            sum += at[page * 4096];
        munmap(at, PAGES * 4096);
    }
    return sum;
}

int main(void)
{
    printf("calls %ld\n", calls());
    printf("rounds %ld\n", rounds());
    printf("forks %ld\n", forks());
    printf("faults %ld\n", faults());
    return 0;
}
