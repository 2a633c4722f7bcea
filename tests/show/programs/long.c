// A global written once, then a long stretch of other work: computing, memory, system calls. ./long ROUNDS
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

long once;                                         // one page with `rounds`, which is written all the time
long rounds;
_Alignas(4096) union {                             // a page of its own
    long value;
    char page[4096];
} alone;
_Alignas(4096) static unsigned char table[1 << 20];

__attribute__((noinline)) static void set(long value) {
    once = value;
    alone.value = -value;
}

int main(int argc, char **argv) {
    long wanted = argc > 1 ? atol(argv[1]) : 1000;
    unsigned long state = 1;
    set(42);
    for (rounds = 0; rounds < wanted; rounds++) {
        for (int i = 0; i < 20000; i++) {
            state = state * 6364136223846793005ul + 1442695040888963407ul;
            table[state >> 44] += (unsigned char)state;
        }
        syscall(SYS_getppid);
    }
    printf("%lu %d\n", state, table[7]);
    abort();
}
